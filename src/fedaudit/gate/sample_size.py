"""Estimation of how many additional samples or seeds would decide an inconclusive estimate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, rate_of
from fedaudit.formatting.wording import format_count
from fedaudit.gate.outcome import Outcome, compare_limits, confidence_level
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import FEWEST_RUNS, EstimateWithLimits
from fedaudit.metrics.power import (
    larger_auc,
    larger_balanced,
    larger_mean,
    larger_proportion,
    larger_rate,
)
from fedaudit.metrics.rate_limits import nonmembers_for_one_false_positive
from fedaudit.results.aggregate import NO_NARROWER
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.fields import Count, RecordPart
from fedaudit.results.games import PointPlayed

Limits = Callable[[int], "tuple[float, float] | None"]
"""Function of a sample size that returns the expected lower and upper limit; None if unknown."""

MAX_FACTOR = 100
"""Maximum factor on the number of samples that is suggested; more is rarely feasible."""
MAX_SEEDS = 1000
MAX_SEARCHES = 1000
"""Maximum number of searches per verdict. A search takes up to 0.05 s."""

_remaining_searches: ContextVar[Iterator[int] | None] = ContextVar(
    "remaining_searches", default=None
)
IN_PROPORTION = "samples (of the smaller group, and of the other in proportion)"
"""What is counted if the ratio of members to non-members stays the same.

