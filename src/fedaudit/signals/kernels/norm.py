"""Normalisation layers: frozen batch norm, group norm, layer norm."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts, direct

_Sums = tuple[Float[Tensor, "samples entries"], Float[Tensor, "samples entries"]]


def _affine(
    layer: Layer, weight_grad: Float[Tensor, "..."], bias_grad: Float[Tensor, "..."]
) -> LayerProducts:
    share = None
    for name, gradient in (("weight", weight_grad), ("bias", bias_grad)):
        if name in layer.updates:
            own = direct(gradient, layer.updates[name].flatten(1))
            share = own if share is None else share.plus(own)
    if share is None:
        raise RuntimeError("a layer without audited parameters has no kernel")
    return share


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
    mean = module.running_mean.clone()
    scale = torch.rsqrt(module.running_var + module.eps)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        a, b = inputs.flatten(2), grads.flatten(2)
        if inputs.dim() == 2:
            a, b = a[..., None], b[..., None]
        return _affine(layer, ((a - mean[:, None]) * b).sum(2) * scale, b.sum(2))

    return kernel


def group_norm_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of an ``nn.GroupNorm``."""
    own = layer.module
    if not isinstance(own, nn.GroupNorm) or not layer.owns_only("weight", "bias"):
        return None
    groups, eps = own.num_groups, own.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples channels *positions"],
        grads: Float[Tensor, "samples channels *positions"],
    ) -> LayerProducts:
        normal = functional.group_norm(inputs, groups, None, None, eps)
        shape = (*inputs.shape[:2], -1)
        weighted = normal.mul_(grads).reshape(shape).sum(2)
        return _affine(layer, weighted, grads.reshape(shape).sum(2))

    return kernel


def layer_norm_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of an ``nn.LayerNorm``."""
    own = layer.module
    if not isinstance(own, nn.LayerNorm) or not layer.owns_only("weight", "bias"):
        return None
    shape, eps = list(own.normalized_shape), own.eps

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        normal = functional.layer_norm(inputs, shape, None, None, eps).mul_(grads)
        entries = (len(inputs), -1, normal[(0,) * (normal.dim() - len(shape))].numel())
        return _affine(layer, normal.reshape(entries).sum(1), grads.reshape(entries).sum(1))

    return kernel
