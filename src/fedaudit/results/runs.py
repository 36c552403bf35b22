"""Parts of a record about its runs: coverage, source inference and clustered learning."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from fedaudit.core.files import MAX_NAMED_TENSORS, MAX_TENSOR_NAME
from fedaudit.results.estimate import Estimate
from fedaudit.results.fields import (
    Count,
    Finite,
    Fraction,
    RecordLimits,
    RecordPart,
    SignedFraction,
    raise_if_lengths_differ,
    raise_if_limits_unordered,
)

MAX_LISTED = 1000
"""Maximum number of missing uploads and rounds that a record lists one by one. Their counts have no
limit."""
MAX_MODELS = 10_000
"""Maximum number of rounds whose models a record identifies."""
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Reason = Annotated[str, Field(max_length=2000)]
_TensorName = Annotated[str, Field(max_length=MAX_TENSOR_NAME)]
TensorNames = Annotated[dict[_TensorName, _TensorName], Field(max_length=MAX_NAMED_TENSORS)]
"""Names of tensors, each with another name of the same tensor."""


class MissingUpload(RecordPart):
    """Upload that was not measured.

    Attributes:
        client: Client that sent the upload.
        round: Round of the upload.
        reason: Why the upload could not be measured.
        aggregated: False if the server excluded the upload from the aggregate, so that no released
            model depends on it. True if the server may have used it.
    """

    client: Count
    round: Count
    reason: Reason
    aggregated: bool = True


class RoundSeries(RecordPart):
    """Consecutive rounds.

    Attributes:
        first: The first of these rounds.
        last: The last of these rounds.
    """

    first: Count
    last: Count

    def __str__(self) -> str:
        """Return "3", or "3–5" for several rounds."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


class MissingRounds(RoundSeries):
    """Consecutive rounds that were not measured, all for the same reason.

    Attributes:
        first: The first of these rounds.
        last: The last of these rounds.
        reason: Why they were not measured.
    """

    reason: Reason


class ClientCoverage(RecordPart):
    """Participation of one audited client.

    Attributes:
        client: Number of the client.
        answered: Number of rounds in which the client sent an upload.
        measured: Number of rounds in which this upload was measured.
        first: The first measured round; None if no round was measured.
        last: The last measured round; None if no round was measured.
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
            client: Number of the client.
            answered: Number of rounds in which an upload of the client is known.
            rounds: Rounds in which the client's upload was measured.
        """
        return cls(
            client=client,
            answered=max(answered, len(rounds)),
            measured=len(rounds),
            first=min(rounds, default=None),
            last=max(rounds, default=None),
        )


GuardOutcome: TypeAlias = Literal["sent", "filtered", "withheld"]
DecideBy: TypeAlias = Literal["upper", "estimate", "lower"]
"""Value that a guard compares with its limit; see :class:`fedaudit.guard.policy.GuardPolicy`."""


class CheckedUploads(RecordPart):
    """Uploads of one client for which its guard took the same decision.

    Attributes:
        outcome: "sent" if the uploads were sent unchanged, "filtered" if they were sent after the
            site's filter, or "withheld".
        count: Number of these uploads.
        rounds: Rounds with such an upload.
    """

    outcome: GuardOutcome
    count: Count
    rounds: Annotated[list[RoundSeries], Field(max_length=MAX_LISTED)]


class GuardCoverage(RecordPart):
    """Decisions of the guard that wrote a recording. The recording contains only sent uploads.

    Attributes:
        limit: Largest AUC that the guard allowed in its last decision.
        decide_by: Value that the guard compared with the limit in its last decision.
        uploads: One entry for each outcome that occurred.
        n_unmeasured: Number of withheld uploads without a measurement, because the check failed.
    """

    limit: Fraction
    decide_by: DecideBy
    uploads: list[CheckedUploads]
    n_unmeasured: Count = 0


