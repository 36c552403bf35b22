"""The tables of a report, as data that the terminal and the HTML report both draw."""

import re
from collections.abc import Callable, Iterable
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaudit.report.choosing import (
    RunsBehind,
    differing,
    distinct,
    headline,
    runs_behind,
    setting_of,
    settings_of,
)
from fedaudit.report.cluster_tables import short_cluster_tables
from fedaudit.report.counts import counts_in_words, in_all, sizes_in_words
from fedaudit.report.evidence import look_of
from fedaudit.report.grid import (
    Cell,
    Footnotes,
    Grid,
    Heading,
    columns_of,
    named,
    shortened,
    split,
    to_rich,
)
from fedaudit.report.names import contrast_name, contrast_order, defense_name, metric_name
from fedaudit.report.plain import verdict
from fedaudit.report.reading import HEADLINE_METRICS, Figure, Record, cleaned, rate_of
from fedaudit.report.source_tables import short_source_table
from fedaudit.report.tables_of_run import controls_summary, utility_table
from fedaudit.report.words import (
    MISSING,
    about_runs,
    count,
    further_text,
    interval,
    interval_of,
    percent,
    shown,
)

_SIGNS = (
    "▲ above guessing: by a test that is corrected over all figures of the study, so that the "
    "chance of any false ▲ stays at the study's alpha (5% by default), and, but for rates, by the "
    "figure's own interval, which is not corrected. △ by the test alone: something was found, of "
    "several runs in at least one, but the interval leaves its size open. The word is the size of "
    "the leak by the interval's lower limit. The interval of a rate allows for its threshold, "
    "which rests on the same non-members; ≤ is an upper limit alone, where they are too few for a "
    "lower one. FP: false alarms, of all non-members."
)
_PLAIN_MEAN = re.compile(r"mean over \d+ seeds")
_OVER_SEEDS = " Figures are means over these seeds, and the counts below them sums."
MOST_ROWS_PRINTED = 12
"""Longer tables beside the main one are left to the report."""

_EMPTY = Cell(MISSING, tone="muted")
_Optional = tuple[str, Callable[[Figure], str]]


def attack_tables(record: Record) -> list[Grid]:
    """Attacks by contrasts: AUC and TPR at 1% and 0.1% FPR, one table for each setting.

    Figures over seeds stand in for those of single seeds where the record has them.
    """
    figures = headline(record)
    settings, runs = settings_of(figures), runs_behind(record)
    return [
        _attack_table([f for f in figures if setting_of(f) == setting], label, runs)
        for setting, label in zip(settings, differing(settings), strict=True)
    ]


def _attack_table(figures: list[Figure], label: str, runs: RunsBehind) -> Grid:
    contrasts = sorted({figure.contrast for figure in figures}, key=contrast_order)
    found = {(figure.attack, figure.contrast, figure.metric): figure for figure in figures}
    notes = Footnotes()
    rows = [
        (
            named(attack),
            *(
                figure_cell(found.get((attack, contrast, metric)), notes, runs=runs)
                for contrast in contrasts
                for metric in HEADLINE_METRICS
            ),
        )
        for attack in distinct(figure.attack for figure in figures)
    ]
    names = [metric_name(metric).replace(" FPR", "") for metric in HEADLINE_METRICS]
    width = len(HEADLINE_METRICS)
    headings = [
        Heading(contrast_name(contrast), width, sizes_in_words(figures, runs, contrast))
        for contrast in contrasts
    ]
    return Grid(
        caption="Attacks by contrast" + (f": {shortened(label, 120)}" if label else ""),
        columns=columns_of("Attack", *(names * len(contrasts)), numeric=names),
        rows=tuple(rows),
        headings=(Heading("", 1), *headings),
        notes=notes.listed(),
        remark=_how(figures)
        + (_OVER_SEEDS if any(f.seed is None for f in figures) else "")
        + about_runs(f.further for f in figures),
    )


def _how(figures: Iterable[Figure]) -> str:
    """How the intervals were made, metric by metric, and what the sign means."""
    methods: dict[str, list[str]] = {}
    for figure in figures:
        if figure.method:
            methods.setdefault(shortened(figure.method, 80), []).append(
                metric_name(figure.metric).replace(" FPR", "")
            )
    parts = [f"{method} ({', '.join(distinct(names))})" for method, names in methods.items()]
    made = f"Intervals: {'; '.join(parts)}. " if parts else ""
    return made + _SIGNS


