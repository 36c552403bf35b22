"""A comparison of studies as a document: what a defense buys, for whom and at what cost.

Like a record it is one JSON document of plain values. It is made from records, names them with
their content hashes, and is made again from them whenever it is rendered.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fedaudit.core.files import LONGEST_RESULT, refuse_unreadable, write_whole
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Part
from fedaudit.results.text import sealed_json

COMPARISON_FORMAT = "fedaudit-comparison"
COMPARISON_FILE = "comparison.json"
EVERY_ATTACK = "mean over attacks"
NOT_SET = "not set"
"""A setting that other rows of a comparison have, and this one has not."""
STRONGEST_ATTACK = "strongest attack"
MIRRORED = "mirrored"
"""Follows the name of an attack that is read as 1 - AUC."""
OF_SEVERAL = (EVERY_ATTACK, STRONGEST_ATTACK)
"""Names that stand for no single attack."""


class Source(Part):
    """A record that was compared; ``path`` is relative to the comparison, empty if unknown."""

    name: str
    content_hash: str
    path: str = ""


class Row(Part):
    """One way to train: a record under one defense.

    Attributes:
        source: Which record, by its place among the sources.
        defense: The defense in words, with its settings; "none" without.
        family: The same without settings: rows of one family make a front.
        coalition: Clients that use it; None where all do, none does, or it is not known.
        clients: In the federation; 0 where not known.
        settings: Other settings of the study that differ between rows, by dotted name.
        base: The row that this one is held against: the undefended one of the same other
            settings, or else the first. None for a row that is held against no other.
        guess: Accuracy of always naming the most frequent class, in [0, 1]; None where the record
            does not state the classes.
    """

    source: int
    defense: str
    family: str
    coalition: list[int] | None = None
    clients: int = 0
    settings: dict[str, str] = Field(default_factory=dict)
    base: int | None = None
    guess: float | None = None


class Difference(Interval):
    """A figure minus that of the row's base, on the same clients.

    Attributes:
        runs: Seeds that were paired; 0 for the limits of one alone.
        further: What further pairs of runs would give; None with one seed.
    """

    value: float
    runs: int = 0
    further: Interval | None = None


class AttackEntry(Interval):
    """A figure of one attack, or of several together, in a row: over seeds and clients.

    Attributes:
        part: "inside": audited clients that use the row's defense (all where it has none);
            "outside": audited clients that do not; "reference": those of another row, which is
            held against this one.
        attack: Of the catalogue; ``EVERY_ATTACK`` for the mean over the attacks that count
            (:func:`fedaudit.results.tradeoffs.directions_of`), ``STRONGEST_ATTACK`` for the one
            with the largest figure on each client.
        attacks: Attacks behind a figure of several, "NAME, mirrored" for one that is read as
            1 - AUC; empty for a single attack.
        clients: Audited clients of the part, over which the figure could be a mean; empty in older
            comparisons.
        targets: Clients that the figure is a mean over; without a figure those of the part. No
            average is over a client on which no attack counts.
        seeds: Runs that it is a mean over.
        above: Whether it is above guessing for at least one of the clients, by the record's own
            corrected test and by the figure's interval; None if untested. Of the strongest attack,
            whether any attack of the row counts in averages of its own.
        by_test: The same by the test alone, whatever the interval; None if untested, of several
            attacks together, and in older comparisons.
        change: Against the row's base; None for a row without one.
        note: Why there is no figure; of a figure, what runs or clients it or its change lacks.
        further: What further runs would give; None with one seed.
    """

    row: int
    part: Literal["inside", "outside", "reference"] = "inside"
    attack: str
    attacks: list[str] = Field(default_factory=list)
    contrast: str
    metric: str
    value: float | None
    clients: list[int] = Field(default_factory=list)
    targets: list[int] = Field(default_factory=list)
    seeds: int = 0
    above: bool | None = None
    by_test: bool | None = None
    further: Interval | None = None
    change: Difference | None = None
    note: str = ""


class FigureEntry(Part):
    """A figure of utility, sources or clusters in a row, over the runs of its record.

    Attributes:
        runs: That have the figure.
        change: Against the row's base, paired by seed; None where there is no such base, or no
            seed that both have.
    """

    row: int
    figure: Estimate
    runs: int
    change: Difference | None = None


class FrontPoint(Part):
    """A row as a point: what leaks and how wrong the model is, both shares in [0, 1].

    Attributes:
        leakage_limits: Limits of the leakage for these runs; None in older comparisons.
        error_limits: Limits of the test error; likewise.
        on_front: Whether no other row is better on both axes, intervals aside.
        lost: Share of what the undefended model has learned above guessing that this row has not:
            negative for a row that has learned more. None without an undefended row of the same
            other settings, where that one has learned nothing, and in older comparisons.
    """

    row: int
    leakage: float
    error: float
    on_front: bool
    leakage_limits: Interval | None = None
    error_limits: Interval | None = None
    lost: float | None = None


class Front(Interval):
    """Trade-offs that the strengths of one defense offer, not defending included.

    Attributes:
        family: The defense without its settings.
        coalition: As in its rows.
        settings: As in its rows.
        metric: The leakage: "auc" stands for its advantage over guessing, a rate for itself.
        points: That of no defense first, where there is one of the same other settings.
        hypervolume: Share of the unit square that the points are at least as good as.
        gain: What the defense adds to the hypervolume of no defense alone; None without one.
    """

    family: str
    coalition: list[int] | None = None
    clients: int = 0
    settings: dict[str, str] = Field(default_factory=dict)
    attack: str
    contrast: str
    metric: str
    points: list[FrontPoint]
    hypervolume: float
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    seeds: int


class Comparison(Part):
    """Everything that a comparison of records says."""

    format: Literal["fedaudit-comparison"] = "fedaudit-comparison"
    version: Literal[2] = 2
    sources: list[Source]
    rows: list[Row]
    entries: list[AttackEntry]
    figures: list[FigureEntry] = Field(default_factory=list)
    fronts: list[Front] = Field(default_factory=list)

    def on(self, topic: str, metric: str = "", against: str = "") -> list[FigureEntry]:
        """The figures on a topic, of one metric where it is named."""
        return [
            one
            for one in self.figures
            if one.figure.topic == topic
            and one.figure.metric == (metric or one.figure.metric)
            and one.figure.against == against
        ]


def write_comparison_file(comparison: Comparison, path: Path) -> None:
    """Writes the comparison as JSON, whole or not at all."""
    text = sealed_json(comparison.model_dump(mode="json"))
    refuse_unreadable(path, text, max_bytes=LONGEST_RESULT, remedy="compare fewer records")
    write_whole(path, text)
