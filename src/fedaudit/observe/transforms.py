"""Streams of rounds made from streams of rounds: thinned, merged, seen by a weaker eye."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from fedaudit.core import ClientId, Model
from fedaudit.errors import BadInput, NotVisible
from fedaudit.observe.round import EVERYBODY, Exposed, Round
from fedaudit.params import plus, weighted_sum


def every(rounds: Iterable[Round], step: int) -> Iterator[Round]:
    """Rounds ``step``, ``2 * step``, ...: round 1, where nothing is learned yet, stays out.

    Source: FedMIA's published code (rounds 10, 20, ...).
    """
    if step < 1:
        raise BadInput(f"rounds are measured every 1 or more, got every {step}")
    return (round for round in rounds if round.index % step == 0)


class Grouped(NamedTuple):
    """Models with repetitions taken out.

    Attributes:
        distinct: Each model once, in the order of first appearance.
        numbers: For each model given, its place among the distinct ones.
    """

    distinct: list[Model]
    numbers: list[int]


def grouped(models: Iterable[Model]) -> Grouped:
    """Finds out which models are the same, to the bit."""
    distinct: list[Model] = []
    numbers = []
    for model in models:
        known = [i for i, other in enumerate(distinct) if _same(other, model)]
        numbers.append(known[0] if known else len(distinct))
        if not known:
            distinct.append(model)
    return Grouped(distinct, numbers)


def _same(left: Model, right: Model) -> bool:
    if left is right or left.params is right.params:
        return True
    ours, theirs = left.tensors(), right.tensors()
    return (
        left.architecture == right.architecture
        and ours.keys() == theirs.keys()
        and all(torch.equal(ours[name], theirs[name]) for name in ours)
    )


def merged(rounds: Iterable[Round], members: Collection[ClientId]) -> Iterator[Round]:
    """Replaces a group of clients by its weighted mean, named after its first member.

    What is left is what a server sees of a coalition that adds its uploads up before sending
    (or of everybody, under secure aggregation).

    Raises:
        NotVisible: The members were sent different models, so that their sum means nothing.
    """
    for round in rounds:
        present = sorted(set(members) & set(round.exposed))
        if len(present) < 2:
            yield replace(round, stands_for=dict(round.stands_for))
            continue
        name = present[0]
        exposed = {c: e for c, e in round.exposed.items() if c not in present}
        total = sum(round.weights[client] for client in present)
        shares = [round.weights[client] / total for client in present]
        exposed[name] = _mean([round.exposed[client] for client in present], shares)
        weights = {c: w for c, w in round.weights.items() if c not in present} | {name: total}
        yield replace(
            round,
            exposed=dict(sorted(exposed.items())),
            uploads={c: u for c, u in round.uploads.items() if c not in present},
            weights=dict(sorted(weights.items())),
            stands_for={**round.stands_for, **dict.fromkeys(present, name)},
        )


def _mean(parts: list[Exposed], shares: list[float]) -> Exposed:
    first = parts[0]
    if first.base is None or first.local is None:
        return Exposed()
    updates = [part.update for part in parts if part.update is not None]
    bases = [part.base for part in parts if part.base is not None]
    locals_ = [part.local for part in parts if part.local is not None]
    if len(updates) < len(parts) or len(grouped(bases).distinct) > 1:
        raise NotVisible(
            "these clients were sent different models, or send no updates, so an aggregate of "
            "theirs cannot be attacked; merge only clients that train the same model"
        )
    update = weighted_sum(updates, shares)
    buffers = weighted_sum([model.buffers for model in locals_], shares)
    local = Model(first.base.architecture, plus(first.base.params, update), buffers)
    scale = _scale_of_sum([part.gradient_scale for part in parts], shares)
    return Exposed(first.base, local, update, scale)


def _scale_of_sum(scales: list[float | None], shares: list[float]) -> float | None:
    """What turns the weighted mean of updates into the sum of all samples' gradients.

    It exists where every client's scale is in proportion to its share; else None.
    """
    ratios = [s / share for s, share in zip(scales, shares, strict=True) if s is not None]
    known = len(ratios) == len(scales)
    return ratios[0] if known and max(ratios) - min(ratios) <= 1e-6 * ratios[0] else None


def between_globals(rounds: Iterable[Round]) -> Iterator[Round]:
    """What a participant sees: the model it is sent, and the one that follows.

    The change of the global model stands in for an update of everybody together.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        if len(round.after) != 1:
            raise NotVisible(
                f"this view follows one global model, but the run has {len(round.after)}; "
                "use the 'uploads' view"
            )
        base = round.exposed[min(round.exposed)].base
        (after,) = round.after.values()
        if base is None:
            raise NotVisible("the global model that was sent is hidden; nothing can be compared")
        update = plus(after.params, base.params, -1.0)
        yield replace(
            round,
            exposed={EVERYBODY: Exposed(base, after, update)},
            uploads={},
            weights={EVERYBODY: 1.0},
            stands_for={},
        )


def only_after(rounds: Iterable[Round]) -> Iterator[Round]:
    """What whoever is given the finished model sees: that model, and nothing of how it came to be.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        if len(round.after) != 1:
            raise NotVisible(
                f"this view is given one finished model, but the run has {len(round.after)}; "
                "use the 'uploads' view"
            )
        (after,) = round.after.values()
        yield replace(
            round,
            exposed={EVERYBODY: Exposed(local=after)},
            sent={},
            uploads={},
            weights={EVERYBODY: 1.0},
            stands_for={},
        )
