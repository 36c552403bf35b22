"""The record of a study: everything a reader needs, and nothing that can be executed.

A record is one JSON document. Reports, comparisons and gates read records only, never a run.
Rates are shares in [0, 1]; ``None`` stands for a figure that could not be given, and ``note``
then says why.
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

from fedaudit.core.files import LONGEST_RESULT, refuse_unreadable, write_whole
from fedaudit.results.clusters import ClusterResult
from fedaudit.results.coverage import Coverage
from fedaudit.results.estimate import Coordinates, Estimate, Interval, compact, expanded
from fedaudit.results.fields import (
    Change,
    Drawn,
    Limits,
    Part,
    Seconds,
    Share,
    Whole,
    refuse_disorder,
    refuse_ragged,
)
from fedaudit.results.games import (
    FOR_PEOPLE,
    Detection,
    Detector,
    GamePoint,
    PointPlayed,
    detection,
    points_played,
)
from fedaudit.results.sources import LABELS, OWN, SourceResult
from fedaudit.results.text import sealed_json

FORMAT = "fedaudit-record"
VERSION = 3
OF_A_RECORDER = frozenset({"name", "recording", "figures", "attacks", "code"})
"""Settings that the record of a live recording has: nothing else is known of the federation."""
OF_A_RECORDING = frozenset({"name", "key", "view", "every", "keep", "attacks", "targets"}) | {
    "classes",
    "sizes",
    "names",
    "model",
    "started",
    "task",
    "unaudited",
    "not_uploaded",
}
"""What stands in its table ``recording``."""
_NEVER_REFUSED = frozenset({"source", "clusters", "utility"})
"""Topics whose figures are counts and means of what was seen, so that each has a value."""
_key_of = attrgetter(*Coordinates.model_fields, "metric", "against")
"""What tells one figure of a record from all others."""
NAMES_OWNERS = "arg max"
"""How the rule over clients ends of an attack that names owners and scores no membership."""


class Curve(Part):
    """A receiver operating characteristic, thinned to what a plot can show."""

    attack: str
    defense: str = "none"
    view: str = "uploads"
    contrast: str
    target: Whole
    seed: Whole
    fpr: Annotated[list[Share], Field(min_length=1)]
    tpr: list[Share]

    @model_validator(mode="after")
    def _even(self) -> "Curve":
        refuse_ragged(fpr=self.fpr, tpr=self.tpr)
        return self


class Trajectory(Part):
    """A signal at the target client over rounds: mean and 10-90% range of one origin."""

    signal: str
    defense: str = "none"
    target: Whole
    seed: Whole
    origin: Literal["member", "other_client", "unseen"]
    rounds: list[Whole]
    mean: list[Drawn | None]
    low: list[Drawn | None]
    high: list[Drawn | None]

    @model_validator(mode="after")
    def _even(self) -> "Trajectory":
        refuse_ragged(rounds=self.rounds, mean=self.mean, low=self.low, high=self.high)
        return self


class Histogram(Part):
    """Counts of scores by origin over common bins; ``edges`` has one entry more."""

    attack: str
    defense: str = "none"
    target: Whole
    seed: Whole
    edges: Annotated[list[Drawn], Field(min_length=2)]
    member: list[Whole]
    other_client: list[Whole]
    unseen: list[Whole]

    @model_validator(mode="after")
    def _even(self) -> "Histogram":
        bins = range(len(self.edges) - 1)
        refuse_ragged(
            bins=bins, member=self.member, other_client=self.other_client, unseen=self.unseen
        )
        if any(one > other for one, other in pairwise(self.edges)):
            raise ValueError("edges are not in order")
        return self


class ExposedSample(Part):
    """A member that an attack singles out: its score is above this share of non-members'.

    Attributes:
        unit: "sample", or "person".
        sample: Its id in the data set, or its number as a person.
        label: Class of a sample; None of a person, who may have samples of several.
    """

    attack: str
    defense: str = "none"
    target: Whole
    seed: Whole
    unit: Literal["sample", "person"] = "sample"
    sample: Whole
    label: Whole | None = None
    above_nonmembers: Share


class ControlResult(Limits[Share]):
    """A check that the figures mean what they say.

    Attributes:
        control: "permuted members", "untrained model", "blind classifier", "planted leak", "claimed
            epsilon", "retrained federation", "exact copies",
            "reported training metrics", "peer updates".
        expected: What a sound run gives, in words.
        clients: Clients that a failed control of a whole run names.
        passed: Whether it did; None where it could not be run.
    """

    control: str
    attack: str = ""
    defense: str = "none"
    target: Whole | None = None
    seed: Whole | None = None
    clients: list[Whole] = Field(default_factory=list)
    expected: str
    value: Share | None
    passed: bool | None
    note: str = ""

    @model_validator(mode="after")
    def _possible(self) -> "ControlResult":
        # The mean of shuffles may lie outside of their central range.
        refuse_disorder(self.low, None, self.high)
        return self


class AccuracyByRound(Part):
    """Test accuracy of one run's models after each measured round."""

    defense: str = "none"
    seed: Whole
    rounds: list[Whole]
    accuracy: list[Share]

    @model_validator(mode="after")
    def _possible(self) -> "AccuracyByRound":
        refuse_ragged(rounds=self.rounds, accuracy=self.accuracy)
        return self


