"""Parts of a record about its runs: coverage, source inference and clustered learning."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import (
    Count,
    Finite,
    Limits,
    Part,
    Share,
    SignedShare,
    refuse_disorder,
    refuse_ragged,
)

MOST_LISTED = 1000
"""Limit of the missing uploads and rounds that a record lists singly; the counts are always
complete."""
Reason = Annotated[str, Field(max_length=2000)]


class MissingUpload(Part):
    """Upload that was not measured.

    Attributes:
        client: Its sender.
        round: Its round.
        reason: Why it could not be measured.
        aggregated: False if the server excluded it from the aggregate, so that no released model
            depends on it. True if the server may have used it.
    """

    client: Count
    round: Count
    reason: Reason
    aggregated: bool = True


class MissingRounds(Part):
    """Consecutive rounds that were not measured for one reason.

    Attributes:
        first: The first of them.
        last: The last of them.
        reason: Why they were not measured.
    """

    first: Count
    last: Count
    reason: Reason


class ClientCoverage(Part):
    """Participation of one audited client.

    Attributes:
        client: Its number.
        answered: Rounds in which it sent an upload.
        measured: Rounds in which its upload was measured.
        first: The first measured round; None without one.
        last: The last measured round; None without one.
    """

    client: Count
    answered: Count
    measured: Count
    first: Count | None = None
    last: Count | None = None

    @classmethod
    def of(cls, client: int, answered: int, rounds: Sequence[int]) -> "ClientCoverage":
        """Return the coverage of a client.

        Args:
            client: Its number.
            answered: Known rounds in which it sent an upload.
            rounds: Rounds in which it was measured.
        """
        return cls(
            client=client,
            answered=max(answered, len(rounds)),
            measured=len(rounds),
            first=min(rounds, default=None),
            last=max(rounds, default=None),
        )


class Coverage(Part):
    """Rounds and uploads of a run that were measured.

    A client that was not sampled in a round is not missing from it.

    Attributes:
        rounds: Rounds that are known to have run: the number of the last one.
        measured: Number of rounds that were measured.
        last_measured: The last measured round.
        every: Interval between measured rounds that the user chose.
        clients: Every audited client, including those that never took part.
        is_open: True if the recorder was not closed, because the run was killed or still continues.
            Later rounds may have run.
        unattacked: Audited clients that were left out by choice (``--targets``), so that they have
            no figures.
        missing_uploads: Uploads of audited clients that were not measured in measured rounds.
        missing_rounds: Rounds that ran and should have been measured but were not.
        n_missing_uploads: Number of all missing uploads that may have been aggregated.
        n_missing_rounds: Number of missing rounds.
        identity: SHA-256 over the models that were sent, round by round; empty if unknown.
        sampled_rounds: True if ``every`` left out rounds in which clients took part.
    """

    rounds: Count
    measured: Count
    last_measured: Count
    every: Annotated[int, Field(ge=1)] = 1
    clients: list[ClientCoverage] = Field(default_factory=list)
    is_open: bool = False
    unattacked: list[Count] = Field(default_factory=list)
    missing_uploads: list[MissingUpload] = Field(default_factory=list)
    missing_rounds: list[MissingRounds] = Field(default_factory=list)
    n_missing_uploads: Count = 0
    n_missing_rounds: Count = 0
    identity: Annotated[str, Field(max_length=64)] = ""
    sampled_rounds: bool = False

    @property
    def is_whole(self) -> bool:
        """True if every aggregated upload of every audited client was measured.

        Rounds that the user chose not to measure (``every``) are reported and judged by a gate's
        policy.
        """
        return not (self.n_missing_uploads or self.n_missing_rounds)

    @property
    def never_measured(self) -> list[int]:
        """Audited clients without a measured upload."""
        return [client.client for client in self.clients if not client.measured]


LABELS = "label distributions"
"""Null hypothesis: the clients' different label distributions explain the answers. Under it the
success rate is the same if each sample's owner is replaced by that of another sample of its
class."""
LABEL_BASELINE = "label-distribution baseline"
"""Null hypothesis: the success rate is that of naming, without any model, the client in whose
data the sample's class has the largest share."""

