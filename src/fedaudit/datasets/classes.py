"""Some classes of a data set, under numbers of their own."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core import Samples
from fedaudit.datasets.dataset import Dataset, numbered
from fedaudit.errors import BadInput


def some_classes(dataset: Dataset, kept: Sequence[int], *, first: int = 0) -> Dataset:
    """The samples of some classes, renumbered; scaled as the whole set was.

    Args:
        dataset: With all its classes.
        kept: Which to keep; all if empty.
        first: Number of the first that is kept. The numbers below it are classes without samples,
            such as those of a public set that has other ones.

    Raises:
        BadInput: A class that the data set does not have, one twice, or one alone.
    """
    if not kept and not first:
        return dataset
    kept = kept or range(dataset.classes)
    strangers = [label for label in kept if not 0 <= label < dataset.classes]
    if strangers or len(set(kept)) < len(kept):
        raise BadInput(
            f"data.classes names classes of {dataset.name!r}, each once: whole numbers from 0 to "
            f"{dataset.classes - 1}, got {list(kept)}"
        )
    if first + len(kept) < 2:
        raise BadInput(f"data.classes keeps {list(kept)} alone; a classifier needs two classes")
    number = torch.full((dataset.classes,), -1)
    number[list(kept)] = torch.arange(first, first + len(kept))
    train = _renumbered(dataset.train, number)
    test = _renumbered(dataset.test, number, first=len(train))
    held = number[torch.cat([dataset.train.labels, dataset.test.labels])] >= 0
    group = None if dataset.group is None else dataset.group[held]
    return replace(dataset, train=train, test=test, classes=first + len(kept), group=group)


def _renumbered(samples: Samples, number: Tensor, *, first: int = 0) -> Samples:
    labels = number[samples.labels]
    held = labels >= 0
    return numbered(samples.features[held], labels[held], first=first)
