"""Tables of controls, utility and clients."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.report import wording
from fedaudit.report.evidence import Outcomes, distinct, grouped, outcomes_of
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.grid import Cell, Cells, Grid, Tone, grid_of, name_cell, shortened, stack
from fedaudit.report.section import Section, table_section
from fedaudit.report.tables.cells import estimate_table
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.record import ClientRow, ControlResult, OtherClients, Record


def run_sections(record: Record) -> list[Section | None]:
    """Return the sections on controls, utility and clients; None for a section without data."""
    controls = controls_table(record) if record.controls else None
    no_controls = Section("controls", "Controls", ["No controls were run."])
    return [
        table_section("controls", "Controls", controls) or no_controls,
        table_section("utility", "Utility", utility_table(record)),
        table_section("clients", "Clients", clients_table(record)),
    ]


_QUANTITIES = {"retrained federation": "p-value "}  # for values that are not AUCs or rates
_PASSED: Mapping[bool | None, tuple[str, Tone]] = {
    True: ("✓ passed", "good"),
    False: ("✗ failed", "alarm"),
    None: ("– not run", "muted"),
}
MOST_FAILED = 12  # largest number of listed failed controls of one kind


def controls_table(record: Record) -> Grid:
    """Return the controls by kind, failed kinds first: number passed, values, and failures."""
    kinds = grouped(record.controls, lambda result: result.control)
    checks = {kind: outcomes_of(results) for kind, results in kinds.items()}
    ordered = sorted(kinds, key=lambda kind: (not checks[kind].failed, not checks[kind].ran))
    rows = [_controls_row(kind, kinds[kind], checks[kind]) for kind in ordered]
    return grid_of("Controls", rows, words=("Result", "Passed", "Expected, and what failed"))


def _controls_row(kind: str, results: list[ControlResult], checks: Outcomes) -> Cells:
    text, tone = _PASSED[not checks.failed if checks.ran else None]
    # Controls of one kind with different expectations measure different quantities.
    valued = [result for result in checks.ran if result.value is not None]
    values = [
        _QUANTITIES.get(kind, "")
        + wording.format_range([result.value or 0.0 for result in same], "–", text=wording.number)
        for same in grouped(valued, lambda result: result.expected).values()
    ]
    plain = fixed_texts("expectations")
    expected = distinct(shortened(plain.get(r.expected, r.expected), 120) for r in results)
    hidden = len(checks.failed) - MOST_FAILED
    lines = [_failure(result) for result in checks.failed[:MOST_FAILED]]
    lines += [f"and {hidden:,} more"] * (hidden > 0)
    lines += distinct(shortened(r.note, 200) for r in results if r.passed is None)[:3]
    return {
        "Control": name_cell(kind),
        "Result": Cell(text, tone=tone),
        "Passed": f"{checks.passed} of {len(checks.ran)}"
        + f", {checks.not_run} not run" * bool(checks.not_run),
        "Values": "; ".join(values[:3]) or None,
        "Expected, and what failed": Cell("; ".join(expected[:3]), stack(*lines)),
    }


def _failure(result: ControlResult) -> str:
    value = wording.format_value(result.value, AUC)
    limits = wording.interval(result.low, result.high, AUC)
    where = wording.join(
        shortened(result.attack),
        "" if result.defense == NO_DEFENSE else shortened(result.defense),
        "" if result.target is None else wording.client_name(result.target),
        "" if result.seed is None else f"seed {result.seed}",
    )
    return f"failed: {where}{': ' * bool(where)}{value}" + f" ({limits})" * bool(limits)


def utility_table(record: Record) -> Grid | None:
    """Return the utility of the trained models under each defense, as means over seeds."""
    figures, names = record.where(topic="utility"), fixed_texts("utility")
    figures = [figure for figure in figures if figure.metric in names] or figures
    if not figures:
        return None
    methods = distinct(figure.method for figure in figures if figure.method)
    by_column = grouped(figures, lambda figure: (figure.defense, figure.metric))
    has_means = len(by_column) < len(figures)
    of_means = "; for a mean, the range from the lowest to the highest seed" * has_means
    return estimate_table(
        "Utility",
        figures,
        rows=lambda figure: name_cell(wording.capital(wording.defense_name(figure.defense))),
        columns=lambda figure: names.get(figure.metric, wording.capital(figure.metric)),
        cell=lambda figure: _utility_cell(by_column[figure.defense, figure.metric]),
        first="Defense",
        remark=f"Intervals: {wording.join_and(methods)}{of_means}.",
    )


def _utility_cell(seeds: Sequence[Estimate]) -> Cell:
    first, values = seeds[0], [one.number for one in seeds]
    value = wording.format_value(fmean(values), first.metric)
    if len(seeds) == 1:
        return Cell(value, wording.interval_text(first))
    limits = wording.interval(min(values), max(values), first.metric)
    return Cell(value, f"{limits}\nmean of {len(seeds)} seeds")


def clients_table(record: Record) -> Grid | None:
    """Return each client's size, its audited samples, and its label distribution."""
    rows = [_client_row(wording.client_name(row.client, "Client"), row) for row in record.clients]
    if (others := record.other_clients) is not None:
        rows.append(_client_row(f"{others.clients:,} others", others))
    return grid_of("Clients", rows) if record.clients else None


def _client_row(name: str, row: ClientRow | OtherClients) -> Cells:
    counts, largest = row.class_counts, max(row.class_counts, default=0)
    percentage = wording.percent(largest / sum(counts)) if largest else ""
    return {
        "Client": name,
        "Samples": f"{row.samples:,}",
        "Audited": None if row.audited is None else f"{row.audited:,}",
        # A pack suppresses the classes of small groups.
        "Classes": f"{sum(amount > 0 for amount in counts)}/{len(counts)}" if any(counts) else None,
        "Largest class": f"{percentage} (class {counts.index(largest)})" if largest else None,
    }
