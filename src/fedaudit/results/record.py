"""Format of a record, the result file of a study: plain data, without executable content.

A record is one JSON document. Reports, comparisons and gates read records, and no files of runs.
Rates are in [0, 1]. An estimate that could not be computed is ``None``, and its ``note`` says why.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, field_serializer, field_validator, model_validator

from fedaudit.core.display import conclusion, describe, repr_html
from fedaudit.core.files import MAX_RESULT_BYTES, raise_if_unreadable, write_atomically
from fedaudit.results.estimate import (
    Coordinates,
    Estimate,
    Interval,
    compact_estimates,
    expand_estimates,
)
from fedaudit.results.fields import (
    Count,
    Finite,
    Fraction,
    RecordLimits,
    RecordPart,
    Seconds,
    SignedFraction,
    raise_if_lengths_differ,
    raise_if_limits_unordered,
)
from fedaudit.results.frames import frame_of
from fedaudit.results.games import (
    DESCRIPTIVE_SETTINGS,
    Detection,
    Detector,
    GamePoint,
    PointPlayed,
    detection,
    points_played,
)
from fedaudit.results.runs import LABELS, OWN_SAMPLES, ClusterResult, Coverage, SourceResult
from fedaudit.results.text import sealed_json

FORMAT = "fedaudit-record"
VERSION = 3
RECORDER_SETTINGS = frozenset({"name", "recording", "figures", "attacks", "code"})
"""Settings in the record of a live recording; other settings of the federation are unknown."""
RECORDING_KEYS = frozenset({"name", "key", "view", "every", "keep", "attacks", "targets"}) | {
    "classes",
    "sizes",
    "names",
    "model",
    "started",
    "task",
    "unaudited",
    "not_uploaded",
    "table",
    "references",
}
"""Keys of the table ``recording`` in the record of a live recording."""
_TOPICS_WITH_VALUES = frozenset({"source", "clusters", "utility"})
"""Topics whose estimates always have a value, because they are counts and means of observations."""
_key_of = attrgetter(*Coordinates.model_fields, "metric", "against")
"""Coordinates that identify an estimate within a record."""
SOURCE_RULE_SUFFIX = "arg max"
"""End of the rule over clients of an attack that identifies sources and scores no membership."""


class Curve(RecordPart):
    """Receiver operating characteristic, thinned for a plot."""

    attack: str
    defense: str = "none"
    view: str = "uploads"
    contrast: str
    target: Count
    seed: Count
    fpr: Annotated[list[Fraction], Field(min_length=1)]
    tpr: list[Fraction]

    @model_validator(mode="after")
    def _validate_lengths(self) -> "Curve":
        raise_if_lengths_differ(fpr=self.fpr, tpr=self.tpr)
        return self


class Trajectory(RecordPart):
    """Signal of the target client by round: mean and 10-90% range over samples of one origin."""

    signal: str
    defense: str = "none"
    target: Count
    seed: Count
    origin: Literal["member", "other_client", "unseen"]
    rounds: list[Count]
    mean: list[Finite | None]
    low: list[Finite | None]
    high: list[Finite | None]

    @model_validator(mode="after")
    def _validate_lengths(self) -> "Trajectory":
        raise_if_lengths_differ(rounds=self.rounds, mean=self.mean, low=self.low, high=self.high)
        return self


class Histogram(RecordPart):
    """Histograms of scores by origin of samples, with common bins between ``edges``."""

    attack: str
    defense: str = "none"
    target: Count
    seed: Count
    edges: Annotated[list[Finite], Field(min_length=2)]
    member: list[Count]
    other_client: list[Count]
    unseen: list[Count]

    @model_validator(mode="after")
    def _validate_lengths(self) -> "Histogram":
        bins = range(len(self.edges) - 1)
        raise_if_lengths_differ(
            bins=bins, member=self.member, other_client=self.other_client, unseen=self.unseen
        )
        if any(edge > next_edge for edge, next_edge in pairwise(self.edges)):
            raise ValueError("edges must ascend")
        return self


class ExposedSample(RecordPart):
    """Member with an unusually high score.

    Attributes:
        unit: "sample", or "person".
        sample: Id of the sample in the data set, or number of the person.
        label: Class of the sample; None for a person, who may have samples of several classes.
        above_nonmembers: Fraction of non-members with a lower score.
    """

    attack: str
    defense: str = "none"
    target: Count
    seed: Count
    unit: Literal["sample", "person"] = "sample"
    sample: Count
    label: Count | None = None
    above_nonmembers: Fraction


class ControlResult(RecordLimits[Fraction]):
    """Result of a control experiment, whose result is known in advance if the audit is valid.

    Attributes:
        control: "permuted members", "untrained model", "blind classifier", "planted leak", "claimed
            epsilon", "retrained federation", "exact copies", "reported training metrics", "peer
            updates".
        expected: Description of the result in a valid audit.
        clients: Clients on which a control of a whole run failed.
        passed: Whether the control passed; None if it could not be run.
    """

    control: str
    attack: str = ""
    defense: str = "none"
    target: Count | None = None
    seed: Count | None = None
    clients: list[Count] = Field(default_factory=list)
    expected: str
    value: Fraction | None
    passed: bool | None
    note: str = ""

    @model_validator(mode="after")
    def _validate_numbers(self) -> "ControlResult":
        # The mean over shuffles may lie outside their central range.
        raise_if_limits_unordered(self.low, None, self.high)
        return self


class AccuracyByRound(RecordPart):
    """Test accuracy of one run's models after each measured round."""

    defense: str = "none"
    seed: Count
    rounds: list[Count]
    accuracy: list[Fraction]

    @model_validator(mode="after")
    def _validate_numbers(self) -> "AccuracyByRound":
        raise_if_lengths_differ(rounds=self.rounds, accuracy=self.accuracy)
        return self


