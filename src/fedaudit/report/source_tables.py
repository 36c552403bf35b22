"""Tables of source inference: all attacks, with silence allowed, and after membership."""

from collections.abc import Sequence
from functools import partial

from fedaudit.report.choosing import distinct
from fedaudit.report.grid import Cell, Grid, columns_of, named
from fedaudit.report.reading import Mean, Record, SourceFigure, Tested, alpha_of
from fedaudit.report.source_words import asked_in, points
from fedaudit.report.sources import (
    SOURCE_SIZES,
    Named,
    labels_of_named,
    look_of_source,
    on_sources,
)
from fedaudit.report.words import (
    MISSING,
    about_runs,
    count,
    further_text,
    interval,
    number,
    percent,
    plural,
)

_EMPTY = Cell(MISSING, tone="muted")

_SIGNS = (
    "▲ owners are named more often than class mixes explain; the word is the size of what is "
    "beyond them by its lower limit. ◇ more often than by guessing alone, and class mixes may be "
    "all of it. Both need the interval and the test. △ more often than by guessing by the test "
    "alone: in at least one seed, but the interval leaves open how much. p-values are one-sided, "
    "corrected by Holm's method over the rows of this table ({rows}), and held to {share}; "
    "alone: before that."
)


def source_table(record: Record) -> Grid:
    """All source attacks: success, guesses of several kinds, and what is beyond class mixes."""
    found = on_sources(record)
    rows = []
    for one, label in zip(found, labels_of_named(found), strict=True):
        rows.append(
            (
                named(label, limit=80),
                _success_cell(one),
                Cell(percent(one.figure.chance)),
                Cell(f"≤ {percent(one.figure.null_high)}"),
                _baseline_cell(one.figure),
                Cell(percent(one.figure.mixes)),
                _excess_cell(one.figure.excess),
                _p_cell(one.figure.guessing),
                _p_cell(one.figure.class_mixes),
                _p_cell(one.figure.label_baseline_test),
            )
        )
    names = (
        "Owners named",
        "Guessing",
        "Shuffled owners",
        "Label baseline",
        "Class mixes alone",
        "Beyond them, points",
        "p: guessing",
        "p: class mixes",
        "p: label baseline",
    )
    return Grid(
        "Whose sample is it? All attacks",
        columns_of("Attack", *names, numeric=names),
        tuple(rows),
        remark=_how(found) + _SIGNS.format(share=percent(alpha_of(record)), rows=len(found)),
    )


def _how(found: Sequence[Named]) -> str:
    methods = distinct(one.figure.success.method for one in found)
    several = any(len(one.runs) > 1 for one in found)
    means = (
        " Figures are means over seeds, and p-values of the seeds are combined by Fisher's method."
    )
    return (
        f"Intervals: {', '.join(methods)}.{means if several else ''}"
        f"{about_runs(one.figure.success.further for one in found)} Shuffled owners: 95% of "
        "shuffles of the owners among all samples stay below. Label baseline (of the "
        "label-distribution baseline): the client of whose data the sample's class is the largest "
        "share, without a look at any model. Class mixes alone: what is right on average when "
        "owners are shuffled within each class. "
    )


def _success_cell(one: Named) -> Cell:
    look, success = look_of_source(one.figure), one.figure.success
    lines = [look.word, interval(success.low, success.high, "accuracy") or "no interval"]
    lines.append(further_text(success.further, partial(interval, metric="accuracy")))
    lines.append(plural(len(one.runs), "seed") if len(one.runs) > 1 else asked_in(one.runs[0]))
    text = f"{look.sign}{percent(success.value)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _baseline_cell(one: SourceFigure) -> Cell:
    if one.label_baseline is None or one.over_label_baseline is None:
        return _EMPTY
    return Cell(percent(one.label_baseline), f"attack {points(one.over_label_baseline.value)}")


def _p_cell(test: Tested | None) -> Cell:
    if test is None:
        return _EMPTY
    return Cell(number(test.adjusted), f"alone {number(test.p_value)}")


def _excess_cell(excess: Mean) -> Cell:
    if excess.low is None or excess.high is None:
        return Cell(points(excess.value), "no interval")
    further = further_text(excess.further, _span)
    lines = (_span(excess.low, excess.high), further)
    return Cell(points(excess.value), "\n".join(line for line in lines if line))


def _span(low: float, high: float) -> str:
    return f"{points(low)} to {points(high)}"


def short_source_table(record: Record) -> Grid:
    """The same in a terminal's width."""
    whole = source_table(record)
    kept = ("Attack", "Owners named", "Guessing", "Class mixes alone", "Beyond them, points")
    places = [place for place, column in enumerate(whole.columns) if column.text in kept]
    return Grid(
        "Whose sample is it?",
        tuple(whole.columns[place] for place in places),
        tuple(tuple(row[place] for place in places) for row in whole.rows),
        remark="▲ more often than class mixes explain (owners shuffled within each class). ◇ more "
        "often than by guessing, and class mixes may be all of it.",
    )


def source_sizes_table() -> Grid:
    """From where on a leak of sources has which word."""
    heading = "Beyond class mixes, of what they leave open"
    rows = [
        (Cell(one.word), Cell(f"from {percent(one.share)}" if one.share else "above 0"))
        for one in SOURCE_SIZES
    ]
    return Grid(
        "Words for the size of a leak of sources",
        columns_of("Word", heading, numeric=(heading,)),
        tuple(rows),
        remark="Where class mixes alone name 40% of owners and an attack 55%, it names 15 of the "
        "60 that they leave open: 25%. The lower limit of the interval decides. The thresholds are "
        "conventions of this report, not of law.",
    )


def answers_table(record: Record) -> Grid | None:
    """What is right of the answers of an adversary that is silent unless it is sure."""
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
        "With silence allowed: right, of the samples that somebody is named for",
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
