"""The whole model at once, for models that cannot be taken apart: exact, several times slower."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedaudit.core import Model, Params, PerSampleLoss
from fedaudit.signals.kernels.capture import unasked
from fedaudit.signals.kernels.layer import LayerProducts

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
    params: Params = {name: value for name, value in module.named_parameters() if name in packed}

    def loss(own: Params, feature: Tensor, label: Tensor) -> Tensor:
        out = functional_call(module, own, (feature[None],))
        return base.architecture.loss(out, label[None]).sum()

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
        found = _gradient(module, params, base.architecture.loss, feature, label)
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
    module: nn.Module, params: Params, loss: PerSampleLoss, feature: Tensor, label: Tensor
) -> dict[str, Tensor]:
    with torch.enable_grad():
        total = loss(module(feature[None].clone()), label[None]).sum()
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
