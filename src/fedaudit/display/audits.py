"""Audits, comparisons, checks, budgets and decisions as cards and short texts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from fedaudit.display.cards import (
    BAD,
    GOOD,
    LONGEST_NAME,
    MEASURED,
    MOST_ROWS,
    OPEN,
    Card,
    comparison_html,
    estimate_html,
    hidden_rows,
    record_html,
)
from fedaudit.formatting.grid import (
    Cell,
    Cells,
    Content,
    Grid,
    Header,
    as_one_line,
    grid_of,
    shorten,
    tile,
)
from fedaudit.formatting.wording import capitalise, format_count, join_some, printable_record
from fedaudit.report.first import first_of_record

if TYPE_CHECKING:
    from fedaudit.api.asking import Answer
    from fedaudit.api.audit import Run
    from fedaudit.api.comparing import ComparedRuns
    from fedaudit.api.grid import GridRuns
    from fedaudit.filters.claim import FilterAudit
    from fedaudit.gate.verdict import Verdict
    from fedaudit.guard.guard import Guard
    from fedaudit.live.decisions import Decision
    from fedaudit.metrics.catalogue import MetricValue
    from fedaudit.privacy_budget.budget import Budget
    from fedaudit.results.comparison import Comparison
    from fedaudit.results.record import Record


def conclusion_of(result: "Record | ComparedRuns") -> str:
    """Return what a terminal shows of a result: verdict, estimates and next steps."""
    from io import StringIO

    from rich.console import Console

    from fedaudit.report.terminal import WIDTH, print_comparison, print_record
    from fedaudit.results.record import Record

    text = StringIO()
    # Otherwise, rich would write to the page of a notebook, and use the colors of a terminal.
    console = Console(file=text, width=WIDTH, force_jupyter=False, force_terminal=False)
    if isinstance(result, Record):
        print_record(result, console)
    else:
        print_comparison(result.comparison, result.records, console)
    return text.getvalue().rstrip()


def _record_text(record: "Record", *, kind: str = "Record", folder: str = "") -> str:
    safe = printable_record(record)
    first = first_of_record(safe)
    audited = max((e.n_members + e.n_nonmembers for e in safe.findings), default=0)
    attacks = {estimate.attack for estimate in safe.findings} - {""}
    what = [
        format_count(audited, "audited sample")
        if audited
        else format_count(len(safe.points), "point"),
        format_count(len(attacks), "attack") if attacks else "",
        format_count(len(safe.seeds), "seed"),
    ]
    size = ", ".join(filter(None, what))
    where = f" in {folder!r}" if folder else ""
    calls = "print(), save_report(), to_frame()" if folder else "print(), frame()"
    return (
        f"<{kind} {shorten(safe.name, LONGEST_NAME)!r}{where}: {size}; next: {calls}>\n"
        f"{first.status.upper()}: {shorten(first.finding, 200)}."
    )


def _run_text(run: "Run") -> str:
    return _record_text(run.record, kind="fedaudit.Run", folder=str(run.folder))


def _comparison_text(comparison: "Comparison") -> str:
    names = join_some([shorten(source.name, 40) for source in comparison.sources])
    return f"<Comparison of {names}: {format_count(len(comparison.rows), 'row')}>"


def _compared_text(compared: "ComparedRuns") -> str:
    finding = conclusion_of(compared).partition("\n\n")[0].replace("\n", " ")
    text = _comparison_text(compared.comparison).removesuffix(">")
    return f"{text}; next: print(), to_frame(), save_page()>\n{shorten(finding, 240)}"


def _record_card(record: "Record") -> str:
    return record_html(record)


def _run_card(run: "Run") -> str:
    return record_html(run.record)


def _comparison_card(comparison: "Comparison") -> str:
    return comparison_html(comparison, [])


def _compared_card(compared: "ComparedRuns") -> str:
    return comparison_html(compared.comparison, compared.records)


_FILTER_LOOKS = {"sound": GOOD, "broken": BAD}


_CHECK_TONES = {"passed": "good", "failed": "alarm", "pass": "good", "fail": "alarm"}


def _filter_card(audit: "FilterAudit") -> Card:
    rows: list[Cells] = [
        {
            "check": as_one_line(check.name),
            "result": _outcome(str(check.result)),
            "measured": as_one_line(check.measured),
            "declared": as_one_line(check.declared),
        }
        for check in audit.checks
    ]
    return Card(
        str(audit.verdict),
        f"{shorten(audit.filter, LONGEST_NAME)} {audit.sentence}",
        _FILTER_LOOKS.get(str(audit.verdict), OPEN),
        caveats=tuple(f"{capitalise(as_one_line(check.why))}." for check in audit.serious[:3]),
        next=tuple(
            dict.fromkeys(as_one_line(check.advice) for check in audit.serious if check.advice)
        ),
        table=grid_of("Checks", rows, words=("result", "measured", "declared")),
        notes=(f"Declared: {audit.claim.sentence}", f"Tested with {as_one_line(audit.effort)}."),
    )


def _outcome(text: str) -> Cell:
    return Cell(text, tone=cast("Any", _CHECK_TONES.get(text, "muted")))


def _filter_text(audit: "FilterAudit") -> str:
    counts = Counter(str(check.result) for check in audit.checks)
    results = ", ".join(f"{count} {result}" for result, count in counts.items())
    return (
        f"<FilterAudit of {shorten(audit.filter, LONGEST_NAME)!r}: {audit.verdict.upper()}, "
        f"checks: {results}; print() shows them>"
    )


def _budget_card(budget: "Budget") -> Card:
    within = {"within the target": GOOD, "above the target": BAD}
    units = ("sample", "person", "client")
    rows: list[Cells] = [
        {
            "round": f"{row.round:,}",
            "phase": str(row.phase),
            **{f"ε of one {unit}": budget.rounded(getattr(row, unit)) for unit in units},
        }
        for row in budget.rows
    ]
    return Card(
        str(budget.verdict),
        as_one_line(budget.headline),
        within.get(str(budget.verdict), MEASURED),
        table=grid_of("Epsilon after rounds", rows),
        notes=tuple(map(as_one_line, budget.remarks)),
    )


def _budget_text(budget: "Budget") -> str:
    return f"<Budget {as_one_line(budget.headline)}; print() shows the rounds>"


_DECISION_LOOKS = {"sent": GOOD, "filtered": OPEN, "withheld": BAD}


def _decision_card(decision: "Decision") -> Card:
    return Card(
        decision.outcome,
        as_one_line(str(decision)),
        _DECISION_LOOKS[decision.outcome],
        table=_decisions_table([decision]) if decision.figures else None,
    )


def _decisions_table(decisions: Sequence["Decision"]) -> Grid:
    rows = list[Cells]()
    for decision in decisions:
        attacks: dict[Header, Content] = {
            as_one_line(f.attack): Cell(f"{f.value:.3f}", f"{f.low:.3f}–{f.high:.3f}")
            for f in decision.figures
        }
        outcome = Cell(decision.outcome, tone="alarm" if not decision.was_sent else "")
        rows.append({"round": str(decision.round), "outcome": outcome, **attacks})
    limit = f"{decisions[-1].limit:g}"
    return grid_of(f"AUC by attack, limit {limit}", rows, words=("outcome",))


def _guard_card(guard: "Guard") -> Card:
    decisions, counts = guard.decisions, Counter(d.outcome for d in guard.decisions)
    if not decisions:
        return Card("guard", "No upload has been checked", next=("Call check() in each round.",))
    look = BAD if counts["withheld"] else OPEN if counts["filtered"] else GOOD
    return Card(
        "guard",
        f"{format_count(len(decisions), 'upload')} checked: {_counted(counts)}",
        look,
        numbers=(tile("Limit", f"{guard.policy.limit:g}", "AUC"),),
        table=_decisions_table(decisions[-MOST_ROWS:]),
        notes=hidden_rows(len(decisions), "decision"),
    )


def _counted(counts: "Counter[Any]") -> str:
    return ", ".join(f"{count} {as_one_line(str(name))}" for name, count in counts.items())


def _guard_text(guard: "Guard") -> str:
    counts = _counted(Counter(decision.outcome for decision in guard.decisions))
    return f"<Guard with limit {guard.policy.limit:g}: {counts or 'no upload checked'}>"


def _gate_card(verdict: "Verdict") -> Card:
    looks = {"pass": GOOD, "fail": BAD}
    rows: list[Cells] = [
        {
            "check": shorten(f"{check.section}: {check.name}", 80),
            "outcome": _outcome(str(check.outcome)),
            "ceiling": None if check.ceiling is None else f"{check.ceiling:g}",
            "reason": shorten(check.reason, 240),
        }
        for check in verdict.checks
    ]
    return Card(
        str(verdict.outcome),
        shorten(f"{verdict.record} against the policy {verdict.policy}", 160),
        looks.get(str(verdict.outcome), OPEN),
        caveats=(as_one_line(verdict.reason),),
        table=grid_of("Checks", rows, words=("outcome", "reason")),
        notes=tuple(as_one_line(text) for text in (verdict.limits, *verdict.unjudged) if text),
    )


def _gate_text(verdict: "Verdict") -> str:
    counts = _counted(Counter(str(check.outcome) for check in verdict.checks))
    record = shorten(verdict.record, LONGEST_NAME)
    return f"<Verdict on {record!r}: {verdict.outcome.upper()}, checks: {counts}>"


def _answer_card(answer: "Answer") -> Card:
    question, *sentences = answer.sentences
    status = {None: "undecided", True: "flagged", False: "not flagged"}[answer.flagged]
    looks = {None: OPEN, True: BAD, False: MEASURED}
    return Card(
        status,
        as_one_line(question),
        looks[answer.flagged],
        caveats=tuple(map(as_one_line, answer.caveats)),
        notes=tuple(map(as_one_line, sentences)),
    )


def _answer_text(answer: "Answer") -> str:
    status = {None: "undecided", True: "flagged", False: "not flagged"}[answer.flagged]
    return (
        f"<Answer about one {answer.unit} of {shorten(answer.record, LONGEST_NAME)!r}: "
        f"{status}; print() explains it>"
    )


def _metric_card(value: "MetricValue") -> Card:
    return Card(
        "metric", _metric_words(value), caveats=(as_one_line(value.note),) if value.note else ()
    )


def _metric_words(value: "MetricValue") -> str:
    number = "no value" if value.value is None else f"{value.value:.3f}"
    limits = "" if value.low is None or value.high is None else f" [{value.low:.3f}, "
    limits += f"{value.high:.3f}]" if limits else ""
    return (
        f"{as_one_line(value.metric)} {number}{limits}, {value.n_members} members against "
        f"{value.n_nonmembers} non-members ({as_one_line(value.contrast)})"
    )


def _metric_text(value: "MetricValue") -> str:
    return f"<MetricValue {_metric_words(value)}>"


def _grid_card(grid: "GridRuns") -> str:
    records = [run.record for run in grid.values()]
    if len(records) == 1:
        return record_html(records[0])
    compared = grid.compare()
    return comparison_html(compared.comparison, compared.records)


CARDS: dict[str, Callable[..., Card | str]] = {
    "Run": _run_card,
    "Record": _record_card,
    "Comparison": _comparison_card,
    "ComparedRuns": _compared_card,
    "Estimate": estimate_html,
    "GridRuns": _grid_card,
    "FilterAudit": _filter_card,
    "Budget": _budget_card,
    "Decision": _decision_card,
    "Guard": _guard_card,
    "Verdict": _gate_card,
    "Answer": _answer_card,
    "MetricValue": _metric_card,
}
TEXTS: dict[str, Callable[..., str]] = {
    "Run": _run_text,
    "Record": _record_text,
    "Comparison": _comparison_text,
    "ComparedRuns": _compared_text,
    "FilterAudit": _filter_text,
    "Budget": _budget_text,
    "Guard": _guard_text,
    "Verdict": _gate_text,
    "Answer": _answer_text,
    "MetricValue": _metric_text,
}
"""Functions by the name of the class that they display."""
