"""Linear layers on vectors and sequences, embedding tables, and normalisation layers."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.signals.kernels.base import Layer, LayerKernel, LayerProducts, direct, optional_bias
from fedaudit.signals.kernels.positions import (
    blocked,
    forward_dots,
    gram_norms,
    packed_blocks,
)

# Pushing updates forward beats writing gradients out up to this many clients times positions.
_FORWARD_UP_TO = 48


def linear_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of an ``nn.Linear``; None where it has parameters this file does not know."""
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
    """The cheaper of pushing updates forward and writing gradients out."""
    clients, outputs, inner = updates.shape
    by_pairs = positions**2 < outputs * inner
    forward = by_pairs and clients * positions <= _FORWARD_UP_TO
    blocks = [] if forward else packed_blocks(updates, (clients, outputs, inner), updates)[0]

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
    """The kernel of an ``nn.Embedding``; None for one that rescales its rows or gradients."""
    own = layer.module
    if (
        not isinstance(own, nn.Embedding)
        or own.max_norm is not None
        or own.scale_grad_by_freq
        or not layer.owns_only("weight")
    ):
        return None
    updates, padding = list(layer.updates["weight"]), own.padding_idx

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
        # A row that a sample looks up twice has the sum of both gradients.
        same = index[:, :, None] == index[:, None, :]
        pairs = torch.bmm(b, b.transpose(1, 2))
        return LayerProducts(dots, (pairs * same).flatten(1).sum(1).clamp_min(0))

    return kernel


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
