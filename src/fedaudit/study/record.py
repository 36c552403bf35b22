"""The record of a study: everything a reader needs, and nothing that can be executed.

A record is one JSON document. Reports, comparisons and gates read records only, never a run.
Rates are shares in [0, 1]; ``None`` stands for a figure that could not be given, and ``note``
then says why.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = "fedaudit-record"
VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")


class Figure(_Part):
    """One number with its interval.

    Attributes:
        attack: Catalogue name of the attack; empty for a figure of the run itself.
        defense: Name of the defense in force, "none" without.
        view: What the adversary saw.
        contrast: Members against "other_client", "unseen" or "mixed" non-members.
        target: The client under audit.
        seed: Root seed of the run; None for a figure over several runs.
        metric: "auc", "tpr@0.01", "tpr@0.001", "balanced_accuracy", "epsilon", ...
        value: The figure; None where it was refused.
        low: Lower limit of the interval; None for a figure without one.
        high: Upper limit.
        method: How the interval was made, with its level ("DeLong 95%").
        n_members: Members scored.
        n_nonmembers: Non-members scored.
        realised_fpr: False-positive rate really reached at the threshold, for rates at one.
        ceiling: The most this figure could have been with a perfect attack.
        significant: Above chance after correction over the study's family; None if untested.
        note: Why a figure is refused or what to bear in mind ("inconclusive: needs ...").
    """

    attack: str = ""
    defense: str = "none"
    view: str = "uploads"
    contrast: str = "mixed"
    target: int | None = None
    seed: int | None = None
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    method: str = ""
    n_members: int = 0
    n_nonmembers: int = 0
    realised_fpr: float | None = None
    ceiling: float | None = None
    significant: bool | None = None
    note: str = ""


class Curve(_Part):
    """A receiver operating characteristic, thinned to what a plot can show."""

    attack: str
    defense: str = "none"
    view: str = "uploads"
    contrast: str
    target: int
    seed: int
    fpr: list[float]
    tpr: list[float]


class Trajectory(_Part):
    """A signal at the target client over rounds: mean and 10-90% range of one origin."""

    signal: str
    defense: str = "none"
    target: int
    seed: int
    origin: Literal["member", "other_client", "unseen"]
    rounds: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Histogram(_Part):
    """Counts of scores by origin over common bins; ``edges`` has one entry more."""

    attack: str
    defense: str = "none"
    target: int
    seed: int
    edges: list[float]
    member: list[int]
    other_client: list[int]
    unseen: list[int]


class GroupFigure(_Part):
    """AUC within one class or for one client, with its interval."""

    attack: str
    defense: str = "none"
    contrast: str
    by: Literal["class", "client"]
    group: str
    target: int | None = None
    seed: int
    value: float | None
    low: float | None
    high: float | None
    n_members: int
    n_nonmembers: int


class ExposedSample(_Part):
    """A member that an attack singles out: its score is above this share of non-members'."""

    attack: str
    defense: str = "none"
    target: int
    seed: int
    sample: int
    label: int
    above_nonmembers: float


class ControlResult(_Part):
    """A check that the figures mean what they say.

    Attributes:
        control: "permuted members", "untrained model", "blind classifier", "planted leak".
        expected: What a sound run gives, in words.
        passed: Whether it did; None where it could not be run.
    """

    control: str
    attack: str = ""
    defense: str = "none"
    target: int | None = None
    seed: int | None = None
    expected: str
    value: float | None
    low: float | None = None
    high: float | None = None
    passed: bool | None
    note: str = ""


class UtilityResult(_Part):
    """How good the trained model is: accuracies with Clopper-Pearson intervals."""

    defense: str = "none"
    seed: int
    test_accuracy: float
    test_low: float
    test_high: float
    n_test: int
    train_accuracy: float
    generalisation_gap: float
    rounds: list[int] = Field(default_factory=list)
    accuracy_by_round: list[float] = Field(default_factory=list)


class UsageRow(_Part):
    """How often a client trained on its samples in one run, and what its defense cost it.

    Attributes:
        defended: Whether the client uses the defense.
        distinct: Different samples that it trained on, round by round; 0 where it took no part.
        times_used: How many of its samples it used 0 times over the run, once, twice, ...
        times_recycled: The same for uses that a defense brought back after leaving them out.
        extra_bytes: Sent or received beside model and upload, over the run.
        seconds: Of local training over the run; of the machine, and outside the content hash.
    """

    defense: str = "none"
    seed: int
    client: int
    defended: bool
    samples: int
    distinct: list[int]
    times_used: list[int]
    times_recycled: list[int]
    extra_bytes: int = 0
    seconds: float = 0.0


class AttackRow(_Part):
    """How an attack is put together, as the catalogue has it."""

    name: str
    signals: list[str]
    over_clients: str
    over_rounds: str
    needs: list[str]
    source: str
    status: Literal["run", "refused", "failed"] = "run"
    note: str = ""


class ClientRow(_Part):
    """A client's size and class mix, and how many audited samples it holds."""

    client: int
    samples: int
    audited: int
    class_counts: list[int]


class ViewRow(_Part):
    """The adversary of a study, in words."""

    name: str
    sees: list[str]
    description: str


class Environment(_Part):
    """Where and when a record was made; outside of the content hash."""

    versions: dict[str, str] = Field(default_factory=dict)
    commit: str = ""
    device: str = ""
    started: str = ""
    seconds: float | None = None


class Record(_Part):
    """Everything a study found.

    Attributes:
        content_hash: SHA-256 over configuration, measurements and findings; the same for two
            runs of one study on one machine, however often they were interrupted.
        evaluation: "aligned", or "redraw" for the published code's way of drawing
            non-members anew for every round and client.
        nobody_is_a_member: Unseen samples were called members, to show what an evaluation
            finds where there is nothing to find.
        untested: What this study says nothing about, in plain words.
    """

    format: Literal["fedaudit-record"] = "fedaudit-record"
    version: Literal[1] = 1
    name: str
    content_hash: str
    config: dict[str, object]
    seeds: list[int]
    evaluation: Literal["aligned", "redraw"] = "aligned"
    nobody_is_a_member: bool = False
    environment: Environment
    view: ViewRow
    attacks: list[AttackRow]
    clients: list[ClientRow]
    findings: list[Figure]
    curves: list[Curve] = Field(default_factory=list)
    trajectories: list[Trajectory] = Field(default_factory=list)
    histograms: list[Histogram] = Field(default_factory=list)
    groups: list[GroupFigure] = Field(default_factory=list)
    exposed: list[ExposedSample] = Field(default_factory=list)
    controls: list[ControlResult] = Field(default_factory=list)
    utility: list[UtilityResult] = Field(default_factory=list)
    usage: list[UsageRow] = Field(default_factory=list)
    untested: list[str] = Field(default_factory=list)


def write_record(record: Record, path: Path) -> None:
    """Writes the record as JSON, to a temporary name first, so that a crash leaves no half."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(record.model_dump_json() + "\n", encoding="utf-8")
    partial.replace(path)
