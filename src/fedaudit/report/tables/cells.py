"""Tables of figures, and cells with a figure, its interval and its change."""

from collections.abc import Callable, Iterable, Mapping

from fedaudit.report.evidence import Kept, Look
from fedaudit.report.grid import (
    EMPTY,
    Cell,
    Column,
    Footnotes,
    Grid,
    Heading,
    as_cell,
    below,
    shortened,
)
from fedaudit.report.words import further_of, interval_of, is_share, signed, span, value_of
from fedaudit.results.comparison import Difference
from fedaudit.results.estimate import Estimate, Interval

Place = str | tuple[str, str]
"""A column by its heading, or by a heading over several columns and its own."""


def estimate_table(
    caption: str,
    estimates: Iterable[Kept],
    *,
    rows: Callable[[Kept], Cell | str],
    columns: Callable[[Kept], Place],
    cell: Callable[[Kept], Cell | str | None],
    order: Iterable[Place] = (),
    first: str = "Attack",
    under: Mapping[str, str] | None = None,
    notes: Footnotes | None = None,
    remark: str = "",
) -> Grid:
    """Return a table of figures, in the order in which their rows and columns first appear.

    Args:
        caption: What the table shows.
        estimates: The figures; the first of a place fills it.
        rows: Returns the heading of a figure's row.
        columns: Returns the heading of a figure's column, or the heading over several and that.
        cell: Returns a figure's cell; None leaves a dash.
        order: Columns that come first, in this order, if a figure has them.
        first: Heading of the first column.
        under: Smaller lines below headings over columns.
        notes: Footnotes of the cells.
        remark: A sentence below the table.
    """
    places: dict[tuple[str, str], None] = {}
    lines: dict[Cell, dict[tuple[str, str], Cell]] = {}
    for one in estimates:
        place = _with_over(columns(one))
        places.setdefault(place)
        line = lines.setdefault(as_cell(rows(one)), {})
        if place not in line:
            line[place] = as_cell(cell(one))
    known = [p for p in dict.fromkeys((*map(_with_over, order), *places)) if p in places]
    overs = dict.fromkeys(over for over, _ in known)
    ordered = [place for over in overs for place in known if place[0] == over]
    spans = [(over, sum(place[0] == over for place in ordered)) for over in overs]
    below_it = under or {}
    headings = [Heading(shortened(o, 60), span, below_it.get(o, "")) for o, span in spans]
    return Grid(
        caption,
        (Column(first), *(Column(shortened(name, 60), True) for _, name in ordered)),
        tuple((head, *(line.get(p, EMPTY) for p in ordered)) for head, line in lines.items()),
        headings=(Heading("", 1), *headings) if any(overs) else (),
        notes=notes.listed() if notes else (),
        remark=remark.strip(),
    )


def _with_over(place: Place) -> tuple[str, str]:
    return ("", place) if isinstance(place, str) else place


def measured(
    figure: Estimate | None,
    look: Look = Look(),  # noqa: B008 - a constant
    *more: str,
    mark: str = "",
    unbounded: str = "no interval",
) -> Cell | None:
    """Return the cell of a figure: its value, size, interval, and the interval for further runs.

    Args:
        figure: None gives no cell.
        look: Its sign, colour and word.
        more: Further lines.
        mark: Letter of a footnote.
        unbounded: Text in the place of a missing interval.
    """
    if figure is None:
        return None
    lines = (look.word, interval_of(figure) or unbounded, further_of(figure), *more)
    return Cell(f"{look.sign}{value_of(figure)}", below(*lines), look.tone, mark)


def star(change: Difference) -> str:
    """Return " *" if a change's interval excludes 0: for these runs, else for further ones."""
    limits = change if change.low is not None or change.further is None else change.further
    if limits.low is None or limits.high is None:
        return ""
    return " *" if limits.low > 0 or limits.high < 0 else ""


def change_text(change: Difference, metric: str) -> str:
    """Return a change with its sign and unit, and a star."""
    return f"{signed(change.value, metric)}{' points' * is_share(metric)}{star(change)}"


def change_limits(change: Difference, metric: str) -> str:
    """Return a change's limits for these runs and for further ones, a line each."""
    own, further = _limits(change, metric), _limits(change.further, metric)
    return below(f"({own})" * bool(own), f"further runs {further}" * bool(further))


def _limits(change: Difference | Interval | None, metric: str) -> str:
    if change is None or change.low is None or change.high is None:
        return ""
    return span(change.low, change.high, metric)
