"""Labels of a comparison's rows, warnings about them, and the best trade-off."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import Cell, name_cell, shorten
from fedaudit.formatting.wording import NamedClient, defense_name
from fedaudit.report.deciding.caveats import client_list
from fedaudit.report.evidence import outcomes_of
from fedaudit.report.text.verdict import learning_warning
from fedaudit.results import comparison as parts
from fedaudit.results.comparison import (
    DEFENDING_CLIENTS,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Front,
    Row,
)
from fedaudit.results.estimate import NO_DEFENSE, Estimate, tests_of
from fedaudit.results.record import Record

MOST_SETTINGS = 4  # largest number of settings in a row's heading; the table has all
MOST_LOST = 0.75
"""A defense that loses at least this fraction of the accuracy above chance is never the best."""
SIZES_DIFFER = (
    "Audits have different numbers of {members}; a larger audit can detect smaller leaks."
)


def labels_of(comparison: Comparison) -> list[str]:
    """Return a distinct label for each row: defense, its users, and settings that differ.

    If two rows have the same label, it is preceded by the study's name. If these are equal too, a
    number is appended.
    """
    any_defense = any(row.family != NO_DEFENSE for row in comparison.rows)
    labels = []
    for row in comparison.rows:
        settings = settings_text(row.settings)
        is_named = any_defense or row.family != NO_DEFENSE or not settings
        labels.append(_joined(80, defense_name(row.defense) * is_named, users_text(row), settings))
    names = [
        f"{shorten(comparison.sources[row.source].name, 60)} · {label}"
        if labels.count(label) > 1
        else label
        for row, label in zip(comparison.rows, labels, strict=True)
    ]
    return [
        f"{name} ({row + 1})" if names.count(name) > 1 else name for row, name in enumerate(names)
    ]


def headings_of(comparison: Comparison) -> list[Cell]:
    """Return the labels of rows as cells: the defense, and details in a smaller line."""
    labels = [label.partition(" · ") for label in labels_of(comparison)]
    return [name_cell(defense, details, limit=120) for defense, _, details in labels]


def users_text(row: Row | Front) -> str:
    """Describe the clients that use a defense: "pair: clients 0 and 1 of 10"; "" if unknown."""
    if row.family == NO_DEFENSE:
        return ""
    if row.coalition is None:
        return f"all {row.clients} clients" if row.clients else ""
    size = len(row.coalition)
    name = {1: "one client", 2: "pair"}.get(size, f"{size} clients")
    if row.clients == 2 * size and size > 2:
        name = "half"
    return f"{name}: {clients_text(row.coalition)} of {row.clients}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Format settings by the last part of their names, with the section if ambiguous."""
    # Omit settings that only other rows have.
    set_values = {n: value for n, value in settings.items() if value not in (parts.NOT_SET, "{}")}
    short = {n: n.rpartition(".")[0 if n.endswith((".name", ".scheme")) else 2] for n in set_values}
    counts = Counter(short.values())
    texts = []
    for name, value in set_values.items():
        section = f"{name.partition('.')[0]} " if counts[short[name]] > 1 else ""
        texts.append(shorten(f"{section}{short[name]} {value}".replace("_", " "), 32))
    hidden = len(texts) - MOST_SETTINGS
    return ", ".join(texts[:MOST_SETTINGS] + [f"and {hidden} more"] * (hidden > 0))


def clients_text(targets: Sequence[int]) -> str:
    """Format clients by number or name: "client 3", "clients 0–4", "hospital-a"."""
    ordered = sorted(targets)
    if any(isinstance(client, NamedClient) for client in ordered):
        return client_list(ordered)
    text = shorten(", ".join(map(str, ordered)), 40)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        text = f"{ordered[0]}–{ordered[-1]}"
    return f"client{'s' * (len(targets) > 1)} {text}"


def clients_of(entry: AttackEntry) -> tuple[int, ...]:
    """Return the audited clients of an entry; in older comparisons, the clients of its estimate."""
    return tuple(entry.clients or entry.targets)


def estimate_of(
    entry: AttackEntry, comparison: Comparison, records: Sequence[Record] = ()
) -> Estimate:
    """Return the estimate of an entry, marked as doubtful if a control of its record failed.

    Without the compared records, no estimate is marked.
    """
    estimate = Estimate(
        metric=entry.metric,
        value=entry.value,
        low=entry.low,
        high=entry.high,
        method=entry.method,
        further=entry.further,
        # An interval without a test, or of the largest of several attacks, does not show a leak.
        tests=tests_of(entry.by_test if entry.attack not in parts.OF_SEVERAL else False),
    )
    row = comparison.rows[entry.row]
    names = [entry.attack, *(name.removesuffix(f", {parts.MIRRORED}") for name in entry.attacks)]
    clients = (None, *clients_of(entry))
    for source in records[row.source].findings if records else ():
        is_same = source.attack in names and (source.defense or NO_DEFENSE) == row.family
        if is_same and source.target in clients and source.doubt:
            return estimate.with_doubt(source.doubt)
    return estimate


