"""Results in notebooks and as short texts: one function for each class of results."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

from fedaudit.report.embedded import (
    BAD,
    GOOD,
    MEASURED,
    OPEN,
    Card,
    card_html,
    comparison_html,
    estimate_html,
    first_of_record,
    record_html,
)
from fedaudit.report.grid import Cell, Cells, Content, Grid, Header, clean, grid_of, shortened, tile
from fedaudit.report.wording import capital, join_some, plural, printable

if TYPE_CHECKING:
    from fedaudit.datasets.dataset import Dataset
    from fedaudit.datasets.draws.audit_set import Assignment, AuditSet
    from fedaudit.filters.claim import FilterAudit
    from fedaudit.gate.verdict import Verdict
    from fedaudit.guard.guard import Guard
    from fedaudit.live.decisions import Decision
    from fedaudit.live.recorder import Recorder
    from fedaudit.metrics.catalogue import MetricValue
    from fedaudit.observe.measurements import MeasuredRound
    from fedaudit.observe.round import Round
    from fedaudit.privacy_budget.budget import Budget
    from fedaudit.results.comparison import Comparison
    from fedaudit.results.record import Record
    from fedaudit.study.front.asking import Answer
    from fedaudit.study.front.audit import Run
    from fedaudit.study.front.comparing import ComparedRuns
    from fedaudit.study.front.federation import Federation
    from fedaudit.study.front.grid import GridRuns

_MOST_ROWS = 12
"""Largest number of rounds and decisions in a notebook."""
_LONGEST_NAME = 60


def html_of(result: object) -> str:
    """Return a result as an HTML fragment, whose style applies only within it.

    The fragment loads nothing, has no scripts, and escapes all texts.
    """
    rendered: Callable[[Any], Card | str] = _renderer(result, _CARDS)
    card = rendered(result)
    return card if isinstance(card, str) else card_html(card)


def text_of(result: object) -> str:
    """Return a result in one or two lines: what it is, its size, its verdict, and the next call."""
    return cast("str", _renderer(result, _TEXTS)(result))


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


def _renderer(result: object, functions: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    # By name, so that the modules of other results are not imported.
    names = (kind.__name__ for kind in type(result).__mro__)
    return next(functions[name] for name in names if name in functions)


def _record_text(record: "Record", *, kind: str = "Record", folder: str = "") -> str:
    safe = printable(record)
    first = first_of_record(safe)
    audited = max((e.n_members + e.n_nonmembers for e in safe.findings), default=0)
    attacks = {estimate.attack for estimate in safe.findings} - {""}
    what = [
        plural(audited, "audited sample") if audited else plural(len(safe.points), "point"),
        plural(len(attacks), "attack") if attacks else "",
        plural(len(safe.seeds), "seed"),
    ]
    size = ", ".join(filter(None, what))
    where = f" in {folder!r}" if folder else ""
    calls = "print(), save_report(), to_frame()" if folder else "print(), frame()"
    return (
        f"<{kind} {shortened(safe.name, _LONGEST_NAME)!r}{where}: {size}; next: {calls}>\n"
        f"{first.status.upper()}: {shortened(first.finding, 200)}."
    )


def _run_text(run: "Run") -> str:
    return _record_text(run.record, kind="fedaudit.Run", folder=str(run.folder))


def _comparison_text(comparison: "Comparison") -> str:
    names = join_some([shortened(source.name, 40) for source in comparison.sources])
    return f"<Comparison of {names}: {plural(len(comparison.rows), 'row')}>"


def _compared_text(compared: "ComparedRuns") -> str:
    finding = conclusion_of(compared).partition("\n\n")[0].replace("\n", " ")
    text = _comparison_text(compared.comparison).removesuffix(">")
    return f"{text}; next: print(), to_frame(), save_page()>\n{shortened(finding, 240)}"


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
            "check": clean(check.name),
            "result": _outcome(str(check.result)),
            "measured": clean(check.measured),
            "declared": clean(check.declared),
        }
        for check in audit.checks
    ]
    return Card(
        str(audit.verdict),
        f"{shortened(audit.filter, _LONGEST_NAME)} {audit.sentence}",
        _FILTER_LOOKS.get(str(audit.verdict), OPEN),
        caveats=tuple(f"{capital(clean(check.why))}." for check in audit.serious[:3]),
        next=tuple(dict.fromkeys(clean(check.advice) for check in audit.serious if check.advice)),
        table=grid_of("Checks", rows, words=("result", "measured", "declared")),
        notes=(f"Declared: {audit.claim.sentence}", f"Tested with {clean(audit.effort)}."),
    )


def _outcome(text: str) -> Cell:
    return Cell(text, tone=cast("Any", _CHECK_TONES.get(text, "muted")))


def _filter_text(audit: "FilterAudit") -> str:
    counts = Counter(str(check.result) for check in audit.checks)
    results = ", ".join(f"{count} {result}" for result, count in counts.items())
    return (
        f"<FilterAudit of {shortened(audit.filter, _LONGEST_NAME)!r}: {audit.verdict.upper()}, "
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
        clean(budget.headline),
        within.get(str(budget.verdict), MEASURED),
        table=grid_of("Epsilon after rounds", rows),
        notes=tuple(map(clean, budget.remarks)),
    )


def _budget_text(budget: "Budget") -> str:
    return f"<Budget {clean(budget.headline)}; print() shows the rounds>"


_DECISION_LOOKS = {"sent": GOOD, "filtered": OPEN, "withheld": BAD}


def _decision_card(decision: "Decision") -> Card:
    return Card(
        decision.outcome,
        clean(str(decision)),
        _DECISION_LOOKS[decision.outcome],
        table=_decisions_table([decision]) if decision.figures else None,
    )


def _decisions_table(decisions: Sequence["Decision"]) -> Grid:
    rows = list[Cells]()
    for decision in decisions:
        attacks: dict[Header, Content] = {
            clean(f.attack): Cell(f"{f.value:.3f}", f"{f.low:.3f}–{f.high:.3f}")
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
        f"{plural(len(decisions), 'upload')} checked: {_counted(counts)}",
        look,
        numbers=(tile("Limit", f"{guard.policy.limit:g}", "AUC"),),
        table=_decisions_table(decisions[-_MOST_ROWS:]),
        notes=_hidden(len(decisions), "decision"),
    )


def _hidden(total: int, what: str) -> tuple[str, ...]:
    hidden = total - _MOST_ROWS
    return (f"{plural(hidden, f'earlier {what}')} not shown.",) if hidden > 0 else ()


def _counted(counts: "Counter[Any]") -> str:
    return ", ".join(f"{count} {clean(str(name))}" for name, count in counts.items())


def _guard_text(guard: "Guard") -> str:
    counts = _counted(Counter(decision.outcome for decision in guard.decisions))
    return f"<Guard with limit {guard.policy.limit:g}: {counts or 'no upload checked'}>"


def _gate_card(verdict: "Verdict") -> Card:
    looks = {"pass": GOOD, "fail": BAD}
    rows: list[Cells] = [
        {
            "check": shortened(f"{check.section}: {check.name}", 80),
            "outcome": _outcome(str(check.outcome)),
            "ceiling": None if check.ceiling is None else f"{check.ceiling:g}",
            "reason": shortened(check.reason, 240),
        }
        for check in verdict.checks
    ]
    return Card(
        str(verdict.outcome),
        shortened(f"{verdict.record} against the policy {verdict.policy}", 160),
        looks.get(str(verdict.outcome), OPEN),
        caveats=(clean(verdict.reason),),
        table=grid_of("Checks", rows, words=("outcome", "reason")),
        notes=tuple(clean(text) for text in (verdict.limits, *verdict.unjudged) if text),
    )


def _gate_text(verdict: "Verdict") -> str:
    counts = _counted(Counter(str(check.outcome) for check in verdict.checks))
    record = shortened(verdict.record, _LONGEST_NAME)
    return f"<Verdict on {record!r}: {verdict.outcome.upper()}, checks: {counts}>"


def _answer_card(answer: "Answer") -> Card:
    question, *sentences = answer.sentences
    status = {None: "undecided", True: "flagged", False: "not flagged"}[answer.flagged]
    looks = {None: OPEN, True: BAD, False: MEASURED}
    return Card(
        status,
        clean(question),
        looks[answer.flagged],
        caveats=tuple(map(clean, answer.caveats)),
        notes=tuple(map(clean, sentences)),
    )


def _answer_text(answer: "Answer") -> str:
    status = {None: "undecided", True: "flagged", False: "not flagged"}[answer.flagged]
    return (
        f"<Answer about one {answer.unit} of {shortened(answer.record, _LONGEST_NAME)!r}: "
        f"{status}; print() explains it>"
    )


def _metric_card(value: "MetricValue") -> Card:
    return Card("metric", _metric_words(value), caveats=(clean(value.note),) if value.note else ())


def _metric_words(value: "MetricValue") -> str:
    number = "no value" if value.value is None else f"{value.value:.3f}"
    limits = "" if value.low is None or value.high is None else f" [{value.low:.3f}, "
    limits += f"{value.high:.3f}]" if limits else ""
    return (
        f"{clean(value.metric)} {number}{limits}, {value.n_members} members against "
        f"{value.n_nonmembers} non-members ({clean(value.contrast)})"
    )


def _metric_text(value: "MetricValue") -> str:
    return f"<MetricValue {_metric_words(value)}>"


def _federation_card(federation: "Federation") -> Card:
    from fedaudit.study.front.references import as_list

    clients = federation.clients
    listed = as_list(federation.defenses) or ["none"]
    number = clients if isinstance(clients, int | str) else getattr(clients, "clients", "")
    rows: list[Cells] = [
        {"part": name, "choice": _part_words(part)}
        for name, part in {
            "data": federation.data,
            "clients": clients,
            "model": federation.model,
            "task": federation.task,
            "algorithm": federation.algorithm,
            "training": federation.training or "default settings",
        }.items()
    ]
    rows += [{"part": "defense", "choice": _part_words(part)} for part in listed]
    return Card(
        "federation",
        f"{clean(str(number))} clients",
        table=grid_of("Parts", rows, words=("choice",)),
        next=("Train and attack it with fa.audit.",),
    )


def _part_words(part: object) -> str:
    """Return the name of a part with its settings, but never samples."""
    from fedaudit.core.naming import changed_fields

    if isinstance(part, str | int):
        return shortened(str(part), 120)
    if isinstance(part, Sized) and not isinstance(part, type):
        return f"{plural(len(part), 'sample')} ({type(part).__name__})"
    name = getattr(part, "__name__", type(part).__name__)
    settings = changed_fields(part) if is_dataclass(part) and not isinstance(part, type) else {}
    texts = [
        f"{key} = {value}"
        for key, value in settings.items()
        if isinstance(value, str | int | float | tuple)
    ]
    return shortened(" · ".join([name, *texts]), 240)


def _grid_card(grid: "GridRuns") -> str:
    records = [run.record for run in grid.values()]
    if len(records) == 1:
        return record_html(records[0])
    compared = grid.compare()
    return comparison_html(compared.comparison, compared.records)


def _dataset_card(dataset: "Dataset") -> Card:
    shape = " × ".join(map(str, dataset.train.features.shape[1:]))
    numbers = [
        tile("Samples", f"{len(dataset):,}", f"{len(dataset.train):,} to train"),
        tile("Features", shape or "1", shortened(dataset.normalisation, 120)),
        tile("Classes", str(dataset.classes)),
    ]
    statement = tuple(map(clean, dataset.statement))
    return Card(
        "data set",
        shortened(dataset.name, _LONGEST_NAME),
        numbers=tuple(numbers),
        notes=statement,
    )


def _audit_set_card(audit: "AuditSet") -> Card:
    owners = Counter(audit.owner[audit.owner >= 0].tolist())
    rows: list[Cells] = [
        {"client": _client(audit, client), "members": f"{count:,}"}
        for client, count in sorted(owners.items())[:_MOST_ROWS]
    ]
    fair = int(audit.fair.sum())
    unaudited = [f"{clean(name)}: {clean(reason)}" for name, reason in audit.unaudited.items()]
    return Card(
        "audit set",
        f"{plural(len(audit), 'audited sample')} of {plural(len(owners), 'client')}",
        numbers=(
            tile("Members", f"{owners.total():,}", "a client trains on them"),
            tile("Held out", f"{len(audit) - owners.total():,}", "no client trains on them"),
            tile("Fair draw", f"{fair:,}", "a coin decided on membership"),
        ),
        table=grid_of("Audited members of each client", rows),
        notes=tuple(f"Not audited: {text}" for text in unaudited[:_MOST_ROWS]),
    )


def _client(audit: "AuditSet", number: int) -> str:
    from fedaudit.live.clients import numbers_of

    names = {number: name for name, number in numbers_of(audit.names).items()}
    return shortened(str(names.get(number, f"client {number}")), _LONGEST_NAME)


def _split_card(split: Any) -> Card:
    split = getattr(split, "split", split)
    return _audit_set_card(split.audit)._replace(
        status="split",
        next=("Train each client only on its samples in train.", "Pass audit to fa.record."),
    )


def _assignment_card(assignment: "Assignment") -> Card:
    sizes = assignment.sizes
    audited = assignment.audited
    rows: list[Cells] = [
        {"client": f"client {client}", "samples": f"{size:,}", "audited": f"{audited[client]:,}"}
        for client, size in list(sizes.items())[:_MOST_ROWS]
    ]
    return Card(
        "partition",
        f"{plural(len(sizes), 'client')} with {sum(sizes.values()):,} training samples",
        table=grid_of("Samples of each client", rows),
        notes=_hidden(len(sizes), "client"),
    )


def _round_card(round: "Round") -> Card:
    return Card(
        "round",
        f"Round {round.index}: {plural(len(round.answered), 'upload')} of "
        f"{plural(len(round.selected), 'selected client')}",
        numbers=(
            tile("Visible uploads", str(len(round.uploads))),
            tile("Visible models", str(len(round.exposed))),
        ),
        next=("Compute signals with fa.measure.",),
    )


def _measured_round_card(measured: "MeasuredRound") -> Card:
    rows: list[Cells] = [
        {"signal": name, "clients": str(values.shape[0]), "samples": str(values.shape[1])}
        for name, values in measured.signals.items()
    ]
    return Card(
        "round",
        f"Round {measured.index}: {plural(len(rows), 'signal')} of "
        f"{plural(len(measured.clients), 'client')}",
        table=grid_of("Signals", rows),
    )


def _recorder_card(recorder: "Recorder") -> Card:
    recording, entries = recorder.recording, recorder.entries
    missing = _missing(entries, recording.names)
    return Card(
        "recording",
        f"{shortened(recording.name, _LONGEST_NAME)}: {plural(len(entries), 'round')} recorded, "
        f"{len(recorder.measured)} measured",
        caveats=(f"Missing uploads: {missing}",) if missing else (),
        numbers=(
            tile("Audited samples", str(len(recorder.run.assignment.audit))),
            tile("Audited clients", str(len(recording.targets))),
            tile("Attacks", str(len(recording.attacks)), join_some(recording.attacks)),
        ),
        next=(f"Attack the recording: {_attack_call(recorder)}",),
    )


def _missing(entries: Iterable[Any], names: Any) -> str:
    counts = Counter(client for entry in entries for client in entry.excluded)
    texts = [
        f"{clean(names.get(client, f'client {client}'))} in {plural(count, 'round')}"
        for client, count in counts.items()
    ]
    return join_some(texts)


def _attack_call(recorder: "Recorder") -> str:
    folder = str(recorder.folder)
    return f"fedaudit.attack_recording({folder!r}, [], {folder + '-attacked'!r})"


def _recorder_text(recorder: "Recorder") -> str:
    rounds = f"{plural(len(recorder.entries), 'round')}, {len(recorder.measured)} measured"
    name = shortened(recorder.recording.name, _LONGEST_NAME)
    return f"<Recorder {name!r}: {rounds}; next: {_attack_call(recorder)}>"


_CARDS: dict[str, Callable[..., Card | str]] = {
    "Run": _run_card,
    "Record": _record_card,
    "Comparison": _comparison_card,
    "ComparedRuns": _compared_card,
    "Estimate": estimate_html,
    "Federation": _federation_card,
    "GridRuns": _grid_card,
    "FilterAudit": _filter_card,
    "Budget": _budget_card,
    "Decision": _decision_card,
    "Guard": _guard_card,
    "Verdict": _gate_card,
    "Answer": _answer_card,
    "MetricValue": _metric_card,
    "Dataset": _dataset_card,
    "AuditSet": _audit_set_card,
    "Split": _split_card,
    "DatasetSplit": _split_card,
    "Assignment": _assignment_card,
    "Round": _round_card,
    "MeasuredRound": _measured_round_card,
    "Recorder": _recorder_card,
}
_TEXTS: dict[str, Callable[..., str]] = {
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
    "Recorder": _recorder_text,
}
