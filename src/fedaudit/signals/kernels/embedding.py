"""Embedding tables."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts


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
