"""Evidence that would settle a figure whose interval contains its ceiling."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, rate_of
from fedaudit.gate.outcome import Outcome, compare_limits, level
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import FEWEST_RUNS, Limited
from fedaudit.metrics.power import (
    larger_auc,
    larger_balanced,
    larger_mean,
    larger_rate,
    larger_share,
)
from fedaudit.metrics.rate_limits import n_needed
from fedaudit.report.wording import plural
from fedaudit.results.aggregate import NO_NARROWER
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Count, Part
from fedaudit.results.games import PointPlayed

Limits = Callable[[int], "tuple[float, float] | None"]

MOST_TIMES = 100
"""Largest factor of samples that is suggested. No federation can set aside 100 times as many."""
MOST_SEEDS = 1000
MOST_SEARCHES = 1000
"""Largest number of searches per verdict. A search takes up to 0.05 s."""

_left: ContextVar[Iterator[int] | None] = ContextVar("left", default=None)
ALIKE = "samples (of the smaller group, and of the other in proportion)"
"""Wording for members and non-members in their present ratio. The effect of more samples of one
side alone does not follow from an interval."""
MIXED_ALIKE = "samples (as many members among them as now)"


@contextmanager
def limited_sample_size_searches() -> Iterator[None]:
    """Limit the number of searches for sample sizes inside the block."""
    token = _left.set(iter(range(MOST_SEARCHES)))
    try:
        yield
    finally:
        _left.reset(token)


class RequiredSamples(Part):
    """Number of samples or seeds that would settle a figure if its value stayed the same.

    Attributes:
        what: What is counted: "members", "non-members", "audited samples" or "seeds".
        count: Number that is needed in addition; 0 if no number is enough.
        then: Outcome with this number; None if no number is enough, or if the value is unknown.
        text: The requirement as a sentence.
    """

    what: str
    count: Count
    then: Outcome | None
    text: str


class Settled(NamedTuple):
    """Smallest sample that settles a figure, with the outcome."""

    size: int
    then: Outcome


def smallest_settling_size(
    limits: Limits, start: int, ceiling: float, *, largest: int
) -> Settled | None:
    """Find the smallest size from ``start`` to ``largest`` at which limits settle the outcome.

    Return None if no such size settles it.
    """

    def at(size: int) -> Outcome:
        interval = limits(size)
        return Outcome.INCONCLUSIVE if interval is None else compare_limits(*interval, ceiling)

    low, high = start, max(2 * start, start + 1)
    while at(high) is Outcome.INCONCLUSIVE:
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    # Limits narrow as the sample grows, so all larger sizes decide too.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) is Outcome.INCONCLUSIVE else (low, middle)
    return Settled(high, at(high))


def more_of(count: int, what: str) -> str:
    """Format a number of additional items, such as "1 more seed" for ``more_of(1, "seeds")``."""
    first, *words = what.split(" ")
    return " ".join([f"{count:,} more", first.removesuffix("s") if count == 1 else first, *words])


def required_sample_size(
    limits: Limits,
    start: int,
    ceiling: float,
    *,
    what: str,
    each: int = 1,
    most: int | None = None,
) -> RequiredSamples:
    """Return the evidence that would settle a figure.

    Sizes from ``start``, the present one, up to ``most`` are tried; by default up to
    :data:`MOST_TIMES` as many. A unit of size is ``each`` of ``what``, such as "seeds".
    """

    def unknown(text: str) -> RequiredSamples:
        return RequiredSamples(what=what, count=0, then=None, text=text)

    searches = _left.get()
    if searches is not None and next(searches, None) is None:
        return unknown(
            "the number of samples that would settle it was not computed, as this is done for "
            f"{MOST_SEARCHES:,} figures of a verdict only"
        )
    if limits(start) is None:
        return unknown("the record does not show how many more samples would settle it")
    settled = smallest_settling_size(
        limits, start, ceiling, largest=MOST_TIMES * start if most is None else most
    )
    if settled is None:
        sort = what.partition(" (")[0]
        largest = f"{MOST_TIMES} times as many {sort}" if most is None else f"{most:,} {sort}"
        return unknown(
            f"the figure is so close to the ceiling that even {largest} would not settle it"
        )
    missing = each * (settled.size - start)
    return RequiredSamples(
        what=what,
        count=missing,
        then=settled.then,
        text=f"{more_of(missing, what)} would settle it as a {settled.then}, if the figure stays "
        "the same",
    )


def more_for(figure: Estimate, ceiling: float) -> RequiredSamples | None:
    """Return the evidence that would settle a membership figure; None if unknown."""
    rate = rate_of(figure.metric)
    if figure.value is None:
        return None if rate is None else _to_measure(rate, figure.n_nonmembers)
    confidence = level(figure.method) or 0.95
    if rate is not None and figure.seed is not None:
        return _more_for_rate(figure, rate, ceiling, confidence)
    if figure.low is None or figure.high is None or figure.seed is None:
        return None
    limited = Limited(figure.value, figure.low, figure.high)
    if figure.metric == AUC:
        return more_for_auc(figure, ceiling, confidence=confidence)
    if figure.metric == BALANCED_ACCURACY and figure.realised_fpr is not None:
        sizes = (figure.n_members, figure.n_nonmembers)
        limits = partial(
            larger_balanced, limited, figure.realised_fpr, sizes, confidence=confidence
        )
        return required_sample_size(limits, 1, ceiling, what=MIXED_ALIKE, each=sum(sizes))
    return None


def _more_for_rate(
    figure: Estimate, rate: float, ceiling: float, confidence: float
) -> RequiredSamples | None:
    """Return the evidence for a rate, to which members and non-members both contribute."""
    sizes = (figure.n_members, figure.n_nonmembers)
    if figure.value is None or figure.high is None or min(sizes) < 1:
        return None
    limited = Limited(figure.value, figure.low or 0.0, figure.high)

    def limits(size: int) -> tuple[float, float] | None:
        return larger_rate(limited, rate, sizes, size / min(sizes), confidence=confidence)

    return required_sample_size(limits, min(sizes), ceiling, what=ALIKE)


def more_for_auc(
    row: Estimate, ceiling: float, *, confidence: float = 0.95
) -> RequiredSamples | None:
    """Return the evidence that would settle an AUC."""
    if row.value is None or row.low is None or row.high is None:
        return None
    smaller_group = min(row.n_members, row.n_nonmembers)
    limits = partial(
        larger_auc, Limited(row.value, row.low, row.high), smaller_group, confidence=confidence
    )
    return required_sample_size(limits, smaller_group, ceiling, what=ALIKE)


def more_samples(
    limited: Limited[float], total: int, ceiling: float, *, less: float = 0.0
) -> RequiredSamples:
    """Return the samples that would settle a share, judged by the ceiling plus a known level."""

    def limits(size: int) -> tuple[float, float] | None:
        larger = larger_share(limited, total, size, confidence=0.95)
        return None if larger is None else (larger.low - less, larger.high - less)

    return required_sample_size(limits, total, ceiling, what="samples asked about")


def more_games(point: PointPlayed, ceiling: float) -> RequiredSamples:
    """Return the games, equally many with and without the target, that would settle a point."""
    tpr, tnr, success = point.tpr, point.tnr, point.success

    def limits(times: int) -> tuple[float, float] | None:
        now, then = (
            counted_balanced_accuracy(k * tpr.hits, k * tpr.total, k * tnr.hits, k * tnr.total)
            for k in (1, times)
        )
        same = abs(now.low - success.low) < 1e-6 and abs(now.high - success.high) < 1e-6
        return (then.low, then.high) if same else None

    return required_sample_size(limits, 1, ceiling, what="games", each=tpr.total + tnr.total)


def more_seeds(
    value: float, further: Interval, seeds: int, ceiling: float
) -> RequiredSamples | None:
    """Return the seeds that would settle a limit for further runs.

    Their number is unknown (None) if the runs show no spread, or if the limits are as wide as the
    limits for these runs.
    """
    missing = FEWEST_RUNS - seeds
    if missing > 0:
        text = f"{plural(missing, 'more seed')} would give an interval over further runs"
        return RequiredSamples(what="seeds", count=missing, then=None, text=text)
    if further.low is None or further.high is None or further.method.endswith(NO_NARROWER):
        return None
    limited, confidence = Limited(value, further.low, further.high), level(further.method) or 0.95
    limits = partial(larger_mean, limited, seeds, confidence=confidence)
    return required_sample_size(limits, seeds, ceiling, what="seeds", most=MOST_SEEDS)


def _to_measure(rate: float, nonmembers: int) -> RequiredSamples | None:
    """Return the non-members that a rate needs to be measured at all."""
    missing = n_needed(rate) - nonmembers
    if missing <= 0:
        return None
    return RequiredSamples(
        what="non-members",
        count=missing,
        then=None,
        text=f"{missing:,} more non-members are needed to measure this rate",
    )
