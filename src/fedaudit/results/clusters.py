"""The part of a record that is about clustered learning: who trains which model, at what risk."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.fields import (
    Drawn,
    Limits,
    Part,
    Share,
    Whole,
    refuse_disorder,
    refuse_ragged,
)

EVERYBODY = "everybody"
"""The group of all clients."""


class ModelState(Limits[Share]):
    """One of the federation's models after a measured round.

    Attributes:
        clients: That trained it when they last took part.
        told: Membership risk that clients were told of it before they chose; None where the
            algorithm tells them nothing.
        estimated: Risk of it after the round by the server's shadow models: balanced accuracy
            of membership inference on samples of the server's own. None if nobody trained it.
        samples: Of the clients that trained it; 0 if nobody did, and in records of versions that
            did not say.
        shadow_samples: That each of its shadow models was trained on, fewer than ``samples`` where
            the server has too few: the estimate is then of a scaled-down model; 0 likewise.
        risk: The same attack on its real members and on samples that nobody trained on; where
            clients' classes are skewed, on as many of each class. None also where an attack on
            updates had none of this model's to see. The limits are those of this risk (95%).
        members: Real members that were asked about.
        others: Samples of nobody that were.
        loss: Mean loss on test samples like its clients'; None if nobody trained it.
        accuracy: Share of these that it classifies correctly.
    """

    clients: Whole
    told: Share | None = None
    estimated: Share | None = None
    samples: Whole = 0
    shadow_samples: Whole = 0
    risk: Share | None = None
    members: Whole = 0
    others: Whole = 0
    loss: Drawn | None = None
    accuracy: Share | None = None

    @model_validator(mode="after")
    def _possible(self) -> "ModelState":
        refuse_disorder(self.low, self.risk, self.high)
        return self


class ClusterRound(Part):
    """A measured round of clustered learning.

    Attributes:
        round: Counted from 1.
        choice: For each client, the model that it last trained; the first for one that never
            took part, whose samples are then in none.
        models: The models after the round.
    """

    round: Whole
    choice: list[Whole]
    models: list[ModelState]


class ClusterResult(Part):
    """Choices of models in one run, and the membership risk of each model.

    The figures of the run are estimates (``fedaudit.evaluation.clusters``).

    Attributes:
        algorithm: Its name in the catalogue.
        defense: Name of the defense in force, "none" without.
        seed: Root seed of the run.
        measure: How risk is measured.
        clients: In the order of ``group``, ``thresholds`` and every ``choice``.
        group_names: Of the groups of clients; "everybody" where there are none.
        group: For each client, its group.
        thresholds: For each client, the highest membership risk that it accepts.
        rounds: The measured rounds.
        joined: For each client the first round that it took part in, None where there was none;
            empty where all clients did from the first.
        fairness_note: Why there are no fairness gaps between the groups.
    """

    algorithm: str
    defense: str = "none"
    seed: Whole
    measure: str
    clients: Annotated[list[Whole], Field(min_length=2)]
    group_names: Annotated[list[str], Field(min_length=1)]
    group: list[Whole]
    thresholds: list[Share]
    rounds: Annotated[list[ClusterRound], Field(min_length=1)]
    joined: list[Whole | None] = Field(default_factory=list)
    fairness_note: str = ""

    @model_validator(mode="after")
    def _possible(self) -> "ClusterResult":
        refuse_ragged(clients=self.clients, group=self.group, thresholds=self.thresholds)
        if self.joined:
            refuse_ragged(clients=self.clients, joined=self.joined)
        models = self.rounds[0].models
        for one in self.rounds:
            refuse_ragged(clients=self.clients, choice=one.choice)
            refuse_ragged(models=models, others=one.models)
            if max(one.choice) >= len(models):
                raise ValueError(f"model {max(one.choice)} of {len(models)}")
        if len(set(self.group_names)) < len(self.group_names):
            raise ValueError("two groups have one name")
        if max(self.group) >= len(self.group_names):
            raise ValueError(f"group {max(self.group)} of {len(self.group_names)}")
        return self


def groups_by_size(result: ClusterResult) -> list[int]:
    """The groups that have clients, the largest first."""
    sizes = Counter(result.group)
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def clients_in(result: ClusterResult, group: int | None) -> list[int]:
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
        for model in (used[at] for at in clients_in(result, group))
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
    return Counter(model for at in clients_in(result, group) if (model := used[at]) is not None)


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
