"""Groups of clients and the models that they use at the end of a run, read from its result."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from fedaudit.results.clusters import ClusterResult, ClusterRound, ModelState


def groups_by_size(result: ClusterResult) -> list[int]:
    """The groups that have clients, the largest first."""
    sizes = Counter(result.group)
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def clients_of(result: ClusterResult, group: int | None) -> list[int]:
    """Positions of a group's clients; of all for None."""
    return [at for at, one in enumerate(result.group) if group in (one, None)]


def choices(result: ClusterResult, after: ClusterRound | None = None) -> list[int | None]:
    """The model that each client last trained; None for one that did not take part so far.

    Args:
        result: Of a run.
        after: The measured round; the last one if None.
    """
    one = after or result.rounds[-1]
    if not result.joined:
        return list(one.choice)
    return [
        None if first is None or first > one.round else choice
        for choice, first in zip(one.choice, result.joined, strict=True)
    ]


def used_by(result: ClusterResult, group: int | None) -> list[ModelState | None]:
    """The model that each client of a group uses at the end; None for one that took no part."""
    last, used = result.rounds[-1], choices(result)
    return [
        None if model is None else last.models[model]
        for model in (used[at] for at in clients_of(result, group))
    ]


def models_of_groups(result: ClusterResult) -> dict[int, int | None]:
    """For each group the model that stands for it at the end, largest group first.

    That is the model which most of its clients chose. Where a larger group has it already, it is
    the one of the others that most of the group's clients chose, and of equals the one that most
    clients of all trained; None where nobody trained any of these, or none of the group took part.
    """
    last = result.rounds[-1]
    found: dict[int, int | None] = {}
    for group in groups_by_size(result):
        votes = _votes(result, group)
        free = [
            model
            for model, state in enumerate(last.models)
            if model not in found.values() and (state.clients or votes[model])
        ]
        found[group] = max(
            free if votes else (),
            key=lambda model: (votes[model], last.models[model].clients, -model),
            default=None,
        )
    return found


def shares_its_model(result: ClusterResult, group: int) -> bool:
    """True if most of the group's clients chose a model that stands for a larger group."""
    votes, own = _votes(result, group), models_of_groups(result)[group]
    return own is None or votes[own] < max(votes.values(), default=0)


def _votes(result: ClusterResult, group: int) -> Counter[int]:
    used = choices(result)
    return Counter(model for at in clients_of(result, group) if (model := used[at]) is not None)


def moves(result: ClusterResult) -> list[list[int]]:
    """For each measured round but the first, the positions of clients that changed model.

    To take part for the first time is no change.
    """
    used = [choices(result, one) for one in result.rounds]
    return [
        [at for at, (was, now) in enumerate(zip(old, new, strict=True)) if was not in (None, now)]
        for old, new in pairwise(used)
    ]


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
