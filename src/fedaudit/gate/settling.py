"""Evidence that would settle a figure of a record, by its kind."""

from functools import partial

from fedaudit.core.metric_names import AUC, BALANCED_ACCURACY, rate_of
from fedaudit.gate.limits import level
from fedaudit.gate.sample_size import MOST_SEEDS, RequiredSamples, required_sample_size
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import FEWEST_RUNS, Limited
from fedaudit.metrics.larger import (
    larger_auc,
    larger_balanced,
    larger_mean,
    larger_rate,
    larger_share,
)
from fedaudit.metrics.rates import n_needed
from fedaudit.report.words import plural
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.games import PointPlayed

ALIKE = "samples (of the smaller side; the other in proportion)"
"""What more samples of one side alone would do does not follow from an interval."""
MIXED_ALIKE = "samples (as many members among them as now)"


def more_for(figure: Estimate, ceiling: float) -> RequiredSamples | None:
    """Evidence that would settle a figure on membership; None where there is nothing to say.

    Args:
        figure: Refused, or with a ceiling between its limits.
        ceiling: The most that is allowed.
    """
    rate = rate_of(figure.metric)
    if figure.value is None:
        return None if rate is None else _refused(rate, figure.n_nonmembers)
    sure = level(figure.method) or 0.95
    if rate is not None and figure.seed is not None:
        return _more_for_rate(figure, rate, ceiling, sure)
    if figure.low is None or figure.high is None:
        return None
    if figure.seed is None:
        return None
    found = Limited(figure.value, figure.low, figure.high)
    if figure.metric == AUC:
        pairs = min(figure.n_members, figure.n_nonmembers)
        return required_sample_size(
            partial(larger_auc, found, pairs, confidence=sure), pairs, ceiling, what=ALIKE
        )
    if figure.metric == BALANCED_ACCURACY and figure.realised_fpr is not None:
        sizes = (figure.n_members, figure.n_nonmembers)
        limits = partial(larger_balanced, found, figure.realised_fpr, sizes, confidence=sure)
        return required_sample_size(limits, 1, ceiling, what=MIXED_ALIKE, each=sum(sizes))
    return None


def _more_for_rate(
    figure: Estimate, rate: float, ceiling: float, sure: float
) -> RequiredSamples | None:
    """Both sides count: the members are few, and so are the non-members that set the threshold."""
    sizes = (figure.n_members, figure.n_nonmembers)
    if figure.value is None or figure.high is None or min(sizes) < 1:
        return None
    found = Limited(figure.value, figure.low or 0.0, figure.high)

    def limits(size: int) -> tuple[float, float] | None:
        return larger_rate(found, rate, sizes, size / min(sizes), confidence=sure)

    return required_sample_size(limits, min(sizes), ceiling, what=ALIKE)


def more_for_auc(row: Estimate, ceiling: float) -> RequiredSamples | None:
    """Evidence that would settle the AUC of a group."""
    if row.value is None or row.low is None or row.high is None:
        return None
    pairs = min(row.n_members, row.n_nonmembers)
    found = Limited(row.value, row.low, row.high)
    return required_sample_size(
        partial(larger_auc, found, pairs, confidence=0.95), pairs, ceiling, what=ALIKE
    )


def more_samples(
    found: Limited, total: int, ceiling: float, *, less: float = 0.0
) -> RequiredSamples:
    """Samples that would settle a share of them, held against the ceiling less a known level."""

    def limits(size: int) -> tuple[float, float] | None:
        given = larger_share(found, total, size, confidence=0.95)
        return None if given is None else (given.low - less, given.high - less)

    return required_sample_size(limits, total, ceiling, what="samples asked about")


def more_games(point: PointPlayed, ceiling: float) -> RequiredSamples:
    """Games that would settle the success of a point: more by its rates, of each kind as many."""
    tpr, tnr, adv = point.tpr, point.tnr, point.adv

    def limits(times: int) -> tuple[float, float] | None:
        now, then = (
            counted_balanced_accuracy(k * tpr.hits, k * tpr.total, k * tnr.hits, k * tnr.total)
            for k in (1, times)
        )
        same = abs(now.low - adv.low) < 1e-6 and abs(now.high - adv.high) < 1e-6
        return (then.low, then.high) if same else None

    return required_sample_size(limits, 1, ceiling, what="games", each=tpr.total + tnr.total)


def more_seeds(
    value: float, further: Interval, seeds: int, ceiling: float
) -> RequiredSamples | None:
    """Seeds that would settle the limit for further runs; None where the runs show no spread.

    Args:
        value: The mean over runs.
        further: Its limits.
        seeds: Runs that there are.
        ceiling: The most that is allowed.
    """
    missing = FEWEST_RUNS - seeds
    if missing > 0:
        text = f"{plural(missing, 'more seed')} would give an interval over further runs"
        return RequiredSamples(what="seeds", count=missing, then=None, text=text)
    if further.low is None or further.high is None:
        return None
    found, sure = Limited(value, further.low, further.high), level(further.method) or 0.95
    limits = partial(larger_mean, found, seeds, confidence=sure)
    return required_sample_size(limits, seeds, ceiling, what="seeds", most=MOST_SEEDS)


def _refused(rate: float, nonmembers: int) -> RequiredSamples | None:
    """A rate that the sample is too small for must first be seen."""
    missing = n_needed(rate) - nonmembers
    if missing <= 0:
        return None
    return RequiredSamples(
        what="non-members",
        count=missing,
        then=None,
        text=f"{missing:,} more non-members are needed to see this rate at all",
    )
