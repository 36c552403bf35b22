"""Format of a comparison of studies: how much a defense reduces leakage, and at what cost.

Like a record, a comparison is one JSON document of plain values. It refers to the compared records
by their content hashes, and is recomputed from them whenever it is rendered.
"""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from fedaudit.core.display import describe, repr_html
from fedaudit.core.files import MAX_RESULT_BYTES, raise_if_unreadable, write_atomically
from fedaudit.results.estimate import Difference, Estimate, Interval
from fedaudit.results.fields import RecordPart
from fedaudit.results.text import sealed_json

COMPARISON_FORMAT = "fedaudit-comparison"
COMPARISON_FILE = "comparison.json"
EVERY_ATTACK = "mean over attacks"
NOT_SET = "not set"
"""Stands for the value of a setting that other rows of a comparison have and this row does not."""
STRONGEST_ATTACK = "strongest attack"
DEFENDING_CLIENTS: Final = "inside"
"""Part of a row for the audited clients that use its defense; see :class:`AttackEntry`."""
MIRRORED = "mirrored"
"""Suffix of the name of an attack whose AUC is replaced by 1 - AUC."""
OF_SEVERAL = (EVERY_ATTACK, STRONGEST_ATTACK)
"""Names of estimates that combine several attacks."""


class Source(RecordPart):
    """Record that was compared.

    Attributes:
        path: Path of the record relative to the comparison; empty if unknown.
    """

    name: str
    content_hash: str
    path: str = ""


class Row(RecordPart):
    """Row of a comparison: the results of one record with one defense.

    Attributes:
        source: Index of the record in the comparison's sources.
        defense: Description of the defense with its settings; "none" without a defense.
        family: The defense without its settings. Rows of one family form a front.
        coalition: Clients that use the defense. None if all clients or no clients use it, or if
            they are unknown.
        clients: Number of clients in the federation; 0 if unknown.
        settings: Other settings of the study that differ between rows, by dotted name.
        base: Index of the row with which this row is compared: the undefended row with the same
            other settings, or else the first row. None for a row that is compared with no other.
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


class AttackEntry(Interval):
    """Estimate of one attack, or of several together, in a row: a mean over seeds and clients.

    Attributes:
        part: "inside" for audited clients that use the row's defense, or for all audited clients if
            the row has no defense. "outside" for audited clients that do not use it. "reference"
            for audited clients of the base of this row.
        attack: Catalogue name of the attack. ``EVERY_ATTACK`` for the mean over the attacks that
            count (:func:`fedaudit.results.tradeoffs.directions_of`), ``STRONGEST_ATTACK`` for the
            attack with the largest estimate on each client.
        attacks: Attacks from which an estimate of several attacks is computed; "NAME, mirrored" if
            the AUC of an attack is replaced by 1 - AUC. Empty for a single attack.
        contrast: Non-members with which members are compared, as in an estimate.
        value: The estimate; None if it is missing.
        clients: All audited clients of ``part``; empty in older comparisons.
        targets: Clients over which the estimate is a mean; all clients of ``part`` if there is no
            estimate. An average leaves out clients on which no attack counts.
        seeds: Number of runs over which the estimate is a mean.
        above: True if the estimate is above chance for at least one client, by the record's
            corrected test and by the estimate's interval; None if untested. For the strongest
            attack: whether any attack of the row counts in the row's averages.
        by_test: As ``above``, but only by the test. None if untested, for several attacks together,
            and in older comparisons.
        change: Difference from the row's base; None for a row without a base.
        note: Why there is no estimate, or for which runs or clients the estimate or its change is
            missing.
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


class FigureEntry(RecordPart):
    """Estimate of utility, source inference or clustering in a row, over the runs of its record.

    Attributes:
        runs: Number of runs that have the estimate.
        change: Difference from the row's base, paired by seed. None if the row has no base, or no
            seed in common with it.
    """

    row: int
    figure: Estimate
    runs: int
    change: Difference | None = None


class FrontPoint(RecordPart):
    """Point of a front: leakage and test error of a row, both in [0, 1].

    Attributes:
        leakage_limits: Limits of the leakage for these runs; None in older comparisons.
        error_limits: Limits of the test error for these runs; None in older comparisons.
        on_front: True if no other row is better on both axes; intervals are ignored.
        lost: Fraction of the undefended model's accuracy above chance that this row lost. It is
            negative if the row has a higher accuracy. None in older comparisons, without an
            undefended row of the same other settings, and if the undefended model is at chance.
    """

    row: int
    leakage: float
    error: float
    on_front: bool
    leakage_limits: Interval | None = None
    error_limits: Interval | None = None
    lost: float | None = None


class Front(Interval):
    """Trade-offs between leakage and error of one defense at several strengths.

    Attributes:
        family: The defense without its settings.
        metric: The metric of leakage. For "auc", leakage is its advantage over chance; for a rate,
            it is the rate itself.
        points: The points. If there is an undefended row of the same other settings, it is the
            first.
        hypervolume: Fraction of the unit square that the points dominate.
        gain: Hypervolume that the defense adds to the hypervolume of the undefended row; None
            without an undefended row.
        gain_low: Lower limit of the gain.
        gain_high: Upper limit of the gain.
        seeds: Number of runs from which the front is computed.
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


class Comparison(RecordPart):
    """Comparison of records: estimates of attacks (``entries``), and all others (``figures``)."""

    format: Literal["fedaudit-comparison"] = "fedaudit-comparison"
    version: Literal[2] = 2
    sources: list[Source]
    rows: list[Row]
    entries: list[AttackEntry]
    figures: list[FigureEntry] = Field(default_factory=list)
    fronts: list[Front] = Field(default_factory=list)
    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __str__(self) -> str:
        return repr(self)

    def on(self, topic: str, metric: str = "", against: str = "") -> list[FigureEntry]:
        """Return the estimates on a topic, of one metric if it is given."""
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
    raise_if_unreadable(path, text, max_bytes=MAX_RESULT_BYTES, remedy="compare fewer records")
    write_atomically(path, text)