class UsageRow(Part):
    """Uses of a client's samples in one run, and what its defense cost it.

    Attributes:
        defended: Whether the client uses the defense.
        distinct: Different samples that it trained on, round by round; 0 where it took no part.
        times_used: How many of its samples it used 0 times over the run, once, twice, ...
        times_recycled: The same for uses that a defense brought back after leaving them out.
        extra_bytes: Sent or received beside model and upload, over the run.
        seconds: Of local training over the run; of the machine, and outside the content hash.
        filter_cosine: Between what a filter of the user's own was given and what it sent, mean
            over rounds; None where there is no filter, and in older records.
        rounds_acted: Rounds in which a defense that acts under a condition changed a step or the
            upload; None for a defense that always acts, and in older records.
        rounds_decided_by_risk: Rounds in which the models' risks changed the client's choice among
            them; None where it chose none by risk, and in older records.
    """

    defense: str = "none"
    seed: Whole
    client: Whole
    defended: bool
    samples: Whole
    distinct: Annotated[list[Whole], Field(min_length=1)]
    times_used: list[Whole]
    times_recycled: list[Whole]
    extra_bytes: Whole = 0
    seconds: Seconds = 0.0
    filter_cosine: Change | None = None
    rounds_acted: Whole | None = None
    rounds_decided_by_risk: Whole | None = None

    @model_validator(mode="after")
    def _possible(self) -> "UsageRow":
        if max(self.distinct) > self.samples:
            raise ValueError(f"{max(self.distinct)} different ones of {self.samples} samples")
        return self


