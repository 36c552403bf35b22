"""A data set whose samples can be traced by their features."""

import torch

from fedaudit.datasets.arrays import ScaledFeatures, build_dataset
from fedaudit.datasets.dataset import Dataset


def by_id(train: int, test: int, classes: int = 5) -> Dataset:
    """Samples whose only feature is their id; classes and two groups come in turn."""
    ids = torch.arange(train + test)
    features = ids.float()[:, None]
    return build_dataset(
        "d",
        ScaledFeatures(features[:train], features[train:], ""),
        ids[:train] % classes,
        ids[train:] % classes,
        classes=classes,
        group=ids % 2,
        group_names=("even", "odd"),
    )