class UsageRow(RecordPart):
    """How often a client used its samples in one run, and the costs of its defense.

    Attributes:
        defended: True if the client uses the defense.
        distinct: Number of distinct samples on which the client trained in each round; 0 if it did
            not take part.
        times_used: Number of the client's samples that it used 0 times in the run, once, twice, ...
        times_recycled: As ``times_used``, for uses that a defense first omitted and later repeated.
        extra_bytes: Bytes sent or received over the run in addition to model and upload.
        seconds: Local training time over the run. It depends on the machine and is not hashed.
        filter_cosine: Cosine between the input and the output of a custom filter, mean over rounds.
            None without a filter, and in older records.
        rounds_acted: Number of rounds in which a conditional defense changed a step or the upload.
            None for a defense without a condition, and in older records.
        rounds_decided_by_risk: Number of rounds in which the models' risks changed the client's
            choice of a model. None if the client never chose by risk, and in older records.
    """

    defense: str = "none"
    seed: Count
    client: Count
    defended: bool
    samples: Count
    distinct: Annotated[list[Count], Field(min_length=1)]
    times_used: list[Count]
    times_recycled: list[Count]
    extra_bytes: Count = 0
    seconds: Seconds = 0.0
    filter_cosine: SignedFraction | None = None
    rounds_acted: Count | None = None
    rounds_decided_by_risk: Count | None = None

    @model_validator(mode="after")
    def _validate_numbers(self) -> "UsageRow":
        if max(self.distinct) > self.samples:
            raise ValueError(f"{max(self.distinct)} distinct samples of only {self.samples}")
        return self


class AttackRow(RecordPart):
    """Description of an attack, as in the catalogue.

    Attributes:
        over_clients: How the attack's rule combines clients (``client_aggregation`` of the rule).
        over_rounds: How the attack's rule combines rounds (``round_aggregation`` of the rule).
        note: Why the attack was refused, or failed on all or some clients.
        uncovered: Why the attack was not run on clients that took part in too few rounds, or with
            too few other clients.
    """

    name: str
    signals: list[str]
    over_clients: str
    over_rounds: str
    needs: list[str]
    source: str
    status: Literal["run", "refused", "failed"] = "run"
    note: str = ""
    uncovered: str = ""

    @property
    def infers_source(self) -> bool:
        """True if the attack identifies the client that a sample comes from."""
        return self.over_clients.endswith(SOURCE_RULE_SUFFIX)


class ClientRow(RecordPart):
    """Size and label distribution of a client, and the number of its audited samples.

    Attributes:
        audited: Number of audited samples of the client; None if it is too small to publish.
        people: Number of people with a sample in the client's data; None if the data name no
            people, in older records, and if it is too small to publish.
        name: Name of the client in the data; empty if clients have only numbers.
    """

    client: Count
    samples: Count
    audited: Count | None
    class_counts: list[Count]
    people: Count | None = None
    name: str = ""


MOST_CLIENTS = 200
"""Maximum number of clients that have a row of their own in a record; all others share one row."""


class OtherClients(RecordPart):
    """Sum over the clients of a large federation that have no row of their own.

    Attributes:
        clients: Number of these clients.
        samples: Number of samples of these clients together.
        fewest: Number of samples of the smallest client.
        most: Number of samples of the largest client.
        audited: Number of audited samples of these clients together.
        class_counts: Number of samples of each class.
    """

    clients: Annotated[Count, Field(ge=1)]
    samples: Count
    fewest: Count
    most: Count
    audited: Count
    class_counts: list[Count]


