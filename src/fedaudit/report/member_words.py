"""The verdict on membership in words."""

from fedaudit.report.choosing import RunsBehind, distinct, key_of, runs_behind
from fedaudit.report.evidence import (
    LEAKS,
    ROOM_FOR_DOUBT,
    Status,
    largest,
    size_of,
    size_reached,
)
from fedaudit.report.found import room
from fedaudit.report.grid import shortened
from fedaudit.report.names import defense_name
from fedaudit.report.reading import Figure, Record, above_chance, by_test_alone, rate_of
from fedaudit.report.verdict_texts import MEANINGS, NOBODY
from fedaudit.report.words import listed


def member_status(record: Record, figures: list[Figure]) -> Status:
    """The verdict on membership, of figures that can be relied on.

    Args:
        record: The record.
        figures: Those of its headline.
    """
    above = [figure for figure in figures if above_chance(figure)]
    if above:
        sizes = [size for figure in above if (size := size_of(figure))]
        return LEAKS[largest(sizes) or "trace"]
    return "no leak shown" if _little_can_hide(record, figures) else "inconclusive"


def member_meaning(record: Record, status: Status, figures: list[Figure]) -> str:
    """What follows from the verdict, and what does not.

    Args:
        record: The record.
        status: The verdict on membership.
        figures: Those of its headline.
    """
    if status == "void" and record.nobody_is_a_member:
        return NOBODY
    parts = [MEANINGS[status]]
    if status in LEAKS.values():
        parts += [_where_found(figures), "Attacks not tried here may find more."]
    if status == "no leak shown":
        parts += [_power(record), _hidden(figures)]
    return " ".join(part for part in parts if part)


def _little_can_hide(record: Record, figures: list[Figure]) -> bool:
    """Whether no upper limit, of an AUC or a rate, leaves room for more than a weak leak.

    Every contrast must have an AUC and a rate at few false alarms: a leak of a few samples shows
    in the rate alone.
    """
    if not figures or any(by_test_alone(figure) for figure in figures):
        return False
    for contrast in distinct(figure.contrast for figure in figures):
        given = [f for f in figures if f.contrast == contrast and f.value is not None]
        if not any(f.metric == "auc" for f in given) or not any(rate_of(f.metric) for f in given):
            return False
    runs = runs_behind(record)
    highs = [(_upper_limit(f, runs), f.metric) for f in figures if f.value is not None]
    doubtful = ("strong", ROOM_FOR_DOUBT)
    return all(
        high is not None and size_reached(high, metric) not in doubtful for high, metric in highs
    )


def _upper_limit(figure: Figure, runs: RunsBehind) -> float | None:
    """A figure's upper limit; for a mean over runs that has none, the largest of the runs'."""
    if figure.high is not None or figure.seed is not None:
        return figure.high
    highs = [run.high for run in runs.get(key_of(figure), [])]
    known = [high for high in highs if high is not None]
    return max(known) if known and len(known) == len(highs) else None


def _where_found(figures: list[Figure]) -> str:
    """Under which defenses there is a leak, and how much larger than shown it may be."""
    return " ".join(part for part in (_affected(figures), _may_be_larger(figures)) if part)


def _affected(figures: list[Figure]) -> str:
    """Nothing where there is one defense only, or none: that is said before."""
    affected = distinct(defense_name(f.defense) for f in figures if above_chance(f))
    every = distinct(defense_name(f.defense) for f in figures)
    if len(every) < 2:
        return ""
    spared = [shortened(name, 60) for name in every if name not in affected]
    with_ = listed([shortened(name, 60) for name in affected])
    return f"Found with {with_}" + (f", not found with {listed(spared)}." if spared else ".")


def _may_be_larger(figures: list[Figure]) -> str:
    above = [figure for figure in figures if above_chance(figure)]
    highs = [size_reached(f.high, f.metric) for f in above if f.high is not None]
    least = largest([size for figure in above if (size := size_of(figure))])
    most = largest([size for size in highs if size])
    if least is None or most is None or most == least:
        return ""
    return f"The size is by the lower limits; the upper limits allow a {most} leak."


def _power(record: Record) -> str:
    if any(c.control == "planted leak" and c.passed for c in record.controls):
        return "They do find a leak that was planted on purpose, so they work."
    return "No leak was planted on purpose to show that they could find one."


def _hidden(figures: list[Figure]) -> str:
    """What a reader must not take "no leak shown" for."""
    fewest = [f.value for f in figures if f.metric == "tpr@0.001"]
    unknown = (
        "Of members named at fewer false alarms than one in 100 this audit says nothing. "
        if not fewest or None in fewest
        else ""
    )
    return (
        f"What could still be hidden: {room(figures)}. {unknown}"
        "This is a measurement, not a proof: a stronger attack may exist."
    )
