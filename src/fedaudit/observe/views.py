"""Views of adversaries: a view removes from rounds the parts that its adversary cannot see."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, NotVisible, format_table, type_of
from fedaudit.core.importing import look_up
from fedaudit.core.seeds import seeded
from fedaudit.core.sights import SIGHTS
from fedaudit.core.values import (
    Capability,
    ClientId,
    Model,
    Params,
    add_scaled,
    restrict_to_common_names,
    weighted_sum,
)
from fedaudit.observe.round import ALL_CLIENTS, ObservedModels, Round, group_models, select_clients


def every_nth(rounds: Iterable[Round], step: int) -> Iterator[Round]:
    """Yield every ``step``-th round: the rounds ``step``, ``2 * step``, ...

    Source: Zhu et al. 2024 (FedMIA), published code (rounds 10, 20, ...).
    """
    if step < 1:
        raise BadInput(f"the interval between measured rounds must be at least 1, got {step}")
    return (round for round in rounds if round.index % step == 0)


def merge_clients(rounds: Iterable[Round], members: Collection[ClientId]) -> Iterator[Round]:
    """Replace a group of clients by its weighted mean, with the number of its first client.

    This is what the server sees of a coalition that sums its updates before sending, or of all
    clients under secure aggregation.

    Raises:
        NotVisible: The clients received different models, so their updates cannot be summed.
    """
    for round in rounds:
        group = sorted(set(members) & set(round.observed))
        if len(group) < 2:
            yield replace(round, group_of=dict(round.group_of))
            continue
        name = group[0]
        other_clients = [client for client in round.observed if client not in group]
        observed = dict(select_clients(round.observed, other_clients))
        total = sum(round.weights[client] for client in group)
        weights_in_group = [round.weights[client] / total for client in group]
        observed[name] = _mean(round.observed, group, weights_in_group)
        weights = {c: w for c, w in round.weights.items() if c not in group} | {name: total}
        yield replace(
            round,
            observed=dict(sorted(observed.items())),
            uploads=select_clients(round.uploads, [c for c in round.uploads if c not in group]),
            weights=dict(sorted(weights.items())),
            group_of={**round.group_of, **dict.fromkeys(group, name)},
        )


def _mean(
    observed: Mapping[ClientId, ObservedModels],
    members: Sequence[ClientId],
    weights_in_group: list[float],
) -> ObservedModels:
    """Compute the weighted mean of clients, with only one update in memory at a time."""
    first = observed[members[0]]
    if first.base is None or first.local is None:
        return ObservedModels()
    bases, buffers, scales = list[Model](), list[Params](), list[float | None]()
    has_all_updates = True
    for client in members:
        models = observed[client]
        bases += [models.base] if models.base is not None else []
        buffers += [models.local.buffers] if models.local is not None else []
        scales.append(models.gradient_scale)
        has_all_updates = has_all_updates and models.update is not None
    if not has_all_updates or len(group_models(bases).distinct) > 1:
        raise NotVisible(
            "the clients of a group received different models or send no updates, so their "
            "aggregate cannot be attacked; merge only clients that train the same model"
        )
    update = weighted_sum((observed[client].update or {} for client in members), weights_in_group)
    mean = weighted_sum(restrict_to_common_names(buffers), weights_in_group)
    local = Model(first.base.architecture, add_scaled(first.base.params, update), mean)
    return ObservedModels(first.base, local, update, _scale_of_sum(scales, weights_in_group))


def _scale_of_sum(scales: list[float | None], weights_in_group: list[float]) -> float | None:
    """Return the gradient scale of the group's mean update.

    Return None if the clients' scales are not proportional to their weights.
    """
    ratios = [s / w for s, w in zip(scales, weights_in_group, strict=True) if s is not None]
    if len(ratios) < len(scales) or max(ratios) - min(ratios) > 1e-6 * ratios[0]:
        return None
    return ratios[0]


def participant_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Reduce rounds to a participant's view: the received global model and the next global model.

    The difference between the two is treated as the update of all clients together.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        after = _single_model(round)
        base = round.observed[min(round.observed)].base
        if base is None:
            raise NotVisible(
                "the global model that clients receive is hidden, so its change is unknown; use a "
                "view that shows it"
            )
        update = add_scaled(after.params, base.params, -1.0)
        yield replace(
            round,
            observed={ALL_CLIENTS: ObservedModels(base, after, update)},
            uploads={},
            weights={ALL_CLIENTS: 1.0},
            group_of={},
        )


def _single_model(round: Round) -> Model:
    if len(round.after) != 1:
        raise NotVisible(
            f"this view needs one global model, but the run has {len(round.after)}; use the view "
            "'uploads'"
        )
    return next(iter(round.after.values()))


def final_model_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Reduce rounds to the global model after the round, as a user of the final model sees it.

    Raises:
        NotVisible: The algorithm has more than one global model, or none.
    """
    for round in rounds:
        after = _single_model(round)
        yield replace(
            round,
            observed={ALL_CLIENTS: ObservedModels(local=after)},
            sent={},
            uploads={},
            weights={ALL_CLIENTS: 1.0},
            group_of={},
        )


