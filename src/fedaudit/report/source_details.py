"""Tables behind those of source inference: seed by seed, round by round, client by client."""

from collections.abc import Callable

from fedaudit.report.grid import Cell, Grid, columns_of, named, shortened, without_constants
from fedaudit.report.names import defense_name
from fedaudit.report.reading import Record
from fedaudit.report.source_words import asked_in, points
from fedaudit.report.sources import Run, labels_of_named, on_sources
from fedaudit.report.words import MISSING, count, interval, number, percent

ORACLE = "Oracle round"
_ORACLE_REMARK = (
    "Each round alone. Oracle round: the best one, chosen afterwards by somebody who knows the "
    "answers; no adversary can, so it is an upper end and not the attack's success."
)


def seeds_table(record: Record) -> Grid | None:
    """Every run by itself; None where each attack has one."""
    if all(len(one.runs) == 1 for one in on_sources(record)):
        return None
    names = ("Owners named", "Right", "Shuffled owners", "Label baseline", "Class mixes alone")
    p_values = ("p: guessing", "p: class mixes", "p: label baseline")
    rows = [
        (
            *_where(run),
            Cell(percent(run.success), interval(run.low, run.high, "accuracy")),
            Cell(asked_in(run)),
            Cell(f"≤ {percent(run.null_high)}"),
            _given(run.label_baseline, percent),
            Cell(percent(run.by_class_mix)),
            Cell(number(run.p_value)),
            Cell(number(run.class_p_value)),
            _given(run.label_baseline_p_value, number),
        )
        for run in record.sources
    ]
    columns = columns_of(*_WHERE, *names, *p_values, numeric=(*names, *p_values))
    remark = "Intervals: Clopper-Pearson 95%. p-values are not corrected here."
    grid = Grid("Seed by seed", columns, tuple(rows), remark=remark)
    return without_constants(grid, ("Seed", *names, *p_values))


def _given(value: float | None, words: Callable[[float], str]) -> Cell:
    return Cell(MISSING, tone="muted") if value is None else Cell(words(value))


_WHERE = ("Attack", "Defense", "View", "Seed")


def _where(run: Run) -> tuple[Cell, ...]:
    return (
        named(run.attack),
        named(defense_name(run.defense)),
        named(run.view),
        Cell(str(run.seed)),
    )


def rounds_table(record: Record) -> Grid | None:
    """Success in each measured round alone, with the oracle round apart; None without any."""
    runs = [run for run in record.sources if run.by_round]
    if not runs:
        return None
    rows = []
    for run in runs:
        best = max(range(len(run.rounds)), key=lambda at: run.by_round[at])
        by_round = zip(run.rounds, run.by_round, strict=True)
        rows += [
            (*_where(run), Cell(str(index)), Cell(percent(success))) for index, success in by_round
        ]
        oracle = Cell(f"{ORACLE} ({run.rounds[best]})", tone="muted")
        rows.append((*_where(run), oracle, Cell(percent(run.by_round[best]), tone="muted")))
    columns = columns_of(*_WHERE, "Round", "Owners named", numeric=("Owners named",))
    grid = Grid("Success by round", columns, tuple(rows), remark=_ORACLE_REMARK)
    return without_constants(grid, ("Round", "Owners named"))


def owners_table(record: Record) -> Grid:
    """Each client's samples: how many are said to be its own, and whose the others."""
    numeric = ("Named", "Overfitting")
    rows = [row for run in record.sources for row in _owner_rows(run)]
    columns = columns_of(
        "From", *_WHERE, *numeric, "Said to be another's", numeric=("Samples", *numeric)
    )
    grid = Grid(
        "Client by client",
        columns,
        tuple(rows),
        remark="Named: samples of the client that are said to be its own. Overfitting: training "
        "less test accuracy of the client's model in the last measured round, in points.",
    )
    return without_constants(grid, ("Named", "Overfitting", "Said to be another's"))


def _owner_rows(run: Run) -> list[tuple[Cell, ...]]:
    rows = []
    for at, (client, row) in enumerate(zip(run.clients, run.confusion, strict=True)):
        others = sorted(
            (
                (amount, other)
                for other, amount in zip(run.clients, row, strict=True)
                if amount and other != client
            ),
            key=lambda pair: (-pair[0], pair[1]),
        )
        said = ", ".join(f"{other}: {count(amount)}" for amount, other in others)
        total = sum(row)
        share = percent(row[at] / total) if total else MISSING
        gap = points(run.overfitting[at]) if run.overfitting else MISSING
        rows.append(
            (
                Cell(f"Client {client}"),
                *_where(run),
                Cell(share, f"{count(row[at])}/{count(total)}"),
                Cell(gap),
                Cell(shortened(said, 400) or "none"),
            )
        )
    return rows


def source_classes_table(record: Record) -> Grid | None:
    """Success class by class, seeds summed; None where no class is told apart."""
    found = on_sources(record)
    rows = []
    for one, label in zip(found, labels_of_named(found), strict=True):
        parts = [part for run in one.runs for part in run.classes]
        for klass in sorted({part.label for part in parts}):
            mine = [part for part in parts if part.label == klass]
            right, samples = sum(p.right for p in mine), sum(p.samples for p in mine)
            share = percent(right / samples) if samples else MISSING
            detail = f"{count(right)}/{count(samples)}"
            rows.append((Cell(f"Class {klass}"), named(label, limit=80), Cell(share, detail)))
    columns = columns_of("Class", "Attack", "Owners named", numeric=("Owners named",))
    return Grid("Class by class", columns, tuple(rows)) if rows else None
