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
    blockwise_products,
    forward_dots,
    gram_norms,
    optional_bias,
    products_of_gradients,
    update_blocks,
)
from fedaudit.signals.kernels.capture import Activation, Capture, Owner, generic_kernel, owners
from fedaudit.signals.kernels.conv import conv_kernel

# Forward products are faster than forming gradients if clients x positions is at most this number.
_FORWARD_UP_TO = 48


def linear_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Linear``; None if it has other parameters."""
    if not layer.has_only("weight", "bias") or not layer.inputs:
        return None
    return _vector_kernel(layer) if len(layer.inputs) == 1 else _sequence_kernel(layer)


def _vector_kernel(layer: Layer) -> LayerKernel:
    weight, add_bias = layer.stacked("weight"), optional_bias(layer)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples inner"],
        grads: Float[Tensor, "samples outputs"],
    ) -> LayerProducts:
        products = None
        if weight is not None:
            squared = inputs.square().sum(1) * grads.square().sum(1)
            products = LayerProducts(forward_dots(inputs, weight, grads), squared)
        return add_bias(products, grads)

    return kernel


def _sequence_kernel(layer: Layer) -> LayerKernel:
    add_bias = optional_bias(layer)
    weight = layer.stacked("weight")
    positions = math.prod(layer.inputs[:-1])
    weight_kernel = None if weight is None else position_kernel(positions, weight)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples *positions inner"],
        grads: Float[Tensor, "samples *positions outputs"],
    ) -> LayerProducts:
        a, b = inputs.flatten(1, -2), grads.flatten(1, -2)
        products = None if weight_kernel is None else weight_kernel(module, a, b)
        return add_bias(products, b.sum(1))

    return kernel


def position_kernel(positions: int, updates: Float[Tensor, "clients outputs inner"]) -> LayerKernel:
    """Return the faster of two kernels: by forward products, or by forming gradients."""
    clients, outputs, inner = updates.shape
    # Norms by Gram matrices take positions^2 entries per sample, gradients outputs x inner.
    uses_gram = positions**2 < outputs * inner
    uses_forward = uses_gram and clients * positions <= _FORWARD_UP_TO
    blocks = [] if uses_forward else update_blocks(updates, (clients, outputs, inner), updates)[0]

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples positions inner"],
        grads: Float[Tensor, "samples positions outputs"],
    ) -> LayerProducts:
        if uses_forward:
            rows = forward_dots(inputs.flatten(0, 1), updates, grads.flatten(0, 1))
            dots = rows.view(len(inputs), positions, clients).sum(1)
            products = LayerProducts(dots, dots.new_zeros(len(inputs)))
        else:
            products = blockwise_products(
                inputs, grads.transpose(1, 2), blocks, norms=not uses_gram
            )
        if not uses_gram:
            return products
        return products._replace(squared_norms=gram_norms(inputs @ inputs.transpose(1, 2), grads))

    return kernel


def embedding_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.Embedding``; None if it rescales its rows or gradients."""
    embedding = layer.module
    if (
        not isinstance(embedding, nn.Embedding)
        or embedding.max_norm is not None
        or embedding.scale_grad_by_freq
        or not layer.has_only("weight")
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
        # If a sample looks up the same row at two positions, their gradients are added.
        is_same_row = index[:, :, None] == index[:, None, :]
        grad_gram = torch.bmm(b, b.transpose(1, 2))
        return LayerProducts(dots, (grad_gram * is_same_row).flatten(1).sum(1).clamp_min(0))

    return kernel


def _scale_and_shift_products(layer: Layer) -> Callable[[Tensor, Tensor], LayerProducts]:
    """Return a function that computes products from per-sample gradients of scale and shift."""
    stacks = [layer.stacked(name) for name in ("weight", "bias")]

    def products(*gradients: Float[Tensor, "samples entries"]) -> LayerProducts:
        by_param = [
            products_of_gradients(gradient, updates.flatten(1))
            for gradient, updates in zip(gradients, stacks, strict=True)
            if updates is not None
        ]
        return by_param[0] if len(by_param) == 1 else by_param[0].add(by_param[1])

    return products


def batch_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of a batch norm in evaluation mode; None without running statistics."""
    module = layer.module
    if (
        not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        or module.running_mean is None
        or module.running_var is None
        or not layer.has_only("weight", "bias")
    ):
        return None
    products = _scale_and_shift_products(layer)
    mean = module.running_mean.clone()
    scale = torch.rsqrt(module.running_var + module.eps)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        # A vector becomes a map with one position.
        a, b = (tensor[..., None].flatten(2) for tensor in (inputs, grads))
        return products(((a - mean[:, None]) * b).sum(2) * scale, b.sum(2))

    return kernel


def group_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.GroupNorm``."""
    norm = layer.module
    if not isinstance(norm, nn.GroupNorm) or not layer.has_only("weight", "bias"):
        return None
    products = _scale_and_shift_products(layer)
    groups, eps = norm.num_groups, norm.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        normalised = functional.group_norm(inputs, groups, None, None, eps)
        shape = (*inputs.shape[:2], -1)
        scale_gradients = normalised.mul_(grads).reshape(shape).sum(2)
        return products(scale_gradients, grads.reshape(shape).sum(2))

    return kernel


def layer_norm_kernel(layer: Layer) -> LayerKernel | None:
    """Return the kernel of an ``nn.LayerNorm``."""
    norm = layer.module
    if not isinstance(norm, nn.LayerNorm) or not layer.has_only("weight", "bias"):
        return None
    products = _scale_and_shift_products(layer)
    shape, eps = list(norm.normalized_shape), norm.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        scale_gradients = functional.layer_norm(inputs, shape, None, None, eps).mul_(grads)
        by_position = (len(inputs), -1, math.prod(shape))
        return products(
            scale_gradients.reshape(by_position).sum(1), grads.reshape(by_position).sum(1)
        )

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
"""Fast kernel of each layer type. Subclasses may compute something else, so they have none."""

# Layer types with any number of positions. Several rows of a sample can be treated as positions.
_ANY_POSITIONS = (nn.Linear, nn.LayerNorm, nn.Embedding)

_CHUNK_BYTES = 24 << 20
_MAX_CHUNK = 256
_MAX_CHUNK_LARGE_MAPS = 64
_MIN_CHUNK = 32
# A GPU is limited by memory instead of a cache, and needs large chunks. These sizes are estimates,
# not measured.
_CHUNK_BYTES_ON_GPU = 2 << 30
_MAX_CHUNK_ON_GPU = 512
# Number of output positions from which a feature map counts as large.
_LARGE_MAP = 128


class KernelPlan(NamedTuple):
    """Kernels and sizes, which are chosen once per call for all workers.

    Attributes:
        kernels: The kernel of each module that owns audited parameters, by its path.
        chunk: Number of samples of a chunk.
        layout: Memory format of images in the model.
        generic: Types of modules that use the generic kernel.
    """

    kernels: dict[str, LayerKernel]
    chunk: int
    layout: torch.memory_format
    generic: tuple[str, ...]


def plan_for(
    make_module: Callable[[], nn.Module],
    base: Model,
    updates: Sequence[Params],
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
    cut: Mapping[str, int] | None = None,
) -> KernelPlan:
    """Choose kernels and sizes.

    The choice depends only on the shapes in a trial run, not on timing, so that results are bitwise
    reproducible.

    Args:
        make_module: Returns a new module with the base model's values on each call.
        base: Model with the audited parameters.
        updates: Every client's update.
        features: Features of the trial run.
        labels: Labels of the trial run.
        cut: Number of leading entries that are used, for each parameter that is used in part.

    Raises:
        Uncapturable: The model cannot be captured.
    """
    module = make_module()
    parts = owners(module, base.params)
    with _sizes_of_frozen(module, parts) as frozen:
        activations = Capture(module, parts, base.architecture.task).run(features, labels)
    kernels, generic = {}, set()
    for path, part in parts.items():
        kernel, fast = kernel_for(part, activations[path], updates, cut)
        kernels[path] = kernel
        if not fast:
            generic.add(type(part.module).__name__)
    has_large_maps = _largest_map(parts, activations) >= _LARGE_MAP
    # channels_last is 1.4 times faster on large feature maps, and slower on small ones and with
    # group norms.
    has_group_norm = any(isinstance(part, nn.GroupNorm) for part in module.modules())
    is_channels_last = has_large_maps and not has_group_norm and features.device.type == "cpu"
    layout = torch.channels_last if is_channels_last else torch.contiguous_format
    if is_channels_last and not _runs_in_layout(layout, make_module(), base, features, labels):
        layout = torch.contiguous_format
    frozen_entries = sum(frozen) // max(1, len(features))
    chunk = _chunk_size(activations, frozen_entries, has_large_maps, features.device)
    return KernelPlan(kernels, chunk, layout, tuple(sorted(generic)))


def _runs_in_layout(
    layout: torch.memory_format,
    module: nn.Module,
    base: Model,
    features: Shaped[Tensor, "samples ..."],
    labels: Shaped[Tensor, "samples ..."],
) -> bool:
    """Return True if a model runs in a memory format for which it was not written."""
    try:
        capture = Capture(module, owners(module, base.params), base.architecture.task, layout)
        capture.run(features, labels)
    # view() raises a RuntimeError in another format; custom code may raise any exception.
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
    """Return the products of one chunk, summed over all layers, in double precision."""
    activations = capture.run(features, labels)
    dots = torch.zeros(len(labels), clients, dtype=torch.float64, device=labels.device)
    squared = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    while activations:
        # popitem releases the memory of each finished layer.
        path, (inputs, grads, _) = activations.popitem()
        if grads is not None:
            with torch.no_grad():
                products = kernels[path](capture.part(path), inputs, grads)
            dots += products.dots
            squared += products.squared_norms
    return LayerProducts(dots, squared)


def kernel_for(
    part: Owner,
    activation: Activation,
    updates: Sequence[Params],
    cut: Mapping[str, int] | None = None,
) -> tuple[LayerKernel, bool]:
    """Return the kernel of one owner of parameters, and whether it is a fast kernel.

    Args:
        part: The owner.
        activation: Its activation in the trial run, for the shapes.
        updates: Every client's update; without updates, only norms are computed.
        cut: As in :func:`plan_for`.
    """
    layer = _layer(part, tuple(activation.inputs.shape[1:]), activation.outputs, updates)
    make_kernel = KERNELS.get(type(part.module))
    layer_cut = {local: (cut or {})[n] for local, n in part.names.items() if n in (cut or {})}
    # Hooks may change what the layer computes. Only the generic kernel runs them.
    if make_kernel is not None and _has_no_hooks(part.module):
        kernel = make_kernel(layer)
        if kernel is not None:
            return (generic_kernel(layer, cut=layer_cut) if layer_cut else kernel), True
    return generic_kernel(layer, cut=layer_cut), False


def norms_over_copies(part: Owner, activation: Activation, copies: int) -> LayerKernel:
    """Return a kernel that computes only norms, for samples with ``copies`` consecutive rows."""
    if type(part.module) not in _ANY_POSITIONS or not _has_no_hooks(part.module):
        layer = _layer(part, tuple(activation.inputs.shape[1:]), activation.outputs, [])
        return generic_kernel(layer, copies)
    inputs, outputs = (copies, *activation.inputs.shape[1:]), (copies, *activation.outputs)
    kernel = KERNELS[type(part.module)](_layer(part, inputs, outputs, []))
    if kernel is None:
        return generic_kernel(_layer(part, inputs[1:], outputs[1:], []), copies)

    def kernel_of_rows(
        module: nn.Module,
        inputs: Shaped[Tensor, "rows ..."],
        grads: Float[Tensor, "rows ..."],
    ) -> LayerProducts:
        # Copies become positions.
        return kernel(
            module,
            inputs.view(-1, copies, *inputs.shape[1:]),
            grads.view(-1, copies, *grads.shape[1:]),
        )

    return kernel_of_rows


def _layer(
    part: Owner, inputs: tuple[int, ...], outputs: tuple[int, ...], updates: Sequence[Params]
) -> Layer:
    dtypes = {name: value.dtype for name, value in part.module.named_parameters(recurse=False)}
    layer_updates = {
        local: [update[name].detach().to(dtypes[local]) for update in updates]
        for local, name in part.names.items()
    }
    return Layer(part.module, layer_updates, inputs, outputs)


def _has_no_hooks(module: nn.Module) -> bool:
    return not module._forward_pre_hooks and not module._forward_hooks


def _largest_map(parts: Mapping[str, Owner], activations: Mapping[str, Activation]) -> int:
    return max(
        (
            math.prod(activations[path].outputs[1:])
            for path, part in parts.items()
            if isinstance(part.module, nn.Conv2d)
        ),
        default=0,
    )


@contextmanager
def _sizes_of_frozen(module: nn.Module, parts: Mapping[str, Owner]) -> Iterator[list[int]]:
    """Record the output sizes of layers without audited parameters, while the context is open."""
    sizes: list[int] = []
    audited_modules = {id(part.module) for part in parts.values()}

    def record(module: nn.Module, inputs: tuple[object, ...], out: object) -> None:
        sizes.append(out.numel() if isinstance(out, Tensor) else 0)

    handles = [
        part.register_forward_hook(record)
        for part in module.modules()
        if part._parameters and id(part) not in audited_modules
    ]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()


def _chunk_size(
    activations: Mapping[str, Activation], frozen: int, has_large_maps: bool, device: torch.device
) -> int:
    """Return the power of two of samples whose activations roughly fill the cache.

    Args:
        activations: Activations of the trial run.
        frozen: Output entries per sample of layers without audited parameters.
        has_large_maps: Whether the model has large feature maps.
        device: Device of the model.
    """
    entries = sum(a.inputs[0].numel() + math.prod(a.outputs) for a in activations.values()) + frozen
    max_bytes = by_kind(device, cpu=_CHUNK_BYTES, gpu=_CHUNK_BYTES_ON_GPU)
    fitting = max(1, max_bytes // (4 * entries))
    on_cpu = _MAX_CHUNK_LARGE_MAPS if has_large_maps else _MAX_CHUNK
    limit = by_kind(device, cpu=on_cpu, gpu=_MAX_CHUNK_ON_GPU)
    return min(limit, max(_MIN_CHUNK, 1 << (fitting.bit_length() - 1)))
