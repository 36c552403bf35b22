"""Randomness by name: one generator per purpose, the same whatever was drawn before it."""

import hashlib

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor


def seed_for(root: int, *path: str | int) -> int:
    """A 63-bit seed that depends on the root seed and the whole path, and on nothing else."""
    text = "/".join([str(root), *(f"{type(part).__name__}:{part}" for part in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seeded(root: int, *path: str | int) -> torch.Generator:
    """A torch generator for one named purpose, such as ``seeded(1, "batches", round, client)``.

    Two different paths give independent streams, and a stream does not change when other
    streams are drawn from earlier, later or in another process.
    """
    return torch.Generator().manual_seed(seed_for(root, *path))


def seeded_numpy(root: int, *path: str | int) -> np.random.Generator:
    """The numpy twin of :func:`seeded`, for partitions and statistics."""
    return np.random.default_rng(seed_for(root, *path))


def seed_globally(seed: int) -> None:
    """Seeds torch's global generators, of the CPU and of the accelerators that there are.

    ``torch.manual_seed`` also leaves word for every kind of accelerator there might be, with a
    stack trace each: milliseconds where the stack is deep.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


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
