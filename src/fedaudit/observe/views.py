"""The ladder of adversaries: each view deletes from rounds what that adversary cannot see."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from fedaudit.core.errors import BadInput, NotVisible, type_of
from fedaudit.core.importing import named
from fedaudit.core.values import ClientId, Model, Params, Sees, common, plus, weighted_sum
from fedaudit.observe.round import EVERYBODY, Exposed, Round, chosen


def every(rounds: Iterable[Round], step: int) -> Iterator[Round]:
    """Rounds ``step``, ``2 * step``, ...: round 1, where nothing is learned yet, stays out.

    Source: FedMIA's published code (rounds 10, 20, ...).
    """
    if step < 1:
        raise BadInput(f"rounds are measured every 1 or more, got every {step}")
    return (round for round in rounds if round.index % step == 0)


class DistinctModels(NamedTuple):
    """Models with repetitions taken out.

    Attributes:
        distinct: Each model once, in the order of first appearance.
        numbers: For each model given, its place among the distinct ones.
    """

    distinct: list[Model]
    numbers: list[int]


def grouped(models: Iterable[Model]) -> DistinctModels:
    """Finds out which models are the same, to the bit."""
    distinct: list[Model] = []
    numbers = []
    for model in models:
        known = [i for i, other in enumerate(distinct) if _same(other, model)]
        numbers.append(known[0] if known else len(distinct))
        if not known:
            distinct.append(model)
    return DistinctModels(distinct, numbers)


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
        exposed = dict(chosen(round.exposed, [c for c in round.exposed if c not in present]))
        total = sum(round.weights[client] for client in present)
        shares = [round.weights[client] / total for client in present]
        exposed[name] = _mean(round.exposed, present, shares)
        weights = {c: w for c, w in round.weights.items() if c not in present} | {name: total}
        yield replace(
            round,
            exposed=dict(sorted(exposed.items())),
            uploads=chosen(round.uploads, [c for c in round.uploads if c not in present]),
            weights=dict(sorted(weights.items())),
            stands_for={**round.stands_for, **dict.fromkeys(present, name)},
        )


def _mean(
    exposed: Mapping[ClientId, Exposed], members: Sequence[ClientId], shares: list[float]
) -> Exposed:
    """The weighted mean of some clients; of a large round no two are held together."""
    first = exposed[members[0]]
    if first.base is None or first.local is None:
        return Exposed()
    bases, buffers, scales = list[Model](), list[Params](), list[float | None]()
    sums = True
    for client in members:
        part = exposed[client]
        bases += [part.base] if part.base is not None else []
        buffers += [part.local.buffers] if part.local is not None else []
        scales.append(part.gradient_scale)
        sums = sums and part.update is not None
    if not sums or len(grouped(bases).distinct) > 1:
        raise NotVisible(
            "these clients were sent different models, or send no updates, so an aggregate of "
            "theirs cannot be attacked; merge only clients that train the same model"
        )
    update = weighted_sum((exposed[client].update or {} for client in members), shares)
    mean = weighted_sum(common(buffers), shares)
    local = Model(first.base.architecture, plus(first.base.params, update), mean)
    return Exposed(first.base, local, update, _scale_of_sum(scales, shares))


def _scale_of_sum(scales: list[float | None], shares: list[float]) -> float | None:
    """Factor from the weighted mean of updates to the sum of all samples' gradients.

    It exists where every client's scale is in proportion to its share; else None.
    """
    ratios = [s / share for s, share in zip(scales, shares, strict=True) if s is not None]
    known = len(ratios) == len(scales)
    return ratios[0] if known and max(ratios) - min(ratios) <= 1e-6 * ratios[0] else None


def between_globals(rounds: Iterable[Round]) -> Iterator[Round]:
    """A participant's view: the model it is sent, and the one that follows.

    The change of the global model stands in for an update of everybody together.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        after = _only_model(round, "follows one global model")
        base = round.exposed[min(round.exposed)].base
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


