"""Linear layers, on single vectors and on sequences of any shape."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts, optional_bias
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
    blocks = [] if forward else packed_blocks(updates, (clients, outputs, inner), updates)

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
