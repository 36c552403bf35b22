"""Kernels of most layer types, and the choice of kernels and chunk sizes for a model."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.devices import by_kind
from fedaudit.core.values import Model, Params
from fedaudit.signals.kernels import (
    KernelMaker,
    Layer,
    LayerKernel,
    LayerProducts,
    blocked,
    direct,
    forward_dots,
    gram_norms,
    optional_bias,
    update_blocks,
)
from fedaudit.signals.kernels.capture import Capture, Owner, Passage, generic_kernel, owners
from fedaudit.signals.kernels.conv import conv_kernel

# Forward products are faster than writing out gradients up to this many clients times positions.
_FORWARD_UP_TO = 48


def linear_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Linear``; None if it has other parameters."""
    if not layer.owns_only("weight", "bias") or not layer.inputs:
        return None
    return _vectors(layer) if len(layer.inputs) == 1 else _sequences(layer)


def _vectors(layer: Layer) -> LayerKernel:
    weight, add_bias = layer.stacked("weight"), optional_bias(layer)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples inner"],
        grads: Float[Tensor, "samples outputs"],
    ) -> LayerProducts:
        share = None
        if weight is not None:
            squared = inputs.square().sum(1) * grads.square().sum(1)
            share = LayerProducts(forward_dots(inputs, weight, grads), squared)
        return add_bias(share, grads)

    return kernel


def _sequences(layer: Layer) -> LayerKernel:
    add_bias = optional_bias(layer)
    weight = layer.stacked("weight")
    positions = math.prod(layer.inputs[:-1])
    share_of = None if weight is None else position_route(positions, weight)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples *positions inner"],
        grads: Float[Tensor, "samples *positions outputs"],
    ) -> LayerProducts:
        a, b = inputs.flatten(1, -2), grads.flatten(1, -2)
        share = None if share_of is None else share_of(module, a, b)
        return add_bias(share, b.sum(1))

    return kernel


def position_route(positions: int, updates: Float[Tensor, "clients outputs inner"]) -> LayerKernel:
    """Return the faster of forward products and written gradients."""
    clients, outputs, inner = updates.shape
    by_pairs = positions**2 < outputs * inner
    forward = by_pairs and clients * positions <= _FORWARD_UP_TO
    blocks = [] if forward else update_blocks(updates, (clients, outputs, inner), updates)[0]

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples positions inner"],
        grads: Float[Tensor, "samples positions outputs"],
    ) -> LayerProducts:
        if forward:
            rows = forward_dots(inputs.flatten(0, 1), updates, grads.flatten(0, 1))
            dots = rows.view(len(inputs), positions, clients).sum(1)
            share = LayerProducts(dots, dots.new_zeros(len(inputs)))
        else:
            share = blocked(inputs, grads.transpose(1, 2), blocks, norms=not by_pairs)
        if not by_pairs:
            return share
        return share._replace(squared_norms=gram_norms(inputs @ inputs.transpose(1, 2), grads))

    return kernel


def embedding_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Embedding``; None if it rescales its rows or gradients."""
    embedding = layer.module
    if (
        not isinstance(embedding, nn.Embedding)
        or embedding.max_norm is not None
        or embedding.scale_grad_by_freq
        or not layer.owns_only("weight")
    ):
        return None
    updates, padding = list(layer.updates["weight"]), embedding.padding_idx

    def kernel(
        module: nn.Module,
        inputs: Int[Tensor, "samples *positions"],
        grads: Float[Tensor, "samples *positions size"],
    ) -> LayerProducts:
        index = inputs.reshape(len(inputs), -1)
        b = grads.reshape(*index.shape, -1)
        if padding is not None:
            b = b * (index != padding)[..., None]
        dots = b.new_empty(len(index), len(updates))
        for client, update in enumerate(updates):
            dots[:, client] = (functional.embedding(index, update) * b).flatten(1).sum(1)
        # The gradient of a row that a sample looks up twice is the sum of both gradients.
        same = index[:, :, None] == index[:, None, :]
        pairs = torch.bmm(b, b.transpose(1, 2))
        return LayerProducts(dots, (pairs * same).flatten(1).sum(1).clamp_min(0))

    return kernel


def _affine(layer: Layer) -> Callable[[Tensor, Tensor], LayerProducts]:
    """Return a function for products from the gradients of scale and shift, one row per sample."""
    stacks = [layer.stacked(name) for name in ("weight", "bias")]

    def products(*gradients: Float[Tensor, "samples entries"]) -> LayerProducts:
        shares = [
            direct(gradient, updates.flatten(1))
            for gradient, updates in zip(gradients, stacks, strict=True)
            if updates is not None
        ]
        return shares[0] if len(shares) == 1 else shares[0].plus(shares[1])

    return products


def batch_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of a batch norm in evaluation mode; None without running statistics."""
    module = layer.module
    if (
        not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        or module.running_mean is None
        or module.running_var is None
        or not layer.owns_only("weight", "bias")
    ):
        return None
    products = _affine(layer)
    mean = module.running_mean.clone()
    scale = torch.rsqrt(module.running_var + module.eps)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        # Vectors are treated as maps of one position.
        a, b = (each[..., None].flatten(2) for each in (inputs, grads))
        return products(((a - mean[:, None]) * b).sum(2) * scale, b.sum(2))

    return kernel


