"""Which of a study's clients are alike, and what that does to their samples."""

from typing import NamedTuple

from jaxtyping import Int
from numpy import ndarray

from fedaudit.core import ClientId
from fedaudit.data.dataset import Dataset
from fedaudit.data.deal import Deal
from fedaudit.data.shift import Shift, places, shifted
from fedaudit.study.config import Study

EVERYBODY = "everybody"
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
    """
    clients = sorted(deal.clients)
    place = places(dataset, deal, study.audit.targets, seed=seed)
    given = study.shift
    if given is None:
        return Grouped(dataset, deal, Groups((EVERYBODY,), dict.fromkeys(clients, 0), place))
    shift = Shift(given.kind, given.minority, given.minority_range, given.majority_range)
    group = dict(zip(clients, shift.of_clients(len(clients)).tolist(), strict=True))
    world = shifted(dataset, deal, shift, place, seed=seed)
    return Grouped(world.dataset, world.deal, Groups(MAJORITY_AND_MINORITY, group, place))
