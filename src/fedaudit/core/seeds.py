"""Randomness by name: one generator per purpose, the same whatever was drawn before it."""

import hashlib

import numpy as np
import torch


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
