"""Kernels of two-dimensional convolutions, with several exact methods."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.devices import by_kind
from fedaudit.signals.kernels import (
    BYTES_ON_GPU,
    Layer,
    LayerKernel,
    LayerProducts,
    WritesGradients,
    Written,
    blocked_products,
    direct,
    forward_dots,
    gram_norms,
    optional_bias,
    update_blocks,
    written_blocks,
)

Maps: TypeAlias = Float[Tensor, "samples channels rows columns"]
OutMaps: TypeAlias = Float[Tensor, "samples outputs out_rows out_columns"]

# From this many output positions on, a grouped convolution is the fastest way to write gradients.
_GROUPED_FROM = 128
# Windows of at most this size, as in a first layer: for norms alone blocks are 1.2 to 1.9 times as
# fast as a grouped convolution.
_FEW_ENTRIES = 96
_GROUPED_BYTES = 3 << 20
_GROUPED_SAMPLES = 8
_GROUPED_SAMPLES_ON_GPU = 32
# Forward products are faster than writing out gradients up to this many clients times positions.
_FORWARD_UP_TO = 64
# Squared norms from pairs of pixels sum small pieces: one entry takes as long as this many entries
# of a pass over the gradients.
_PAIRS_AGAINST_ENTRIES = 16
# If windows of one kernel row are narrower than this, whole windows are gathered.
_ROW_ENTRIES = 64


class Geometry(NamedTuple):
    """Geometry of a convolution's windows; each pair is (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    inputs: tuple[int, int]
    outputs: tuple[int, int]

    def valid(self, axis: int, tap: int) -> tuple[int, int]:
        """Return the outputs whose window's tap lies inside the input, as (first, last + 1)."""
        shift = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(shift // self.stride[axis]))
        last = (self.inputs[axis] - 1 - shift) // self.stride[axis] + 1
        return first, max(first, min(self.outputs[axis], last))

    def taps(self) -> list[tuple[int, int]]:
        """Return row and column of every tap, in the order of the weight."""
        return [(y, x) for y in range(self.kernel[0]) for x in range(self.kernel[1])]

    def two_by_two(self) -> bool:
        """Return True if inputs and outputs are two-by-two maps, at stride and dilation 1."""
        is_dense = self.stride == self.dilation == (1, 1)
        is_small = self.inputs == self.outputs == (2, 2)
        sides = zip(self.padding, self.kernel, strict=True)
        return is_dense and is_small and all(0 < before < taps - 1 for before, taps in sides)

    def window_share(self) -> float:
        """Return the mean number of output positions at which a tap lies inside the input."""
        rows = [last - first for first, last in (self.valid(0, y) for y in range(self.kernel[0]))]
        columns = [
            last - first for first, last in (self.valid(1, x) for x in range(self.kernel[1]))
        ]
        return sum(rows) * sum(columns) / (self.kernel[0] * self.kernel[1])


def conv_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Conv2d``; None for groups and for non-zero padding modes."""
    conv = layer.module
    if (
        not isinstance(conv, nn.Conv2d)
        or conv.groups != 1
        or conv.padding_mode != "zeros"
        or isinstance(conv.padding, str)
        or len(layer.inputs) != 3
        or not layer.owns_only("weight", "bias")
    ):
        return None
    add_bias = optional_bias(layer)
    share_of = _weight_route(layer, conv) if "weight" in layer.updates else None
    if isinstance(share_of, WritesGradients):
        return _WithBias(share_of, add_bias)

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        share = None if share_of is None else share_of(module, inputs, grads)
        return add_bias(share, grads.sum((2, 3)))

    return kernel


class _WithBias(NamedTuple):
    """Kernel of a weight that can write gradients out, with that of the bias."""

    weight: WritesGradients
    add: Callable[[LayerProducts | None, Tensor], LayerProducts]

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        return self.add(self.weight(module, inputs, grads), grads.sum((2, 3)))

    def bytes_of_written(self, samples: int) -> int:
        return self.weight.bytes_of_written(samples)

    def write(self, inputs: Maps, grads: OutMaps) -> Written:
        return self.weight.write(inputs, grads)

    def of_written(self, written: Written) -> LayerProducts:
        return self.add(self.weight.of_written(written), written.sums)


def geometry_of(conv: nn.Conv2d, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Geometry:
    """Return the geometry of a convolution, from its settings and the shapes of one sample."""

    def pair(values: tuple[int, ...]) -> tuple[int, int]:
        return values[0], values[1]

    if isinstance(conv.padding, str):
        raise TypeError("padding by name has no fixed geometry")
    return Geometry(
        pair(conv.kernel_size),
        pair(conv.stride),
        pair(conv.padding),
        pair(conv.dilation),
        pair(inputs[-2:]),
        pair(outputs[-2:]),
    )


def _weight_route(layer: Layer, conv: nn.Conv2d) -> LayerKernel:
    shape = geometry_of(conv, layer.inputs, layer.outputs)
    positions = shape.outputs[0] * shape.outputs[1]
    if positions >= _GROUPED_FROM:
        few = math.prod(layer.shape("weight")[1:]) <= _FEW_ENTRIES and not layer.updates["weight"]
        return blocked_route(layer, shape, norms=True) if few else grouped_route(layer, shape)
    pixels = shape.inputs[0] * shape.inputs[1]
    pairs = pixels**2 + len(shape.taps()) * positions**2
    entries = conv.weight.numel()
    if pairs < entries and shape.two_by_two():
        return two_by_two_route(layer, shape)
    work = len(layer.updates["weight"]) * shape.window_share()
    if pairs < entries and work <= _FORWARD_UP_TO:
        return forward_route(layer, shape)
    return blocked_route(layer, shape, norms=_PAIRS_AGAINST_ENTRIES * pairs >= entries)


def grouped_route(layer: Layer, shape: Geometry) -> LayerKernel:
    """Return a kernel that writes gradients out by one convolution with a group per sample."""
    return _Grouped(layer, shape)


class _Grouped:
    """Kernel of :func:`grouped_route`."""

    def __init__(self, layer: Layer, shape: Geometry) -> None:
        self._shape, self._entries = shape, layer.shape("weight")
        self._flat = _stacked_weight(layer).flatten(1)
        # A group's inputs, outputs and gradients must fit the cache; beyond it time per sample
        # doubles.
        numbers = math.prod(layer.inputs) + math.prod(layer.outputs) + self._flat.shape[1]
        room = by_kind(self._flat.device, cpu=_GROUPED_BYTES, gpu=BYTES_ON_GPU)
        limit = by_kind(self._flat.device, cpu=_GROUPED_SAMPLES, gpu=_GROUPED_SAMPLES_ON_GPU)
        self._size = max(1, min(limit, room // (numbers * self._flat.element_size())))

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        return self._products(self._pieces(inputs, grads))

    def bytes_of_written(self, samples: int) -> int:
        return samples * self._flat[0].nbytes

    def write(self, inputs: Maps, grads: OutMaps) -> Written:
        return Written([*self._pieces(inputs, grads)], grads.sum((2, 3)), None)

    def of_written(self, written: Written) -> LayerProducts:
        return self._products(written.pieces)

    def _products(self, pieces: Iterable[Tensor]) -> LayerProducts:
        return LayerProducts.joined([direct(gradient, self._flat) for gradient in pieces])

    def _pieces(self, inputs: Maps, grads: OutMaps) -> Iterator[Float[Tensor, "rows entries"]]:
        shape, entries = self._shape, self._entries
        for start in range(0, len(inputs), self._size):
            a, b = (each[start : start + self._size] for each in (inputs, grads))
            groups = len(a)
            _, gradient, _ = torch.ops.aten.convolution_backward(
                b.reshape(1, -1, *b.shape[2:]),
                a.reshape(1, -1, *a.shape[2:]),
                inputs.new_empty(groups * entries[0], *entries[1:]),
                None,
                shape.stride,
                shape.padding,
                shape.dilation,
                False,
                (0, 0),
                groups,
                (False, True, False),
            )
            yield gradient.view(groups, -1)


def blocked_route(layer: Layer, shape: Geometry, norms: bool) -> LayerKernel:
    """Return a kernel that writes gradients out in blocks, each from windows of one kernel row."""
    return _Blocked(layer, shape, norms)


class _Blocked:
    """Kernel of :func:`blocked_route`."""

    def __init__(self, layer: Layer, shape: Geometry, norms: bool) -> None:
        outputs, channels, *taps = layer.shape("weight")
        updates = layer.updates["weight"]
        by_tap = (
            # Copied as three axes, since torch takes ten times as long for four.
            update.reshape(outputs, channels, -1).transpose(1, 2).contiguous().view(outputs, -1)
            for update in updates
        )
        size = (len(updates), outputs, channels * math.prod(taps))
        weight = dict(layer.module.named_parameters())["weight"].detach()
        self._shape, self._norms = shape, norms
        self._by_row = taps[1] * channels >= _ROW_ENTRIES
        self._blocks = update_blocks(by_tap, size, weight, parts=taps[0] if self._by_row else 1)

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        share = self._products(self._pieces(inputs, grads), len(inputs))
        if self._norms:
            return share
        return share._replace(squared_norms=_pair_norms(inputs, grads, self._shape))

    def bytes_of_written(self, samples: int) -> int:
        return samples * sum(block[0].nbytes for _, parts in self._rows() for block in parts)

    def write(self, inputs: Maps, grads: OutMaps) -> Written:
        # Copies, since all pieces are written to the same memory.
        pieces = [piece.clone() for piece in self._pieces(inputs, grads)]
        squared = None if self._norms else _pair_norms(inputs, grads, self._shape)
        return Written(pieces, grads.sum((2, 3)), squared)

    def of_written(self, written: Written) -> LayerProducts:
        share = self._products(iter(written.pieces), len(written.sums))
        if written.squared_norms is None:
            return share
        return share._replace(squared_norms=written.squared_norms)

    def _products(self, pieces: Iterator[Tensor], samples: int) -> LayerProducts:
        if not self._by_row:
            return blocked_products(pieces, samples, self._blocks[0], self._norms)
        dots = self._blocks[0][0].new_zeros(samples, len(self._blocks[0][0]))
        squared = dots.new_zeros(samples)
        for _, parts in self._rows():
            share = blocked_products(pieces, samples, parts, self._norms)
            dots += share.dots
            squared += share.squared_norms
        return LayerProducts(dots, squared)

    def _pieces(self, inputs: Maps, grads: OutMaps) -> Iterator[Float[Tensor, "rows entries"]]:
        shape, b = self._shape, by_position(grads)
        if not self._by_row:
            yield from written_blocks(_windows(inputs, shape), b.transpose(1, 2), self._blocks[0])
            return
        gathered = _row_windows(inputs, shape)
        for row, parts in self._rows():
            first, last = shape.valid(0, row)
            top = first * shape.stride[0] + row * shape.dilation[0] - shape.padding[0]
            bottom = top + (last - first - 1) * shape.stride[0] + 1
            windows = gathered[:, top : bottom : shape.stride[0]].flatten(1, 2)
            steps = b[:, first * shape.outputs[1] : last * shape.outputs[1]]
            yield from written_blocks(windows, steps.transpose(1, 2), parts)

    def _rows(self) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the rows of the window that meet the input, with the blocks of each."""
        if not self._by_row:
            yield 0, self._blocks[0]
            return
        for row, parts in enumerate(self._blocks):
            first, last = self._shape.valid(0, row)
            if first < last:
                yield row, parts


def forward_route(layer: Layer, shape: Geometry) -> LayerKernel:
    """Return a kernel with forward products, tap by tap, at outputs whose tap meets the input."""
    taps, updates = shape.taps(), _stacked_weight(layer)
    taps_of_updates = [updates[..., y, x].contiguous() for y, x in taps]
    clients = len(updates)
    del updates

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        a, b = inputs.permute(0, 2, 3, 1), grads.permute(0, 2, 3, 1)
        dots = inputs.new_zeros(len(inputs), clients)
        for (y, x), update in zip(taps, taps_of_updates, strict=True):
            overlap = _overlap(shape, y, x)
            if overlap is None or not clients:
                continue
            rows = a[:, overlap.rows, overlap.columns]
            steps = b[:, overlap.out_rows, overlap.out_columns]
            products = forward_dots(rows.flatten(0, 2), update, steps.flatten(0, 2))
            dots += products.view(len(inputs), -1, clients).sum(1)
        return LayerProducts(dots, _pair_norms(inputs, grads, shape))

    return kernel


# Two outputs from two inputs of an axis take four products, y0 = w1 x0 + w2 x1 and
# y1 = w0 x0 + w1 x1, or three: w1 (x0 + x1), which both share, (w0 - w1) x0 and (w2 - w1) x1.
# Each row is a product: its factors of the inputs and of the taps, and the outputs it is part of.
_IN = ((1, 1), (1, 0), (0, 1))
_TAPS = ((0, 1, 0), (1, -1, 0), (0, -1, 1))
_OUT = ((1, 1), (0, 1), (1, 0))


def two_by_two_route(layer: Layer, shape: Geometry) -> LayerKernel:
    """Return a kernel with forward products on maps of two by two pixels: 9 instead of 16."""
    weight = _stacked_weight(layer)
    (top, left), clients = shape.padding, len(weight)
    taps = weight[..., top - 1 : top + 2, left - 1 : left + 2].flatten(-2)
    mixed = _both_axes(_TAPS, weight)
    updates = [torch.einsum("koit,t->koi", taps, row).contiguous() for row in mixed]
    into, out = _both_axes(_IN, weight), _both_axes(_OUT, weight)
    del weight, taps

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        a, b = (
            torch.einsum("ncp,rp->rnc", each.flatten(2), mixing).contiguous()
            for each, mixing in ((inputs, into), (grads, out))
        )
        dots = inputs.new_zeros(len(inputs), clients)
        for rows, update, steps in zip(a, updates, b, strict=True):
            dots += forward_dots(rows, update, steps)
        return LayerProducts(dots, _pair_norms(inputs, grads, shape))

    return kernel


def _both_axes(
    mixing: tuple[tuple[int, ...], ...], like: Tensor
) -> Float[Tensor, "products pixels"]:
    """Return the mixing of a map's pixels, from that of one axis."""
    axis = like.new_tensor(mixing)
    return torch.kron(axis, axis)


def _stacked_weight(layer: Layer) -> Tensor:
    stacked = layer.stacked("weight")
    if stacked is None:
        raise RuntimeError("a weight that is not audited has no kernel")
    return stacked


class _Overlap(NamedTuple):
    rows: slice
    columns: slice
    out_rows: slice
    out_columns: slice


def _overlap(shape: Geometry, y: int, x: int) -> _Overlap | None:
    """Return a tap's inputs and the outputs that use them; None if it only meets padding."""
    (top, bottom), (left, right) = shape.valid(0, y), shape.valid(1, x)
    if top == bottom or left == right:
        return None

    def input_slice(axis: int, tap: int, first: int, last: int) -> slice:
        shift = tap * shape.dilation[axis] - shape.padding[axis]
        step = shape.stride[axis]
        return slice(first * step + shift, (last - 1) * step + shift + 1, step)

    return _Overlap(
        input_slice(0, y, top, bottom),
        input_slice(1, x, left, right),
        slice(top, bottom),
        slice(left, right),
    )


def by_position(maps: Maps) -> Float[Tensor, "samples positions channels"]:
    """Return a view of maps as sequences of positions, for any memory layout."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


def _windows(inputs: Maps, shape: Geometry) -> Float[Tensor, "samples positions inner"]:
    """Return every output's window, with channels innermost so that copies are contiguous."""
    down, across = shape.padding
    padded = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, across, across, down, down))
    padded = padded.contiguous()
    sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (len(inputs), *shape.outputs, *shape.kernel, inputs.shape[1]),
        (
            sample,
            row * shape.stride[0],
            column * shape.stride[1],
            row * shape.dilation[0],
            column * shape.dilation[1],
            1,
        ),
    )
    return windows.reshape(len(inputs), shape.outputs[0] * shape.outputs[1], -1)