def figure_cell(figure: Figure | None, notes: Footnotes, *, runs: RunsBehind | None = None) -> Cell:
    """A figure with its interval, its counts, and a sign and a word where it is above guessing.

    Args:
        figure: None gives an empty cell.
        notes: Takes the figure's note.
        runs: The figures of single runs. With them, a rate has all its counts in the cell and
            needs no note; a table with many rates is otherwise mostly footnotes.
    """
    if figure is None:
        return _EMPTY
    plain_mean = _PLAIN_MEAN.fullmatch(figure.note) is not None
    said = runs is not None and (plain_mean or in_all(figure, runs) is not None)
    mark = notes.mark(_lacking(figure) if said else figure.note)
    if figure.value is None:
        return Cell(MISSING, "not given", "muted", mark)
    look = look_of(figure)
    part = None if runs is None else in_all(figure, runs)
    counts = counts_in_words(part) if part else _false_alarms(figure)
    further = further_text(figure.further, partial(interval, metric=figure.metric))
    lines = [look.word, interval_of(figure) or "no interval", further, counts, _ceiling(figure)]
    return Cell(
        f"{look.sign}{shown(figure.value, figure.metric)}",
        "\n".join(line for line in lines if line),
        look.tone,
        mark,
    )


def _lacking(figure: Figure) -> str:
    """What a rate with an upper limit alone needs for a lower one, which its note ends with."""
    alone = figure.low is None and figure.high is not None
    return figure.note.rpartition("; ")[2] if alone else ""


def _false_alarms(figure: Figure) -> str:
    if figure.realised_fpr is None or rate_of(figure.metric) is None:
        return ""
    if not figure.n_nonmembers:
        return f"FPR {percent(figure.realised_fpr)}"
    return f"FP {number_of(figure.realised_fpr * figure.n_nonmembers)}/{count(figure.n_nonmembers)}"


def number_of(amount: float) -> str:
    """A count that may be a mean over runs: whole numbers without decimals."""
    return count(round(amount)) if abs(amount - round(amount)) < 1e-6 else f"{amount:.1f}"


def _ceiling(figure: Figure) -> str:
    return "" if figure.ceiling is None else f"of at most {shown(figure.ceiling, figure.metric)}"


def other_figures_table(record: Record) -> Grid | None:
    """Figures of other metrics (epsilon, balanced accuracy, ...); None where there are none."""
    figures = [
        figure
        for figure in record.findings
        if not figure.attack or figure.metric not in HEADLINE_METRICS
    ]
    return _long_table("Other figures", figures) if figures else None


def every_figure_table(record: Record) -> Grid:
    """Every figure of the record with all that is known of it."""
    return _long_table("Every figure of this record", record.findings)


def _long_table(caption: str, figures: list[Figure]) -> Grid:
    notes = Footnotes()
    optional: list[_Optional] = [
        ("Defense", lambda figure: shortened(defense_name(figure.defense))),
        ("View", lambda figure: shortened(figure.view)),
        ("Target", lambda figure: "all" if figure.target is None else str(figure.target)),
        ("Seed", lambda figure: "all" if figure.seed is None else str(figure.seed)),
    ]
    varying = [
        (name, text) for name, text in optional if len({text(figure) for figure in figures}) > 1
    ]
    rows = [
        (
            named(figure.attack or "(the run)"),
            Cell(contrast_name(figure.contrast)),
            Cell(metric_name(figure.metric)),
            figure_cell(figure, notes),
            *(Cell(text(figure)) for _, text in varying),
            Cell(shortened(figure.method, 60) or MISSING),
            Cell(f"{count(figure.n_members)} / {count(figure.n_nonmembers)}"),
        )
        for figure in figures
    ]
    names = ("Attack", "Contrast", "Metric", "Figure", *(name for name, _ in varying))
    return Grid(
        caption=caption,
        columns=columns_of(
            *names, "Method", "Members / non-members", numeric=("Figure", "Members / non-members")
        ),
        rows=tuple(rows),
        notes=notes.listed(),
        remark=_SIGNS + about_runs(figure.further for figure in figures),
    )


def terminal_tables(record: Record) -> list[Table]:
    """What a study prints at its end: attacks, sources, clusters, a few others, controls."""
    record = cleaned(record)
    grids = [part for grid in attack_tables(record) for part in split(grid)]
    grids += [short_source_table(record)] if record.sources else []
    grids += short_cluster_tables(record)
    other = other_figures_table(record)
    grids += [other] if other and len(other.rows) <= MOST_ROWS_PRINTED else []
    grids += [utility_table(record)] if record.utility else []
    grids += [controls_summary(record)] if record.controls else []
    return [to_rich(grid) for grid in grids]


def print_record(record: Record, console: Console | None = None) -> None:
    """Prints the tables of a record and its verdict in a sentence; to standard output by default.

    Args:
        record: What a study found.
        console: Where to print.
    """
    console = console or Console()
    for table in terminal_tables(record):
        console.print(table)
        console.print()
    other = other_figures_table(record)
    if other and len(other.rows) > MOST_ROWS_PRINTED:
        console.print(f"{len(other.rows)} other figures are in the report.\n")
    said = verdict(record)
    if said.warning:
        console.print(Text(f"Warning: {said.warning}\n", style="bold"))
    console.print(Text(f"{said.headline}. {said.controls}", style="bold"))