def _only_model(round: Round, view: str) -> Model:
    if len(round.after) != 1:
        raise NotVisible(
            f"this view {view}, but the run has {len(round.after)}; use the 'uploads' view"
        )
    return next(iter(round.after.values()))


def only_after(rounds: Iterable[Round]) -> Iterator[Round]:
    """The final model's view: that model, and nothing of how it came to be.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        after = _only_model(round, "is given one finished model")
        yield replace(
            round,
            exposed={EVERYBODY: Exposed(local=after)},
            sent={},
            uploads={},
            weights={EVERYBODY: 1.0},
            stands_for={},
        )


PARTICIPANT = "globals"
"""The view of a client of the federation."""

OF_ITS_OWN = Sees.AUXILIARY_DATA | Sees.REFERENCE_MODELS | Sees.CHOOSES_UPLOAD
"""What an adversary has, or does, apart from what is seen of the federation."""

_TABLES = {
    Sees.AUXILIARY_DATA: "shadow",
    Sees.REFERENCE_MODELS: "references",
    Sees.CHOOSES_UPLOAD: "attacker",
}


@dataclass(frozen=True)
class View:
    """A view: the parts of a run that an adversary sees.

    Attributes:
        name: Catalogue name.
        offers: Knowledge that attacks can count on.
        description: The adversary in one plain sentence.
        of: Deletes from a stream of rounds whatever this adversary does not see.

    Examples:
        >>> VIEWS["uploads"].can_offer(Sees.UPLOADS)
        True
    """

    name: str
    offers: Sees
    description: str
    of: Callable[[Iterable[Round]], Iterator[Round]]

    def can_offer(self, needs: Sees) -> bool:
        """True if this view shows all that is needed of a run.

        Data and models of the adversary's own are nothing that a view shows: any adversary may
        have some. Only a participant chooses what a client sends.
        """
        if Sees.CHOOSES_UPLOAD in needs and self.name != PARTICIPANT:
            return False
        return not needs & ~OF_ITS_OWN & ~self.offers

    def refuse_unless_offered(self, needs: Sees, what: str) -> None:
        """Does nothing if this view offers all that is needed.

        Raises:
            NotVisible: Something is missing; the message names it.
        """
        missing = needs & ~self.offers
        if missing:
            names = ", ".join(part.name or "" for part in missing)
            if not missing & ~OF_ITS_OWN:
                table = next(table for part, table in _TABLES.items() if part in missing)
                # A table of examples or references is made for whoever names the attack.
                named = "" if Sees.CHOOSES_UPLOAD in missing else ", or name the attack"
                raise NotVisible(
                    f"{what} needs {names}, and the adversary of the view {self.name!r} has none; "
                    f"give it some with a [{table}] table{named}"
                )
            able = [v.name for v in VIEWS.values() if v.can_offer(needs)]
            if self.name in able:
                one_model = missing == Sees.NEXT_MODEL
                algorithm = "with one global model" if one_model else "whose clients send updates"
                hint = f"leave it out, or use an algorithm {algorithm}"
            elif able:
                hint = f"it can run in the view {', '.join(able)}"
            else:
                hint = "no passive view has it"
            raise NotVisible(
                f"{what} needs {names}, which is hidden in the view {self.name!r} "
                f"({self.description}); {hint}"
            )


def _everything(rounds: Iterable[Round]) -> Iterator[Round]:
    return iter(rounds)


def _summed(rounds: Iterable[Round]) -> Iterator[Round]:
    for round in rounds:
        yield from merged([round], tuple(round.exposed))


_FINAL = Sees.PREDICTIONS | Sees.NEXT_MODEL
_WATCHED = _FINAL | Sees.GLOBAL_MODEL | Sees.UPDATE | Sees.ROUNDS

VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View(
            "uploads",
            _WATCHED | Sees.UPLOADS,
            "the server sees what every client sends",
            _everything,
        ),
        View(
            "sum",
            _WATCHED,
            "the server sees only the sum of the clients' uploads, under secure aggregation",
            _summed,
        ),
        View(
            PARTICIPANT,
            _WATCHED,
            "a participant sees each round's global model and nothing of the others' uploads",
            between_globals,
        ),
        View(
            "final",
            _FINAL,
            "somebody is given the final model, and nothing else of the federation",
            only_after,
        ),
    )
}


def view_named(name: str) -> View:
    """Return the view of a name.

    Args:
        name: Name that ``fedaudit list views`` shows ("uploads", "sum", "globals", "final" and
            others), name of an installed package's view, or ``module:object``.

    Raises:
        BadInput: There is none; the nearest is named.

    Examples:
        >>> import fedaudit as fa
        >>> fa.views.Sees.UPLOADS in fa.views.view_named("globals").offers
        False
    """
    return named(
        "view",
        name,
        VIEWS,
        wanted="a fedaudit.views.View",
        fits=lambda found: isinstance(found, View),
    )


def with_own(view: View, sees: Sees) -> View:
    """The adversary of a view, with data or models of its own."""
    return replace(view, offers=view.offers | sees)


def as_one(view: View, members: Collection[ClientId]) -> View:
    """The adversary who sees every upload and attacks some clients through their aggregate.

    Raises:
        NotVisible: The view does not show single uploads, so that nothing is there to merge.

    Source: CoFedMID section 5.4 (adaptive attacks on the coalition's aggregated model).
    """
    if Sees.UPLOADS not in view.offers:
        raise NotVisible(
            f"audit.merge needs UPLOADS, which is hidden in the view {view.name!r} "
            f"({view.description}); leave it out, or use the view 'uploads'"
        )
    names = ", ".join(str(client) for client in sorted(members))
    return replace(
        view,
        name="merged",
        description=f"{view.description}, and attacks clients {names} as one, through the "
        "weighted mean of what they send",
        of=partial(merged, members=tuple(members)),
    )


def of_outputs(view: View) -> View:
    """The adversary of a view, where clients send outputs on public samples and no updates.

    Raises:
        NotVisible: The view shows no single uploads, and nobody has a model that all have.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm send outputs on public samples and have no model in "
            f"common, so that the view {view.name!r} shows nothing to attack; use the view "
            "'uploads', without audit.merge, or another algorithm"
        )
    return replace(
        view,
        offers=view.offers & ~(Sees.GLOBAL_MODEL | Sees.UPDATE | Sees.NEXT_MODEL),
        description=f"{view.description}: outputs on public samples",
    )


