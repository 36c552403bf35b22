"""The part of a record that is about clustered learning: who trains which model, at what risk."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.fields import (
    Count,
    Finite,
    Limits,
    Part,
    Share,
    refuse_disorder,
    refuse_ragged,
)

ALL_CLIENTS = "everybody"
"""The group that contains all clients."""


class ModelState(Limits[Share]):
    """One of the federation's models after a measured round.

    Attributes:
        clients: Clients that trained it when they last took part.
        told: Membership risk of the model that was reported to clients before they chose. None if
            the algorithm reports no risks.
        estimated: The server's estimate of its risk after the round: balanced accuracy of
            membership inference by shadow models, on the server's own samples. None if no client
            trained it.
        samples: Samples of the clients that trained it. 0 if no client did, and in records of older
            versions.
        shadow_samples: Samples that each of its shadow models was trained on. They are fewer than
            ``samples`` if the server has too few: the estimate is then of a scaled-down model. 0 as
            for ``samples``.
        risk: Balanced accuracy of the same attack on its actual members and on held-out samples,
            with as many of each class if clients' classes are skewed. None also if an attack on
            updates saw none of this model. The limits are those of this risk (95%).
        members: Members that were audited.
        others: Non-members that were audited.
        loss: Mean loss on test samples distributed like its clients' data; None if no client
            trained it.
        accuracy: Share of these test samples that it classifies correctly.
    """

    clients: Count
    told: Share | None = None
    estimated: Share | None = None
    samples: Count = 0
    shadow_samples: Count = 0
    risk: Share | None = None
    members: Count = 0
    others: Count = 0
    loss: Finite | None = None
    accuracy: Share | None = None

    @model_validator(mode="after")
    def _possible(self) -> "ModelState":
        refuse_disorder(self.low, self.risk, self.high)
        return self


class ClusterRound(Part):
    """Measured round of clustered learning.

    Attributes:
        round: Number of the round, from 1.
        choice: The model that each client last trained. It is 0 for a client that never took part.
        models: The models after the round.
    """

    round: Count
    choice: list[Count]
    models: list[ModelState]


class ClusterResult(Part):
    """Clients' choices of models in one run, and the membership risk of each model.

    The figures of the run are estimates (``fedaudit.evaluation.clusters``).

    Attributes:
        algorithm: Its name in the catalogue.
        defense: Name of the defense in force; "none" without one.
        seed: Root seed of the run.
        measure: How risk is measured.
        clients: Client numbers, in the order of ``group``, ``thresholds`` and every ``choice``.
        group_names: Names of the groups of clients; "everybody" if there is a single one.
        group: Group of each client.
        thresholds: Highest membership risk that each client accepts.
        rounds: The measured rounds.
        joined: First round that each client took part in; None if it never did. Empty if all
            clients took part from the first round.
        fairness_note: Why there are no fairness gaps between the groups.
    """

    algorithm: str
    defense: str = "none"
    seed: Count
    measure: str
    clients: Annotated[list[Count], Field(min_length=2)]
    group_names: Annotated[list[str], Field(min_length=1)]
    group: list[Count]
    thresholds: list[Share]
    rounds: Annotated[list[ClusterRound], Field(min_length=1)]
    joined: list[Count | None] = Field(default_factory=list)
    fairness_note: str = ""

    @model_validator(mode="after")
    def _possible(self) -> "ClusterResult":
        refuse_ragged(clients=self.clients, group=self.group, thresholds=self.thresholds)
        if self.joined:
            refuse_ragged(clients=self.clients, joined=self.joined)
        models = self.rounds[0].models
        for measured in self.rounds:
            refuse_ragged(clients=self.clients, choice=measured.choice)
            refuse_ragged(models=models, others=measured.models)
            if max(measured.choice) >= len(models):
                raise ValueError(f"model {max(measured.choice)} of {len(models)}")
        if len(set(self.group_names)) < len(self.group_names):
            raise ValueError("two groups have one name")
        if max(self.group) >= len(self.group_names):
            raise ValueError(f"group {max(self.group)} of {len(self.group_names)}")
        return self


def groups_by_size(result: ClusterResult) -> list[int]:
    """Return the groups that have clients, the largest first."""
    sizes = Counter(result.group)
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def clients_in(result: ClusterResult, group: int | None) -> list[int]:
    """Return the positions of a group's clients, or of all clients for None."""
    return [
        position
        for position, client_group in enumerate(result.group)
        if group in (client_group, None)
    ]


def choices(result: ClusterResult, after: ClusterRound | None = None) -> list[int | None]:
    """Return the model that each client last trained; None for clients that have not taken part.

    Args:
        result: Result of a run.
        after: The measured round; the last one if None.
    """
    measured = after or result.rounds[-1]
    if not result.joined:
        return list(measured.choice)
    return [
        None if first is None or first > measured.round else choice
        for choice, first in zip(measured.choice, result.joined, strict=True)
    ]


def models_used_by(result: ClusterResult, group: int | None) -> list[ModelState | None]:
    """Return the model that each client of a group uses at the end; None for absent clients."""
    last, used = result.rounds[-1], choices(result)
    return [
        None if model is None else last.models[model]
        for model in (used[position] for position in clients_in(result, group))
    ]


def models_of_groups(result: ClusterResult) -> dict[int, int | None]:
    """Return the model that each group is reported with at the end, the largest group first.

    It is the model that most of the group's clients chose, among those that no larger group has.
    Ties go to the model that more clients trained. It is None if clients trained none of these
    models, or if no client of the group took part.
    """
    last = result.rounds[-1]
    assigned: dict[int, int | None] = {}
    for group in groups_by_size(result):
        votes = _votes(result, group)
        free = [
            model
            for model, state in enumerate(last.models)
            if model not in assigned.values() and (state.clients or votes[model])
        ]
        assigned[group] = max(
            free if votes else (),
            key=lambda model: (votes[model], last.models[model].clients, -model),
            default=None,
        )
    return assigned


def shares_its_model(result: ClusterResult, group: int) -> bool:
    """Return True if most of the group's clients chose a model that a larger group already has."""
    votes, model = _votes(result, group), models_of_groups(result)[group]
    return model is None or votes[model] < max(votes.values(), default=0)


def _votes(result: ClusterResult, group: int) -> Counter[int]:
    used = choices(result)
    return Counter(
        model for position in clients_in(result, group) if (model := used[position]) is not None
    )


def moves(result: ClusterResult) -> list[list[int]]:
    """Return the positions of clients that changed model in each measured round but the first.

    Taking part for the first time does not count as a change.
    """
    used = [choices(result, measured) for measured in result.rounds]
    return [
        [
            position
            for position, (was, now) in enumerate(zip(old, new, strict=True))
            if was not in (None, now)
        ]
        for old, new in pairwise(used)
    ]


def known_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without any."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None
