"""Source inference in several records side by side: what a defense leaves, and what it costs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fedaudit.report.choosing import distinct
from fedaudit.report.comparison import STAR, cost_cell, heading_of, star
from fedaudit.report.grid import Cell, Grid, columns_of, shortened
from fedaudit.report.names import NO_DEFENSE
from fedaudit.report.reading import (
    Comparison,
    Difference,
    Figure,
    OwnerEntry,
    Record,
    Row,
    UtilityResult,
)
from fedaudit.report.rows import labels_of
from fedaudit.report.source_words import points
from fedaudit.report.sources import look_of_source
from fedaudit.report.words import MISSING, interval, number, percent

_EMPTY = Cell(MISSING, tone="muted")
_FORMAL = {
    "Formal ε, training": "formal_epsilon",
    "Formal ε, one round": "formal_epsilon_of_a_round",
}
_REMARK = (
    "▲ owners are named more often than class mixes explain, by a test that is corrected over the "
    "source attacks of one record, and by the interval; the word is the size of what is beyond "
    "them. ◇ more often than by guessing, and class mixes may be all of it. Mixes: what is right "
    "when owners are shuffled within each class. Δ: change of success against the row that it is "
    "held against, over the seeds that both have; both intervals of a seed are combined, which "
    "errs on the wide side. "
    f"Accuracies are means over seeds. {STAR}"
)


def source_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Success of each source attack, row by row; None where no record has any."""
    of_row = [_attacks(comparison, at) for at in range(len(comparison.rows))]
    attacks = distinct(attack for found in of_row for attack in found)
    if not attacks:
        return None
    costs, labels = {one.row: one for one in comparison.accuracies}, labels_of(comparison)
    budgets = [_budgets(records[row.source], row) for row in comparison.rows]
    formal = [name for name in _FORMAL if any(name in found for found in budgets)]
    rows = []
    for at, row in enumerate(comparison.rows):
        if not of_row[at]:
            continue
        used = [one for one in records[row.source].utility if _is_of(one.defense, row)]
        rows.append(
            (
                heading_of(row, labels[at]),
                _accuracy_cell(used, lambda one: one.train_accuracy),
                _accuracy_cell(used, lambda one: one.test_accuracy),
                _EMPTY if row.base is None else cost_cell(costs.get(at), plain=False),
                *(_budget_cell(budgets[at].get(name)) for name in formal),
                *(_attack_cell(of_row[at].get(attack)) for attack in attacks),
            )
        )
    accuracies = ("Train accuracy", "Test accuracy", "Δ accuracy")
    names = (*accuracies, *formal, *(shortened(attack) for attack in attacks))
    return Grid(
        "Owners named",
        columns_of("Defense", *names, numeric=names),
        tuple(rows),
        remark=_REMARK + (_budget_remark(budgets) if formal else ""),
    )


def _is_of(defense: str, row: Row) -> bool:
    return (defense or NO_DEFENSE) == row.family


def _attacks(comparison: Comparison, row: int) -> dict[str, OwnerEntry]:
    return {one.figure.attack: one for one in comparison.owners if one.row == row}


def _accuracy_cell(
    used: Sequence[UtilityResult], accuracy: Callable[[UtilityResult], float]
) -> Cell:
    return Cell(percent(fmean(accuracy(one) for one in used))) if used else _EMPTY


def _attack_cell(one: OwnerEntry | None) -> Cell:
    if one is None:
        return _EMPTY
    figure, look = one.figure, look_of_source(one.figure)
    limits = interval(figure.success.low, figure.success.high, "accuracy") or "no interval"
    lines = [look.word, limits, f"mixes {percent(figure.mixes)}"]
    lines += [] if one.change is None else _change(one.change)
    text = f"{look.sign}{percent(figure.success.value)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _change(change: Difference) -> list[str]:
    line = f"Δ {points(change.value)} points{star(change)}"
    if change.low is None or change.high is None:
        return [line]
    return [line, f"({points(change.low)} to {points(change.high)})"]


def _budgets(record: Record, row: Row) -> dict[str, Figure]:
    found = {f.metric: f for f in record.findings if _is_of(f.defense, row)}
    return {name: found[metric] for name, metric in _FORMAL.items() if metric in found}


def _budget_cell(budget: Figure | None) -> Cell:
    if budget is None:
        return _EMPTY
    return Cell("none proven" if budget.value is None else number(budget.value))


def _budget_remark(budgets: Sequence[Mapping[str, Figure]]) -> str:
    """How the guarantees were worked out, and what of."""
    given = [budget for found in budgets for budget in found.values()]
    said = distinct(
        f"{shortened(one.method, 60)}; {shortened(one.note, 100)}" for one in given if one.method
    )
    return (
        " Formal ε: what is proven. Of the training: against somebody who sees all rounds, as this "
        "adversary does. Of one round: against somebody who sees that round's upload and no other, "
        f"which is what SIA's Table IV prints ({', '.join(said[:4])})."
    )
