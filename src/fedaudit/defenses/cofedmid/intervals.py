"""Samples sorted by how hard they are: losses on one scale, cut into intervals."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def on_one_scale(losses: Float[Tensor, " samples"]) -> Float[Tensor, " samples"]:
    """Losses from 0 for the smallest to 1 for the largest; 0 for all where they are equal.

    Source: CoFedMID, section 4.2.1, step 1.
    """
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low) if high > low else torch.zeros_like(losses)


def edges_of(scaled: Float[Tensor, " samples"], count: int) -> Float[Tensor, " edges"]:
    """The inner edges of intervals that hold equally many of these samples, up to rounding.

    Args:
        scaled: Losses in [0, 1].
        count: How many intervals; there is one edge fewer.

    Source: CoFedMID, section 4.2.1, step 1: interval j goes from rank floor((j - 1) n / M) to
        floor(j n / M), without the latter.
    """
    ranked = scaled.sort().values
    ranks = torch.arange(1, count, device=scaled.device) * len(ranked) // count
    return ranked[ranks]


def interval_of(
    scaled: Float[Tensor, " samples"], edges: Float[Tensor, " edges"]
) -> Int[Tensor, " samples"]:
    """The interval of each sample; edges belong to the interval above, 1 to the last."""
    return torch.searchsorted(edges.contiguous(), scaled.contiguous(), right=True)