LABELS_METHOD = "Clopper-Pearson and Zou 95%"
"""Method of limits of the success above label distributions, with the error of that level."""
OLDER_LEVEL = (
    "The record is of an earlier version. Its level of label distributions includes each sample's "
    "actual owner, so it may be too high and the excess over it too low. Run the study again for "
    "the corrected level."
)

OWN = "own"
"""Contrast of figures on random samples of each client's own training data, the main figures."""
FAIR = "fair"
"""Contrast of figures on samples of a fair draw, all with the label distribution of its target,
so that classes reveal no client."""


def has_older_level(excess: Estimate) -> bool:
    """Return True if the level of label distributions is by earlier versions, possibly too high.

    Args:
        excess: Success less that level, of one run or over runs.
    """
    return "Clopper-Pearson" in excess.method and "Zou" not in excess.method


class Answered(Part):
    """Selective prediction: figures of an adversary that names a client only if it is confident.

    Attributes:
        least: Probability that a client must reach to be named.
        answered: Samples for which a client was named.
        right: Samples whose owner was named.
    """

    least: Share
    answered: Count
    right: Count

    @model_validator(mode="after")
    def _possible(self) -> "Answered":
        if self.right > self.answered:
            raise ValueError(f"{self.right} right of {self.answered} answered")
        return self


class Chained(Part):
    """Membership inference first, then source inference on the predicted members.

    Attributes:
        fpr: Target false-positive rate on samples that no client trained on.
        realised_fpr: Actual false-positive rate.
        called: Members that were predicted as members.
        right: Predicted members whose owner was named.
    """

    fpr: Share
    realised_fpr: Share
    called: Count
    right: Count

    @model_validator(mode="after")
    def _possible(self) -> "Chained":
        if self.right > self.called:
            raise ValueError(f"{self.right} right of {self.called} called members")
        return self


class ClassSuccess(Part):
    """Samples of one class, and the number of them whose owner was named."""

    label: Count
    samples: Count
    right: Count


class SourceResult(Part):
    """Clients that one attack names in one run. Its success rates are estimates.

    Equally many samples of every client are audited, so that guessing is right for a share of one
    over the number of clients.

    Attributes:
        attack: Catalogue name.
        defense: Name of the defense in force; "none" without one.
        view: What the adversary saw.
        seed: Root seed of the run.
        clients: Client numbers, in the order of ``confusion``.
        samples: Audited samples of all clients.
        confusion: Samples of each client (row) that are attributed to each client (column).
        classes: Success for each class.
        answers: Selective prediction at several thresholds.
        chained: Membership first; empty if no audited sample is a non-member.
        rounds: Measured rounds.
        by_round: Success rate from each round alone; empty for an attack that needs several.
        overfitting: Training less test accuracy of each client's model in the last measured round;
            empty if it was not measured.
        absent: Clients without a model in any measured round, so that no sample is attributed to
            them.
    """

    attack: str
    defense: str = "none"
    view: str = "uploads"
    seed: Count
    clients: Annotated[list[Count], Field(min_length=2)]
    samples: Annotated[Count, Field(ge=1)]
    confusion: list[list[Count]]
    classes: list[ClassSuccess]
    answers: list[Answered]
    chained: list[Chained] = Field(default_factory=list)
    rounds: list[Count]
    by_round: list[Share] = Field(default_factory=list)
    overfitting: list[SignedShare] = Field(default_factory=list)
    absent: list[Count] = Field(default_factory=list)

    @property
    def chance(self) -> float:
        """Success rate of guessing."""
        return 1 / len(self.clients)

    @model_validator(mode="after")
    def _possible(self) -> "SourceResult":
        refuse_ragged(clients=self.clients, confusion=self.confusion)
        for row in self.confusion:
            refuse_ragged(clients=self.clients, confusion=row)
        if self.by_round:
            refuse_ragged(rounds=self.rounds, by_round=self.by_round)
        if self.overfitting:
            refuse_ragged(clients=self.clients, overfitting=self.overfitting)
        if not set(self.absent) <= set(self.clients):
            raise ValueError("absent clients are not among the clients")
        if sum(map(sum, self.confusion)) != self.samples:
            raise ValueError(f"confusion does not add up to {self.samples} samples")
        return self


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
    Ties go to the model that more clients trained. It is None if clients trained no such
    model, or if no client of the group took part.
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