class ModelDigests(RecordPart):
    """SHA-256 of a model in one round, over its tensors by name.

    If clients train only some tensors, ``sent`` and ``after`` cover these tensors, which are called
    the adapter. A recording has the global model of each round. A study has the models after the
    last round of each run.

    Attributes:
        round: Number of the round.
        seed: Root seed of the run; None in recordings, which have one run.
        name: Name of the model, such as "model 0" or "personal model of client 3"; empty for the
            only model of the server.
        base: Tensors that no client trains; empty if clients train all tensors, or if unknown.
        sent: Model that all clients were sent; empty if unknown.
        after: Model after the round; empty if unknown.
    """

    round: Count
    seed: Count | None = None
    name: Annotated[str, Field(max_length=100)] = ""
    base: Digest = ""
    sent: Digest = ""
    after: Digest = ""

    @property
    def label(self) -> str:
        """Run and name of the model, such as "model 0 of seed 1"; empty for the only model."""
        of_seed = "" if self.seed is None else f"seed {self.seed}"
        return " of ".join(filter(None, (self.name, of_seed)))


class Coverage(RecordPart):
    """Rounds and uploads of a run that were measured.

    A client that was not sampled in a round is not missing from it.

    Attributes:
        rounds: Number of the last round that is known to have run.
        measured: Number of rounds that were measured.
        last_measured: The last measured round.
        every: Interval between measured rounds, in rounds, which the user chose.
        clients: All audited clients, including clients that never took part.
        is_open: True if the recorder was not closed, because the run was killed or still continues.
            Later rounds may have run.
        unattacked: Audited clients without estimates, because the user left them out
            (``--targets``).
        missing_uploads: Uploads of audited clients that were not measured in measured rounds.
        missing_rounds: Rounds that ran and should have been measured, but were not.
        n_missing_uploads: Number of missing uploads that may have been aggregated.
        n_missing_rounds: Number of missing rounds.
        identity: SHA-256 over the models that were sent in all rounds; empty if unknown.
        models: Digests of models: in a study, of all models after the last round; in a recording,
            of the global models that the loop passed.
        adapter: Tensors that clients train, each with its name in the file of an adapter. Empty if
            clients train all parameters.
        tied: Further names of tensors that have several, each with the first name. Digests use
            only the first.
        unidentified: Models after the last round of a study that have no digest, such as "5,000
            personal models".
        sampled_rounds: True if ``every`` skipped rounds in which clients took part.
        guard: Decisions of the client's guard; None if no guard wrote the recording.
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
    models: Annotated[list[ModelDigests], Field(max_length=MAX_MODELS)] = Field(
        default_factory=list
    )
    adapter: TensorNames = Field(default_factory=dict)
    tied: TensorNames = Field(default_factory=dict)
    unidentified: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=100)] = (
        Field(default_factory=list)
    )
    sampled_rounds: bool = False
    guard: GuardCoverage | None = None

    @property
    def initial_model(self) -> str:
        """SHA-256 of the model that was sent in the first round; empty if unknown."""
        first = self.models[0] if self.models else None
        return first.sent if first is not None and first.round == 1 else ""

    @property
    def base_model(self) -> str:
        """SHA-256 of the tensors that no client trained; empty without these, or if unknown."""
        bases = {models.base for models in self.models}
        return bases.pop() if len(bases) == 1 else ""

    @property
    def final_models(self) -> list[ModelDigests]:
        """Models after the last round: several in a study of several seeds or models."""
        if self.is_open:
            return []
        return [models for models in self.models if models.round == self.rounds and models.after]

    @property
    def final_model(self) -> str:
        """SHA-256 of the only model after the last round; empty if unknown, or if several."""
        models = self.final_models
        return models[0].after if len(models) == 1 else ""

    def final_model_name(self, models: ModelDigests) -> str:
        """Return a name for readers of a model after the last round: "final model of seed 1"."""
        what = models.name or "model"
        if self.adapter:
            what = f"adapter of {models.name}" if models.name else "adapter"
        has_seed = models.seed is not None and len(self.final_models) > 1
        return f"final {what}" + f" of seed {models.seed}" * has_seed

    @property
    def several_final_models(self) -> dict[str, str]:
        """SHA-256 of each model after the last round by its label; empty if there is only one."""
        models = self.final_models
        return {each.label: each.after for each in models} if len(models) > 1 else {}

    @property
    def is_whole(self) -> bool:
        """True if every aggregated upload of every audited client was measured.

        Rounds that ``every`` skips do not count as missing here; the policy of a gate may require
        them.
        """
        return not (self.n_missing_uploads or self.n_missing_rounds)

    @property
    def never_measured(self) -> list[int]:
        """Audited clients without a measured upload."""
        return [client.client for client in self.clients if not client.measured]


LABELS = "label distributions"
"""Null hypothesis: the clients' different label distributions explain the predictions. The success
rate is then the same if each sample's client is replaced by the client of another sample of the
same class."""
LABEL_BASELINE = "label-distribution baseline"
"""Null hypothesis: the success rate is no higher than that of a baseline without a model, which
predicts the client in whose data the sample's class is most frequent."""

