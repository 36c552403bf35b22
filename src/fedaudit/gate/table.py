"""A verdict as a table for the terminal."""

from rich.console import Console
from rich.text import Text

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.reasons import figure_text
from fedaudit.gate.verdict import Check, Verdict
from fedaudit.report.grid import Cell, Grid, Tone, columns_of, to_rich
from fedaudit.report.words import MISSING, capital, count, shown

_TONES: dict[Outcome, Tone] = {
    Outcome.PASS: "good",
    Outcome.FAIL: "alarm",
    Outcome.INCONCLUSIVE: "weak",
    Outcome.NOT_REFUTED: "muted",
}


def verdict_table(verdict: Verdict) -> Grid:
    """A row for each check: the ceiling, the worst figure under it, and what comes of it."""
    columns = columns_of(
        "Check", "At most", "Worst figure", "Figures", "Outcome", numeric=("At most", "Figures")
    )
    rows = tuple(_row(check) for check in verdict.checks)
    return Grid(f"{verdict.record}: policy {verdict.policy}", columns, rows, remark=verdict.limits)


def print_verdict(verdict: Verdict) -> None:
    """Prints the paragraph that says why, then the table and what is not judged."""
    console = Console()
    console.print(Text(f"{verdict.reason}\n", style="bold"))
    console.print(to_rich(verdict_table(verdict)))
    for one in verdict.unjudged:
        console.print(Text(f"Not judged: {one}."))


def _row(check: Check) -> tuple[Cell, ...]:
    outcome = Cell(str(check.outcome), tone=_TONES[check.outcome])
    if check.ceiling is None:
        told = Cell(MISSING if check.outcome is Outcome.PASS else check.reason)
        return (Cell(capital(check.name)), Cell(""), told, Cell(""), outcome)
    worst = check.worst
    told = (
        Cell(f"{figure_text(worst, check.metric)}", detail=worst.what)
        if worst
        else Cell(check.reason)
    )
    most = Cell(shown(check.ceiling, check.metric))
    return (Cell(capital(check.name)), most, told, Cell(count(check.figures)), outcome)
