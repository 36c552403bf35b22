"""Groups of clients and the models that they use at the end of a run, read from its result."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from fedaudit.study.clustered import ClusterResult, ModelState


def groups_by_size(result: ClusterResult) -> list[int]:
    """The groups that have clients, the largest first."""
    sizes = Counter(result.group)
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def clients_of(result: ClusterResult, group: int | None) -> list[int]:
    """Positions of a group's clients; of all for None."""
    return [at for at, one in enumerate(result.group) if group in (one, None)]


def used_by(result: ClusterResult, group: int | None) -> list[ModelState]:
    """The model that each client of a group uses at the end."""
    last = result.rounds[-1]
    return [last.models[last.choice[at]] for at in clients_of(result, group)]


def models_of_groups(result: ClusterResult) -> dict[int, int | None]:
    """For each group the model that stands for it at the end, largest group first.

    That is the model which most of its clients chose. Where a larger group has it already, it is
    the one of the others that most of the group's clients chose, and of equals the one that most
    clients of all trained; None where nobody trained any of these.
    """
    last = result.rounds[-1]
    found: dict[int, int | None] = {}
    for group in groups_by_size(result):
        votes = Counter(last.choice[at] for at in clients_of(result, group))
        free = [
            model
            for model, state in enumerate(last.models)
            if model not in found.values() and (state.clients or votes[model])
        ]
        found[group] = max(
            free, key=lambda model: (votes[model], last.models[model].clients, -model), default=None
        )
    return found


def shares_its_model(result: ClusterResult, group: int) -> bool:
    """Whether most of the group's clients chose a model that stands for a larger group."""
    last, models = result.rounds[-1], models_of_groups(result)
    votes = Counter(last.choice[at] for at in clients_of(result, group))
    own = models[group]
    return own is None or votes[own] < max(votes.values())


def moves(result: ClusterResult) -> list[list[int]]:
    """For each measured round but the first, the positions of clients that changed model."""
    choices = [one.choice for one in result.rounds]
    return [
        [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        for before, after in pairwise(choices)
    ]


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