LABELS_METHOD = "Clopper-Pearson and Zou 95%"
"""Method of limits of the success rate minus the level of label distributions, which include the
uncertainty of that level."""
OLDER_LEVEL = (
    "The record is of an earlier version. Its level of label distributions includes each sample's "
    "actual owner, so it may be too high and the excess over it too low. Run the study again for "
    "the corrected level."
)

OWN_SAMPLES = "own"
"""Contrast of the main estimates, which are on random samples of each client's training data."""
FAIR_DRAW = "fair"
"""Contrast of estimates on samples of a fair draw. The labels of all clients' samples then have one
distribution, so that classes reveal no client."""


def has_older_level(excess: Estimate) -> bool:
    """Return True if an earlier version computed the level of label distributions (too high).

    Args:
        excess: Success rate minus that level, of one run or over runs.
    """
    return "Clopper-Pearson" in excess.method and "Zou" not in excess.method


class SelectivePrediction(RecordPart):
    """Selective prediction: the adversary predicts a client only if it is confident.

    Attributes:
        least: Minimum probability of a predicted client.
        answered: Number of samples with a prediction.
        right: Number of samples with a correct prediction.
    """

    least: Fraction
    answered: Count
    right: Count

    @model_validator(mode="after")
    def _validate_numbers(self) -> "SelectivePrediction":
        if self.right > self.answered:
            raise ValueError(f"right is {self.right}, but answered is only {self.answered}")
        return self


class ChainedInference(RecordPart):
    """Membership inference, followed by source inference on the predicted members.

    Attributes:
        fpr: Target false-positive rate on samples on which no client trained.
        realised_fpr: Actual false-positive rate.
        called: Number of members that were predicted as members.
        right: Number of these members whose client was predicted correctly.
    """

    fpr: Fraction
    realised_fpr: Fraction
    called: Count
    right: Count

    @model_validator(mode="after")
    def _validate_numbers(self) -> "ChainedInference":
        if self.right > self.called:
            raise ValueError(f"right is {self.right}, but called is only {self.called}")
        return self


class ClassSuccess(RecordPart):
    """Number of samples of one class, and of correct predictions (``right``) on them."""

    label: Count
    samples: Count
    right: Count


