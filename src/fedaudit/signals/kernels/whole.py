"""The whole model at once, for models that cannot be taken apart: exact, several times slower."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedaudit.core import Model, Params, PerSampleLoss
from fedaudit.signals.kernels.layer import LayerProducts

Measure: TypeAlias = Callable[[Tensor, Tensor], LayerProducts]

VMAP_CHUNK = 8
"""Samples whose whole gradients are in memory together; more are slower on a processor."""


def stacked(base: Model, updates: Sequence[Params]) -> dict[str, Tensor]:
    """Every client's update of each parameter, one row a client."""
    return {
        name: torch.stack([update[name].detach().flatten() for update in updates])
        if updates
        else value.new_zeros(0, value.numel())
        for name, value in base.params.items()
    }


def vmap_measure(base: Model, packed: Mapping[str, Tensor]) -> Measure:
    """Per-sample gradients by ``torch.func``."""
    module = base.module().requires_grad_(False)
    params: Params = {name: value for name, value in module.named_parameters() if name in packed}

    def loss(own: Params, feature: Tensor, label: Tensor) -> Tensor:
        out = functional_call(module, own, (feature[None],))
        return base.architecture.loss(out, label[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        found: dict[str, Tensor] = gradients(params, features, labels)
        return _products({name: value.flatten(1) for name, value in found.items()}, packed)

    return measure


def loop_measure(base: Model, packed: Mapping[str, Tensor]) -> Measure:
    """Per-sample gradients by one ordinary backward pass each: what all else is checked against."""
    module = base.module().requires_grad_(False)
    params: Params = {name: value for name, value in module.named_parameters() if name in packed}
    for value in params.values():
        value.requires_grad_()

    def one(feature: Tensor, label: Tensor) -> LayerProducts:
        return _products(_gradient(module, params, base.architecture.loss, feature, label), packed)

    def measure(features: Tensor, labels: Tensor) -> LayerProducts:
        each = [one(x, y) for x, y in zip(features, labels, strict=True)]
        return LayerProducts(
            torch.cat([part.dots for part in each]),
            torch.cat([part.squared_norms for part in each]),
        )

    return measure


def _gradient(
    module: nn.Module, params: Params, loss: PerSampleLoss, feature: Tensor, label: Tensor
) -> dict[str, Tensor]:
    with torch.enable_grad():
        total = loss(module(feature[None].clone()), label[None]).sum()
    if not total.requires_grad:
        return {name: torch.zeros(1, value.numel()) for name, value in params.items()}
    found = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {
        name: (torch.zeros_like(value) if part is None else part).reshape(1, -1)
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
