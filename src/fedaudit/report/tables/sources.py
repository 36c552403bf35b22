"""Tables of source inference: all attacks, selective prediction, membership first, and details."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fedaudit.report.evidence import about_members, distinct
from fedaudit.report.grid import Cell, Grid, columns_of, named, shortened, without_constants
from fedaudit.report.text.membership import Bullet
from fedaudit.report.text.sources import (
    SOURCE_SIZES,
    Named,
    Run,
    asked_in,
    label_sentence,
    labels_of_named,
    look_of_source,
    on_sources,
    points,
    source_bullets,
)
from fedaudit.report.words import (
    MISSING,
    about_runs,
    capital,
    count,
    defense_name,
    further_text,
    interval,
    listed,
    number,
    percent,
    plural,
)
from fedaudit.results.estimate import Estimate, Test
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import Record
from fedaudit.results.sources import LABEL_BASELINE, LABELS

_EMPTY = Cell(MISSING, tone="muted")

_SIGNS = (
    "▲ owners are named more often than label distributions explain; the word is the size of "
    "what is "
    "beyond them by its lower limit. ◇ more often than by guessing alone, and label "
    "distributions may be "
    "all of it. Both need the interval and the test. △ more often than by guessing by the test "
    "alone: in at least one seed, but the interval leaves open how much. p-values are one-sided, "
    "corrected by Holm's method over the rows of this table ({rows}), and held to {share}; "
    "alone: before that."
)


def source_table(record: Record) -> Grid:
    """All source attacks: success, baselines, and the excess over label distributions."""
    found = on_sources(record)
    rows = []
    for one, label in zip(found, labels_of_named(found), strict=True):
        rows.append(
            (
                named(label, limit=80),
                _success_cell(one),
                Cell(percent(one.chance)),
                Cell(f"≤ {percent(_null_high(one.success))}"),
                _baseline_cell(one),
                Cell(percent(one.mixes)),
                _excess_cell(one.excess),
                _p_cell(_test_of(one.success)),
                _p_cell(_test_of(one.excess)),
                _p_cell(_test_of(one.over_baseline)),
            )
        )
    names = (
        "Attack success rate",
        "Guessing",
        "Shuffled owners",
        "Label baseline",
        "Label distributions alone",
        "Beyond them, points",
        "p: guessing",
        "p: label distributions",
        "p: label baseline",
    )
    return Grid(
        "Source inference: all attacks",
        columns_of("Attack", *names, numeric=names),
        tuple(rows),
        remark=_how(found) + _SIGNS.format(share=percent(alpha_of(record)), rows=len(found)),
    )


def _how(found: Sequence[Named]) -> str:
    methods = distinct(one.success.method for one in found)
    several = any(len(one.runs) > 1 for one in found)
    means = (
        " Figures are means over seeds, and p-values of the seeds are combined by Fisher's method."
    )
    return (
        f"Intervals: {', '.join(methods)}.{means if several else ''}"
        f"{about_runs(one.success.further for one in found)} Shuffled owners: 95% of "
        "shuffles of the owners among all samples stay below. Label baseline (of the "
        "label-distribution baseline): the client of whose data the sample's class is the largest "
        "share, without a look at any model. Label distributions alone: what is right on "
        "average when "
        "owners are shuffled within each class. "
    )


def _success_cell(one: Named) -> Cell:
    look, success = look_of_source(one), one.success
    lines = [look.word, interval(success.low, success.high, "accuracy") or "no interval"]
    lines.append(further_text(success.further, partial(interval, metric="accuracy")))
    lines.append(plural(len(one.runs), "seed") if len(one.runs) > 1 else asked_in(success))
    text = f"{look.sign}{percent(success.number)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _null_high(success: Estimate) -> float:
    high = _test_of(success).high
    return 1.0 if high is None else high


def _baseline_cell(one: Named) -> Cell:
    if one.baseline is None or one.over_baseline is None:
        return _EMPTY
    return Cell(percent(one.baseline), f"attack {points(one.over_baseline.number)}")


def _p_cell(test: Test) -> Cell:
    if test.p_value is None or test.adjusted is None:
        return _EMPTY
    return Cell(number(test.adjusted), f"alone {number(test.p_value)}")


def _excess_cell(excess: Estimate) -> Cell:
    if excess.low is None or excess.high is None:
        return Cell(points(excess.number), "no interval")
    further = further_text(excess.further, _span)
    lines = (_span(excess.low, excess.high), further)
    return Cell(points(excess.number), "\n".join(line for line in lines if line))


def _span(low: float, high: float) -> str:
    return f"{points(low)} to {points(high)}"


def short_source_table(record: Record) -> Grid:
    """The same in a terminal's width."""
    whole = source_table(record)
    kept = (
        "Attack",
        "Attack success rate",
        "Guessing",
        "Label distributions alone",
        "Beyond them, points",
    )
    places = [place for place, column in enumerate(whole.columns) if column.text in kept]
    return Grid(
        "Source inference",
        tuple(whole.columns[place] for place in places),
        tuple(tuple(row[place] for place in places) for row in whole.rows),
        remark="▲ more often than label distributions explain (owners shuffled within each "
        "class). ◇ more "
        "often than by guessing, and label distributions may be all of it.",
    )


