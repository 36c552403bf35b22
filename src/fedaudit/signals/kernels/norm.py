"""Normalisation layers: frozen batch norm, group norm, layer norm."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts, direct


def _affine(layer: Layer) -> Callable[[Tensor, Tensor], LayerProducts]:
    """Products from the gradients of scale and shift, one row a sample."""
    packed = [layer.stacked(name) for name in ("weight", "bias")]

    def products(*gradients: Float[Tensor, "samples entries"]) -> LayerProducts:
        shares = [
            direct(gradient, updates.flatten(1))
            for gradient, updates in zip(gradients, packed, strict=True)
            if updates is not None
        ]
        return shares[0] if len(shares) == 1 else shares[0].plus(shares[1])

    return products


def batch_norm_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of a batch norm in evaluation mode; None where it has no running statistics."""
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
        # Single vectors are maps of one position.
        a, b = (each[..., None].flatten(2) for each in (inputs, grads))
        return products(((a - mean[:, None]) * b).sum(2) * scale, b.sum(2))

    return kernel


def group_norm_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of an ``nn.GroupNorm``."""
    own = layer.module
    if not isinstance(own, nn.GroupNorm) or not layer.owns_only("weight", "bias"):
        return None
    products = _affine(layer)
    groups, eps = own.num_groups, own.eps

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
    """The kernel of an ``nn.LayerNorm``."""
    own = layer.module
    if not isinstance(own, nn.LayerNorm) or not layer.owns_only("weight", "bias"):
        return None
    products = _affine(layer)
    shape, eps = list(own.normalized_shape), own.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        normal = functional.layer_norm(inputs, shape, None, None, eps).mul_(grads)
        entries = (len(inputs), -1, normal[(0,) * (normal.dim() - len(shape))].numel())
        return products(normal.reshape(entries).sum(1), grads.reshape(entries).sum(1))

    return kernel
