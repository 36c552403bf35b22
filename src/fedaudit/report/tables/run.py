"""Tables of what stands around the figures: controls, utility, clients, the attacks’ make-up."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.report.evidence import SIZES, distinct
from fedaudit.report.grid import Cell, Footnotes, Grid, Tone, columns_of, named, shortened
from fedaudit.report.words import (
    MISSING,
    count,
    defense_name,
    interval,
    number,
    percent,
    plural,
    sight_name,
    signal_name,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import GENERALISATION_GAP, TEST_ACCURACY, TRAIN_ACCURACY
from fedaudit.results.record import AttackRow, ControlResult, Record

_RANK: dict[bool | None, int] = {False: 0, True: 1, None: 2}


_PASSED: dict[bool | None, tuple[str, Tone]] = {
    True: ("✓ passed", "good"),
    False: ("✗ failed", "alarm"),
    None: ("– not run", "muted"),
}


def sizes_table() -> Grid:
    """Thresholds of a leak by word; the same for every report."""
    rows = []
    for at, one in enumerate(SIZES):
        least = "above" if at == 0 else "from"
        limits = (f"{one.auc:g}", percent(one.percent_rate), percent(one.thousandth_rate))
        rows.append((Cell(one.word), *(Cell(f"{least} {limit}") for limit in limits)))
    metrics = ("AUC", "TPR at 1% FPR", "TPR at 0.1% FPR")
    return Grid(
        "Words for the size of a leak",
        columns_of("Word", *metrics, numeric=metrics),
        tuple(rows),
        remark="A leak has the largest word that the lower limit of its interval reaches, since a "
        "reader looks at the largest of many figures, whose value errs upward. A rate "
        "that its exact test finds above guessing is a trace at least. “No leak shown” needs every "
        "upper limit below “clear”. The thresholds are conventions of this report, not of law.",
    )


def controls_table(record: Record) -> Grid:
    """The checks that the figures mean what they say; failed ones first."""
    notes = Footnotes()
    ordered = sorted(record.controls, key=lambda control: _RANK[control.passed])
    where = [_where(control) for control in ordered]
    rows = [
        (
            named(control.control),
            Cell(*_PASSED[control.passed][:1], tone=_PASSED[control.passed][1]),
            Cell(
                MISSING if control.value is None else number(control.value),
                interval(control.low, control.high, AUC),
                mark=notes.mark(control.note),
            ),
            Cell(shortened(control.expected, 160)),
            *((Cell(place or MISSING),) if any(where) else ()),
        )
        for control, place in zip(ordered, where, strict=True)
    ]
    place = ("Where",) if any(where) else ()
    return Grid(
        caption="Controls",
        columns=columns_of("Control", "Result", "Value", "Expected", *place, numeric=("Value",)),
        rows=tuple(rows),
        notes=notes.listed(),
    )


def controls_summary(record: Record) -> Grid:
    """The controls by kind: how many passed, and every one that did not."""
    rows = []
    for kind in distinct(control.control for control in record.controls):
        results = [control for control in record.controls if control.control == kind]
        ran = [control for control in results if control.passed is not None]
        failed = [control for control in ran if not control.passed]
        verdict = _PASSED[None] if not ran else _PASSED[not failed]
        expected = distinct(shortened(control.expected, 120) for control in results)
        what = "; ".join(f"{_where(one)}: {number(one.value or 0.0)}" for one in failed)
        rows.append(
            (
                named(kind),
                Cell(verdict[0], tone=verdict[1]),
                Cell(f"{len(ran) - len(failed)} of {len(ran)}"),
                Cell("; ".join(expected[:3]), shortened(f"failed: {what}", 300) if what else ""),
            )
        )
    return Grid(
        caption="Controls",
        columns=columns_of("Control", "Result", "Passed", "Expected, and what failed"),
        rows=tuple(rows),
    )


def _where(control: ControlResult) -> str:
    parts = [
        shortened(control.attack),
        "" if control.defense == "none" else shortened(control.defense),
        "" if control.target is None else f"client {control.target}",
        "" if control.seed is None else f"seed {control.seed}",
    ]
    return " · ".join(part for part in parts if part)


def utility_table(record: Record) -> Grid:
    """Accuracy of the trained models, seed by seed, and their mean where there are several."""
    rows: list[tuple[Cell, ...]] = []
    figures = record.where(topic="utility")
    for defense in distinct(one.defense for one in figures):
        own = [one for one in figures if one.defense == defense]
        seeds = distinct(one.seed for one in own)
        runs = [{one.metric: one for one in own if one.seed == seed} for seed in seeds]
        rows += [_utility_row(run) for run in runs]
        if len(runs) > 1:
            rows.append(_mean_utility(defense, runs))
    names = ("Test accuracy", "Train accuracy", "Gap", "Test samples")
    return Grid(
        caption="Utility of the trained model",
        columns=columns_of("Defense", "Seed", *names, numeric=names),
        rows=tuple(rows),
        remark="Intervals: Clopper-Pearson 95%; for a mean, the lowest and highest seed.",
    )


def _utility_row(run: Mapping[str, Estimate]) -> tuple[Cell, ...]:
    test = run[TEST_ACCURACY]
    return (
        named(defense_name(test.defense)),
        Cell(str(test.seed)),
        Cell(percent(test.number), interval(test.low, test.high, "accuracy")),
        *(Cell(percent(run[metric].number)) for metric in (TRAIN_ACCURACY, GENERALISATION_GAP)),
        Cell(count(test.samples)),
    )


def _mean_utility(defense: str, runs: Sequence[Mapping[str, Estimate]]) -> tuple[Cell, ...]:
    def mean(metric: str) -> Cell:
        values = [run[metric].number for run in runs]
        return Cell(percent(fmean(values)), interval(min(values), max(values), "accuracy"))

    return (
        named(defense_name(defense)),
        Cell(f"mean of {plural(len(runs), 'seed')}"),
        *(mean(metric) for metric in (TEST_ACCURACY, TRAIN_ACCURACY, GENERALISATION_GAP)),
        Cell(count(sum(run[TEST_ACCURACY].samples for run in runs))),
    )


def clients_table(record: Record) -> Grid:
    """Each client's size, the audited samples it holds, and its label distribution."""
    numeric = ("Samples", "Audited", "Classes held", "Largest class")
    rows = [
        (
            Cell(f"Client {row.client}"),
            Cell(count(row.samples)),
            Cell(count(row.audited)),
            Cell(f"{sum(amount > 0 for amount in row.class_counts)}/{len(row.class_counts)}"),
            Cell(_largest_class(row.class_counts)),
        )
        for row in record.clients
    ]
    return Grid("Clients", columns_of("Client", *numeric, numeric=numeric), tuple(rows))


