"""Exact products of per-sample gradients, by type of layer.

A kernel takes a layer's input and the gradient at its output, for a chunk of samples. It returns
the layer's contributions to two products of each sample's gradient: the inner product with each
update, and the squared norm. Per-sample gradients are only formed in blocks that fit into a
processor's cache.

Linear layers on sequences and convolutions apply one weight at many positions. Sample i's gradient
is ``sum_t grads[i, t] (x) inputs[i, t]``, a sum of outer products over positions t. It has the
shape (outputs, inner), where the inner size is the number of inputs on which one output depends at
one position. With T positions and K clients, there are two methods. Forming the gradient costs
T + K multiplications per sample and weight, and a pass through memory. Multiplying the inputs with
the updates (forward products) costs K * T multiplications per sample and weight, at the full speed
of a matrix product.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.core.devices import by_kind


class LayerProducts(NamedTuple):
    """One layer's contribution to the products of a chunk.

    Attributes:
        dots: Inner product of each sample's gradient with each client's update.
        squared_norms: Squared norm of each sample's gradient.
    """

    dots: Float[Tensor, "samples clients"]
    squared_norms: Float[Tensor, " samples"]

    def add(self, other: "LayerProducts") -> "LayerProducts":
        """Return the sum of two contributions."""
        return LayerProducts(self.dots + other.dots, self.squared_norms + other.squared_norms)

    @staticmethod
    def concatenate(chunks: Sequence["LayerProducts"]) -> "LayerProducts":
        """Join the products of several chunks of samples."""
        return LayerProducts(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


@runtime_checkable
class LayerKernel(Protocol):
    """Function that computes the products of one layer for a chunk of samples."""

    def __call__(
        self,
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        """Return the layer's contribution from its inputs and the gradients at its outputs."""
        ...


class FormedGradients(NamedTuple):
    """Gradients of a layer for a chunk of samples, which were formed before the updates were known.

    Attributes:
        pieces: Blocks of the gradients, in the order in which the kernel multiplies them.
        sums: Gradients at the outputs, summed over positions.
        squared_norms: Squared norms, if they are not computed from the pieces.
    """

    pieces: list[Float[Tensor, "samples entries"]]
    sums: Float[Tensor, "samples outputs"]
    squared_norms: Float[Tensor, " samples"] | None


@runtime_checkable
class FormsGradients(LayerKernel, Protocol):
    """Kernel that can form gradients before the updates are known."""

    def gradient_bytes(self, samples: int) -> int:
        """Return the size of formed gradients for a number of samples."""
        ...

    def form_gradients(self, inputs: Tensor, grads: Tensor) -> FormedGradients:
        """Return the gradients of a chunk."""
        ...

    def products_of_formed(self, formed: FormedGradients) -> LayerProducts:
        """Return the products of formed gradients, bitwise equal to those of a call."""
        ...


