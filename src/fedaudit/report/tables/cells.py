"""Cells of tables: a figure with its limits, and its change against another."""

from fedaudit.report.evidence import Look
from fedaudit.report.grid import Cell, below
from fedaudit.report.words import further_of, interval_of, is_share, signed, span, value_of
from fedaudit.results.comparison import Difference
from fedaudit.results.estimate import Estimate


def measured(
    figure: Estimate | None,
    look: Look = Look(),  # noqa: B008 - a constant
    *more: str,
    mark: str = "",
    unbounded: str = "no interval",
) -> Cell | None:
    """A figure with its word, its interval, and what further runs would give.

    Args:
        figure: None leaves the cell empty.
        look: Its sign, colour and word.
        more: Further lines.
        mark: Of a footnote.
        unbounded: What stands in the place of an interval.
    """
    if figure is None:
        return None
    lines = (look.word, interval_of(figure) or unbounded, further_of(figure), *more)
    return Cell(f"{look.sign}{value_of(figure)}", below(*lines), look.tone, mark)


def star(change: Difference) -> str:
    """ " *" where the interval of a change leaves out 0: for these runs, else for further ones."""
    limits = change if change.low is not None or change.further is None else change.further
    if limits.low is None or limits.high is None:
        return ""
    return " *" if limits.low > 0 or limits.high < 0 else ""


def change_text(change: Difference, metric: str) -> str:
    """A change with its sign and unit, and a star."""
    return f"{signed(change.value, metric)}{' points' * is_share(metric)}{star(change)}"


def change_limits(change: Difference, metric: str) -> str:
    """Limits of a change for these runs and for further ones, a line each; empty without any."""
    lines = []
    if change.low is not None and change.high is not None:
        lines.append(f"({span(change.low, change.high, metric)})")
    further = change.further
    if further is not None and further.low is not None and further.high is not None:
        lines.append(f"further runs {span(further.low, further.high, metric)}")
    return below(*lines)
