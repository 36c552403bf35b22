"""Samples that a client keeps out of its training, told by their ids alone."""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedaudit.core.seeds import seed_for


def held_out(ids: Int[Tensor, " samples"], share: float, *, seed: int) -> Bool[Tensor, " samples"]:
    """Which samples are never trained on: each with the same chance, whoever owns it.

    A coin a sample, rather than a part of a client's data, so that being held out has nothing
    to do with being a client's: among the samples that are not held out, who is a member is
    still as fair a draw as it was.

    Args:
        ids: Of the samples.
        share: About how many are held out, in [0, 1).
        seed: Of the run.
    """
    words = ids.numpy().astype(np.uint64) + np.uint64(seed_for(seed, "validation"))
    # splitmix64, so that neighbouring ids give unrelated coins (Steele et al. 2014).
    words = (words + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)