The separate effects of more members and of more non-members cannot be computed from an interval."""
MEMBERS_IN_PROPORTION = "samples (with the same proportion of members)"


@contextmanager
def limited_sample_size_searches() -> Iterator[None]:
    """Limit the number of searches for sample sizes within the context."""
    token = _remaining_searches.set(iter(range(MAX_SEARCHES)))
    try:
        yield
    finally:
        _remaining_searches.reset(token)


class RequiredSamples(RecordPart):
    """Number of samples or seeds that would decide an estimate if its value stayed the same.

    Attributes:
        what: What is counted, such as "members", "audited samples" or "seeds".
        count: Additional number that is needed; 0 if it is unknown or no number is sufficient.
        then: Outcome with this number; None if it is unknown or no number is sufficient.
        text: The requirement as a sentence.
    """

    what: str
    count: Count
    then: Outcome | None
    text: str


class DecidingSize(NamedTuple):
    """Smallest sample size that decides an estimate, with the outcome."""

    size: int
    outcome: Outcome


def smallest_deciding_size(
    limits: Limits, start: int, ceiling: float, *, largest: int
) -> DecidingSize | None:
    """Find the smallest size from ``start`` to ``largest`` with a conclusive outcome.

    Return None if there is no such size.
    """

    def outcome_at(size: int) -> Outcome:
        interval = limits(size)
        return Outcome.INCONCLUSIVE if interval is None else compare_limits(*interval, ceiling)

    low, high = start, max(2 * start, start + 1)
    while outcome_at(high) is Outcome.INCONCLUSIVE:
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    # Bisection is correct here: limits narrow as the sample grows, so all larger sizes decide too.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if outcome_at(middle) is Outcome.INCONCLUSIVE else (low, middle)
    return DecidingSize(high, outcome_at(high))


def format_more(count: int, what: str) -> str:
    """Format a number of additional items: ``format_more(1, "seeds")`` returns "1 more seed"."""
    noun, *others = what.split(" ")
    return " ".join([f"{count:,} more", noun.removesuffix("s") if count == 1 else noun, *others])


def required_sample_size(
    limits: Limits,
    start: int,
    ceiling: float,
    *,
    what: str,
    unit: int = 1,
    largest: int | None = None,
) -> RequiredSamples:
    """Return the additional samples or seeds that would decide an estimate.

    Args:
        limits: Function that returns the expected limits at a size.
        start: Present size.
        ceiling: Ceiling of the policy.
        what: Name of what is counted, such as "seeds".
        unit: Number of samples in one unit of size.
        largest: Largest size to try; by default, ``MAX_FACTOR`` times the present size.
    """

    def unknown(text: str) -> RequiredSamples:
        return RequiredSamples(what=what, count=0, then=None, text=text)

    searches = _remaining_searches.get()
    if searches is not None and next(searches, None) is None:
        return unknown(
            "the number of samples that would decide it is computed only for the first "
            f"{MAX_SEARCHES:,} figures of a verdict"
        )
    if limits(start) is None:
        return unknown(
            "how many more samples would decide it cannot be computed from the result file"
        )
    deciding = smallest_deciding_size(
        limits, start, ceiling, largest=MAX_FACTOR * start if largest is None else largest
    )
    if deciding is None:
        noun = what.partition(" (")[0]
        number = f"{MAX_FACTOR} times as many" if largest is None else f"{largest:,}"
        return unknown(
            f"the figure is so close to the ceiling that even {number} {noun} would not decide it"
        )
    missing = unit * (deciding.size - start)
    return RequiredSamples(
        what=what,
        count=missing,
        then=deciding.outcome,
        text=f"with {format_more(missing, what)}, the outcome would be {deciding.outcome}, if the "
        "figure stays the same",
    )


def samples_for_figure(figure: Estimate, ceiling: float) -> RequiredSamples | None:
    """Return the samples that would decide an estimate of membership inference; None if unknown."""
    rate = rate_of(figure.metric)
    if figure.value is None:
        return None if rate is None else _nonmembers_to_measure(rate, figure.n_nonmembers)
    confidence = confidence_level(figure.method) or 0.95
    if rate is not None and figure.seed is not None:
        return _samples_for_rate(figure, rate, ceiling, confidence)
    if figure.low is None or figure.high is None or figure.seed is None:
        return None
    limited = EstimateWithLimits(figure.value, figure.low, figure.high)
    if figure.metric == AUC:
        return samples_for_auc(figure, ceiling, confidence=confidence)
    if figure.metric == BALANCED_ACCURACY and figure.realised_fpr is not None:
        sizes = (figure.n_members, figure.n_nonmembers)
        limits = partial(
            larger_balanced, limited, figure.realised_fpr, sizes, confidence=confidence
        )
        return required_sample_size(limits, 1, ceiling, what=MEMBERS_IN_PROPORTION, unit=sum(sizes))
    return None


def _samples_for_rate(
    figure: Estimate, rate: float, ceiling: float, confidence: float
) -> RequiredSamples | None:
    """Return the samples for a true-positive rate at a false-positive rate."""
    sizes = (figure.n_members, figure.n_nonmembers)
    if figure.value is None or figure.high is None or min(sizes) < 1:
        return None
    limited = EstimateWithLimits(figure.value, figure.low or 0.0, figure.high)

    def limits(size: int) -> tuple[float, float] | None:
        return larger_rate(limited, rate, sizes, size / min(sizes), confidence=confidence)

    return required_sample_size(limits, min(sizes), ceiling, what=IN_PROPORTION)


def samples_for_auc(
    row: Estimate, ceiling: float, *, confidence: float = 0.95
) -> RequiredSamples | None:
    """Return the samples that would decide an AUC."""
    if row.value is None or row.low is None or row.high is None:
        return None
    smaller_group = min(row.n_members, row.n_nonmembers)
    limits = partial(
        larger_auc,
        EstimateWithLimits(row.value, row.low, row.high),
        smaller_group,
        confidence=confidence,
    )
    return required_sample_size(limits, smaller_group, ceiling, what=IN_PROPORTION)


def samples_for_success(
    limited: EstimateWithLimits[float], total: int, ceiling: float, *, level: float = 0.0
) -> RequiredSamples:
    """Return the samples that would decide a success rate.

    Args:
        limited: Success rate with its limits.
        total: Present number of samples.
        ceiling: Ceiling on the success rate minus the level.
        level: Success rate that label distributions explain.
    """

    def limits(size: int) -> tuple[float, float] | None:
        larger = larger_proportion(limited, total, size, confidence=0.95)
        return None if larger is None else (larger.low - level, larger.high - level)

    return required_sample_size(limits, total, ceiling, what="audited samples")


def games_for_point(point: PointPlayed, ceiling: float) -> RequiredSamples:
    """Return the number of games that would decide a point, half of them with the target."""
    tpr, tnr, success = point.tpr, point.tnr, point.success

    def limits(factor: int) -> tuple[float, float] | None:
        present, larger = (
            counted_balanced_accuracy(k * tpr.hits, k * tpr.total, k * tnr.hits, k * tnr.total)
            for k in (1, factor)
        )
        # The forecast is valid only if the record's limits were computed with the same method.
        is_same = abs(present.low - success.low) < 1e-6 and abs(present.high - success.high) < 1e-6
        return (larger.low, larger.high) if is_same else None

    return required_sample_size(limits, 1, ceiling, what="games", unit=tpr.total + tnr.total)


def more_seeds(
    value: float, further: Interval, seeds: int, ceiling: float
) -> RequiredSamples | None:
    """Return the seeds that would decide a mean over all possible seeds.

    Return None if the number is unknown: all runs have equal values, or the limits were widened to
    contain the limits for these runs.
    """
    missing = FEWEST_RUNS - seeds
    if missing > 0:
        seeds_text = format_count(missing, "more seed")
        text = f"{seeds_text} would allow a confidence interval for further runs"
        return RequiredSamples(what="seeds", count=missing, then=None, text=text)
    if further.low is None or further.high is None or further.method.endswith(NO_NARROWER):
        return None
    limited = EstimateWithLimits(value, further.low, further.high)
    confidence = confidence_level(further.method) or 0.95
    limits = partial(larger_mean, limited, seeds, confidence=confidence)
    return required_sample_size(limits, seeds, ceiling, what="seeds", largest=MAX_SEEDS)


def _nonmembers_to_measure(rate: float, nonmembers: int) -> RequiredSamples | None:
    """Return the additional non-members that are needed to measure a rate."""
    missing = nonmembers_for_one_false_positive(rate) - nonmembers
    if missing <= 0:
        return None
    return RequiredSamples(
        what="non-members",
        count=missing,
        then=None,
        text=f"{missing:,} more non-members are needed to measure this rate",
    )
