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
    FormedGradients,
    FormsGradients,
    Layer,
    LayerKernel,
    LayerProducts,
    forward_dots,
    gradient_blocks,
    gram_norms,
    optional_bias,
    products_of_blocks,
    products_of_gradients,
    update_blocks,
)

Maps: TypeAlias = Float[Tensor, "samples channels rows columns"]
OutMaps: TypeAlias = Float[Tensor, "samples outputs out_rows out_columns"]

# With at least this number of output positions, a grouped convolution forms gradients fastest.
_GROUPED_FROM = 128
# For windows of at most this size, as in a first layer, blocks are 1.2 to 1.9 times as fast as a
# grouped convolution if only norms are computed.
_FEW_ENTRIES = 96
_GROUPED_BYTES = 3 << 20
_GROUPED_SAMPLES = 8
_GROUPED_SAMPLES_ON_GPU = 32
# Forward products are faster than forming gradients if clients x positions is at most this number.
_FORWARD_UP_TO = 64
# Norms can be computed from Gram matrices over pixels, or from the gradients. One entry of a Gram
# matrix takes as long as this number of entries of a gradient, as the matrices are small.
_COST_OF_GRAM_ENTRY = 16
# If windows of one kernel row have fewer entries than this, whole windows are copied.
_ROW_ENTRIES = 64


class Geometry(NamedTuple):
    """Geometry of a convolution's windows; each pair is (rows, columns).

    A tap is a position in the kernel.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    inputs: tuple[int, int]
    outputs: tuple[int, int]

    def valid(self, axis: int, tap: int) -> tuple[int, int]:
        """Return the outputs at which a tap is inside the input, as (first, last + 1)."""
        shift = tap * self.dilation[axis] - self.padding[axis]
        first = max(0, -(shift // self.stride[axis]))
        last = (self.inputs[axis] - 1 - shift) // self.stride[axis] + 1
        return first, max(first, min(self.outputs[axis], last))

    def taps(self) -> list[tuple[int, int]]:
        """Return row and column of every tap, in the order of the weight."""
        return [(y, x) for y in range(self.kernel[0]) for x in range(self.kernel[1])]

    def is_two_by_two(self) -> bool:
        """Return whether inputs and outputs are two-by-two maps, at stride and dilation 1."""
        is_dense = self.stride == self.dilation == (1, 1)
        is_small = self.inputs == self.outputs == (2, 2)
        axes = zip(self.padding, self.kernel, strict=True)
        return is_dense and is_small and all(0 < padding < taps - 1 for padding, taps in axes)

    def mean_positions_per_tap(self) -> float:
        """Return the mean number of output positions at which a tap is inside the input."""

        def positions(axis: int) -> int:
            ranges = [self.valid(axis, tap) for tap in range(self.kernel[axis])]
            return sum(last - first for first, last in ranges)

        return positions(0) * positions(1) / (self.kernel[0] * self.kernel[1])


def conv_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Conv2d``; None for groups and for non-zero padding modes."""
    conv = layer.module
    if (
        not isinstance(conv, nn.Conv2d)
        or conv.groups != 1
        or conv.padding_mode != "zeros"
        or isinstance(conv.padding, str)
        or len(layer.inputs) != 3
        or not layer.has_only("weight", "bias")
    ):
        return None
    add_bias = optional_bias(layer)
    weight_kernel = _weight_kernel(layer, conv) if "weight" in layer.updates else None
    if isinstance(weight_kernel, FormsGradients):
        return _WithBias(weight_kernel, add_bias)

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        products = None if weight_kernel is None else weight_kernel(module, inputs, grads)
        return add_bias(products, grads.sum((2, 3)))

    return kernel


class _WithBias(NamedTuple):
    """Kernel of a weight that can form gradients, together with that of the bias."""

    weight: FormsGradients
    add: Callable[[LayerProducts | None, Tensor], LayerProducts]

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        return self.add(self.weight(module, inputs, grads), grads.sum((2, 3)))

    def gradient_bytes(self, samples: int) -> int:
        return self.weight.gradient_bytes(samples)

    def form_gradients(self, inputs: Maps, grads: OutMaps) -> FormedGradients:
        return self.weight.form_gradients(inputs, grads)

    def products_of_formed(self, formed: FormedGradients) -> LayerProducts:
        return self.add(self.weight.products_of_formed(formed), formed.sums)


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