class SourceResult(RecordPart):
    """Predictions of one source attack in one run. Its success rates are in the record's estimates.

    Equally many samples of every client are audited, so that the success rate at chance level is
    one over the number of clients.

    Attributes:
        attack: Catalogue name.
        defense: Name of the defense that was used; "none" without a defense.
        view: Name of the adversary's view.
        seed: Root seed of the run.
        clients: Client numbers, in the order of ``confusion``.
        samples: Number of audited samples of all clients together.
        confusion: Number of samples of each client (row) for which each client (column) was
            predicted. Empty in a pack if a number is small.
        classes: Success for each class.
        answers: Selective prediction at several thresholds.
        chained: Source inference on predicted members; empty if no audited sample is a non-member.
        rounds: Measured rounds.
        by_round: Success rate from each single round; empty for an attack that needs several.
        overfitting: Training accuracy minus test accuracy of each client's model in the last
            measured round; empty if it was not measured.
        absent: Clients that have no model in any measured round, and are therefore never predicted.
    """

    attack: str
    defense: str = "none"
    view: str = "uploads"
    seed: Count
    clients: Annotated[list[Count], Field(min_length=2)]
    samples: Annotated[Count, Field(ge=1)]
    confusion: list[list[Count]]
    classes: list[ClassSuccess]
    answers: list[SelectivePrediction]
    chained: list[ChainedInference] = Field(default_factory=list)
    rounds: list[Count]
    by_round: list[Fraction] = Field(default_factory=list)
    overfitting: list[SignedFraction] = Field(default_factory=list)
    absent: list[Count] = Field(default_factory=list)

    @property
    def chance(self) -> float:
        """Success rate at chance level."""
        return 1 / len(self.clients)

    @model_validator(mode="after")
    def _validate_numbers(self) -> "SourceResult":
        if self.confusion:
            raise_if_lengths_differ(clients=self.clients, confusion=self.confusion)
        for row in self.confusion:
            raise_if_lengths_differ(clients=self.clients, confusion=row)
        if self.by_round:
            raise_if_lengths_differ(rounds=self.rounds, by_round=self.by_round)
        if self.overfitting:
            raise_if_lengths_differ(clients=self.clients, overfitting=self.overfitting)
        if not set(self.absent) <= set(self.clients):
            raise ValueError("absent clients must be among the clients")
        if self.confusion and sum(map(sum, self.confusion)) != self.samples:
            raise ValueError(f"the sum of confusion must be {self.samples} samples")
        return self


ALL_CLIENTS = "everybody"
"""Name of the group that contains all clients."""


class ModelState(RecordLimits[Fraction]):
    """One of the federation's models after a measured round.

    Attributes:
        clients: Number of clients that trained the model when they last took part.
        told: Membership risk of the model that was reported to clients before they chose. None if
            the algorithm reports no risks.
        estimated: The server's estimate of the model's risk after the round: balanced accuracy of
            membership inference with shadow models, on the server's own samples. None if no client
            trained the model.
        samples: Number of samples of the clients that trained the model. 0 if no client did, and in
            records of older versions.
        shadow_samples: Number of training samples of each shadow model. It is smaller than
            ``samples`` if the server has too few samples; the estimate is then of a scaled-down
            model. 0 if ``samples`` is 0.
        risk: Balanced accuracy of the same attack on the model's actual members and on held-out
            samples, with equal class frequencies if clients' classes are skewed. None if no client
            trained the model, or if an attack on updates saw no update of it. ``low`` and ``high``
            are the 95% limits of this risk.
        members: Number of audited members.
        others: Number of audited non-members.
        loss: Mean loss on test samples with the distribution of the data of the model's clients;
            None if no client trained the model.
        accuracy: Accuracy on the same test samples.
    """

    clients: Count
    told: Fraction | None = None
    estimated: Fraction | None = None
    samples: Count = 0
    shadow_samples: Count = 0
    risk: Fraction | None = None
    members: Count = 0
    others: Count = 0
    loss: Finite | None = None
    accuracy: Fraction | None = None

    @model_validator(mode="after")
    def _validate_numbers(self) -> "ModelState":
        raise_if_limits_unordered(self.low, self.risk, self.high)
        return self


class ClusterRound(RecordPart):
    """Measured round of clustered learning.

    Attributes:
        round: Number of the round, from 1.
        choice: Index of the model that each client last trained; 0 for a client that never took
            part.
        models: The models after the round.
    """

    round: Count
    choice: list[Count]
    models: list[ModelState]


