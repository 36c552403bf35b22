"""Groups of clients whose people differ: each client has samples of one side of an attribute."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, setting, unknown_name
from fedaudit.core.values import Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.partitions.schemes import Counts, Partition, Quotas


class AttributeSplit(NamedTuple):
    """Samples with one value of an attribute, and all others.

    Attributes:
        minority: Which samples of the data set, by id, have the minority's value.
        value: That value.
    """

    minority: Bool[Tensor, " samples"]
    value: str


@dataclass(frozen=True)
class BySide:
    """Deals each side's samples to that side's clients, by a scheme of its own.

    Classes are counted side by side: first those of the majority, then those of the minority.

    Attributes:
        scheme: How samples of one side are dealt to its clients.
        group: For each client, 0 for the majority, 1 for the minority.
    """

    scheme: Partition
    group: tuple[int, ...]

    def quotas(self, counts: Counts, clients: int, *, rng: np.random.Generator) -> Quotas:
        """Number of samples of each class and side for each client."""
        found = np.zeros((clients, len(counts)), dtype=np.int64)
        for side, own in enumerate(np.split(np.arange(len(counts)), 2)):
            theirs = np.flatnonzero(np.array(self.group) == side)
            quotas = self.scheme.quotas(counts[own], len(theirs), rng=rng)
            found[np.ix_(theirs, own)] = quotas
        return found


def sides_of(dataset: Dataset, value: str = "") -> AttributeSplit:
    """The samples with one value of the data set's attribute.

    Args:
        dataset: With groups of samples.
        value: The minority's; the rarest of the training part if empty.

    Raises:
        BadInput: The data set has no groups, or no such value.
    """
    if dataset.group is None:
        raise BadInput(
            f"the data set {dataset.name!r} has no attribute that groups its samples; name one "
            f"with {setting('data.options.group')}, or use another shift"
        )
    names = dataset.group_names
    if value and value not in names:
        raise unknown_name("value of the attribute", value, names)
    counts = torch.bincount(dataset.group[: len(dataset.train)], minlength=len(names))
    number = names.index(value) if value else int(counts.argmin())
    if int(counts[number]) == 0 or int(counts[number]) == len(dataset.train):
        raise BadInput(
            f"{int(counts[number])} of the {len(dataset.train)} training samples have the value "
            f"{names[number]!r}; a minority needs some, and so do the others"
        )
    return AttributeSplit(dataset.group == number, names[number])


def dealt_by_side(dataset: Dataset, sides: AttributeSplit, deal: Callable[[Dataset], Deal]) -> Deal:
    """Deals a data set with a class for each pair of class and side, and names classes back.

    Args:
        dataset: The samples.
        sides: Of their attribute.
        deal: Deals a data set.
    """
    classes = dataset.classes
    apart = replace(
        dataset,
        train=_renamed(dataset.train, sides.minority, classes),
        test=_renamed(dataset.test, sides.minority, classes),
        classes=2 * classes,
    )
    found = deal(apart)
    clients = {client: _back(samples, classes) for client, samples in found.clients.items()}
    return Deal(clients, replace(found.audit, samples=_back(found.audit.samples, classes)))


def like_their_side(
    sides: AttributeSplit,
    group: Int[ndarray, " clients"],
    ids: Int[ndarray, " asked"],
    *,
    rng: np.random.Generator,
) -> Int[ndarray, " asked"]:
    """For samples that nobody has, a client of their side, in turn.

    Args:
        sides: Of all samples.
        group: For each client, 1 for the minority.
        ids: Of the samples.
        rng: Decides who is whose turn.
    """
    minority = sides.minority.numpy()[ids]
    place = np.empty(len(ids), dtype=np.int64)
    for side in (0, 1):
        mine = rng.permutation(np.flatnonzero(minority == side))
        place[mine] = np.resize(np.flatnonzero(group == side), len(mine))
    return place


def _renamed(samples: Samples, minority: Bool[Tensor, " all"], classes: int) -> Samples:
    return replace(samples, labels=samples.labels + classes * minority[samples.ids].long())


def _back(samples: Samples, classes: int) -> Samples:
    return replace(samples, labels=samples.labels % classes)
