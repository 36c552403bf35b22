"""Tables of what stands around the figures: controls, utility, clients, the attacks’ make-up."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.report import words
from fedaudit.report.evidence import SIZES, Threshold, checks_of, distinct, grouped
from fedaudit.report.grid import Cell, Filled, Footnotes, Grid, Tone, named, shortened, tabled
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import GENERALISATION_GAP, TEST_ACCURACY, TRAIN_ACCURACY
from fedaudit.results.record import AttackRow, ClientRow, ControlResult, OtherClients, Record


def run_section(record: Record) -> dict[str, object]:
    """Tables of what stands around the figures; None for parts that the record has not."""
    return {
        "sizes": sizes_table(),
        "catalogue": catalogue_table(record),
        "controls": controls_summary(record) if record.controls else None,
        "every_control": controls_table(record) if record.controls else None,
        "utility": utility_table(record) if record.where(topic="utility") else None,
        "clients": clients_table(record) if record.clients else None,
    }


_RANK: dict[bool | None, int] = {False: 0, True: 1, None: 2}


_PASSED: dict[bool | None, tuple[str, Tone]] = {
    True: ("✓ passed", "good"),
    False: ("✗ failed", "alarm"),
    None: ("– not run", "muted"),
}


def sizes_table() -> Grid:
    """Thresholds of a leak by word; the same for every report."""
    return words_table(
        "Words for the size of a leak",
        {
            "AUC": lambda one, least: f"{least} {one.auc:g}",
            "TPR at 1% FPR": lambda one, least: f"{least} {words.percent(one.percent_rate)}",
            "TPR at 0.1% FPR": lambda one, least: f"{least} {words.percent(one.thousandth_rate)}",
        },
        "A leak has the largest word that the lower limit of its interval reaches, since a "
        "reader looks at the largest of many figures, whose value errs upward. A rate "
        "that its exact test finds above guessing is a trace at least. “No leak shown” needs every "
        "upper limit below “clear”.",
    )


def words_table(
    caption: str, least: Mapping[str, Callable[[Threshold, str], str]], remark: str
) -> Grid:
    """Thresholds by word.

    Args:
        caption: What they are of.
        least: For each figure the text of a threshold, given "above" for the first, else "from".
        remark: What decides.
    """
    return tabled(
        caption,
        [
            {"Word": one.word, **{name: text(one, how) for name, text in least.items()}}
            for one, how in zip(SIZES, ("above", "from", "from", "from"), strict=True)
        ],
        remark=f"{remark} The thresholds are conventions of this report, not of law.",
    )


def controls_table(record: Record) -> Grid:
    """The checks that the figures mean what they say; failed ones first."""
    notes = Footnotes()
    some = any(_where(control) for control in record.controls)
    rows: list[Filled] = []
    for control in sorted(record.controls, key=lambda control: _RANK[control.passed]):
        limits = words.interval(control.low, control.high, AUC)
        value = words.MISSING if control.value is None else words.number(control.value)
        row: dict[str, Cell | str | None] = {
            "Control": named(control.control),
            "Result": _passed(control.passed),
            "Value": Cell(value, limits, mark=notes.mark(control.note)),
            "Expected": shortened(control.expected, 160),
        }
        rows.append(row | ({"Where": _where(control) or words.MISSING} if some else {}))
    return tabled("Controls", rows, words=("Result", "Expected", "Where"), notes=notes)


def _passed(passed: bool | None) -> Cell:
    text, tone = _PASSED[passed]
    return Cell(text, tone=tone)


def controls_summary(record: Record) -> Grid:
    """The controls by kind: how many passed, and every one that did not."""
    rows: list[Filled] = []
    for kind, results in grouped(record.controls, lambda one: one.control).items():
        checks = checks_of(results)
        expected = distinct(shortened(control.expected, 120) for control in results)
        what = "; ".join(
            f"{_where(one)}: {words.number(one.value or 0.0)}" for one in checks.failed
        )
        what = shortened(f"failed: {what}", 300) if what else ""
        rows.append(
            {
                "Control": named(kind),
                "Result": _passed(not checks.failed if checks.ran else None),
                "Passed": f"{checks.passed} of {len(checks.ran)}",
                "Expected, and what failed": Cell("; ".join(expected[:3]), what),
            }
        )
    return tabled("Controls", rows, words=("Result", "Passed", "Expected, and what failed"))


def _where(control: ControlResult) -> str:
    parts = [
        shortened(control.attack),
        "" if control.defense == "none" else shortened(control.defense),
        "" if control.target is None else words.client_name(control.target),
        "" if control.seed is None else f"seed {control.seed}",
    ]
    return " · ".join(part for part in parts if part)


def utility_table(record: Record) -> Grid:
    """Utility of the trained models, seed by seed, and their mean where there are several."""
    rows: list[Filled] = []
    figures = record.where(topic="utility")
    for defense, own in grouped(figures, lambda one: one.defense).items():
        of_seeds = grouped(own, lambda one: one.seed).values()
        runs = [{one.metric: one for one in of_seed} for of_seed in of_seeds]
        rows += [_utility_row(run) for run in runs]
        if len(runs) > 1:
            rows.append(_mean_utility(defense, runs))
    methods = words.listed(distinct(one.method for one in figures if one.method))
    return tabled(
        "Utility of the trained model",
        rows,
        words=("Seed",),
        remark=f"Intervals: {methods}; for a mean, the lowest and highest seed.",
    )


_UTILITY = {
    "Test accuracy": TEST_ACCURACY,
    "Train accuracy": TRAIN_ACCURACY,
    "Gap": GENERALISATION_GAP,
}


def _columns(run: Mapping[str, Estimate]) -> dict[str, str]:
    """Metrics by heading: accuracies, or another task's measure on test and training samples."""
    if TEST_ACCURACY in run:
        return {heading: metric for heading, metric in _UTILITY.items() if metric in run}
    return {words.capital(metric): metric for metric in run}