class ViewRow(RecordPart):
    """Description of the adversary of a study."""

    name: str
    sees: list[str]
    description: str


class Environment(RecordPart):
    """Software, device and time of an audit. It is not part of the content hash."""

    versions: dict[str, str] = Field(default_factory=dict)
    commit: str = ""
    device: str = ""
    started: str = ""
    seconds: Seconds | None = None


class Record(RecordPart):
    """Results of a study.

    Attributes:
        content_hash: SHA-256 over configuration, measurements and results. It is the same for two
            runs of one study on one machine, even if they were interrupted.
        evaluation: "aligned" if the same non-members were evaluated in all rounds, "redraw" if
            other non-members were drawn for every round and client, as in published code.
        null_members: True for a null audit: held-out samples are labelled as members, to show which
            estimates an evaluation reports without any leak.
        estimates: All estimates.
        made_as: Content hash of the record in an older format from which this record was converted.
        clients: One row for each client. If there are over ``MOST_CLIENTS`` clients, only the
            audited clients and those with the most audited samples have rows.
        other_clients: The other clients of a large federation.
        people: Number of people with a sample in the data of any client; None if the data name no
            people, in older records, and in packs that hide the number of a client.
        parameters: Number of trainable parameters, of the largest model if clients' models differ.
            None in older records.
        watched: True for a live recording of a federation, whose training fedaudit does not
            control.
        accuracies: Test accuracy by round. The estimates of utility are among ``estimates``.
        sources: Predictions of each source attack in each run.
        clusters: Models of a clustered federation in each run, with their clients and risks.
        points: Points of a study of games, without their estimates; empty for other studies.
        detector: Detection of planted models by a client, without estimates; None if it was not
            measured.
        coverage: Rounds and uploads that were measured. None in records of older versions and of
            games.
        untested: Descriptions of what this study does not test.
    """

    format: Literal["fedaudit-record"] = "fedaudit-record"
    version: Literal[3] = 3
    name: str
    content_hash: str
    made_as: str = ""
    config: dict[str, object]
    seeds: list[Count]
    evaluation: Literal["aligned", "redraw"] = "aligned"
    null_members: bool = False
    watched: bool = False
    environment: Environment
    view: ViewRow
    attacks: list[AttackRow]
    clients: list[ClientRow]
    other_clients: OtherClients | None = None
    people: Count | None = None
    parameters: Count | None = None
    estimates: list[Estimate]
    curves: list[Curve] = Field(default_factory=list)
    trajectories: list[Trajectory] = Field(default_factory=list)
    histograms: list[Histogram] = Field(default_factory=list)
    exposed: list[ExposedSample] = Field(default_factory=list)
    controls: list[ControlResult] = Field(default_factory=list)
    accuracies: list[AccuracyByRound] = Field(default_factory=list)
    usage: list[UsageRow] = Field(default_factory=list)
    sources: list[SourceResult] = Field(default_factory=list)
    clusters: list[ClusterResult] = Field(default_factory=list)
    points: list[GamePoint] = Field(default_factory=list)
    detector: Detector | None = None
    coverage: Coverage | None = None
    untested: list[str] = Field(default_factory=list)

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __str__(self) -> str:
        """Return verdict, estimates of the attacks and next steps, in 80 columns."""
        return conclusion(self)

    def where(self, **fields: object) -> list[Estimate]:
        """Return the estimates with the given values of coordinates, ``metric`` or ``against``."""
        get = attrgetter(*fields)
        values = tuple(fields.values()) if len(fields) > 1 else next(iter(fields.values()))
        return [estimate for estimate in self.estimates if get(estimate) == values]

    @property
    def source_estimates(self) -> list[Estimate]:
        """Main estimates of source inference: those on clients' own samples, if there are any."""
        estimates = self.where(topic="source")
        return [estimate for estimate in estimates if estimate.contrast == OWN_SAMPLES] or estimates

    @property
    def fair_source_estimates(self) -> list[Estimate]:
        """Estimates of source inference that are not in :attr:`source_estimates`."""
        main = set(map(id, self.source_estimates))
        return [estimate for estimate in self.where(topic="source") if id(estimate) not in main]

    @property
    def federation_size(self) -> int:
        """Number of all clients."""
        return len(self.clients) + (self.other_clients.clients if self.other_clients else 0)

    @property
    def label_distributions(self) -> list[list[int]]:
        """Number of samples of each class, for each row of clients and for the other clients."""
        others = [self.other_clients.class_counts] if self.other_clients else []
        return [row.class_counts for row in self.clients] + others

    @property
    def kind(self) -> Literal["study", "games"]:
        """Kind of study: attacks on a federation, or security games."""
        return "games" if self.points else "study"

    @property
    def games(self) -> list[PointPlayed]:
        """Points of a study of games, each with its estimates."""
        return points_played(self.points, self.estimates)

    @property
    def detection(self) -> Detection | None:
        """Detector of a study of games with its estimates; None if there is no detector."""
        return detection(self.detector, self.estimates)

    @property
    def unit(self) -> Literal["sample", "person"]:
        """Unit of the audit: samples, or people with all their samples."""
        return (
            "person"
            if any(estimate.unit == "person" for estimate in self.where(topic="membership"))
            else "sample"
        )

    @property
    def findings(self) -> list[Estimate]:
        """Estimates on membership that are not limited to one class or one client's samples."""
        unit = self.unit
        return [
            estimate
            for estimate in self._on_membership
            if not estimate.attack or estimate.unit == unit
        ]

    @property
    def of_single_samples(self) -> list[Estimate]:
        """Estimates on single samples, in a record whose ``findings`` are about people."""
        unit = self.unit
        return [
            estimate
            for estimate in self._on_membership
            if estimate.is_of_attack and estimate.unit != unit
        ]

    @property
    def _on_membership(self) -> list[Estimate]:
        return [
            estimate
            for estimate in self.estimates
            if estimate.topic == "membership" and not estimate.by
        ]

    @property
    def groups(self) -> list[Estimate]:
        """AUCs within one class, or on one client's samples."""
        return [
            estimate
            for estimate in self.estimates
            if estimate.topic == "membership" and estimate.by
        ]

    @property
    def others(self) -> list[Estimate]:
        """Estimates on topics other than membership."""
        return [estimate for estimate in self.estimates if estimate.topic != "membership"]

    @field_validator("estimates", mode="before")
    @classmethod
    def _expand(cls, entries: object) -> object:
        return expand_estimates(entries)

    @field_serializer("estimates")
    def _compact(self, estimates: list[Estimate]) -> list[dict[str, object]]:
        return compact_estimates(estimates)

    @model_validator(mode="after")
    def _validate_values(self) -> "Record":
        for estimate in self.estimates:
            if estimate.topic in _TOPICS_WITH_VALUES and estimate.value is None:
                raise ValueError(f"{estimate.metric} of topic {estimate.topic} has no value")
        return self

    @model_validator(mode="after")
    def _validate_uniqueness(self) -> "Record":
        if len(set(map(_key_of, self.estimates))) < len(self.estimates):
            first, times = Counter(map(_key_of, self.estimates)).most_common(1)[0]
            estimate = next(estimate for estimate in self.estimates if _key_of(estimate) == first)
            raise ValueError(
                f"{estimate.metric} of {estimate.attack or 'the run itself'} appears {times} times "
                "with the same coordinates"
            )
        return self

    @model_validator(mode="after")
    def _validate_sources(self) -> "Record":
        run_of = attrgetter("attack", "defense", "view", "seed")
        runs = set(map(run_of, self.sources))
        estimates = [estimate for estimate in self.source_estimates if not estimate.against]
        if len(runs) != len(self.sources) or runs != {
            run_of(estimate) for estimate in estimates if estimate.seed is not None
        }:
            raise ValueError("sources and their estimates have different attacks or seeds")
        attacks = {(attack, defense, view) for attack, defense, view, _ in runs}
        for against in ("", LABELS):
            averaged = {
                run_of(estimate)[:3]
                for estimate in self.source_estimates
                if estimate.against == against and estimate.seed is None
            }
            if averaged != attacks:
                raise ValueError("sources and their estimates over all runs have different attacks")
        return self

    @model_validator(mode="after")
    def _validate_games(self) -> "Record":
        for point in self.games:
            point.raise_if_impossible()
        if (detected := self.detection) is not None:
            detected.raise_if_impossible()
        return self

    def rows(self) -> list[dict[str, object]]:
        """Return every estimate of a run as a dictionary of plain values.

        Estimates that belong to no run, such as those of games and formal guarantees, are included.
        Means over several runs are not included; they are in :meth:`mean_rows`.

        Returns:
            One dictionary for each estimate: its coordinates ("topic", "attack", "target", "seed",
            ...), its numbers, and limits and tests by dotted names ("further.low",
            "test.guessing.p_value").
        """
        return [flat_row(estimate) for estimate in self._by_runs(over=False)]

    def mean_rows(self) -> list[dict[str, object]]:
        """Return every estimate over the runs of the study, in the form of :meth:`rows`."""
        return [flat_row(estimate) for estimate in self._by_runs(over=True)]

    def frame(self) -> object:
        """Return :meth:`rows` as a pandas table, or as a list if pandas is not installed."""
        return frame_of(self.rows())

    def mean_frame(self) -> object:
        """Return :meth:`mean_rows` as a pandas table, or as a list if pandas is not installed."""
        return frame_of(self.mean_rows())

    def _by_runs(self, *, over: bool) -> list[Estimate]:
        of_runs = {
            _without_seed(estimate) for estimate in self.estimates if estimate.seed is not None
        }
        return [
            estimate
            for estimate in self.estimates
            if (estimate.seed is None and _without_seed(estimate) in of_runs) == over
        ]


