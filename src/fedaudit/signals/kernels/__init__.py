"""Exact per-sample gradient products, by type of layer.

A kernel takes what entered a layer and the gradient at what left it, for a chunk of samples,
and gives that layer's share of every inner product with an update and of every squared norm.
The per-sample gradients themselves exist only in blocks that fit a processor's cache.

Linear layers on sequences and convolutions apply one weight at many positions: sample i's gradient
is ``sum_t grads[i, t] (x) inputs[i, t]``, outputs times inner entries, summed over positions. With
T positions, K clients and W weights, writing the gradient out costs T + K multiplications a weight
and a pass through memory; pushing the updates forward costs K * T, at the full speed of a matrix
product.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.core.devices import by_kind


class LayerProducts(NamedTuple):
    """One layer's share of the products of a chunk.

    Attributes:
        dots: Inner product of each sample's gradient with each client's update.
        squared_norms: Squared length of each sample's gradient.
    """

    dots: Float[Tensor, "samples clients"]
    squared_norms: Float[Tensor, " samples"]

    def plus(self, other: "LayerProducts") -> "LayerProducts":
        """The share of two parameters together."""
        return LayerProducts(self.dots + other.dots, self.squared_norms + other.squared_norms)


@runtime_checkable
class LayerKernel(Protocol):
    """The products of one layer for a chunk of samples."""

    def __call__(
        self,
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        """The layer's share, from what entered it and the loss's gradient at what left it."""
        ...


@dataclass(frozen=True)
class Layer:
    """A module that owns audited parameters, as seen on a trial run.

    Attributes:
        module: The module itself; kernels read its settings only.
        updates: Every client's update of each audited parameter, by its name in the module.
        inputs: Shape of one sample where it enters.
        outputs: Shape of one sample where it leaves.
    """

    module: nn.Module
    updates: Mapping[str, Sequence[Tensor]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one of the module's parameters."""
        return tuple(dict(self.module.named_parameters(recurse=False))[name].shape)

    def stacked(self, name: str) -> Shaped[Tensor, "clients ..."] | None:
        """All clients' updates of a parameter, which may be no client's; None if not audited."""
        if name not in self.updates:
            return None
        parts = self.updates[name]
        if parts:
            return torch.stack(list(parts))
        own = dict(self.module.named_parameters(recurse=False))[name]
        return own.detach().new_zeros(0, *own.shape)

    def owns_only(self, *names: str) -> bool:
        """True when no audited parameter lies outside the names given."""
        return set(self.updates) <= set(names)


KernelMaker: TypeAlias = Callable[[Layer], LayerKernel | None]


def direct(
    gradients: Float[Tensor, "samples entries"], updates: Float[Tensor, "clients entries"]
) -> LayerProducts:
    """Products of gradients that are small enough to be written out."""
    return LayerProducts(product(gradients, updates), gradients.square().sum(1))


def optional_bias(
    layer: Layer,
) -> Callable[[LayerProducts | None, Float[Tensor, "samples outputs"]], LayerProducts]:
    """Adds the bias's share where the layer has an audited bias."""
    bias = layer.stacked("bias")

    def add(
        share: LayerProducts | None, gradients: Float[Tensor, "samples outputs"]
    ) -> LayerProducts:
        if bias is None:
            if share is None:
                raise RuntimeError("a layer without audited parameters has no kernel")
            return share
        own = direct(gradients, bias)
        return own if share is None else share.plus(own)

    return add


# Below this many multiplications oneDNN's set-up costs more than it saves.
_WORTH_ONEDNN = 1 << 18


def _onednn() -> bool:
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


_HAS_ONEDNN = _onednn()


def product(
    left: Float[Tensor, "rows inner"], right: Float[Tensor, "columns inner"]
) -> Float[Tensor, "rows columns"]:
    """``left @ right.T``.

    ``torch.mm`` goes to MKL, which on AMD processors leaves half of the vector width unused;
    oneDNN, which torch uses for convolutions, reaches twice its speed there. The choice rests
    on shapes alone, so that bits do not change from run to run.
    """
    size = left.shape[0] * left.shape[1] * right.shape[0]
    # oneDNN falls to a reference kernel, a thousand times slower, for a sliced right side; a
    # transposed one it takes as it is.
    if (
        _HAS_ONEDNN
        and size >= _WORTH_ONEDNN
        and left.dtype == torch.float32
        and left.device.type == "cpu"
        and (right.is_contiguous() or right.t().is_contiguous())
    ):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        return out
    return left @ right.t()


