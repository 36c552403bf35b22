"""Sections, tables of estimates, and cells with an estimate, its interval and its change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedaudit.formatting.grid import (
    Cell,
    Content,
    Footnotes,
    Grid,
    Header,
    as_cell,
    grid_of,
    stack_lines,
)
from fedaudit.formatting.wording import (
    format_change,
    further_interval,
    interval_text,
    is_proportion,
    limits_of_change,
    value_text,
)
from fedaudit.report.evidence import DOUBTED, Item, Marker
from fedaudit.report.figures.charts import Figures
from fedaudit.results.estimate import Difference, Estimate, Interval


@dataclass(frozen=True)
class Section:
    """Section of a report below its first screen; ``folded`` tables start collapsed."""

    ident: str
    title: str
    texts: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    figure: Figures | None = None
    folded: Sequence[Grid] = ()


def table_section(ident: str, title: str, table: Grid | None, *texts: str) -> Section | None:
    """Return a section with one table; None if the table is None."""
    return None if table is None else Section(ident, title, texts, tables=[table])


def estimate_table(
    caption: str,
    estimates: Iterable[Item],
    *,
    rows: Callable[[Item], Cell | str],
    columns: Callable[[Item], Header],
    cell: Callable[[Item], Content],
    order: Iterable[Header] = (),
    first: str = "Attack",
    under: Mapping[str, str] | None = None,
    notes: Footnotes | None = None,
    remark: str = "",
) -> Grid:
    """Return a table of estimates, in the order in which their rows and columns first appear.

    ``rows`` and ``columns`` return the headings of an estimate, and ``cell`` its cell. If several
    estimates belong to one cell, the first is shown. ``first`` is the heading of the first column.
    The other arguments are those of :func:`grid_of`.
    """
    lines: dict[Cell, dict[Header, Content]] = {}
    for estimate in estimates:
        heading = as_cell(rows(estimate))
        line, column = lines.setdefault(heading, {first: heading}), columns(estimate)
        if column not in line:
            line[column] = cell(estimate)
    order = (first, *order)
    return grid_of(caption, lines.values(), order=order, under=under, notes=notes, remark=remark)


def value_cell(
    estimate: Estimate | None,
    look: Marker = Marker(),  # noqa: B008 - a constant
    *details: str,
    mark: str = "",
    unbounded: str = "no interval",
) -> Cell | None:
    """Return the cell of an estimate: value, size, interval, and limits of the mean over seeds.

    An estimate that a failed control invalidates is marked. The text ``unbounded`` replaces a
    missing interval. If there is no estimate, the result is None.
    """
    if estimate is None:
        return None
    look = DOUBTED if estimate.doubt else look
    lines = (look.word, interval_text(estimate) or unbounded, further_interval(estimate), *details)
    return Cell(f"{look.sign}{value_text(estimate)}", stack_lines(*lines), look.tone, mark)


def change_lines(change: Difference | None, metric: str) -> tuple[str, ...]:
    """Return lines with a change, its limits for these runs, and limits of the mean over seeds.

    A star means that the interval for these runs (or else the other one) excludes 0.
    """
    if change is None:
        return ()
    further = change.further or Interval()
    limits = further if change.low is None else change
    is_shown = limits.low is not None and limits.high is not None
    star = " *" * (is_shown and not (limits.low or 0) <= 0 <= (limits.high or 0))
    these_runs, further_runs = (limits_of_change(i.low, i.high, metric) for i in (change, further))
    return (
        f"Δ {format_change(change.value, metric)}{' points' * is_proportion(metric)}{star}",
        f"({these_runs})" * bool(these_runs),
        f"further runs {further_runs}" * bool(further_runs),
    )