def source_sizes_table() -> Grid:
    """Thresholds of a source leak by word."""
    heading = "Beyond label distributions, of what they leave open"
    rows = [
        (Cell(one.word), Cell(f"from {percent(one.share)}" if one.share else "above 0"))
        for one in SOURCE_SIZES
    ]
    return Grid(
        "Words for the size of a leak of sources",
        columns_of("Word", heading, numeric=(heading,)),
        tuple(rows),
        remark="Where label distributions alone name 40% of owners and an attack 55%, it "
        "names 15 of the "
        "60 that they leave open: 25%. The lower limit of the interval decides. The thresholds are "
        "conventions of this report, not of law.",
    )


def answers_table(record: Record) -> Grid | None:
    """Selective prediction: accuracy on answers at a least chance."""
    found = on_sources(record)
    leasts = sorted({one.least for run in record.sources for one in run.answers})
    if not leasts:
        return None
    rows = tuple(
        (named(label, limit=80), *(_answer_cell(one, least) for least in leasts))
        for one, label in zip(found, labels_of_named(found), strict=True)
    )
    names = [f"Chance from {percent(least)}" for least in leasts]
    return Grid(
        "Selective prediction: accuracy on the samples that are answered",
        columns_of("Attack", *names, numeric=names),
        rows,
        remark="The adversary names nobody unless a client's chance, as the attack has it, "
        "reaches the column's heading. Below: right / named of all."
        + (" Counts are summed over seeds." if _several(found) else ""),
    )


def _answer_cell(one: Named, least: float) -> Cell:
    found = [part for run in one.runs for part in run.answers if part.least == least]
    if not found:
        return _EMPTY
    right, answered = (sum(part.right for part in found), sum(part.answered for part in found))
    asked = sum(run.samples for run in one.runs)
    detail = f"{count(right)}/{count(answered)} of {count(asked)}"
    return Cell(percent(right / answered) if answered else MISSING, detail)


def chained_table(record: Record) -> Grid | None:
    """Membership first, and owners only of samples that are called members; None without any."""
    found = on_sources(record)
    rates = sorted({one.fpr for run in record.sources for one in run.chained})
    if not rates:
        return None
    rows = tuple(
        (named(label, limit=80), *(cell for rate in rates for cell in _chained_cells(one, rate)))
        for one, label in zip(found, labels_of_named(found), strict=True)
    )
    names = [
        name
        for rate in rates
        for name in (f"Called members at {percent(rate)}", "Of these, owner named")
    ]
    return Grid(
        "Membership first, then the source of those called members",
        columns_of("Attack", *names, numeric=names),
        rows,
        remark="For an adversary that does not know whether anybody trained on a sample. The "
        "per cent in a heading are of samples of nobody: so many may be called members; below "
        "stands the share that was. A guess at the owner would be right as often as in the table "
        "above." + (" Counts are summed over seeds." if _several(found) else ""),
    )