def doubted_rows(comparison: Comparison, records: Sequence[Record]) -> set[int]:
    """Return the rows whose strongest attack a failed control invalidates."""
    return {
        entry.row
        for entry in comparison.entries
        if entry.attack == STRONGEST_ATTACK and estimate_of(entry, comparison, records).doubt
    }


def front_name(front: Front) -> str:
    """Return the label of a front: defense, its users, and settings that differ."""
    return _joined(60, defense_name(front.family), users_text(front), settings_text(front.settings))


def _joined(limit: int, *texts: str) -> str:
    return wording.join_parts(*(shorten(text, limit) for text in texts))


def cautions(comparison: Comparison, records: Sequence[Record]) -> list[str]:
    """Return warnings about differences (except sample sizes) that make rows incomparable."""
    names = [(shorten(record.name, 60), record) for record in records]
    failed = [name for name, record in names if outcomes_of(record.controls).failed]
    redrawn = [name for name, record in names if record.evaluation == "redraw"]
    texts = [fixed_text("cautions.redraw", record=name) for name in redrawn]
    texts += [fixed_text("cautions.failed", record=name) for name in failed[:5]]
    if len(failed) > 5:
        texts.append(
            f"A control failed in {wording.format_count(len(failed) - 5, 'further record')}."
        )
    warnings = [f"{name}: {text}" for name, r in names if (text := learning_warning(r))]
    families = {row.family for row in comparison.rows}
    differences = {
        "views": len({record.view.name for record in records}) > 1,
        "seeds": len({tuple(sorted(record.seeds)) for record in records}) > 1,
        "dp_sgd": families != {NO_DEFENSE} and not any("dp-sgd" in name for name in families),
    }
    different = [fixed_text(f"cautions.{name}") for name, differs in differences.items() if differs]
    return texts + warnings[:5] + different


class TradeOff(NamedTuple):
    """Decrease of leakage by the defense of a row, and its cost in accuracy.

    Attributes:
        leakage: Change of the strongest attack's membership advantage.
        error: Change of the test error.
        lost: Fraction of the undefended model's accuracy above guessing that this row loses; None
            if the undefended model is no better than guessing.
        undefended: Membership advantage without the defense.
        low: Lower limit of ``leakage``; None if unknown.
        high: Upper limit of ``leakage`` over all attacks of the row; None if unknown.
    """

    row: int
    name: str
    leakage: float
    error: float
    lost: float | None
    undefended: float
    undefended_error: float
    contrast: str
    low: float | None
    high: float | None

    @property
    def lowers(self) -> bool:
        """True if the interval shows lower leakage than without the defense."""
        return self.leakage < 0 and self.high is not None and self.high < 0

    @property
    def pays(self) -> bool:
        """True if leakage falls by more than accuracy, which keeps over a quarter."""
        keeps = self.lost is not None and self.lost < MOST_LOST
        return self.lowers and keeps and self.cost < 0

    @property
    def cost(self) -> float:
        """Fraction of the accuracy above guessing that is lost, minus the decrease of leakage."""
        return self.leakage + (1.0 if self.lost is None else self.lost)


def best_tradeoff(comparison: Comparison) -> TradeOff | None:
    """Return the row with the lowest cost among rows with more benefit than cost, or None.

    The benefit is the decrease of the strongest attack's membership advantage (2 AUC - 1). The cost
    is the fraction of the undefended model's accuracy above guessing that is lost. Equal weights of
    both are a convention of this report.
    """
    return cheapest([row for row in tradeoffs(comparison) if row.pays])


def cheapest(rows: Sequence[TradeOff]) -> TradeOff | None:
    """Return the trade-off with the lowest cost; None for an empty list."""
    return min(rows, key=lambda row: row.cost, default=None)


