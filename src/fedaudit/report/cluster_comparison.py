"""Clustered learning in several records side by side: accuracy, risk, violations, fairness."""

from collections.abc import Sequence
from functools import partial

from fedaudit.report.choosing import distinct
from fedaudit.report.cluster_numbers import (
    COUNTS,
    PLAIN_INDEX,
    figure_text,
    further_limits,
    limits_text,
)
from fedaudit.report.cluster_tables import FIGURES
from fedaudit.report.comparison import STAR, star
from fedaudit.report.grid import Cell, Grid, Heading, columns_of, named, shortened
from fedaudit.report.reading import (
    ACCURACY,
    AGREEMENT,
    CHANCE_VIOLATIONS,
    CLIENT_ESTIMATE,
    CLIENT_RISK,
    ESTIMATE_ERROR,
    EVERYBODY,
    EXPECTED_VIOLATIONS,
    MODEL_ESTIMATE,
    MODEL_RISK,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    VIOLATIONS,
    ClusterEntry,
    Comparison,
    Difference,
)
from fedaudit.report.rows import labels_of
from fedaudit.report.source_words import points
from fedaudit.report.words import MISSING, about_runs, capital, further_text

_EMPTY = Cell(MISSING, tone="muted")

TABLES = {
    "Accuracy, each client with the model that it chose": (ACCURACY,),
    "Membership risk: balanced accuracy, 50% is guessing": (MODEL_RISK, CLIENT_RISK),
    "Violations: clients whose model is riskier than they accept": (
        VIOLATIONS,
        SURE_VIOLATIONS,
        EXPECTED_VIOLATIONS,
        CHANCE_VIOLATIONS,
    ),
    "What the server estimates": (MODEL_ESTIMATE, CLIENT_ESTIMATE, ESTIMATE_ERROR),
    "Who went where": (OWN_MODEL, MOVED, MOVED_AT_THE_END, AGREEMENT),
}
"""The figures of each table; those of no table, which are the fairness gaps, have one more."""

FAIRNESS = "Fairness gaps between groups: 0 is equal treatment"


def cluster_comparison(comparison: Comparison) -> list[Grid]:
    """A table for each kind of figure, a row for each row of the comparison that has any."""
    placed = {figure for figures in TABLES.values() for figure in figures}
    gaps = distinct(
        one.figure.figure for one in comparison.clusters if one.figure.figure not in placed
    )
    tables = {**TABLES, FAIRNESS: tuple(gaps)}
    found = [_table(comparison, name, figures) for name, figures in tables.items()]
    return [grid for grid in found if grid is not None]


def _table(comparison: Comparison, caption: str, figures: Sequence[str]) -> Grid | None:
    entries = {
        (one.row, one.figure.figure, one.figure.group): one
        for one in comparison.clusters
        if one.figure.figure in figures
    }
    if not entries:
        return None
    keys = sorted(
        distinct((figure, group) for _, figure, group in entries),
        key=lambda key: figures.index(key[0]),
    )
    labels = labels_of(comparison)
    algorithms = {one.row: one.figure.algorithm for one in comparison.clusters}
    rows = [
        (
            named(algorithms[at], shortened(labels[at], 160)),
            *(_cell(entries.get((at, *key))) for key in keys),
        )
        for at in distinct(row for row, _, _ in entries)
    ]
    columns = [_column(figure, group) for figure, group in keys]
    return Grid(
        caption,
        columns_of("Study", *columns, numeric=columns),
        tuple(rows),
        headings=_headings(keys),
        remark=_remark(list(entries.values())),
    )


def _headings(keys: Sequence[tuple[str, str]]) -> tuple[Heading, ...]:
    """A heading over the groups of each figure, where there are several."""
    spans = [(f, sum(figure == f for figure, _ in keys)) for f in distinct(f for f, _ in keys)]
    over = [Heading(FIGURES.get(figure, capital(shortened(figure))), n) for figure, n in spans]
    return (Heading("", 1), *over) if len(over) > 1 else ()


def _column(figure: str, group: str) -> str:
    return "Everybody" if group == EVERYBODY else capital(shortened(group, 24))


def _cell(entry: ClusterEntry | None) -> Cell:
    if entry is None:
        return _EMPTY
    lines = [limits_text(entry.figure), further_limits(entry.figure)]
    if entry.change is not None:
        lines += change_lines(entry.change, entry.figure.figure)
    return Cell(figure_text(entry.figure), "\n".join(line for line in lines if line))


def change_lines(change: Difference, figure: str) -> list[str]:
    """A paired change with its interval: of shares in points, of counts in clients."""
    unit = "" if figure in (*COUNTS, *PLAIN_INDEX) else " points"
    first = f"Δ {_signed(change.value, figure)}{unit}{star(change)}"
    further = further_text(change.further, partial(_change_limits, figure))
    if change.low is None or change.high is None:
        return [first, further]
    return [first, f"({_change_limits(figure, change.low, change.high)})", further]


def _change_limits(figure: str, low: float, high: float) -> str:
    return f"{_signed(low, figure)} to {_signed(high, figure)}"


def _signed(value: float, figure: str) -> str:
    if figure not in (*COUNTS, *PLAIN_INDEX):
        return points(value)
    size = f"{abs(value):.2f}" if figure in PLAIN_INDEX else f"{abs(value):.1f}"
    sign = "" if float(size) == 0 else "+" if value > 0 else "−"
    return sign + size


def _remark(entries: Sequence[ClusterEntry]) -> str:
    methods = distinct(one.figure.method for one in entries if one.figure.method)
    changes = distinct(one.change.method for one in entries if one.change is not None)
    notes = distinct(one.figure.note for one in entries if one.figure.note)
    made = f"Intervals: {', '.join(shortened(method, 80) for method in methods[:3])}."
    parts = [made * bool(methods) + about_runs(one.figure.further for one in entries)]
    if changes:
        how = ", ".join(shortened(method, 80) for method in changes[:3])
        parts.append(f"Δ: change against the row that it is held against ({how}). {STAR}")
    parts += [f"{capital(shortened(note, 200))}." for note in notes[:3]]
    return " ".join(part.strip() for part in parts if part)
