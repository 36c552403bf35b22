"""Layers that apply one weight at many positions: a linear layer on sequences, a convolution.

Sample i's gradient is ``sum_t grads[i, t] (x) inputs[i, t]``: outputs times inner entries, summed
over positions. With T positions, K clients and W weights, writing the gradient out costs T + K
multiplications a weight and a pass through memory; pushing the updates forward costs K * T,
at the full speed of a matrix product.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.signals.kernels.gemm import product
from fedaudit.signals.kernels.layer import LayerProducts

# Working sets that stay in a core's share of the cache.
FORWARD_BYTES = 1 << 20
BLOCK_BYTES = 2 << 20
BLOCK_SAMPLES = 16


def forward_dots(
    inputs: Float[Tensor, "rows inner"],
    updates: Float[Tensor, "clients outputs inner"],
    grads: Float[Tensor, "rows outputs"],
) -> Float[Tensor, "rows clients"]:
    """``<updates[k], grads[r] (x) inputs[r]>`` without ever forming the outer product."""
    rows, (clients, outputs, inner) = inputs.shape[0], updates.shape
    dots = inputs.new_empty(rows, clients)
    step = max(1, FORWARD_BYTES // max(1, rows * outputs * inputs.element_size()))
    for start in range(0, clients, step):
        part = updates[start : start + step]
        pushed = product(inputs, part.reshape(-1, inner)).view(rows, -1, outputs)
        # A batched matrix-vector product would run ten times slower than this.
        dots[:, start : start + step] = pushed.mul_(grads[:, None]).sum(-1)
    return dots


def gram_norms(
    inputs: Float[Tensor, "samples positions positions"],
    grads: Float[Tensor, "samples positions outputs"],
) -> Float[Tensor, " samples"]:
    """Squared norms from the inner products of every two positions' inputs."""
    pairs = torch.bmm(grads, grads.transpose(1, 2))
    return pairs.mul_(inputs).flatten(1).sum(1).clamp_min(0)


def blocked(
    inputs: Float[Tensor, "samples positions inner"],
    grads: Float[Tensor, "samples outputs positions"],
    updates: Float[Tensor, "clients outputs inner"],
    norms: bool,
) -> LayerProducts:
    """Products from gradients written out in blocks of a few samples and outputs.

    Args:
        inputs: What entered, per position.
        grads: The loss's gradient at what left.
        updates: The clients' updates.
        norms: Also take the squared norms from the blocks; else they are left zero.
    """
    samples, outputs, _ = grads.shape
    clients, _, inner = updates.shape
    dots = inputs.new_zeros(samples, clients)
    squared = inputs.new_zeros(samples)
    step = block_outputs(outputs, inner, inputs.element_size())
    for start in range(0, samples, BLOCK_SAMPLES):
        rows = slice(start, start + BLOCK_SAMPLES)
        for first in range(0, outputs, step):
            gradient = torch.bmm(grads[rows, first : first + step], inputs[rows]).flatten(1)
            part = updates[:, first : first + step].reshape(clients, -1)
            dots[rows] += (part @ gradient.t()).t()
            if norms:
                squared[rows] += torch.linalg.vector_norm(gradient, dim=1).square_()
    return LayerProducts(dots, squared)


def block_outputs(outputs: int, inner: int, element_size: int) -> int:
    """How many outputs fit a block beside its samples."""
    return min(outputs, max(1, BLOCK_BYTES // (BLOCK_SAMPLES * inner * element_size)))