def group_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.GroupNorm``."""
    norm = layer.module
    if not isinstance(norm, nn.GroupNorm) or not layer.owns_only("weight", "bias"):
        return None
    products = _affine(layer)
    groups, eps = norm.num_groups, norm.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        normal = functional.group_norm(inputs, groups, None, None, eps)
        shape = (*inputs.shape[:2], -1)
        weighted = normal.mul_(grads).reshape(shape).sum(2)
        return products(weighted, grads.reshape(shape).sum(2))

    return kernel


def layer_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.LayerNorm``."""
    norm = layer.module
    if not isinstance(norm, nn.LayerNorm) or not layer.owns_only("weight", "bias"):
        return None
    products = _affine(layer)
    shape, eps = list(norm.normalized_shape), norm.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        normal = functional.layer_norm(inputs, shape, None, None, eps).mul_(grads)
        entries = (len(inputs), -1, normal[(0,) * (normal.dim() - len(shape))].numel())
        return products(normal.reshape(entries).sum(1), grads.reshape(entries).sum(1))

    return kernel


KERNELS: dict[type[nn.Module], KernelMaker] = {
    nn.Linear: linear_kernel,
    nn.Conv2d: conv_kernel,
    nn.BatchNorm1d: batch_norm_kernel,
    nn.BatchNorm2d: batch_norm_kernel,
    nn.GroupNorm: group_norm_kernel,
    nn.LayerNorm: layer_norm_kernel,
    nn.Embedding: embedding_kernel,
}
"""Layer types with a fast kernel. Subclasses are excluded, since they may compute something
else."""

# Layer types that support any number of positions, so that a sample's copies can be positions.
_ANY_POSITIONS = (nn.Linear, nn.LayerNorm, nn.Embedding)

_CHUNK_BYTES = 24 << 20
_CHUNK_MOST = 256
_CHUNK_MOST_LARGE_MAPS = 64
_CHUNK_LEAST = 32
# A GPU is limited by memory instead of a cache, and needs large chunks. Estimated, not timed.
_CHUNK_BYTES_ON_GPU = 2 << 30
_CHUNK_MOST_ON_GPU = 512
# Output positions from which a feature map counts as large.
_LARGE_MAP = 128


class KernelPlan(NamedTuple):
    """Choices that a call makes once and its workers share.

    Attributes:
        kernels: The kernel of each module that owns audited parameters, by its path.
        chunk: Samples of a chunk.
        layout: Memory format of images in the model.
        generic: Types of modules that use the generic kernel.
    """

    kernels: dict[str, LayerKernel]
    chunk: int
    layout: torch.memory_format
    generic: tuple[str, ...]


def plan_for(
    copies: Callable[[], nn.Module],
    base: Model,
    updates: Sequence[Params],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    cut: Mapping[str, int] | None = None,
) -> KernelPlan:
    """Choose kernels by the shapes of a trial run alone, so that bits never depend on timing.

    Args:
        copies: Returns a new module with the base model's values on each call.
        base: Model whose parameters count.
        updates: Every client's update.
        features: Features of the trial run.
        labels: Labels of the trial run.
        cut: Number of leading entries that count, for parameters that count only in part.

    Raises:
        Uncapturable: The model cannot be captured.
    """
    module = copies()
    parts = owners(module, base.params)
    with _sizes_of_frozen(module, parts) as frozen:
        passages = Capture(module, parts, base.architecture.task).run(features, labels)
    kernels, generic = {}, set()
    for path, part in parts.items():
        kernel, fast = kernel_for(part, passages[path], updates, cut)
        kernels[path] = kernel
        if not fast:
            generic.add(type(part.module).__name__)
    large = _largest_map(parts, passages) >= _LARGE_MAP
    # channels_last is 1.4 times faster on large feature maps, and slower on small ones and with
    # group norms.
    has_group_norm = any(isinstance(part, nn.GroupNorm) for part in module.modules())
    channels_last = large and not has_group_norm and features.device.type == "cpu"
    layout = torch.channels_last if channels_last else torch.contiguous_format
    if channels_last and not _runs_in(layout, copies(), base, features, labels):
        layout = torch.contiguous_format
    numbers_of_frozen = sum(frozen) // max(1, len(features))
    chunk = _chunk(passages, numbers_of_frozen, large, features.device)
    return KernelPlan(kernels, chunk, layout, tuple(sorted(generic)))


def _runs_in(
    layout: torch.memory_format,
    module: nn.Module,
    base: Model,
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
) -> bool:
    """Return True if a model runs in a memory format that it was not written for."""
    try:
        capture = Capture(module, owners(module, base.params), base.architecture.task, layout)
        capture.run(features, labels)
    # A view of a tensor in another format raises a RuntimeError; custom code may raise others.
    except Exception:
        return False
    return True


