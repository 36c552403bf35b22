"""Midranks: places in order of size, where equal scores share the mean of their places."""

import numpy as np
from jaxtyping import Float

from fedaudit.metrics.sides import Sides


def midranks(scores: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " samples"]:
    """The place of each score from the smallest, which has 1; infinities are fine, NaNs are not."""
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Float[np.ndarray, " samples"] = (np.cumsum(counts) - (counts - 1) / 2)[level]
    return ranks


def ranked(split: Sides) -> Sides:
    """Midranks among members and non-members together in the place of their scores."""
    together = midranks(np.concatenate(split))
    return Sides(*np.split(together, [len(split.members)]))


def within_side(ranks: Float[np.ndarray, " side"]) -> Float[np.ndarray, " side"]:
    """Midranks within one side of samples that are ranked already: counted, not sorted."""
    place = (2 * ranks).astype(np.int64)  # midranks are whole or half
    upto = np.cumsum(np.bincount(place))
    before = np.concatenate([[0], upto[:-1]])
    ranks_within: Float[np.ndarray, " side"] = 0.5 * (upto[place] + before[place] + 1)
    return ranks_within