class AttackRow(Part):
    """Parts of an attack, as the catalogue has them.

    Attributes:
        note: Why it was refused, or failed; of one that ran, why it failed on some clients.
        uncovered: Why it was not run on clients that took part in too few rounds, or with too few
            others.
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
        """True if it names the client that a sample is from, as its rule over clients says."""
        return self.over_clients.endswith(NAMES_OWNERS)


class ClientRow(Part):
    """A client's size and label distribution, and how many audited samples it holds.

    Attributes:
        audited: None where so few are not told.
    """

    client: Whole
    samples: Whole
    audited: Whole | None
    class_counts: list[Whole]


MOST_CLIENTS = 200
"""So many clients have a row of their own in a record; the others share one."""


class OtherClients(Part):
    """The clients of a large federation that have no row of their own, together.

    Attributes:
        clients: Their number.
        samples: Of all of them.
        fewest: Samples of the smallest.
        most: Samples of the largest.
        audited: Audited samples that they hold.
        class_counts: Samples of each class.
    """

    clients: Annotated[Whole, Field(ge=1)]
    samples: Whole
    fewest: Whole
    most: Whole
    audited: Whole
    class_counts: list[Whole]


class ViewRow(Part):
    """The adversary of a study, in words."""

    name: str
    sees: list[str]
    description: str


class Environment(Part):
    """Place and time at which a record was made; outside of the content hash."""

    versions: dict[str, str] = Field(default_factory=dict)
    commit: str = ""
    device: str = ""
    started: str = ""
    seconds: Seconds | None = None


class Record(Part):
    """Everything a study found.

    Attributes:
        content_hash: SHA-256 over configuration, measurements and findings; the same for two
            runs of one study on one machine, however often they were interrupted.
        evaluation: "aligned", or "redraw" for the published code's way of drawing
            non-members anew for every round and client.
        nobody_is_a_member: Unseen samples were called members, to show what an evaluation
            finds where there is nothing to find.
        estimates: Every figure, at its coordinates.
        made_as: Content hash of the record of an older format that this one was converted from.
        clients: One row a client; of more than ``MOST_CLIENTS`` the audited ones and those that
            hold most audited samples.
        other_clients: The rest of a large federation.
        parameters: Numbers that a model learns, the largest where clients have several; None in
            records that do not state it.
        watched: The federation was somebody else's: it was watched, and how it trained is not
            known.
        accuracies: Of the models, round by round; figures of utility are estimates.
        sources: The answers of each source attack in each run.
        clusters: Who trained which model of a clustered federation in each run, at what risk.
        points: How the points of a study of games were played; empty of other studies.
        detector: How a client's detection of planted models was measured; None where it was not.
        coverage: Which rounds and uploads were measured; None in records of older versions and of
            games.
        untested: What this study says nothing about, in plain words.
    """

    format: Literal["fedaudit-record"] = "fedaudit-record"
    version: Literal[3] = 3
    name: str
    content_hash: str
    made_as: str = ""
    config: dict[str, object]
    seeds: list[Whole]
    evaluation: Literal["aligned", "redraw"] = "aligned"
    nobody_is_a_member: bool = False
    watched: bool = False
    environment: Environment
    view: ViewRow
    attacks: list[AttackRow]
    clients: list[ClientRow]
    other_clients: OtherClients | None = None
    parameters: Whole | None = None
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

    def where(self, **at: object) -> list[Estimate]:
        """The estimates that have these values of fields: of coordinates, metric or against."""
        names = attrgetter(*at)
        wanted = tuple(at.values()) if len(at) > 1 else next(iter(at.values()))
        return [one for one in self.estimates if names(one) == wanted]

    @property
    def on_sources(self) -> list[Estimate]:
        """The leading figures of source inference: on clients' own samples, where there are any."""
        figures = self.where(topic="source")
        own = [one for one in figures if one.contrast == OWN]
        return own or figures

    @property
    def on_fair_sources(self) -> list[Estimate]:
        """Figures of source inference on samples of a fair draw, where these do not lead."""
        leading = set(map(id, self.on_sources))
        return [one for one in self.where(topic="source") if id(one) not in leading]

    @property
    def federation_size(self) -> int:
        """Number of clients, with a row of their own or without."""
        return len(self.clients) + (self.other_clients.clients if self.other_clients else 0)

    @property
    def label_distributions(self) -> list[list[int]]:
        """Samples of each class, of every client and of those without a row together."""
        together = [self.other_clients.class_counts] if self.other_clients else []
        return [row.class_counts for row in self.clients] + together

    @property
    def kind(self) -> Literal["study", "games"]:
        """The kind of study: of attacks on a federation, or of security games."""
        return "games" if self.points else "study"

    @property
    def games(self) -> list[PointPlayed]:
        """The points of a study of games, each with its figures."""
        return points_played(self.points, self.estimates)

    @property
    def detection(self) -> Detection | None:
        """The detector of a study of games with its figures; None where it has none."""
        return detection(self.detector, self.estimates)

    @property
    def unit(self) -> Literal["sample", "person"]:
        """Unit of the audit: samples, or people with all their samples."""
        people = any(one.unit == "person" for one in self.estimates if one.topic == "membership")
        return "person" if people else "sample"

    @property
    def findings(self) -> list[Estimate]:
        """Figures on membership, each over all samples or people of its contrast."""
        unit = self.unit
        return [one for one in self._on_membership if not one.attack or one.unit == unit]

    @property
    def of_single_samples(self) -> list[Estimate]:
        """Figures on the samples of people one by one, in a record whose findings are on people."""
        unit = self.unit
        return [one for one in self._on_membership if one.attack and one.unit != unit]

    @property
    def _on_membership(self) -> list[Estimate]:
        return [one for one in self.estimates if one.topic == "membership" and not one.by]

    @property
    def groups(self) -> list[Estimate]:
        """AUCs within one class, or for one client's samples."""
        return [one for one in self.estimates if one.topic == "membership" and one.by]

    @property
    def others(self) -> list[Estimate]:
        """Estimates on no membership."""
        return [one for one in self.estimates if one.topic != "membership"]

    @field_validator("estimates", mode="before")
    @classmethod
    def _apart(cls, given: object) -> object:
        return expanded(given)

    @field_serializer("estimates")
    def _together(self, estimates: list[Estimate]) -> list[dict[str, object]]:
        return compact(estimates)

    @model_validator(mode="after")
    def _figures_are_there(self) -> "Record":
        for one in self.estimates:
            if one.topic in _NEVER_REFUSED and one.value is None:
                raise ValueError(f"{one.metric} of topic {one.topic} has no value")
        return self

    @model_validator(mode="after")
    def _figures_are_there_once(self) -> "Record":
        if len(set(map(_key_of, self.estimates))) < len(self.estimates):
            first, times = Counter(map(_key_of, self.estimates)).most_common(1)[0]
            one = next(each for each in self.estimates if _key_of(each) == first)
            raise ValueError(
                f"{one.metric} of {one.attack or 'the run itself'} is there {times} times, and "
                "each figure may stand once at its coordinates"
            )
        return self

    @model_validator(mode="after")
    def _figures_of_sources_fit(self) -> "Record":
        runs = {(one.attack, one.defense, one.view, one.seed) for one in self.sources}
        figures = [one for one in self.on_sources if not one.against]
        if len(runs) != len(self.sources) or runs != {
            (one.attack, one.defense, one.view, one.seed) for one in figures if one.seed is not None
        }:
            raise ValueError("figures of sources are not those of the attacks and seeds in sources")
        attacks = {(attack, defense, view) for attack, defense, view, _ in runs}
        for against in ("", LABELS):
            given = {
                (one.attack, one.defense, one.view)
                for one in self.on_sources
                if one.against == against and one.seed is None
            }
            if given != attacks:
                raise ValueError("figures of sources over all runs are not those of the attacks")
        return self

    @model_validator(mode="after")
    def _games_fit(self) -> "Record":
        for one in self.games:
            one.refuse_impossible()
        found = self.detection
        if found is not None:
            found.refuse_impossible()
        return self

    def rows(self) -> list[dict[str, object]]:
        """Return every figure of a run as a dictionary of plain values, whatever its topic.

        Figures that belong to no run, such as those of games and formal guarantees, are among
        them. Figures over several runs are in :meth:`mean_rows`, so that none counts twice.

        Returns:
            One dictionary for each estimate: its coordinates ("topic", "attack", "target", "seed",
            ...), its numbers, and limits and tests by dotted names ("further.low",
            "test.guessing.p_value").
        """
        return [_flat(figure) for figure in self._by_runs(over=False)]

    def mean_rows(self) -> list[dict[str, object]]:
        """Return every figure over the runs of the study, as :meth:`rows` does for single runs."""
        return [_flat(figure) for figure in self._by_runs(over=True)]

    def frame(self) -> object:
        """Return :meth:`rows` as a pandas table, or as they are where pandas is not installed."""
        return _table(self.rows())

    def mean_frame(self) -> object:
        """Return :meth:`mean_rows` as a pandas table, or as they are without pandas."""
        return _table(self.mean_rows())

    def _by_runs(self, *, over: bool) -> list[Estimate]:
        of_runs = {_without_seed(one) for one in self.estimates if one.seed is not None}
        return [
            one
            for one in self.estimates
            if (one.seed is None and _without_seed(one) in of_runs) == over
        ]