def measure_chunk(
    capture: Capture,
    kernels: Mapping[str, LayerKernel],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    clients: int,
) -> LayerProducts:
    """Return the products of one chunk: the sum of all layers' shares, in double precision."""
    passages = capture.run(features, labels)
    dots = torch.zeros(len(labels), clients, dtype=torch.float64, device=labels.device)
    squared = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    while passages:
        # Released one by one, to free the memory of finished layers.
        path, (inputs, grads, _) = passages.popitem()
        if grads is not None:
            with torch.no_grad():
                share = kernels[path](capture.part(path), inputs, grads)
            dots += share.dots
            squared += share.squared_norms
    return LayerProducts(dots, squared)


def kernel_for(
    part: Owner,
    passage: Passage,
    updates: Sequence[Params],
    cut: Mapping[str, int] | None = None,
) -> tuple[LayerKernel, bool]:
    """Return the kernel of one owner, and whether its type of layer has a fast one.

    The passage of the trial run gives the shapes; without updates, norms alone are computed.
    """
    layer = _layer(part, tuple(passage.inputs.shape[1:]), passage.outputs, updates)
    maker = KERNELS.get(type(part.module))
    partial = {local: (cut or {})[n] for local, n in part.names.items() if n in (cut or {})}
    # Hooks may change what the layer computes; the generic kernel runs them too.
    if maker is not None and _plain(part.module):
        kernel = maker(layer)
        if kernel is not None:
            return (generic_kernel(layer, cut=partial) if partial else kernel), True
    return generic_kernel(layer, cut=partial), False


def norms_over_copies(part: Owner, passage: Passage, copies: int) -> LayerKernel:
    """Return a kernel for norms alone, of samples with ``copies`` consecutive rows each."""
    if type(part.module) not in _ANY_POSITIONS or not _plain(part.module):
        layer = _layer(part, tuple(passage.inputs.shape[1:]), passage.outputs, [])
        return generic_kernel(layer, copies)
    inputs, outputs = (copies, *passage.inputs.shape[1:]), (copies, *passage.outputs)
    kernel = KERNELS[type(part.module)](_layer(part, inputs, outputs, []))
    if kernel is None:
        return generic_kernel(_layer(part, inputs[1:], outputs[1:], []), copies)

    def folded(
        module: nn.Module,
        inputs: Shaped[Tensor, "rows ..."],
        grads: Float[Tensor, "rows ..."],
    ) -> LayerProducts:
        a, b = (each.view(-1, copies, *each.shape[1:]) for each in (inputs, grads))
        return kernel(module, a, b)

    return folded


def _layer(
    part: Owner, inputs: tuple[int, ...], outputs: tuple[int, ...], updates: Sequence[Params]
) -> Layer:
    kinds = {name: value.dtype for name, value in part.module.named_parameters(recurse=False)}
    by_name = {
        local: [update[name].detach().to(kinds[local]) for update in updates]
        for local, name in part.names.items()
    }
    return Layer(part.module, by_name, inputs, outputs)


def _plain(module: nn.Module) -> bool:
    return not module._forward_pre_hooks and not module._forward_hooks


def _largest_map(parts: Mapping[str, Owner], passages: Mapping[str, Passage]) -> int:
    return max(
        (
            math.prod(passages[path].outputs[1:])
            for path, part in parts.items()
            if isinstance(part.module, nn.Conv2d)
        ),
        default=0,
    )


@contextmanager
def _sizes_of_frozen(module: nn.Module, parts: Mapping[str, Owner]) -> Iterator[list[int]]:
    """Record, within the block, the output sizes of layers without audited parameters."""
    sizes: list[int] = []
    audited = {id(part.module) for part in parts.values()}

    def note(module: nn.Module, inputs: tuple[object, ...], out: object) -> None:
        sizes.append(out.numel() if isinstance(out, Tensor) else 0)

    handles = [
        part.register_forward_hook(note)
        for part in module.modules()
        if part._parameters and id(part) not in audited
    ]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()


def _chunk(passages: Mapping[str, Passage], frozen: int, large: bool, device: torch.device) -> int:
    """Return the largest power of two of samples whose passages roughly fit the cache."""
    numbers = sum(p.inputs[0].numel() + math.prod(p.outputs) for p in passages.values()) + frozen
    room = by_kind(device, cpu=_CHUNK_BYTES, gpu=_CHUNK_BYTES_ON_GPU)
    fitting = max(1, room // (4 * numbers))
    on_cpu = _CHUNK_MOST_LARGE_MAPS if large else _CHUNK_MOST
    limit = by_kind(device, cpu=on_cpu, gpu=_CHUNK_MOST_ON_GPU)
    return min(limit, max(_CHUNK_LEAST, 1 << (fitting.bit_length() - 1)))
