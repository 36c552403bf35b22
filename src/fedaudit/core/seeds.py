"""Named random generators: one per purpose, independent of the draws of other generators."""

import hashlib

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


def seed_for(root: int, *path: str | int) -> int:
    """Return a 63-bit seed that depends only on the root seed and the path."""
    text = "/".join([str(root), *(f"{type(part).__name__}:{part}" for part in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seeded(root: int, *path: str | int) -> torch.Generator:
    """Return a torch generator for a purpose, such as ``seeded(1, "batches", round, client)``.

    Different paths give independent streams. A stream does not depend on draws from other streams,
    or on the process.
    """
    return torch.Generator().manual_seed(seed_for(root, *path))


def seeded_numpy(root: int, *path: str | int) -> np.random.Generator:
    """Return a numpy generator for a purpose; see :func:`seeded`."""
    return np.random.default_rng(seed_for(root, *path))


def seed_globally(seed: int) -> None:
    """Seed torch's global generators of the CPU, and of accelerators if there are any.

    Without an accelerator, ``torch.manual_seed`` would record a stack trace for every kind of
    accelerator, which takes milliseconds.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def held_out(
    ids: Int[Tensor, " samples"], fraction: float, *, seed: int
) -> Bool[Tensor, " samples"]:
    """Return which samples are held out of training, each with the same probability.

    The decision about a sample depends only on its id and the seed, and not on the client that has
    the sample. Membership of the remaining samples is therefore still a fair draw.

    Args:
        ids: Ids of the samples.
        fraction: Expected fraction of samples that are held out, in [0, 1).
        seed: Seed of the run.
    """
    hashes = ids.numpy().astype(np.uint64) + np.uint64(seed_for(seed, "validation"))
    # splitmix64 (Steele et al. 2014), so that coins of consecutive ids are independent.
    hashes = (hashes + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    # The upper 53 bits become a uniform number in [0, 1).
    return torch.from_numpy((hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction)