def shuffled_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Permute the values of each entry of the updates among the clients of a round.

    An entry is one number of a parameter or buffer. Clients that received different models are not
    mixed. The sum of the updates is unchanged, so an adversary can still attack the sum: see the
    view "sum".

    Raises:
        NotVisible: Clients send no updates.

    Source: Athanasiou et al. 2026 (arXiv 2603.02017): shuffling at the level of parameters, from
        the abstract only.
    Differs: The residue number system is left out. It also hides which values belong to one entry,
        so that the server sees only the sum, as in the view "sum". Clients do not multiply their
        updates by their weights before they are mixed.
    """
    for round in rounds:
        clients = sorted(round.observed)
        observed = {client: round.observed[client] for client in clients}
        bases = [models.base for models in observed.values() if models.base is not None]
        if len(bases) < len(clients) or any(models.update is None for models in observed.values()):
            raise NotVisible(
                "the view 'shuffled' mixes the clients' model updates, but clients of this "
                "algorithm send none; use the view 'uploads'"
            )
        numbers = group_models(bases).numbers
        random = seeded(0, "shuffled parameters", round.index)
        for number in sorted({*numbers}):
            group = [c for c, own in zip(clients, numbers, strict=True) if own == number]
            mixed = _mixed([observed[client] for client in group], random)
            observed.update(zip(group, mixed, strict=True))
        yield replace(round, observed=observed, uploads={}, group_of=dict(round.group_of))


def _mixed(group: Sequence[ObservedModels], random: torch.Generator) -> list[ObservedModels]:
    """Return clients that received the same model, with permuted entries."""
    base = group[0].base
    assert base is not None
    updates = _permuted([models.update or {} for models in group], random)
    buffers = _permuted([models.local.buffers if models.local else {} for models in group], random)
    scales = {models.gradient_scale for models in group}
    return [
        ObservedModels(
            base,
            Model(base.architecture, add_scaled(base.params, update), own_buffers),
            update,
            scales.copy().pop() if len(scales) == 1 else None,
        )
        for update, own_buffers in zip(updates, buffers, strict=True)
    ]


def _permuted(values: Sequence[Params], random: torch.Generator) -> list[Params]:
    mixed: list[Params] = [{} for _ in values]
    for name in values[0]:
        rows = _permuted_rows(torch.stack([of_client[name] for of_client in values]), random)
        for own, row in zip(mixed, rows, strict=True):
            own[name] = row
    return mixed


def _permuted_rows(stacked: Tensor, random: torch.Generator) -> Tensor:
    """Permute the first axis, independently at each position of the other axes."""
    order = torch.rand(stacked.shape, generator=random).argsort(stable=True, dim=0)
    return stacked.gather(0, order.to(stacked.device))


PARTICIPANT = "globals"
"""The view of a client of the federation."""

ADVERSARY_RESOURCES = (
    Capability.AUXILIARY_DATA | Capability.REFERENCE_MODELS | Capability.CHOOSES_UPLOAD
)
"""What an adversary has or does in addition to observing the federation."""

_STUDY_TABLES = {
    Capability.AUXILIARY_DATA: "shadow",
    Capability.REFERENCE_MODELS: "references",
    Capability.CHOOSES_UPLOAD: "attacker",
}
"""Table of a study file that gives the adversary a resource."""


_ALGORITHMS_WITH = {
    Capability.NEXT_MODEL: "with one global model",
    Capability.CONTROL_VARIATES: "whose clients send control variates, such as scaffold",
}
"""Description of the algorithms that have an observation."""


@dataclass(frozen=True)
class View:
    """The parts of a run that an adversary sees.

    Attributes:
        name: Catalogue name.
        offers: Observations that the view offers to attacks.
        description: Description of the adversary in one sentence.
        of: Function that removes the parts that the adversary does not see from rounds.

    Examples:
        >>> import fedaudit as fa
        >>> fa.views.view_named("uploads").can_offer(fa.views.Capability.UPLOADS)
        True
    """

    name: str
    offers: Capability
    description: str
    of: Callable[[Iterable[Round]], Iterator[Round]]

    def can_offer(self, needs: Capability) -> bool:
        """Return True if this view shows all observations that are needed.

        Auxiliary data and reference models are not observations, so every view allows them. Only a
        participant can choose a client's upload.
        """
        if Capability.CHOOSES_UPLOAD in needs and self.name != PARTICIPANT:
            return False
        return not needs & ~ADVERSARY_RESOURCES & ~self.offers

    def raise_unless_offered(self, needs: Capability, subject: str) -> None:
        """Raise if this view does not offer everything that is needed.

        Raises:
            NotVisible: The view does not offer everything; the message lists what is missing.
        """
        missing = needs & ~self.offers
        if not missing:
            return
        names = ", ".join(SIGHTS[(part.name or "").lower()] for part in missing)
        if not missing & ~ADVERSARY_RESOURCES:
            section = next(name for part, name in _STUDY_TABLES.items() if part in missing)
            # If a study names an attack, tables of shadow or reference models are added to it.
            advice = "" if Capability.CHOOSES_UPLOAD in missing else ", or list the attack by name"
            raise NotVisible(
                f"{subject} needs {names}, which the adversary of the view {self.name!r} does not "
                f"have; add {format_table(section)}{advice}"
            )
        suitable = [view.name for view in VIEWS.values() if view.can_offer(needs)]
        if self.name in suitable:
            # The view could show it, but the algorithm has no such observation.
            algorithm = _ALGORITHMS_WITH.get(missing, "whose clients send updates")
            hint = f"remove it, or use an algorithm {algorithm}"
        elif suitable:
            hint = f"it can run in the view {', '.join(suitable)}"
        else:
            hint = "no view of a passive adversary shows it"
        raise NotVisible(
            f"{subject} needs {names}, but this is hidden in the view {self.name!r} "
            f"({self.description}); {hint}"
        )


def _everything(rounds: Iterable[Round]) -> Iterator[Round]:
    return iter(rounds)


def _sum_of_all(rounds: Iterable[Round]) -> Iterator[Round]:
    for round in rounds:
        yield from merge_clients([round], tuple(round.observed))


_FINAL = Capability.PREDICTIONS | Capability.NEXT_MODEL
_EVERY_ROUND = _FINAL | Capability.GLOBAL_MODEL | Capability.UPDATE | Capability.ROUNDS

VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View(
            "uploads",
            _EVERY_ROUND | Capability.UPLOADS | Capability.CONTROL_VARIATES,
            "the server sees what every client sends",
            _everything,
        ),
        View(
            "sum",
            _EVERY_ROUND,
            "the server sees only the sum of the clients' uploads, under secure aggregation",
            _sum_of_all,
        ),
        View(
            "shuffled",
            _EVERY_ROUND | Capability.UPLOADS,
            "the server sees the clients' uploads after a shuffler has mixed each parameter's "
            "values among the clients",
            shuffled_rounds,
        ),
        View(
            PARTICIPANT,
            _EVERY_ROUND,
            "a participant sees each round's global model and no uploads of other clients",
            participant_rounds,
        ),
        View(
            "final",
            _FINAL,
            "a user of the final model sees nothing else of the federation",
            final_model_rounds,
        ),
    )
}


def view_named(name: str) -> View:
    """Return a view by its name.

    Args:
        name: A name from ``fedaudit list views`` ("uploads", "sum", "globals", "final" and
            others), the name of an installed package's view, or ``module:object``.

    Raises:
        BadInput: No view has this name; the message suggests a similar name.

    Examples:
        >>> import fedaudit as fa
        >>> fa.views.Capability.UPLOADS in fa.views.view_named("globals").offers
        False
    """
    return look_up(
        "view",
        name,
        VIEWS,
        expected="a fedaudit.views.View",
        is_valid=lambda value: isinstance(value, View),
    )


def with_resources(view: View, sees: Capability) -> View:
    """Return a view whose adversary also has auxiliary data or models, or chooses an upload."""
    return replace(view, offers=view.offers | sees)


def merged_view(view: View, members: Collection[ClientId]) -> View:
    """Return a view in which some clients are visible only as their aggregate.

    Raises:
        NotVisible: The view does not show uploads of single clients.

    Source: Bai et al. 2026 (CoFedMID), section 5.4 (adaptive attacks on the coalition's aggregated
        model).
    """
    if Capability.UPLOADS not in view.offers:
        raise NotVisible(
            f"audit.merge needs {SIGHTS['uploads']}, but this is hidden in the view {view.name!r} "
            f"({view.description}); remove audit.merge, or use the view 'uploads'"
        )
    names = ", ".join(str(client) for client in sorted(members))
    return replace(
        updates_view(view),
        name="merged",
        description=f"{view.description}, and attacks clients {names} through the weighted mean of "
        "their updates",
        of=partial(merge_clients, members=tuple(members)),
    )


def updates_view(view: View) -> View:
    """Return the view for clients that send updates without control variates."""
    return replace(view, offers=view.offers & ~Capability.CONTROL_VARIATES)


def output_view(view: View) -> View:
    """Return the view for an algorithm whose clients send outputs on public samples.

    Raises:
        NotVisible: The view does not show uploads of single clients, and these algorithms have no
            global model that could be attacked instead.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm send outputs on public samples and have no global model, "
            f"so the view {view.name!r} shows nothing to attack; use the view 'uploads' without "
            "audit.merge, or another algorithm"
        )
    return replace(
        view,
        offers=view.offers & ~(Capability.GLOBAL_MODEL | Capability.UPDATE | Capability.NEXT_MODEL),
        description=f"{view.description}: outputs on public samples",
    )