_BUT_SEED = attrgetter(
    "metric", "against", *(name for name in Coordinates.model_fields if name != "seed")
)


def _without_seed(figure: Estimate) -> tuple[object, ...]:
    return tuple(_BUT_SEED(figure))


def _flat(figure: Estimate) -> dict[str, object]:
    """Return a figure's values without tables in it, under the same names for every figure."""
    found: dict[str, object] = {}
    for name, value in figure.model_dump(mode="json", exclude={"tests"}).items():
        if name in _LIMITS:
            limits = value or Interval().model_dump()
            found |= {f"{name}.{inner}": one for inner, one in limits.items()}
        else:
            found[name] = value
    for test in figure.tests:
        outcome = test.model_dump(mode="json", exclude={"null"})
        found |= {f"test.{test.null}.{inner}": one for inner, one in outcome.items()}
    return found


_LIMITS = ("at_threshold", "further")


def _table(rows: list[dict[str, object]]) -> object:
    try:
        from pandas import DataFrame
    except ImportError:
        return rows
    return DataFrame(rows)


def replaced(record: Record, given: Sequence[Estimate]) -> Record:
    """The record with these figures in the place of all on their topics.

    Args:
        record: The record.
        given: Figures whole or in groups; those of neither kind stay.
    """
    kinds = {(one.topic, bool(one.by)) for one in given}
    others = [one for one in record.estimates if (one.topic, bool(one.by)) not in kinds]
    return record.model_copy(update={"estimates": [*given, *others]})