# Working sets that stay in a core's share of the cache.
FORWARD_BYTES = 1 << 20
BLOCK_BYTES = 2 << 20
BLOCK_SAMPLES = 16
# On a GPU small pieces would be over before the next is asked for. Estimated, not timed.
BYTES_ON_GPU = 256 << 20
SAMPLES_ON_GPU = 256


def forward_dots(
    inputs: Float[Tensor, "rows inner"],
    updates: Float[Tensor, "clients outputs inner"],
    grads: Float[Tensor, "rows outputs"],
) -> Float[Tensor, "rows clients"]:
    """``<updates[k], grads[r] (x) inputs[r]>`` without ever forming the outer product."""
    rows, (clients, outputs, inner) = inputs.shape[0], updates.shape
    dots = inputs.new_empty(rows, clients)
    room = by_kind(inputs.device, cpu=FORWARD_BYTES, gpu=BYTES_ON_GPU)
    step = max(1, room // max(1, rows * outputs * inputs.element_size()))
    for start in range(0, clients, step):
        part = updates[start : start + step]
        pushed = product(inputs, part.reshape(-1, inner)).view(rows, -1, outputs)
        # A batched matrix-vector product would run ten times slower than this.
        dots[:, start : start + step] = pushed.mul_(grads[:, None]).sum(-1)
    return dots


def gram_norms(
    inputs: Float[Tensor, "samples positions positions"],
    grads: Float[Tensor, "samples positions outputs"],
) -> Float[Tensor, " samples"]:
    """Squared norms from the inner products of every two positions' inputs."""
    pairs = torch.bmm(grads, grads.transpose(1, 2))
    return pairs.mul_(inputs).flatten(1).sum(1).clamp_min(0)


def packed_blocks(
    updates: Iterable[Float[Tensor, "outputs inner"]],
    shape: tuple[int, int, int],
    like: Tensor,
    parts: int = 1,
) -> list[list[Float[Tensor, "clients _"]]]:
    """The updates cut along the inner axis, as :func:`blocked` goes through them.

    Args:
        updates: One client's after the other, so that only one need be rearranged at a time.
        shape: Clients, outputs and inner entries.
        like: A tensor of the wanted type, where they are wanted.
        parts: Equal parts of the inner axis that no block may straddle, each a list of its own.
    """
    clients, outputs, inner = shape
    room = by_kind(like.device, cpu=BLOCK_BYTES, gpu=BYTES_ON_GPU)
    width = room // (_together(like) * outputs * like.element_size())
    # Widths in whole vector registers; cutting outputs instead would run at half the speed.
    width = max(16, width // 16 * 16)
    size = inner // parts
    starts = [[part * size + at for at in range(0, size, width)] for part in range(parts)]
    blocks = [
        [like.new_empty(clients, outputs, min(width, size - at % size)) for at in own]
        for own in starts
    ]
    for client, update in enumerate(updates):
        for at, block in zip(chain(*starts), chain(*blocks), strict=True):
            block[client] = update[:, at : at + block.shape[2]]
    return [[block.flatten(1) for block in own] for own in blocks]


def blocked(
    inputs: Float[Tensor, "samples positions inner"],
    grads: Float[Tensor, "samples outputs positions"],
    blocks: list[Float[Tensor, "clients _"]],
    norms: bool,
) -> LayerProducts:
    """Products from gradients written out for a few samples and inner entries at a time.

    Args:
        inputs: What entered, per position.
        grads: The loss's gradient at what left.
        blocks: The clients' updates, one of the lists from :func:`packed_blocks`.
        norms: Also take the squared norms from the blocks; else they are left zero.
    """
    samples, outputs, _ = grads.shape
    dots = inputs.new_zeros(blocks[0].shape[0], samples)
    squared = inputs.new_zeros(samples)
    # One piece of memory for all blocks: new pages would cost as much as filling them.
    widest = max(block.shape[1] for block in blocks)
    together = _together(inputs)
    memory = inputs.new_empty(min(samples, together) * widest)
    at = 0
    # Updates are read from memory once, for all samples.
    for block in blocks:
        width = block.shape[1] // outputs
        for start in range(0, samples, together):
            rows = slice(start, start + together)
            b = grads[rows]
            written = memory[: len(b) * block.shape[1]].view(len(b), outputs, width)
            torch.bmm(b, inputs[rows, :, at : at + width], out=written)
            gradient = written.flatten(1)
            dots[:, rows] += product(block, gradient)
            if norms:
                squared[rows] += torch.linalg.vector_norm(gradient, dim=1).square_()
        at += width
    return LayerProducts(dots.t(), squared)


def _together(like: Tensor) -> int:
    return by_kind(like.device, cpu=BLOCK_SAMPLES, gpu=SAMPLES_ON_GPU)