def several_models_view(view: View) -> View:
    """Return the view for an algorithm whose clients choose among several models.

    Raises:
        NotVisible: The view shows a single model, or sums updates of different models.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm train different models, but the view "
            f"{view.name!r} shows one global model; use the view 'uploads' without audit.merge, or "
            "another algorithm"
        )
    return replace(view, offers=view.offers & ~Capability.NEXT_MODEL)


def seen_from(rounds: Iterable[Round], view: View | str) -> Iterator[Round]:
    """Yield the parts of rounds that an adversary sees.

    Args:
        rounds: Rounds of a federation, as :func:`fedaudit.simulate` yields them.
        view: The adversary's view, or the name of a view.

    Raises:
        NotVisible: The view shows a single global model, and the federation has several or none.

    Examples:
        >>> import fedaudit as fa
        >>> from fedaudit.fl.algorithms.fedavg import FedAvg
        >>> from fedaudit.fl.training.local import LocalTraining
        >>> mlp = fa.models.architecture("mlp", shape=(2,), classes=2)
        >>> algorithm = FedAvg(mlp, LocalTraining())
        >>> clients = {0: fa.Samples([[0.0, 1.0], [1.0, 0.0]], [0, 1])}
        >>> rounds = fa.simulate(algorithm, clients, rounds=2, seed=1)
        >>> [len(round.uploads) for round in fa.seen_from(rounds, "globals")]
        [0, 0]
    """
    if not isinstance(view, View | str):
        raise BadInput(f"view is a fedaudit.views.View or the name of one, got {type_of(view)}")
    return (view_named(view) if isinstance(view, str) else view).of(rounds)