def _row_windows(inputs: Maps, shape: Geometry) -> Float[Tensor, "samples rows out_columns inner"]:
    """Return the windows of one kernel row at each row of the input, with channels innermost.

    A row of the input serves each row of the kernel, while whole windows would copy it once for
    each.
    """
    across, width = shape.padding[1], inputs.shape[1]
    padded = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, across, across)).contiguous()
    sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (*inputs.shape[:1], shape.inputs[0], shape.outputs[1], shape.kernel[1], width),
        (sample, row, column * shape.stride[1], column * shape.dilation[1], 1),
    )
    return windows.flatten(3)


def _pair_norms(
    inputs: Maps,
    grads: OutMaps,
    shape: Geometry,
) -> Float[Tensor, " samples"]:
    """Return squared norms from inner products of pixels, summed along the taps of two windows."""
    pixels = by_position(inputs)
    between = torch.bmm(pixels, pixels.transpose(1, 2)).view(-1, *shape.inputs, *shape.inputs)
    size = shape.outputs[0] * shape.outputs[1]
    pairs = inputs.new_zeros(len(inputs), *shape.outputs, *shape.outputs)
    for y, x in shape.taps():
        overlap = _overlap(shape, y, x)
        if overlap is not None:
            out, source = (overlap.out_rows, overlap.out_columns), (overlap.rows, overlap.columns)
            pairs[(slice(None), *out, *out)] += between[(slice(None), *source, *source)]
    return gram_norms(pairs.view(-1, size, size), by_position(grads))