def _weight_kernel(layer: Layer, conv: nn.Conv2d) -> LayerKernel:
    geometry = geometry_of(conv, layer.inputs, layer.outputs)
    positions = geometry.outputs[0] * geometry.outputs[1]
    if positions >= _GROUPED_FROM:
        is_small = math.prod(layer.shape("weight")[1:]) <= _FEW_ENTRIES
        if is_small and not layer.updates["weight"]:
            return _BlockedKernel(layer, geometry, norms=True)
        return _GroupedKernel(layer, geometry)
    pixels = geometry.inputs[0] * geometry.inputs[1]
    gram_entries = pixels**2 + len(geometry.taps()) * positions**2
    weights = conv.weight.numel()
    if gram_entries < weights and geometry.is_two_by_two():
        return two_by_two_kernel(layer, geometry)
    forward_work = len(layer.updates["weight"]) * geometry.mean_positions_per_tap()
    if gram_entries < weights and forward_work <= _FORWARD_UP_TO:
        return forward_kernel(layer, geometry)
    norms_from_blocks = _COST_OF_GRAM_ENTRY * gram_entries >= weights
    return _BlockedKernel(layer, geometry, norms=norms_from_blocks)


class _GroupedKernel:
    """Kernel that forms gradients by one convolution with a group per sample."""

    def __init__(self, layer: Layer, geometry: Geometry) -> None:
        self._geometry, self._weight_shape = geometry, layer.shape("weight")
        self._updates = _stacked_weight(layer).flatten(1)
        # If inputs, outputs and gradients do not fit into the cache, the time per sample doubles.
        entries = math.prod(layer.inputs) + math.prod(layer.outputs) + self._updates.shape[1]
        max_bytes = by_kind(self._updates.device, cpu=_GROUPED_BYTES, gpu=BYTES_ON_GPU)
        limit = by_kind(self._updates.device, cpu=_GROUPED_SAMPLES, gpu=_GROUPED_SAMPLES_ON_GPU)
        self._size = max(1, min(limit, max_bytes // (entries * self._updates.element_size())))

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        return self._products(self._pieces(inputs, grads))

    def gradient_bytes(self, samples: int) -> int:
        return samples * self._updates[0].nbytes

    def form_gradients(self, inputs: Maps, grads: OutMaps) -> FormedGradients:
        return FormedGradients([*self._pieces(inputs, grads)], grads.sum((2, 3)), None)

    def products_of_formed(self, formed: FormedGradients) -> LayerProducts:
        return self._products(formed.pieces)

    def _products(self, pieces: Iterable[Tensor]) -> LayerProducts:
        return LayerProducts.concatenate(
            [products_of_gradients(gradient, self._updates) for gradient in pieces]
        )

    def _pieces(self, inputs: Maps, grads: OutMaps) -> Iterator[Float[Tensor, "rows entries"]]:
        geometry, weight_shape = self._geometry, self._weight_shape
        for start in range(0, len(inputs), self._size):
            a, b = (tensor[start : start + self._size] for tensor in (inputs, grads))
            groups = len(a)
            _, gradient, _ = torch.ops.aten.convolution_backward(
                b.reshape(1, -1, *b.shape[2:]),
                a.reshape(1, -1, *a.shape[2:]),
                inputs.new_empty(groups * weight_shape[0], *weight_shape[1:]),
                None,
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                False,
                (0, 0),
                groups,
                (False, True, False),
            )
            yield gradient.view(groups, -1)


class _BlockedKernel:
    """Kernel that forms gradients in blocks, each from windows of one kernel row."""

    def __init__(self, layer: Layer, geometry: Geometry, norms: bool) -> None:
        outputs, channels, *taps = layer.shape("weight")
        updates = layer.updates["weight"]
        by_tap = (
            # Both axes of taps are merged, as torch takes ten times as long to copy four axes.
            update.reshape(outputs, channels, -1).transpose(1, 2).contiguous().view(outputs, -1)
            for update in updates
        )
        size = (len(updates), outputs, channels * math.prod(taps))
        weight = dict(layer.module.named_parameters())["weight"].detach()
        self._geometry, self._norms = geometry, norms
        self._by_row = taps[1] * channels >= _ROW_ENTRIES
        self._blocks = update_blocks(by_tap, size, weight, parts=taps[0] if self._by_row else 1)

    def __call__(self, module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        products = self._products(self._pieces(inputs, grads), len(inputs))
        if self._norms:
            return products
        return products._replace(squared_norms=_gram_norms(inputs, grads, self._geometry))

    def gradient_bytes(self, samples: int) -> int:
        return samples * sum(
            block[0].nbytes for _, blocks in self._rows_of_blocks() for block in blocks
        )

    def form_gradients(self, inputs: Maps, grads: OutMaps) -> FormedGradients:
        # Pieces are copied, as all of them are computed in the same memory.
        pieces = [piece.clone() for piece in self._pieces(inputs, grads)]
        squared = None if self._norms else _gram_norms(inputs, grads, self._geometry)
        return FormedGradients(pieces, grads.sum((2, 3)), squared)

    def products_of_formed(self, formed: FormedGradients) -> LayerProducts:
        products = self._products(iter(formed.pieces), len(formed.sums))
        if formed.squared_norms is None:
            return products
        return products._replace(squared_norms=formed.squared_norms)

    def _products(self, pieces: Iterator[Tensor], samples: int) -> LayerProducts:
        if not self._by_row:
            return products_of_blocks(pieces, samples, self._blocks[0], self._norms)
        dots = self._blocks[0][0].new_zeros(samples, len(self._blocks[0][0]))
        squared = dots.new_zeros(samples)
        for _, blocks in self._rows_of_blocks():
            products = products_of_blocks(pieces, samples, blocks, self._norms)
            dots += products.dots
            squared += products.squared_norms
        return LayerProducts(dots, squared)

    def _pieces(self, inputs: Maps, grads: OutMaps) -> Iterator[Float[Tensor, "rows entries"]]:
        geometry, b = self._geometry, by_position(grads)
        if not self._by_row:
            windows = _windows(inputs, geometry)
            yield from gradient_blocks(windows, b.transpose(1, 2), self._blocks[0])
            return
        row_windows = _row_windows(inputs, geometry)
        for row, blocks in self._rows_of_blocks():
            first, last = geometry.valid(0, row)
            top = first * geometry.stride[0] + row * geometry.dilation[0] - geometry.padding[0]
            bottom = top + (last - first - 1) * geometry.stride[0] + 1
            windows = row_windows[:, top : bottom : geometry.stride[0]].flatten(1, 2)
            output_grads = b[:, first * geometry.outputs[1] : last * geometry.outputs[1]]
            yield from gradient_blocks(windows, output_grads.transpose(1, 2), blocks)

    def _rows_of_blocks(self) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield the kernel rows that are inside the input at some output, with their blocks."""
        if not self._by_row:
            yield 0, self._blocks[0]
            return
        for row, parts in enumerate(self._blocks):
            first, last = self._geometry.valid(0, row)
            if first < last:
                yield row, parts


def forward_kernel(layer: Layer, geometry: Geometry) -> LayerKernel:
    """Return a kernel that sums forward products over taps, at positions inside the input."""
    taps, updates = geometry.taps(), _stacked_weight(layer)
    updates_by_tap = [updates[..., y, x].contiguous() for y, x in taps]
    clients = len(updates)
    # The kernel must not keep the original tensor in memory.
    del updates

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        a, b = inputs.permute(0, 2, 3, 1), grads.permute(0, 2, 3, 1)
        dots = inputs.new_zeros(len(inputs), clients)
        for (y, x), update in zip(taps, updates_by_tap, strict=True):
            overlap = _overlap(geometry, y, x)
            if overlap is None or not clients:
                continue
            pixels = a[:, overlap.rows, overlap.columns]
            output_grads = b[:, overlap.out_rows, overlap.out_columns]
            products = forward_dots(pixels.flatten(0, 2), update, output_grads.flatten(0, 2))
            dots += products.view(len(inputs), -1, clients).sum(1)
        return LayerProducts(dots, _gram_norms(inputs, grads, geometry))

    return kernel


# Along one axis, two inputs (x0, x1) and three taps (w0, w1, w2) give the outputs
# y0 = w1 x0 + w2 x1 and y1 = w0 x0 + w1 x1, with four products. Three are enough: w1 (x0 + x1) for
# both outputs, (w0 - w1) x0 for y1 and (w2 - w1) x1 for y0. Row r of the tables belongs to product
# r: coefficients of the inputs, coefficients of the taps, and the outputs to which it is added.
_IN = ((1, 1), (1, 0), (0, 1))
_TAPS = ((0, 1, 0), (1, -1, 0), (0, -1, 1))
_OUT = ((1, 1), (0, 1), (1, 0))


def two_by_two_kernel(layer: Layer, geometry: Geometry) -> LayerKernel:
    """Return a kernel with 9 instead of 16 forward products, for maps of two by two pixels."""
    weight = _stacked_weight(layer)
    (top, left), clients = geometry.padding, len(weight)
    # All other taps only meet padding.
    taps = weight[..., top - 1 : top + 2, left - 1 : left + 2].flatten(-2)
    tap_rows = _on_both_axes(_TAPS, weight)
    updates = [torch.einsum("koit,t->koi", taps, row).contiguous() for row in tap_rows]
    input_rows, output_rows = _on_both_axes(_IN, weight), _on_both_axes(_OUT, weight)
    # The kernel must not keep the original tensors in memory.
    del weight, taps

    def kernel(module: nn.Module, inputs: Maps, grads: OutMaps) -> LayerProducts:
        a = torch.einsum("ncp,rp->rnc", inputs.flatten(2), input_rows).contiguous()
        b = torch.einsum("ncp,rp->rnc", grads.flatten(2), output_rows).contiguous()
        dots = inputs.new_zeros(len(inputs), clients)
        for mixed_inputs, update, mixed_grads in zip(a, updates, b, strict=True):
            dots += forward_dots(mixed_inputs, update, mixed_grads)
        return LayerProducts(dots, _gram_norms(inputs, grads, geometry))

    return kernel


def _on_both_axes(
    table: tuple[tuple[int, ...], ...], template: Tensor
) -> Float[Tensor, "products pixels"]:
    """Return the coefficients for two-dimensional maps from the coefficients for one axis."""
    one_axis = template.new_tensor(table)
    return torch.kron(one_axis, one_axis)


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


def _overlap(geometry: Geometry, y: int, x: int) -> _Overlap | None:
    """Return the inputs that a tap uses, and their outputs; None if the tap only meets padding."""
    (top, bottom), (left, right) = geometry.valid(0, y), geometry.valid(1, x)
    if top == bottom or left == right:
        return None

    def input_slice(axis: int, tap: int, first: int, last: int) -> slice:
        shift = tap * geometry.dilation[axis] - geometry.padding[axis]
        step = geometry.stride[axis]
        return slice(first * step + shift, (last - 1) * step + shift + 1, step)

    return _Overlap(
        input_slice(0, y, top, bottom),
        input_slice(1, x, left, right),
        slice(top, bottom),
        slice(left, right),
    )


def by_position(maps: Maps) -> Float[Tensor, "samples positions channels"]:
    """Return a view of maps as sequences of positions."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


def _windows(inputs: Maps, geometry: Geometry) -> Float[Tensor, "samples positions inner"]:
    """Return the window of every output, with channels as the last axis for fast copies."""
    vertical, horizontal = geometry.padding
    padding = (0, 0, horizontal, horizontal, vertical, vertical)
    padded = functional.pad(inputs.permute(0, 2, 3, 1), padding).contiguous()
    sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (len(inputs), *geometry.outputs, *geometry.kernel, inputs.shape[1]),
        (
            sample,
            row * geometry.stride[0],
            column * geometry.stride[1],
            row * geometry.dilation[0],
            column * geometry.dilation[1],
            1,
        ),
    )
    return windows.reshape(len(inputs), geometry.outputs[0] * geometry.outputs[1], -1)


def _row_windows(
    inputs: Maps, geometry: Geometry
) -> Float[Tensor, "samples rows out_columns inner"]:
    """Return the windows of one kernel row at each row of the input, with channels last.

    All rows of the kernel use the same windows. Whole windows would contain each row of the input
    once per kernel row.
    """
    horizontal, channels = geometry.padding[1], inputs.shape[1]
    padded = functional.pad(inputs.permute(0, 2, 3, 1), (0, 0, horizontal, horizontal)).contiguous()
    sample, row, column, _ = padded.stride()
    windows = padded.as_strided(
        (*inputs.shape[:1], geometry.inputs[0], geometry.outputs[1], geometry.kernel[1], channels),
        (sample, row, column * geometry.stride[1], column * geometry.dilation[1], 1),
    )
    return windows.flatten(3)


def _gram_norms(inputs: Maps, grads: OutMaps, geometry: Geometry) -> Float[Tensor, " samples"]:
    """Return squared norms from the inner products of each pair of windows.

    The inner product of two windows is the sum over taps of inner products of pixels.
    """
    pixels = by_position(inputs)
    pixel_gram = torch.bmm(pixels, pixels.transpose(1, 2))
    pixel_gram = pixel_gram.view(-1, *geometry.inputs, *geometry.inputs)
    size = geometry.outputs[0] * geometry.outputs[1]
    window_gram = inputs.new_zeros(len(inputs), *geometry.outputs, *geometry.outputs)
    for y, x in geometry.taps():
        overlap = _overlap(geometry, y, x)
        if overlap is not None:
            out, source = (overlap.out_rows, overlap.out_columns), (overlap.rows, overlap.columns)
            window_gram[(slice(None), *out, *out)] += pixel_gram[(slice(None), *source, *source)]
    return gram_norms(window_gram.view(-1, size, size), by_position(grads))
