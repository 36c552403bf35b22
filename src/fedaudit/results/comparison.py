"""Format of a comparison of studies: what a defense gains, for which clients and at what cost.

Like a record, a comparison is one JSON document of plain values. It refers to the compared records
by their content hashes, and is recomputed from them whenever it is rendered.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fedaudit.core.files import MAX_RESULT_BYTES, refuse_unreadable, write_whole
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Part
from fedaudit.results.text import sealed_json

COMPARISON_FORMAT = "fedaudit-comparison"
COMPARISON_FILE = "comparison.json"
EVERY_ATTACK = "mean over attacks"
NOT_SET = "not set"
"""Value of a setting that other rows of a comparison have and this one lacks."""
STRONGEST_ATTACK = "strongest attack"
MIRRORED = "mirrored"
"""Suffix of the name of an attack whose figure is read as 1 - AUC."""
OF_SEVERAL = (EVERY_ATTACK, STRONGEST_ATTACK)
"""Names of figures that combine several attacks."""


class Source(Part):
    """Record that was compared.

    Attributes:
        path: Its path relative to the comparison; empty if unknown.
    """

    name: str
    content_hash: str
    path: str = ""


class Row(Part):
    """Way of training: a record under one defense.

    Attributes:
        source: Index of the record in the comparison's sources.
        defense: The defense in words, with its settings; "none" without one.
        family: The defense without its settings. Rows of one family form a front.
        coalition: Clients that use the defense. None if all clients do, none do, or it is unknown.
        clients: Number of clients in the federation; 0 if unknown.
        settings: Other settings of the study that differ between rows, by dotted name.
        base: Index of the row that this one is compared with: the undefended row with the same
            other settings, or else the first row. None for a row without a base.
        guess: Accuracy of always predicting the most frequent class, in [0, 1]; None if the record
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
    """Figure minus that of the row's base, on the same clients.

    Attributes:
        runs: Seeds that were paired; 0 if the limits are those of a single seed.
        further: Interval for further pairs of runs; None with one seed.
    """

    value: float
    runs: int = 0
    further: Interval | None = None


class AttackEntry(Interval):
    """Figure of one attack, or of several together, in a row: a mean over seeds and clients.

    Attributes:
        part: "inside": audited clients that use the row's defense, or all of them without one.
            "outside": audited clients that do not use it. "reference": audited clients of the row
            that this one is compared with.
        attack: Catalogue name of the attack. ``EVERY_ATTACK`` for the mean over the attacks that
            count (:func:`fedaudit.results.tradeoffs.directions_of`), ``STRONGEST_ATTACK`` for the
            one with the largest figure on each client.
        attacks: Attacks behind a figure of several; "NAME, mirrored" for one that is read as 1 -
            AUC. Empty for a single attack.
        contrast: Non-members that members are compared with, as in an estimate.
        value: The figure; None if it is missing.
        clients: Audited clients of the part, over which the figure could be a mean; empty in older
            comparisons.
        targets: Clients that the figure is a mean over; those of the part if there is no figure. An
            average leaves out clients on which no attack counts.
        seeds: Runs that it is a mean over.
        above: True if it is above guessing for at least one client, by the record's corrected test
            and by the figure's interval; None if untested. For the strongest attack: whether any
            attack of the row counts in the row's averages.
        by_test: The same by the test alone. None if untested, for several attacks together, and in
            older comparisons.
        change: Difference from the row's base; None for a row without one.
        note: Why there is no figure, or which runs or clients the figure or its change lacks.
        further: Interval for further runs; None with one seed.
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
    """Figure of utility, source inference or clustering in a row, over the runs of its record.

    Attributes:
        runs: Number of runs that have it.
        change: Difference from the row's base, paired by seed. None if there is no such base, or no
            seed that both have.
    """

    row: int
    figure: Estimate
    runs: int
    change: Difference | None = None


class FrontPoint(Part):
    """Row as a point of a front: its leakage and its test error, both in [0, 1].

    Attributes:
        leakage_limits: Limits of the leakage for these runs; None in older comparisons.
        error_limits: Limits of the test error for these runs; None in older comparisons.
        on_front: True if no other row is better on both axes, intervals ignored.
        lost: Share of the undefended model's accuracy above guessing that this row lost. It is
            negative for a row that learned more. None without an undefended row of the same other
            settings, if that one learned nothing, and in older comparisons.
    """

    row: int
    leakage: float
    error: float
    on_front: bool
    leakage_limits: Interval | None = None
    error_limits: Interval | None = None
    lost: float | None = None


class Front(Interval):
    """Trade-offs that the strengths of one defense offer, with the undefended row.

    Attributes:
        family: The defense without its settings.
        metric: The leakage: for "auc" its advantage over guessing, for a rate the rate itself.
        points: The points, the undefended row of the same other settings first, if there is one.
        hypervolume: Share of the unit square that the points dominate.
        gain: Hypervolume that the defense adds to that of the undefended row; None without one.
        gain_low: Lower limit of the gain.
        gain_high: Upper limit of the gain.
        seeds: Runs that it is computed from.
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
    """Complete comparison of records: figures of attacks as entries, and all others as figures."""

    format: Literal["fedaudit-comparison"] = "fedaudit-comparison"
    version: Literal[2] = 2
    sources: list[Source]
    rows: list[Row]
    entries: list[AttackEntry]
    figures: list[FigureEntry] = Field(default_factory=list)
    fronts: list[Front] = Field(default_factory=list)

    def on(self, topic: str, metric: str = "", against: str = "") -> list[FigureEntry]:
        """Return the figures on a topic; those of one metric if it is given."""
        return [
            entry
            for entry in self.figures
            if entry.figure.topic == topic
            and entry.figure.metric == (metric or entry.figure.metric)
            and entry.figure.against == against
        ]


def write_comparison_file(comparison: Comparison, path: Path) -> None:
    """Write the comparison as JSON. An interrupted write leaves no partial file."""
    text = sealed_json(comparison.model_dump(mode="json"))
    refuse_unreadable(path, text, max_bytes=MAX_RESULT_BYTES, remedy="compare fewer records")
    write_whole(path, text)
