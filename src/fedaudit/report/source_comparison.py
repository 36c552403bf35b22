"""Source inference in several records side by side: what a defense leaves, and what it costs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fedaudit.report.choosing import distinct
from fedaudit.report.comparison import STAR, cost_cell, heading_of
from fedaudit.report.grid import Cell, Grid, columns_of, shortened
from fedaudit.report.names import NO_DEFENSE
from fedaudit.report.rows import labels_of
from fedaudit.report.source_words import points, points_in_words
from fedaudit.report.sources import Named, look_of_named, on_sources, over_runs
from fedaudit.report.words import MISSING, interval, number, percent
from fedaudit.study.compared import Comparison, Row
from fedaudit.study.record import Figure, Record, UtilityResult

_EMPTY = Cell(MISSING, tone="muted")
_FORMAL = "formal_epsilon"
_REMARK = (
    "▲ owners are named more often than class mixes explain, by a test that is corrected over the "
    "source attacks of one record, and by the interval; the word is the size of what is beyond "
    "them. ◇ more often than by guessing, and class mixes may be all of it. Mixes: what is right "
    "when owners are shuffled within each class. Δ: change of success against the row that it is "
    "held against, over the seeds that both have (Student's t; no interval for one seed). "
    f"Accuracies are means over seeds. {STAR}"
)


def source_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Success of each source attack, row by row; None where no record has any."""
    of_row = [_attacks(records[row.source], row) for row in comparison.rows]
    attacks = distinct(attack for found in of_row for attack in found)
    if not attacks:
        return None
    costs, labels = {one.row: one for one in comparison.accuracies}, labels_of(comparison)
    budgets = [_formal(records[row.source], row) for row in comparison.rows]
    formal = any(budget is not None for budget in budgets)
    rows = []
    for at, row in enumerate(comparison.rows):
        if not of_row[at]:
            continue
        used = [one for one in records[row.source].utility if _is_of(one.defense, row)]
        base = {} if row.base is None else of_row[row.base]
        rows.append(
            (
                heading_of(row, labels[at]),
                _accuracy_cell(used, lambda one: one.train_accuracy),
                _accuracy_cell(used, lambda one: one.test_accuracy),
                _EMPTY if row.base is None else cost_cell(costs.get(at), plain=False),
                *([_budget_cell(budgets[at])] if formal else []),
                *(_attack_cell(of_row[at].get(attack), base.get(attack)) for attack in attacks),
            )
        )
    accuracies = ("Train accuracy", "Test accuracy", "Δ accuracy")
    names = (*accuracies, *(["Formal ε"] * formal), *(shortened(attack) for attack in attacks))
    return Grid(
        "Owners named",
        columns_of("Defense", *names, numeric=names),
        tuple(rows),
        remark=_REMARK + (_budget_remark(budgets) if formal else ""),
    )


def _is_of(defense: str, row: Row) -> bool:
    return (defense or NO_DEFENSE) == row.family


def _attacks(record: Record, row: Row) -> Mapping[str, Named]:
    """The source attacks of a row; of several views the first."""
    found = [one for one in on_sources(record) if _is_of(one.defense, row)]
    first: dict[str, Named] = {}
    for one in found:
        first.setdefault(one.attack, one)
    return first


def _accuracy_cell(
    used: Sequence[UtilityResult], accuracy: Callable[[UtilityResult], float]
) -> Cell:
    return Cell(percent(fmean(accuracy(one) for one in used))) if used else _EMPTY


def _attack_cell(one: Named | None, base: Named | None) -> Cell:
    if one is None:
        return _EMPTY
    look = look_of_named(one)
    lines = [look.word, interval(one.success.low, one.success.high, "accuracy") or "no interval"]
    lines += [f"mixes {percent(one.mixes)}", *([] if base is None else _change(one, base))]
    text = f"{look.sign}{percent(one.success.value)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _change(one: Named, base: Named) -> list[str]:
    """Paired by seed: two runs of one seed share clients' data and audited samples."""
    before = {run.seed: run.success for run in base.runs}
    gaps = [run.success - before[run.seed] for run in one.runs if run.seed in before]
    if not gaps:
        return []
    change = over_runs(gaps, within=(-1.0, 1.0))
    limits = points_in_words(change).removeprefix("95% interval ")
    line = f"Δ {points(change.value)} points"
    return [line] if change.low is None else [line, f"({limits})"]


def _formal(record: Record, row: Row) -> Figure | None:
    found = [f for f in record.findings if f.metric == _FORMAL and _is_of(f.defense, row)]
    return found[0] if found else None


def _budget_cell(budget: Figure | None) -> Cell:
    if budget is None:
        return _EMPTY
    return Cell("none proven" if budget.value is None else number(budget.value))


def _budget_remark(budgets: Sequence[Figure | None]) -> str:
    """How the guarantees were worked out, and what of."""
    given = [budget for budget in budgets if budget is not None]
    said = distinct(
        f"{shortened(one.method, 60)}; {shortened(one.note, 80)}" for one in given if one.method
    )
    return f" Formal ε: what is proven of the whole training ({', '.join(said[:3])})."