def games_record(
    name: str,
    config: dict[str, object],
    played: Sequence[PointPlayed],
    detected: Detection | None,
    made: Environment,
) -> Record:
    """The record of a study of games.

    Args:
        name: Of the study.
        config: Its own settings.
        played: All points, the study's own first.
        detected: None where no detector was measured.
        made: Where and when.
    """
    points = [_less_figures(one, GamePoint) for one in played]
    detector = None if detected is None else _less_figures(detected, Detector)
    estimates = [figure for one in played for figure in one.estimates]
    estimates += [] if detected is None else detected.estimates
    seed = config.get("seed")
    record = Record(
        name=name,
        content_hash="",
        config=config,
        seeds=[seed] if isinstance(seed, int) else [],
        environment=made,
        view=TAMPERING,
        attacks=[],
        clients=[],
        estimates=estimates,
        points=points,
        detector=detector,
    )
    return record.model_copy(update={"content_hash": own_hash(record)})


def own_hash(record: Record) -> str:
    """The content hash of a record of games, which holds all that it is over.

    A study's is over its measurements too, which only the folder of its run has.
    """
    document = [
        {name: value for name, value in record.config.items() if name not in FOR_PEOPLE},
        [one.model_dump(mode="json", exclude_defaults=True) for one in record.estimates],
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
"""The adversary of games."""

Kept = TypeVar("Kept", bound=Part)


def _less_figures(one: Part, kind: type[Kept]) -> Kept:
    return kind.model_construct(**{name: getattr(one, name) for name in kind.model_fields})


def record_json(record: Record) -> str:
    """The record as one line of JSON with its digest, less what stands at its default."""
    given = record.model_dump(mode="json", exclude_defaults=True)
    return sealed_json({"format": record.format, "version": record.version, **given})


def write_record(record: Record, path: Path) -> None:
    """Writes the record as JSON, whole or not at all, for its owner alone to read."""
    text = record_json(record)
    refuse_unreadable(path, text, max_bytes=LONGEST_RESULT, remedy=_FEWER)
    write_whole(path, text, private=True)


_FEWER = (
    "attack again with fewer attacks or targets (`fedaudit attack`): all that was measured is kept"
)
