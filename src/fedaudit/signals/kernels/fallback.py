"""Exact products for any other module, and for models that cannot be taken apart."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from fedaudit.core.tasks import Task
from fedaudit.core.values import Model, Params
from fedaudit.signals.kernels.base import Layer, LayerKernel, LayerProducts, direct
from fedaudit.signals.kernels.capture import unasked

_BLOCK_BYTES = 16 << 20


def generic_kernel(
    layer: Layer, copies: int = 1, cut: Mapping[str, int] | None = None
) -> LayerKernel:
    """A kernel that forms each sample's gradient of this one module with ``torch.func``.

    Args:
        layer: Module and updates.
        copies: Rows that belong to one sample, one after the other; their gradients are added.
        cut: Of parameters, by their names in the module, that count in part only: how many of
            their first entries do.
    """
    stacks = {name: layer.stacked(name) for name in layer.updates}
    updates = {name: value.flatten(1) for name, value in stacks.items() if value is not None}
    weights = sum(value.shape[1] for value in updates.values())
    block = max(1, _BLOCK_BYTES // (4 * weights))

    def kernel(
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        a, b = (_in_order(each).view(-1, copies, *each.shape[1:]) for each in (inputs, grads))
        # Slices of a fixed size: the block never depends on how many samples are left.
        parts = [
            _share(module, updates, a[at : at + block], b[at : at + block], cut or {})
            for at in range(0, len(a), block)
        ]
        return LayerProducts(
            torch.cat([part.dots for part in parts]),
            torch.cat([part.squared_norms for part in parts]),
        )

    return kernel


def _share(
    module: nn.Module,
    updates: dict[str, Tensor],
    inputs: Shaped[Tensor, "samples copies ..."],
    grads: Float[Tensor, "samples copies ..."],
    cut: Mapping[str, int],
) -> LayerProducts:
    own = {name: _in_order(getattr(module, name).detach()) for name in updates}

    def gradient(sample: Tensor, grad: Tensor) -> dict[str, Tensor]:
        def run(params: dict[str, Tensor]) -> Tensor:
            out: Tensor = functional_call(module, params, (sample,))
            return out

        pull = vjp(run, own)[1]
        found: dict[str, Tensor] = pull(grad)[0]
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = vmap(gradient)(inputs, grads)
    gradients = {name: value.flatten(1) for name, value in found.items()}
    for name, count in cut.items():
        gradients[name][:, count:] = 0
    shares = [direct(gradients[name], update) for name, update in updates.items()]
    total = shares[0]
    for share in shares[1:]:
        total = total.plus(share)
    return total


def _in_order(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The same numbers in the usual order; of others, torch 2.13 makes no gradient within vmap."""
    # Not contiguous(), which leaves maps of one pixel as they are and with them their strides.
    return values.clone(memory_format=torch.contiguous_format)


Measure: TypeAlias = Callable[[Tensor, Tensor], LayerProducts]

VMAP_CHUNK = 8
"""Samples whose whole gradients are in memory together; more are slower on a processor."""


def stacked(base: Model, updates: Sequence[Params]) -> dict[str, Tensor]:
    """Every client's update of each parameter, one row a client."""
    return {
        name: torch.stack([update[name].detach().flatten().to(value.dtype) for update in updates])
        if updates
        else value.new_zeros(0, value.numel())
        for name, value in base.params.items()
    }


def vmap_measure(
    module: nn.Module, base: Model, packed: Mapping[str, Tensor], cut: Mapping[str, int]
) -> Measure:
    """Per-sample gradients by ``torch.func``; ``cut`` as in :func:`loop_measure`."""
    unasked(module)
    task = base.architecture.task
    params: Params = {name: value for name, value in module.named_parameters() if name in packed}

    def loss(own: Params, feature: Tensor, label: Tensor) -> Tensor:
        def run(*args: Tensor, **inputs: Tensor) -> object:
            found: object = functional_call(module, own, args, inputs)
            return found

        out = task.outputs(run, feature[None])
        return task.losses(out, label[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        found: dict[str, Tensor] = gradients(params, features, labels)
        flat = {name: value.flatten(1) for name, value in found.items()}
        for name, count in cut.items():
            flat[name][:, count:] = 0
        return _products(flat, packed)

    return measure


def loop_measure(
    module: nn.Module, base: Model, updates: Sequence[Params], cut: Mapping[str, int]
) -> Measure:
    """Per-sample gradients by one ordinary backward pass each: what all else is checked against.

    Args:
        module: With the base model's values.
        base: Which parameters count.
        updates: Every client's.
        cut: Of parameters that count in part only: how many of their first entries do.
    """
    unasked(module)
    params: Params = {n: value for n, value in module.named_parameters() if n in base.params}
    for value in params.values():
        value.requires_grad_()

    def one(feature: Tensor, label: Tensor) -> LayerProducts:
        found = _gradient(module, params, base.architecture.task, feature, label)
        found |= {name: first_entries(found[name], count) for name, count in cut.items()}
        dots = [sum_of(found, update) for update in updates]
        return LayerProducts(
            torch.tensor([dots], dtype=torch.float64).view(1, -1),
            torch.tensor([sum_of(found, found)], dtype=torch.float64),
        )

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        each = [one(x, y) for x, y in zip(features, labels, strict=True)]
        return LayerProducts(
            torch.cat([part.dots for part in each]),
            torch.cat([part.squared_norms for part in each]),
        )

    return measure


def first_entries(values: Tensor, count: int) -> Tensor:
    """A copy with zeros in all but the first entries."""
    entries = values.flatten().clone()
    entries[count:] = 0
    return entries.reshape(values.shape)


def sum_of(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """Inner product of two sets of parameters, added up parameter by parameter."""
    return sum(
        float(torch.dot(value.flatten(), right[name].flatten().to(value.dtype)))
        for name, value in left.items()
    )


def _gradient(
    module: nn.Module, params: Params, task: Task, feature: Tensor, label: Tensor
) -> dict[str, Tensor]:
    with torch.enable_grad():
        total = task.losses(task.outputs(module, feature[None].clone()), label[None]).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(value) for name, value in params.items()}
    found = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if part is None else part
        for (name, value), part in zip(params.items(), found, strict=True)
    }


def _products(
    gradients: Mapping[str, Float[Tensor, "samples _"]],
    packed: Mapping[str, Shaped[Tensor, "clients _"]],
) -> LayerProducts:
    dots = sum((gradients[name] @ update.t()).double() for name, update in packed.items())
    squared = sum(gradients[name].square().sum(1).double() for name in packed)
    if not isinstance(dots, Tensor) or not isinstance(squared, Tensor):
        raise TypeError("a model without parameters has no gradients")
    return LayerProducts(dots, squared)