def _utility_row(run: Mapping[str, Estimate]) -> Filled:
    first = next(iter(run.values()))
    cells = {
        name: Cell(words.shown(run[metric].number, metric), words.interval_of(run[metric]))
        for name, metric in _columns(run).items()
    }
    return {
        "Defense": named(words.defense_name(first.defense)),
        "Seed": str(first.seed),
        **cells,
        "Test samples": words.count(max(one.samples for one in run.values())),
    }


def _mean_utility(defense: str, runs: Sequence[Mapping[str, Estimate]]) -> Filled:
    def mean(metric: str) -> Cell:
        values = [run[metric].number for run in runs if metric in run]
        return Cell(
            words.shown(fmean(values), metric), words.interval(min(values), max(values), metric)
        )

    return {
        "Defense": named(words.defense_name(defense)),
        "Seed": f"mean of {words.plural(len(runs), 'seed')}",
        **{name: mean(metric) for name, metric in _columns(runs[0]).items()},
        "Test samples": words.count(sum(max(one.samples for one in run.values()) for run in runs)),
    }


def clients_table(record: Record) -> Grid:
    """Each client's size, the audited samples it holds, and its label distribution.

    The clients of a large federation that have no row in the record share the last one.
    """
    others = record.other_clients
    rows: list[tuple[str, ClientRow | OtherClients]] = [
        (words.client_heading(row.client), row) for row in record.clients
    ]
    rows += [] if others is None else [(f"{words.count(others.clients)} others", others)]
    return tabled(
        "Clients",
        [
            {
                "Client": name,
                "Samples": words.count(row.samples),
                "Audited": words.MISSING if row.audited is None else words.count(row.audited),
                "Classes held": f"{sum(amount > 0 for amount in row.class_counts)}/"
                f"{len(row.class_counts)}",
                "Largest class": _largest_class(row.class_counts),
            }
            for name, row in rows
        ],
    )


def _largest_class(counts: list[int]) -> str:
    total = sum(counts)
    return (
        f"{words.percent(max(counts) / total)} (class {counts.index(max(counts))})"
        if total
        else words.MISSING
    )


def _signals(row: AttackRow) -> Cell:
    """Signals in words; the signals' own names stand beside them."""
    meant = ", ".join(words.signal_name(signal) for signal in row.signals)
    return Cell(shortened(meant, 160), full=shortened(", ".join(row.signals), 160))


def catalogue_table(record: Record) -> Grid:
    """Parts of each attack, and those that were refused or failed."""
    notes = Footnotes()
    rows: list[Filled] = [
        {
            "Attack": named(row.name),
            "Signal": _signals(row),
            "Over clients": shortened(row.over_clients, 80),
            "Over rounds": shortened(row.over_rounds, 80),
            "Needs": shortened(", ".join(words.sight_name(need) for need in row.needs), 120),
            "Status": Cell(
                "run" if row.status == "run" else f"✗ {row.status}",
                tone="" if row.status == "run" else "alarm",
                mark=notes.mark(row.note or row.uncovered),
            ),
            "Source": shortened(row.source, 120),
        }
        for row in record.attacks
    ]
    return tabled(
        "How each attack is put together",
        rows,
        words=("Signal", "Over clients", "Over rounds", "Needs", "Status", "Source"),
        notes=notes,
    )