def _chained_cells(one: Named, rate: float) -> tuple[Cell, Cell]:
    found = [(part, run) for run in one.runs for part in run.chained if part.fpr == rate]
    if not found:
        return _EMPTY, _EMPTY
    called, right = (sum(p.called for p, _ in found), sum(p.right for p, _ in found))
    asked = sum(run.samples for _, run in found)
    reached = sum(part.realised_fpr for part, _ in found) / len(found)
    return (
        Cell(percent(called / asked), f"{count(called)}/{count(asked)}\nFPR {percent(reached)}"),
        Cell(percent(right / called) if called else MISSING, f"{count(right)}/{count(called)}"),
    )


def _several(found: Sequence[Named]) -> bool:
    return any(len(one.runs) > 1 for one in found)


ORACLE = "Oracle round"
_ORACLE_REMARK = (
    "Each round alone. Oracle round: the best one, chosen afterwards by somebody who knows the "
    "answers; no adversary can, so it is an upper end and not the attack's success."
)


def seeds_table(record: Record) -> Grid | None:
    """Every run by itself; None where each attack has one."""
    if all(len(one.runs) == 1 for one in on_sources(record)):
        return None
    names = (
        "Attack success rate",
        "Right",
        "Shuffled owners",
        "Label baseline",
        "Label distributions alone",
    )
    p_values = ("p: guessing", "p: label distributions", "p: label baseline")
    figures: dict[tuple[object, ...], dict[str, Estimate]] = {}
    for one in record.where(topic="source"):
        at = (one.attack, one.defense, one.view, one.seed)
        figures.setdefault(at, {})[one.against] = one
    rows = []
    for run in record.sources:
        of_run = figures[run.attack, run.defense, run.view, run.seed]
        success = of_run[""]
        labels, baseline = (_test_of(of_run.get(one)) for one in (LABELS, LABEL_BASELINE))
        rows.append(
            (
                *_where(run),
                Cell(percent(success.number), interval(success.low, success.high, "accuracy")),
                Cell(asked_in(success)),
                Cell(f"≤ {percent(_null_high(success))}"),
                _given(baseline.level, percent),
                _given(labels.level, percent),
                _given(_test_of(success).p_value, number),
                _given(labels.p_value, number),
                _given(baseline.p_value, number),
            )
        )
    columns = columns_of(*_WHERE, *names, *p_values, numeric=(*names, *p_values))
    remark = "Intervals: Clopper-Pearson 95%. p-values are not corrected here."
    grid = Grid("Seed by seed", columns, tuple(rows), remark=remark)
    return without_constants(grid, ("Seed", *names, *p_values))


def _test_of(figure: Estimate | None) -> Test:
    return (None if figure is None else figure.test()) or Test()


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
    columns = columns_of(*_WHERE, "Round", "Attack success rate", numeric=("Attack success rate",))
    grid = Grid("Success by round", columns, tuple(rows), remark=_ORACLE_REMARK)
    return without_constants(grid, ("Round", "Attack success rate"))


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
    columns = columns_of("Class", "Attack", "Attack success rate", numeric=("Attack success rate",))
    return Grid("Class by class", columns, tuple(rows)) if rows else None


@dataclass(frozen=True)
class SourceSection:
    """Sentences and tables of the section; None stands for a table without rows."""

    found: tuple[Bullet, ...]
    labels: str
    attacks: Grid
    answers: Grid | None
    chained: Grid | None
    seeds: Grid | None
    rounds: Grid | None
    owners: Grid
    classes: Grid | None
    sizes: Grid


def source_section(record: Record) -> SourceSection | None:
    """The section of a record; None where it says nothing of sources."""
    if not record.sources:
        return None
    return SourceSection(
        found=source_bullets(record),
        labels=label_sentence(record),
        attacks=source_table(record),
        answers=answers_table(record),
        chained=chained_table(record),
        seeds=seeds_table(record),
        rounds=rounds_table(record),
        owners=owners_table(record),
        classes=source_classes_table(record),
        sizes=source_sizes_table(),
    )


def kind_of(record: Record) -> str:
    """Kind of audit of a record, as a heading."""
    topics = ["membership"] * about_members(record)
    topics += ["source"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{capital(listed(topics))} audit"