_without_seed = attrgetter(
    "metric", "against", *(name for name in Coordinates.model_fields if name != "seed")
)


def flat_row(estimate: Estimate) -> dict[str, object]:
    """Return an estimate as a flat dictionary, with the same keys for every estimate."""
    row: dict[str, object] = {}
    for name, value in estimate.model_dump(mode="json", exclude={"tests"}).items():
        if name in _LIMITS:
            limits = value or Interval().model_dump()
            row |= {f"{name}.{key}": limit for key, limit in limits.items()}
        else:
            row[name] = value
    for test in estimate.tests:
        outcome = test.model_dump(mode="json", exclude={"null"})
        row |= {f"test.{test.null}.{key}": field for key, field in outcome.items()}
    return row


_LIMITS = ("at_threshold", "further")


def games_record(
    name: str,
    config: dict[str, object],
    played: Sequence[PointPlayed],
    detected: Detection | None,
    environment: Environment,
) -> Record:
    """Return the record of a study of games.

    Args:
        name: Name of the study.
        config: The study's own settings.
        played: All points, the study's own first.
        detected: The detector; None if no detector was measured.
        environment: Where and when the study ran.
    """
    points = [_without_estimates(point, GamePoint) for point in played]
    detector = None if detected is None else _without_estimates(detected, Detector)
    estimates = [estimate for point in played for estimate in point.estimates]
    estimates += [] if detected is None else detected.estimates
    seed = config.get("seed")
    record = Record(
        name=name,
        content_hash="",
        config=config,
        seeds=[seed] if isinstance(seed, int) else [],
        environment=environment,
        view=TAMPERING,
        attacks=[],
        clients=[],
        estimates=estimates,
        points=points,
        detector=detector,
    )
    return record.model_copy(update={"content_hash": games_hash(record)})