class ClusterResult(RecordPart):
    """Clients' choices of models in one run, and the membership risk of each model.

    The accuracies, risks and fairness gaps of the run are in the record's ``estimates``.

    Attributes:
        algorithm: Catalogue name of the algorithm.
        defense: Name of the defense that was used; "none" without a defense.
        seed: Root seed of the run.
        measure: How risk is measured.
        clients: Client numbers, in the order of ``group``, ``thresholds`` and every ``choice``.
        group_names: Names of the groups of clients; "everybody" if there is a single one.
        group: Index of each client's group.
        thresholds: Highest membership risk that each client accepts.
        rounds: The measured rounds.
        joined: First round in which each client took part; None if it never did. Empty if all
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
    thresholds: list[Fraction]
    rounds: Annotated[list[ClusterRound], Field(min_length=1)]
    joined: list[Count | None] = Field(default_factory=list)
    fairness_note: str = ""

    @model_validator(mode="after")
    def _validate_numbers(self) -> "ClusterResult":
        raise_if_lengths_differ(clients=self.clients, group=self.group, thresholds=self.thresholds)
        if self.joined:
            raise_if_lengths_differ(clients=self.clients, joined=self.joined)
        models = self.rounds[0].models
        for measured in self.rounds:
            raise_if_lengths_differ(clients=self.clients, choice=measured.choice)
            raise_if_lengths_differ(models=models, others=measured.models)
            if max(measured.choice) >= len(models):
                raise ValueError(f"there are {len(models)} models, but no {max(measured.choice)}")
        if len(set(self.group_names)) < len(self.group_names):
            raise ValueError("two groups have the same name")
        if max(self.group) >= len(self.group_names):
            raise ValueError(f"there are {len(self.group_names)} groups, but no {max(self.group)}")
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


def model_choices(result: ClusterResult, after: ClusterRound | None = None) -> list[int | None]:
    """Return the model that each client last trained; None for clients that have not taken part.

    Args:
        result: Result of a run.
        after: The measured round; by default the last one.
    """
    measured = after or result.rounds[-1]
    if not result.joined:
        return list(measured.choice)
    return [
        None if first is None or first > measured.round else choice
        for choice, first in zip(measured.choice, result.joined, strict=True)
    ]


def models_used_by(result: ClusterResult, group: int | None) -> list[ModelState | None]:
    """Return the model that each client of a group uses after training.

    It is None for a client that never took part.
    """
    last, used = result.rounds[-1], model_choices(result)
    return [
        None if model is None else last.models[model]
        for model in (used[position] for position in clients_in(result, group))
    ]


def models_of_groups(result: ClusterResult) -> dict[int, int | None]:
    """Assign each group a model after training, in order of decreasing group size.

    It is the model that most of the group's clients chose, among models that no larger group was
    assigned. In a tie, it is the model that more clients trained. It is None if no client trained
    any of these models, or if no client of the group took part.
    """
    last = result.rounds[-1]
    assigned: dict[int, int | None] = {}
    for group in groups_by_size(result):
        votes = _votes(result, group)
        available = [
            model
            for model, state in enumerate(last.models)
            if model not in assigned.values() and (state.clients or votes[model])
        ]
        assigned[group] = max(
            available if votes else (),
            key=lambda model: (votes[model], last.models[model].clients, -model),
            default=None,
        )
    return assigned


def shares_its_model(result: ClusterResult, group: int) -> bool:
    """Return True if the model that most clients of a group chose is assigned to a larger group."""
    votes, model = _votes(result, group), models_of_groups(result)[group]
    return model is None or votes[model] < max(votes.values(), default=0)


def _votes(result: ClusterResult, group: int) -> Counter[int]:
    used = model_choices(result)
    return Counter(
        model for position in clients_in(result, group) if (model := used[position]) is not None
    )


def model_changes(result: ClusterResult) -> list[list[int]]:
    """Return the positions of the clients that changed their model, for each measured round.

    The first measured round is left out. A client that takes part for the first time does not
    change its model.
    """
    used = [model_choices(result, measured) for measured in result.rounds]
    return [
        [
            position
            for position, (was, now) in enumerate(zip(old, new, strict=True))
            if was not in (None, now)
        ]
        for old, new in pairwise(used)
    ]


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are None."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None