def of_several_models(view: View) -> View:
    """The adversary of a view, where clients choose among several models.

    Raises:
        NotVisible: The view follows one model, or adds up changes of different ones.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm train different models, and the view "
            f"{view.name!r} follows one that all have; use the view 'uploads', without "
            "audit.merge, or another algorithm"
        )
    return replace(view, offers=view.offers & ~Sees.NEXT_MODEL)


def seen_from(rounds: Iterable[Round], view: View | str) -> Iterator[Round]:
    """Yield rounds as an adversary sees them, without all that is hidden from it.

    Args:
        rounds: Rounds of a federation, as :func:`fedaudit.simulate` yields them.
        view: The adversary's view, or the name of a view.

    Raises:
        NotVisible: The federation has no single model, and the view is of one.

    Examples:
        >>> import fedaudit as fa
        >>> from fedaudit.fl.algorithms.fedavg import FedAvg
        >>> from fedaudit.fl.training.local import LocalTraining
        >>> mlp = fa.models.architecture("mlp", shape=(2,), classes=2)
        >>> algorithm = FedAvg(mlp, LocalTraining())
        >>> clients = {0: fa.Samples([[0.0, 1.0], [1.0, 0.0]], [0, 1])}
        >>> rounds = fa.simulate(algorithm, clients, rounds=2, seed=1)
        >>> [len(seen.uploads) for seen in fa.seen_from(rounds, "globals")]
        [0, 0]
    """
    if not isinstance(view, View | str):
        raise BadInput(f"view is a fedaudit.views.View or the name of one, got {type_of(view)}")
    return (view_named(view) if isinstance(view, str) else view).of(rounds)