@dataclass(frozen=True)
class Layer:
    """Module with audited parameters, and the shapes from a trial run.

    Attributes:
        module: The module, of which kernels use only the settings.
        updates: Every client's update of each audited parameter, by its name in the module.
        inputs: Shape of one sample at the module's input.
        outputs: Shape of one sample at the module's output.
    """

    module: nn.Module
    updates: Mapping[str, Sequence[Tensor]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one of the module's parameters."""
        return tuple(dict(self.module.named_parameters(recurse=False))[name].shape)

    def stacked(self, name: str) -> Shaped[Tensor, "clients ..."] | None:
        """Return a parameter's updates, one row for each client; None if it is not audited."""
        if name not in self.updates:
            return None
        updates = self.updates[name]
        if updates:
            return torch.stack(list(updates))
        parameter = dict(self.module.named_parameters(recurse=False))[name]
        return parameter.detach().new_zeros(0, *parameter.shape)

    def has_only(self, *names: str) -> bool:
        """Return whether all audited parameters are among these names."""
        return set(self.updates) <= set(names)


KernelMaker: TypeAlias = Callable[[Layer], LayerKernel | None]


def products_of_gradients(
    gradients: Float[Tensor, "samples entries"], updates: Float[Tensor, "clients entries"]
) -> LayerProducts:
    """Return the products of gradients that are small enough to be in memory."""
    return LayerProducts(product(gradients, updates), gradients.square().sum(1))


def optional_bias(
    layer: Layer,
) -> Callable[[LayerProducts | None, Float[Tensor, "samples outputs"]], LayerProducts]:
    """Return a function that adds the contribution of the bias, if the bias is audited."""
    bias = layer.stacked("bias")

    def add(
        weight_products: LayerProducts | None, gradients: Float[Tensor, "samples outputs"]
    ) -> LayerProducts:
        if bias is None:
            if weight_products is None:
                raise RuntimeError("a layer without audited parameters has no kernel")
            return weight_products
        bias_products = products_of_gradients(gradients, bias)
        return bias_products if weight_products is None else weight_products.add(bias_products)

    return add


# For fewer multiplications, the set-up of oneDNN costs more than it saves.
_MIN_SIZE_FOR_ONEDNN = 1 << 18
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(
    left: Float[Tensor, "rows inner"], right: Float[Tensor, "columns inner"]
) -> Float[Tensor, "rows columns"]:
    """Return ``left @ right.T``.

    ``torch.mm`` uses MKL, which leaves half of the vector width unused on AMD processors. oneDNN,
    which torch uses for convolutions, is twice as fast there. The choice of the library depends
    only on shapes, so that results are bitwise reproducible.
    """
    size = left.shape[0] * left.shape[1] * right.shape[0]
    # If neither the right operand nor its transpose is contiguous, oneDNN uses a reference kernel
    # that is a thousand times slower.
    if (
        _HAS_ONEDNN
        and size >= _MIN_SIZE_FOR_ONEDNN
        and left.dtype == torch.float32
        and left.device.type == "cpu"
        and (right.is_contiguous() or right.t().is_contiguous())
    ):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        return out
    return left @ right.t()


# Sizes of intermediate tensors that fit into the cache of one core.
FORWARD_BYTES = 1 << 20
BLOCK_BYTES = 2 << 20
BLOCK_SAMPLES = 16
# On a GPU, launching kernels for small tensors would take longer than computing them. These sizes
# are estimates, not measured.
BYTES_ON_GPU = 256 << 20
SAMPLES_ON_GPU = 256


def forward_dots(
    inputs: Float[Tensor, "rows inner"],
    updates: Float[Tensor, "clients outputs inner"],
    grads: Float[Tensor, "rows outputs"],
) -> Float[Tensor, "rows clients"]:
    """Return ``<updates[k], grads[r] (x) inputs[r]>`` without forming the outer product."""
    rows, (clients, outputs, inner) = inputs.shape[0], updates.shape
    dots = inputs.new_empty(rows, clients)
    max_bytes = by_kind(inputs.device, cpu=FORWARD_BYTES, gpu=BYTES_ON_GPU)
    step = max(1, max_bytes // max(1, rows * outputs * inputs.element_size()))
    for start in range(0, clients, step):
        block = updates[start : start + step]
        outputs_by_update = product(inputs, block.reshape(-1, inner)).view(rows, -1, outputs)
        # This is ten times faster than a batched matrix-vector product.
        dots[:, start : start + step] = outputs_by_update.mul_(grads[:, None]).sum(-1)
    return dots


def gram_norms(
    input_gram: Float[Tensor, "samples positions positions"],
    grads: Float[Tensor, "samples positions outputs"],
) -> Float[Tensor, " samples"]:
    """Return squared norms of gradients from Gram matrices over positions.

    The squared norm of a sum of outer products is a sum over pairs of positions. Each term is the
    inner product of both inputs times the inner product of both output gradients.

    Args:
        input_gram: Inner products of the inputs of each pair of positions.
        grads: Gradients at the outputs, by position.
    """
    grad_gram = torch.bmm(grads, grads.transpose(1, 2))
    return grad_gram.mul_(input_gram).flatten(1).sum(1).clamp_min(0)


def update_blocks(
    updates: Iterable[Float[Tensor, "outputs inner"]],
    shape: tuple[int, int, int],
    template: Tensor,
    parts: int = 1,
) -> list[list[Float[Tensor, "clients _"]]]:
    """Split updates along the inner axis into the blocks of :func:`blockwise_products`.

    Args:
        updates: Iterable over the clients' updates, which is consumed one update at a time.
        shape: Clients, outputs and inner entries.
        template: A tensor with the type and device of the blocks.
        parts: Number of equal parts of the inner axis.

    Returns:
        A list of blocks for each part of the inner axis.
    """
    clients, outputs, inner = shape
    max_bytes = by_kind(template.device, cpu=BLOCK_BYTES, gpu=BYTES_ON_GPU)
    width = max_bytes // (_samples_per_block(template) * outputs * template.element_size())
    # The width is a multiple of a vector register. Splitting the outputs instead of the inner axis
    # would be half as fast.
    width = max(16, width // 16 * 16)
    size = inner // parts
    starts = [[part * size + start for start in range(0, size, width)] for part in range(parts)]
    blocks = [
        [template.new_empty(clients, outputs, min(width, size - start % size)) for start in row]
        for row in starts
    ]
    for client, update in enumerate(updates):
        for start, block in zip(chain(*starts), chain(*blocks), strict=True):
            block[client] = update[:, start : start + block.shape[2]]
    return [[block.flatten(1) for block in row] for row in blocks]


def blockwise_products(
    inputs: Float[Tensor, "samples positions inner"],
    grads: Float[Tensor, "samples outputs positions"],
    blocks: list[Float[Tensor, "clients _"]],
    norms: bool,
) -> LayerProducts:
    """Return products by forming gradients for a few samples and inner entries at a time.

    Args:
        inputs: Inputs of the layer, by position.
        grads: The loss's gradients at the outputs.
        blocks: The clients' updates, one of the lists from :func:`update_blocks`.
        norms: True to also compute the squared norms; otherwise they are zero.
    """
    return products_of_blocks(gradient_blocks(inputs, grads, blocks), len(grads), blocks, norms)


def products_of_blocks(
    pieces: Iterator[Float[Tensor, "rows entries"]],
    samples: int,
    blocks: list[Float[Tensor, "clients _"]],
    norms: bool,
) -> LayerProducts:
    """Return the products of gradients in the pieces of :func:`gradient_blocks`."""
    dots = blocks[0].new_zeros(blocks[0].shape[0], samples)
    squared = blocks[0].new_zeros(samples)
    size = _samples_per_block(blocks[0])
    # Blocks are the outer loop, so that updates are read from memory only once for all samples.
    for block in blocks:
        for start in range(0, samples, size):
            rows, gradient = slice(start, start + size), next(pieces)
            dots[:, rows] += product(block, gradient)
            if norms:
                squared[rows] += torch.linalg.vector_norm(gradient, dim=1).square_()
    return LayerProducts(dots.t(), squared)


def gradient_blocks(
    inputs: Float[Tensor, "samples positions inner"],
    grads: Float[Tensor, "samples outputs positions"],
    blocks: list[Float[Tensor, "clients _"]],
) -> Iterator[Float[Tensor, "rows entries"]]:
    """Yield the gradients of a few samples and inner entries at a time, always in the same memory.

    All samples of the first block come first, then all samples of the second block, and so on.
    """
    samples, outputs, _ = grads.shape
    # All blocks reuse the same memory, as allocating pages takes as long as filling them.
    widest = max(block.shape[1] for block in blocks)
    size = _samples_per_block(inputs)
    memory = inputs.new_empty(min(samples, size) * widest)
    offset = 0
    for block in blocks:
        width = block.shape[1] // outputs
        for start in range(0, samples, size):
            rows = slice(start, start + size)
            b = grads[rows]
            buffer = memory[: len(b) * block.shape[1]].view(len(b), outputs, width)
            torch.bmm(b, inputs[rows, :, offset : offset + width], out=buffer)
            yield buffer.flatten(1)
        offset += width


def _samples_per_block(template: Tensor) -> int:
    return by_kind(template.device, cpu=BLOCK_SAMPLES, gpu=SAMPLES_ON_GPU)
