"""Tables of controls, utility and clients."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.grid import (
    Cell,
    Cells,
    Grid,
    Tone,
    grid_of,
    name_cell,
    shorten,
    stack_lines,
)
from fedaudit.report.evidence import Outcomes, group_by, outcomes_of, unique_items
from fedaudit.report.tables.cells import Section, estimate_table, table_section
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record


def run_sections(record: Record) -> list[Section | None]:
    """Return the sections on controls, utility and clients; None for a section without data."""
    controls = controls_table(record) if record.controls else None
    no_controls = Section("controls", "Controls", ["No controls were run."])
    return [
        table_section("controls", "Controls", controls) or no_controls,
        table_section(
            "utility", utility_title(record.where(topic="utility")), utility_table(record)
        ),
        table_section("clients", "Clients", clients_table(record)),
    ]


_VALUE_PREFIXES = {"retrained federation": "p-value "}
"""Text before the values of a control that are not AUCs or rates."""
_PASSED: Mapping[bool | None, tuple[str, Tone]] = {
    True: ("✓ passed", "good"),
    False: ("✗ failed", "alarm"),
    None: ("– not run", "muted"),
}
MAX_LISTED_FAILURES = 12
"""Largest number of failed controls of one kind that the table lists."""


def controls_table(record: Record) -> Grid:
    """Return the controls by kind, failed kinds first: number passed, values, and failures."""
    kinds = group_by(record.controls, lambda result: result.control)
    outcomes = {kind: outcomes_of(results) for kind, results in kinds.items()}
    ordered = sorted(kinds, key=lambda kind: (not outcomes[kind].failed, not outcomes[kind].ran))
    rows = [_controls_row(kind, kinds[kind], outcomes[kind]) for kind in ordered]
    return grid_of("Controls", rows, words=("Result", "Checks passed", "Expected, and what failed"))


def _controls_row(kind: str, results: list[ControlResult], outcomes: Outcomes) -> Cells:
    text, tone = _PASSED[not outcomes.failed if outcomes.ran else None]
    # Controls of one kind with different expectations measure different quantities.
    results_with_value = [result for result in outcomes.ran if result.value is not None]
    values = [
        _VALUE_PREFIXES.get(kind, "")
        + wording.format_range(
            [result.value or 0.0 for result in with_expectation], "–", text=wording.format_number
        )
        for with_expectation in group_by(
            results_with_value, lambda result: result.expected
        ).values()
    ]
    readable_expectations = fixed_texts("expectations")
    expectations = unique_items(
        shorten(readable_expectations.get(r.expected, r.expected), 120) for r in results
    )
    hidden = len(outcomes.failed) - MAX_LISTED_FAILURES
    lines = [_failure(result) for result in outcomes.failed[:MAX_LISTED_FAILURES]]
    lines += [f"and {hidden:,} more"] * (hidden > 0)
    lines += unique_items(shorten(r.note, 200) for r in results if r.passed is None)[:3]
    return {
        "Control": name_cell(kind),
        "Result": Cell(text, tone=tone),
        "Checks passed": f"{outcomes.passed} of {len(outcomes.ran)}"
        + f", {outcomes.not_run} not run" * bool(outcomes.not_run),
        "Values": "; ".join(values[:3]) or None,
        "Expected, and what failed": Cell("; ".join(expectations[:3]), stack_lines(*lines)),
    }


def _failure(result: ControlResult) -> str:
    value = wording.format_value(result.value, AUC)
    limits = wording.format_interval(result.low, result.high, AUC)
    where = wording.join_parts(
        shorten(result.attack),
        "" if result.defense == NO_DEFENSE else shorten(result.defense),
        "" if result.target is None else wording.client_name(result.target),
        "" if result.seed is None else f"seed {result.seed}",
    )
    return f"failed: {where}{': ' * bool(where)}{value}" + f" ({limits})" * bool(limits)


def utility_title(estimates: Iterable[Estimate]) -> str:
    """Return the title of a table of utility, which is an accuracy in most tasks."""
    accuracies = fixed_texts("utility")
    is_accuracy = any(estimate.metric in accuracies for estimate in estimates)
    return "Accuracy of the model" if is_accuracy else "Utility of the model"


def utility_table(record: Record) -> Grid | None:
    """Return the utility of the trained models under each defense, as means over seeds."""
    estimates, names = record.where(topic="utility"), fixed_texts("utility")
    estimates = [estimate for estimate in estimates if estimate.metric in names] or estimates
    if not estimates:
        return None
    methods = unique_items(estimate.method for estimate in estimates if estimate.method)
    by_cell = group_by(estimates, lambda estimate: (estimate.defense, estimate.metric))
    has_means = len(by_cell) < len(estimates)
    of_means = "; for a mean over seeds, the smallest and the largest value of a seed" * has_means
    return estimate_table(
        utility_title(estimates),
        estimates,
        rows=lambda estimate: name_cell(wording.capitalise(wording.defense_name(estimate.defense))),
        columns=lambda estimate: names.get(estimate.metric, wording.capitalise(estimate.metric)),
        cell=lambda estimate: _utility_cell(by_cell[estimate.defense, estimate.metric]),
        first="Defense",
        remark=f"Intervals: {wording.join_and(methods)}{of_means}.",
    )


def _utility_cell(estimates: Sequence[Estimate]) -> Cell:
    first, values = estimates[0], [estimate.number for estimate in estimates]
    value = wording.format_value(fmean(values), first.metric)
    if len(estimates) == 1:
        return Cell(value, wording.interval_text(first))
    limits = wording.format_interval(min(values), max(values), first.metric)
    return Cell(value, f"{limits}\nmean of {len(estimates)} seeds")


def clients_table(record: Record) -> Grid | None:
    """Return each client's size, its audited samples, and its label distribution."""
    rows = [_client_row(wording.client_name(row.client, "Client"), row) for row in record.clients]
    if (other_clients := record.other_clients) is not None:
        rows.append(_client_row(f"{other_clients.clients:,} others", other_clients))
    return grid_of("Clients", rows) if record.clients else None


def _people_cell(row: ClientRow | OtherClients) -> Cells:
    if isinstance(row, OtherClients) or row.people is None:
        return {}
    return {"People": f"{row.people:,}"}


def _client_row(name: str, row: ClientRow | OtherClients) -> Cells:
    counts, largest = row.class_counts, max(row.class_counts, default=0)
    percentage = wording.format_percent(largest / sum(counts)) if largest else ""
    return {
        "Client": name,
        "Samples": f"{row.samples:,}",
        "Audited": None if row.audited is None else f"{row.audited:,}",
        **_people_cell(row),
        # A pack removes a client's class counts if one of its classes has too few samples.
        "Classes": f"{sum(amount > 0 for amount in counts)}/{len(counts)}" if any(counts) else None,
        "Largest class": f"{percentage} (class {counts.index(largest)})" if largest else None,
    }