def games_hash(record: Record) -> str:
    """Return the content hash of a record of games, which is computed from only the record.

    The hash of other studies also covers measurements, which are in the folder of the run.
    """
    document = [
        {name: value for name, value in record.config.items() if name not in DESCRIPTIVE_SETTINGS},
        [estimate.model_dump(mode="json", exclude_defaults=True) for estimate in record.estimates],
        record.model_dump(
            mode="json",
            exclude={
                **dict.fromkeys(("name", "content_hash", "made_as"), True),
                **dict.fromkeys(("environment", "config", "estimates"), True),
                "points": {"__all__": {"seconds"}},
                "detector": {"seconds"},
            },
            exclude_defaults=True,
        ),
    ]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


TAMPERING = ViewRow(
    name="tampering",
    sees=["chooses_model", "uploads"],
    description="A server that plants a neuron in the model and sees what a client answers.",
)
"""View of the adversary in games."""

AnyPart = TypeVar("AnyPart", bound=RecordPart)


def _without_estimates(part: RecordPart, kind: type[AnyPart]) -> AnyPart:
    return kind.model_construct(**{name: getattr(part, name) for name in kind.model_fields})


def record_json(record: Record) -> str:
    """Return the record as one line of JSON with a digest, without fields at their defaults."""
    fields = record.model_dump(mode="json", exclude_defaults=True)
    return sealed_json({"format": record.format, "version": record.version, **fields})


def write_record(record: Record, path: Path) -> None:
    """Write the record as JSON in a private file. An interrupted write leaves no partial file."""
    text = record_json(record)
    raise_if_unreadable(path, text, max_bytes=MAX_RESULT_BYTES, remedy=_REMEDY)
    write_atomically(path, text, owner_only=True)


_REMEDY = "run `fedaudit attack` again with fewer attacks or targets; the measurements are not lost"