def _largest_class(counts: list[int]) -> str:
    total = sum(counts)
    return (
        f"{percent(max(counts) / total)} (class {counts.index(max(counts))})" if total else MISSING
    )


def _signals(row: AttackRow) -> Cell:
    """Signals in words; the signals' own names stand beside them."""
    words = ", ".join(signal_name(signal) for signal in row.signals)
    return Cell(shortened(words, 160), full=shortened(", ".join(row.signals), 160))


def catalogue_table(record: Record) -> Grid:
    """Parts of each attack, and those that were refused or failed."""
    notes = Footnotes()
    rows = [
        (
            named(row.name),
            _signals(row),
            Cell(shortened(row.over_clients, 80)),
            Cell(shortened(row.over_rounds, 80)),
            Cell(shortened(", ".join(sight_name(need) for need in row.needs), 120)),
            Cell(
                "run" if row.status == "run" else f"✗ {row.status}",
                tone="" if row.status == "run" else "alarm",
                mark=notes.mark(row.note),
            ),
            Cell(shortened(row.source, 120)),
        )
        for row in record.attacks
    ]
    columns = columns_of(
        "Attack", "Signal", "Over clients", "Over rounds", "Needs", "Status", "Source"
    )
    return Grid("How each attack is put together", columns, tuple(rows), notes=notes.listed())
