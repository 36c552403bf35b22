"""Linear layers, on single vectors and on sequences of any shape."""

from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts, optional_bias
from fedaudit.signals.kernels.positions import blocked, forward_dots, gram_norms

# Pushing updates forward beats writing gradients out up to this many clients times positions.
_FORWARD_UP_TO = 24


def linear_kernel(layer: Layer) -> LayerKernel | None:
    """The kernel of an ``nn.Linear``; None where it has parameters this file does not know."""
    if not layer.owns_only("weight", "bias") or not layer.inputs:
        return None
    return _vectors(layer) if len(layer.inputs) == 1 else _sequences(layer)


def _vectors(layer: Layer) -> LayerKernel:
    weight, add_bias = layer.updates.get("weight"), optional_bias(layer)

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
    weight, add_bias = layer.updates.get("weight"), optional_bias(layer)

    def kernel(
        module: nn.Module,
        inputs: Float[Tensor, "samples *positions inner"],
        grads: Float[Tensor, "samples *positions outputs"],
    ) -> LayerProducts:
        a, b = inputs.flatten(1, -2), grads.flatten(1, -2)
        share = None if weight is None else position_products(a, b, weight)
        return add_bias(share, b.sum(1))

    return kernel


def position_products(
    inputs: Float[Tensor, "samples positions inner"],
    grads: Float[Tensor, "samples positions outputs"],
    updates: Float[Tensor, "clients outputs inner"],
) -> LayerProducts:
    """The share of a weight that every position passes through once."""
    (samples, positions, inner), outputs = inputs.shape, grads.shape[-1]
    small_pairs = positions * positions < inner * outputs
    if updates.shape[0] * positions <= _FORWARD_UP_TO or (not updates.shape[0] and small_pairs):
        rows = forward_dots(inputs.flatten(0, 1), updates, grads.flatten(0, 1))
        share = LayerProducts(rows.view(samples, positions, -1).sum(1), rows.new_zeros(samples))
        small_pairs = True
    else:
        share = blocked(inputs, grads.transpose(1, 2), updates, not small_pairs)
    if small_pairs:
        pairs = inputs @ inputs.transpose(1, 2)
        share = share._replace(squared_norms=gram_norms(pairs, grads))
    return share
