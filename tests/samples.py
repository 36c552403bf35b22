"""Generated samples for tests."""

import torch

from fedaudit.core.values import Samples
from fedaudit.datasets.dataset import number_samples


def random_samples(
    rng: torch.Generator, count: int, *shape: int, classes: int, first: int = 0
) -> Samples:
    """Samples whose labels have nothing to do with their features; ids count from ``first`` on."""
    features = torch.randn(count, *shape, generator=rng)
    return number_samples(features, torch.randint(classes, (count,), generator=rng), first=first)