def tradeoffs(comparison: Comparison) -> list[TradeOff]:
    """Compare every defended row with its undefended row, for the contrast that leaks most.

    Rows whose undefended row has no attack above chance are omitted: there is no leak to lower.
    """
    fronts = [
        front
        for front in comparison.fronts
        if (front.metric, front.attack) == (AUC, STRONGEST_ATTACK)
        and front.gain is not None
        and (before := strongest_entry(comparison, front.points[0].row, front.contrast))
        and before.above
    ]
    if not fronts:
        return []
    labels = labels_of(comparison)
    contrast = max(fronts, key=lambda front: front.points[0].leakage).contrast
    return [
        TradeOff(
            point.row,
            labels[point.row],
            point.leakage - base.leakage,
            point.error - base.error,
            point.lost,
            base.leakage,
            base.error,
            contrast,
            *_limits(comparison, point.row, contrast, base.row),
        )
        for front in fronts
        if front.contrast == contrast
        for base, *others in [front.points]
        for point in others
        if comparison.rows[point.row].family != NO_DEFENSE
    ]


def compares_defenses(comparison: Comparison) -> bool:
    """Return True if membership in a defended row is compared with an undefended one."""
    return any(front.gain is not None for front in comparison.fronts)


def strongest_entry(
    comparison: Comparison, row: int, contrast: str, clients: Sequence[int] | None = None
) -> AttackEntry | None:
    """Return the AUC of a row's strongest attack on the defended clients, or None.

    For an undefended row, it is the AUC on ``clients``, if the row has such an AUC.
    """
    entries = [
        entry
        for entry in comparison.entries
        if (entry.row, entry.contrast, entry.metric) == (row, contrast, AUC)
        and entry.attack == STRONGEST_ATTACK
        and entry.part in (DEFENDING_CLIENTS, "reference")
        and entry.value is not None
    ]
    same = [e for e in entries if clients is not None and clients_of(e) == tuple(clients)]
    return next(iter([*same, *(e for e in entries if e.part == DEFENDING_CLIENTS)]), None)


def _limits(
    comparison: Comparison, row: int, contrast: str, undefended: int
) -> tuple[float | None, float | None]:
    """Return limits of the change of the strongest attack's advantage; None if unknown.

    The upper limit is for all attacks of the row, as is that of the strongest attack.
    """
    entry = strongest_entry(comparison, row, contrast)
    change = entry.change if entry else None
    # The base of a change can be another row than the undefended row of the front.
    if change is None or comparison.rows[row].base != undefended:
        return None, None
    if change.low is None or change.high is None:
        return None, None
    return max(2 * change.low, -1.0), min(2 * change.high, 1.0)


class _RowParts(NamedTuple):
    """Parts of a row's name: its label, its defense with settings, and further details."""

    label: str
    defense: str
    settings: list[str]
    details: list[str]


def _parts(row: Row, label: str) -> _RowParts:
    defense, settings = defense_name(row.defense), list[str]()
    # A chain of defenses has several names and lists of settings, and is not taken apart.
    if single := re.fullmatch(r"([\w-]+) \(([^()]*)\)", defense):
        # Commas within brackets separate the entries of a list.
        defense, settings = single[1], re.split(r", (?![^\[]*\])", single[2])
    return _RowParts(label, defense, settings, [users_text(row), settings_text(row.settings)])


def _differing(parts: _RowParts, other: _RowParts) -> str:
    """Return the parts of a row's name that the other row does not have, or else its label."""
    settings = ", ".join(text for text in parts.settings if text and text not in other.settings)
    defense = f"{parts.defense} ({settings})" if settings else parts.defense
    is_named = bool(settings) or parts.defense != other.defense
    details = [text for text in parts.details if text not in other.details]
    return _joined(60, defense * is_named, *details) or shorten(parts.label, 60)


def largest_difference(comparison: Comparison) -> str:
    """Describe the largest change of a strongest attack against its base; "" without changes."""
    changes = [
        (entry.change, entry.row, base, entry.contrast)
        for entry in comparison.entries
        if (entry.metric, entry.attack, entry.part) == (AUC, STRONGEST_ATTACK, DEFENDING_CLIENTS)
        and entry.change is not None
        and (base := comparison.rows[entry.row].base) is not None
    ]
    if not changes:
        return ""
    change, row, base, contrast = max(changes, key=lambda item: abs(item[0].value))
    labels = labels_of(comparison)
    pair = [_parts(comparison.rows[index], labels[index]) for index in (row, base)]
    name, other = (_differing(*names) for names in (pair, pair[::-1]))
    limits = wording.limits_in_words(wording.limits_of_change(change.low, change.high, AUC))
    return (
        f"Largest difference in the strongest AUC {wording.nonmember_heading(contrast)}: "
        f"{wording.format_change(change.value, AUC)} ({limits}), {name} against {other}"
    )
