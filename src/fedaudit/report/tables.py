"""The tables of a report, as data that the terminal and the HTML report both draw."""

from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaudit.report.choosing import (
    above_chance,
    defense_name,
    differing,
    distinct,
    headline,
    is_strong,
    setting_of,
    settings_of,
)
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
    without_constants,
)
from fedaudit.report.plain import verdict
from fedaudit.report.tables_of_run import controls_summary, utility_table
from fedaudit.report.words import (
    HEADLINE_METRICS,
    MISSING,
    contrast_name,
    contrast_order,
    count,
    interval,
    interval_of,
    metric_name,
    percent,
    rate_of,
    shown,
)
from fedaudit.study.record import Figure, GroupFigure, Record

_SIGNS = (
    "▲ above guessing, coloured where strong (see the verdict). FP: false alarms reached, of all "
    "non-members."
)
MOST_ROWS_PRINTED = 12
"""Longer tables beside the main one are left to the report."""

_EMPTY = Cell(MISSING, tone="muted")
_Optional = tuple[str, Callable[[Figure], str]]


def attack_tables(record: Record) -> list[Grid]:
    """Attacks by contrasts: AUC and TPR at 1% and 0.1% FPR, one table for each setting.

    Figures over seeds stand in for those of single seeds where the record has them.
    """
    figures = headline(record)
    settings = settings_of(figures)
    return [
        _attack_table([figure for figure in figures if setting_of(figure) == setting], label)
        for setting, label in zip(settings, differing(settings), strict=True)
    ]


def _attack_table(figures: list[Figure], label: str) -> Grid:
    contrasts = sorted({figure.contrast for figure in figures}, key=contrast_order)
    found = {(figure.attack, figure.contrast, figure.metric): figure for figure in figures}
    notes = Footnotes()
    rows = [
        (
            named(attack),
            *(
                figure_cell(found.get((attack, contrast, metric)), notes, counts_in_cell=True)
                for contrast in contrasts
                for metric in HEADLINE_METRICS
            ),
        )
        for attack in distinct(figure.attack for figure in figures)
    ]
    names = [metric_name(metric).replace(" FPR", "") for metric in HEADLINE_METRICS]
    width = len(HEADLINE_METRICS)
    headings = [Heading(_contrast_heading(figures, contrast), width) for contrast in contrasts]
    return Grid(
        caption="Attacks by contrast" + (f": {shortened(label, 120)}" if label else ""),
        columns=columns_of("Attack", *(names * len(contrasts)), numeric=names),
        rows=tuple(rows),
        headings=(Heading("", 1), *headings),
        notes=notes.listed(),
        remark=_how(figures),
    )


def _contrast_heading(figures: list[Figure], contrast: str) -> str:
    sizes = {
        (figure.n_members, figure.n_nonmembers)
        for figure in figures
        if figure.contrast == contrast and figure.n_members
    }
    name = contrast_name(contrast)
    if len(sizes) != 1:
        return name
    (members, nonmembers) = sizes.pop()
    return f"{name} ({count(members)} v. {count(nonmembers)})"


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


def figure_cell(figure: Figure | None, notes: Footnotes, *, counts_in_cell: bool = False) -> Cell:
    """A figure with its interval, its false alarms, and a sign where it is above guessing.

    Args:
        figure: None gives an empty cell.
        notes: Takes the figure's note.
        counts_in_cell: Leaves out the notes of rates, whose counts the cell has; a table with
            many rates is otherwise mostly footnotes.
    """
    if figure is None:
        return _EMPTY
    said = counts_in_cell and figure.realised_fpr is not None
    mark = "" if said else notes.mark(figure.note)
    if figure.value is None:
        return Cell(MISSING, "not given", "muted", mark)
    above = above_chance(figure)
    lines = [interval_of(figure) or "no interval", _false_alarms(figure), _ceiling(figure)]
    text = shown(figure.value, figure.metric)
    return Cell(
        f"▲ {text}" if above else text,
        "\n".join(line for line in lines if line),
        "" if not above else "alarm" if is_strong(figure) else "raised",
        mark,
    )


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
            Cell(shortened(contrast_name(figure.contrast))),
            Cell(shortened(metric_name(figure.metric))),
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
        remark=_SIGNS,
    )


def groups_table(record: Record, by: str) -> Grid | None:
    """AUC by "client" or by "class"; None where the record has no such figures."""
    groups = [group for group in record.groups if group.by == by]
    if not groups:
        return None
    rows = [_group_row(group, by) for group in groups]
    columns = columns_of(
        by.capitalize(),
        "Attack",
        "Contrast",
        "Defense",
        "Seed",
        "AUC",
        "Members / non-members",
        numeric=("AUC", "Members / non-members"),
    )
    grid = Grid(f"AUC by {by}", columns, tuple(rows))
    return without_constants(grid, ("AUC", "Members / non-members"))


def _group_row(group: GroupFigure, by: str) -> tuple[Cell, ...]:
    return (
        named(f"{by.capitalize()} {group.group}"),
        named(group.attack),
        Cell(shortened(contrast_name(group.contrast))),
        named(defense_name(group.defense)),
        Cell(str(group.seed)),
        Cell(
            shown(group.value, "auc"),
            interval(group.low, group.high, "auc"),
            "muted" if group.value is None else "",
        ),
        Cell(f"{count(group.n_members)} / {count(group.n_nonmembers)}"),
    )


def exposed_table(record: Record) -> Grid | None:
    """The members that attacks single out most clearly; None where the record lists none."""
    if not record.exposed:
        return None
    ordered = sorted(record.exposed, key=lambda sample: -sample.above_nonmembers)
    rows = [
        (
            Cell(f"Sample {sample.sample}"),
            Cell(str(sample.label)),
            named(sample.attack),
            named(defense_name(sample.defense)),
            Cell(f"client {sample.target}"),
            Cell(str(sample.seed)),
            Cell(percent(sample.above_nonmembers)),
        )
        for sample in ordered
    ]
    last = "Above non-members"
    columns = columns_of(
        "Sample", "Class", "Attack", "Defense", "Target", "Seed", last, numeric=(last,)
    )
    return without_constants(Grid("Most exposed samples", columns, tuple(rows)), ("Class", last))


def terminal_tables(record: Record) -> list[Table]:
    """What a study prints at its end: attacks, other figures if few, utility and controls."""
    grids = [part for grid in attack_tables(record) for part in split(grid)]
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
    console.print(Text(f"{said.headline}. {said.controls}", style="bold"))
