"""Which of a study's clients are alike, and what that does to their samples."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import Unsupported, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.datasets.partitions.attribute import like_their_side, sides_of
from fedaudit.datasets.partitions.feature_shift import SHIFTS, Shift, of_clients, places, shifted
from fedaudit.results.clusters import EVERYBODY
from fedaudit.study.config import Study
from fedaudit.study.dealing import ATTRIBUTE

MAJORITY_AND_MINORITY = ("majority", "minority")


class Groups(NamedTuple):
    """Groups of clients with features of their own.

    Attributes:
        names: Of the groups.
        group: For each client, its group.
        place: For every sample of the data set, by id, the client whose data it is like.
    """

    names: tuple[str, ...]
    group: dict[ClientId, int]
    place: Int[ndarray, " samples"]


class Grouped(NamedTuple):
    """A data set and a deal as the groups of clients have them."""

    dataset: Dataset
    deal: Deal
    groups: Groups


def grouped(study: Study, dataset: Dataset, deal: Deal, seed: int) -> Grouped:
    """Shifts the samples of groups of clients, if the study has such groups.

    Raises:
        BadInput: No such shift, or samples cannot be shifted that way.
        Unsupported: Several clients are audited whose samples the shift tells apart.
    """
    if study.shift is not None and study.shift.kind not in (*SHIFTS, ATTRIBUTE):
        raise unknown_name("shift", study.shift.kind, (*SHIFTS, ATTRIBUTE))
    _refuse_different_targets(study)
    clients, given = sorted(deal.clients), study.shift
    place = places(dataset, deal, study.audit.targets, seed=seed)
    if given is None:
        return Grouped(dataset, deal, Groups((EVERYBODY,), dict.fromkeys(clients, 0), place))
    group = of_clients(len(clients), given.minority)
    groups = Groups(MAJORITY_AND_MINORITY, dict(zip(clients, group.tolist(), strict=True)), place)
    if given.kind == ATTRIBUTE:
        sides, rng = sides_of(dataset, given.value), seeded_numpy(seed, "places by attribute")
        held = np.concatenate([samples.ids.numpy() for samples in deal.clients.values()])
        free = np.setdiff1d(np.arange(len(dataset)), held)
        place[free] = like_their_side(sides, group, free, rng=rng)
        return Grouped(dataset, deal, groups)
    shift = Shift(given.kind, given.minority, given.minority_range, given.majority_range)
    world = shifted(dataset, deal, shift, place, seed=seed)
    return Grouped(world.dataset, world.deal, groups)


def _refuse_different_targets(study: Study) -> None:
    """One set of samples of nobody cannot be like several clients that a shift makes different."""
    audit, given = study.audit, study.shift
    together = sorted({*audit.targets, *audit.merge})
    if given is None or len(together) < 2:
        return
    if given.kind == ATTRIBUTE:
        group = of_clients(study.partition.clients, given.minority)
        if len({int(group[c]) for c in together if c < len(group)}) < 2:
            return
    raise Unsupported(
        f"clients {together} are audited against the same samples of nobody, and a shift makes "
        "their own differ from each other's, so that the shift would pass for membership; name "
        "one client in audit.targets, none in audit.merge, and carry out a study for each"
    )
