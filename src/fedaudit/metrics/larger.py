"""Limits that larger samples would give if the figure itself stayed what it is."""

import math
from typing import NamedTuple

from scipy.special import expit, logit, stdtrit

from fedaudit.errors import BadInput
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import Interval, clopper_pearson, mean_over_seeds

_SAME = 1e-6


class Limited(NamedTuple):
    """A figure with the limits that one sample gave.

    Attributes:
        value: The figure.
        low: Its lower limit.
        high: Its upper limit.
    """

    value: float
    low: float
    high: float


def larger_share(found: Limited, total: int, larger: int, *, confidence: float) -> Interval | None:
    """Limits of a counted share among more trials.

    Args:
        found: The share and its limits.
        total: Trials behind them.
        larger: Trials asked about, at least as many.
        confidence: Of the limits, in (0, 1).

    Returns:
        Clopper-Pearson limits; None where those found are not of this kind and count.
    """
    if total < 1 or not _same(
        clopper_pearson(found.value * total, total, confidence=confidence), found
    ):
        return None
    return clopper_pearson(found.value * larger, larger, confidence=confidence)


def larger_auc(found: Limited, pairs: int, larger: int, *, confidence: float) -> Interval | None:
    """Limits of an AUC where both sides have ``larger / pairs`` times as many samples.

    DeLong's variance is a part from members over their number and one from non-members over
    theirs, so that it shrinks by that factor if both sides grow alike. How it is divided between
    the sides does not follow from an interval: more samples of one side alone are not judged.

    Args:
        found: The AUC and its limits, as ``auc_interval`` gives them.
        pairs: Samples of the smaller side.
        larger: The same of the larger sample.
        confidence: Of the limits, in (0, 1).

    Returns:
        Limits of the same kind; None where those found are of neither kind.
    """
    exact = larger_share(found, pairs, larger, confidence=confidence)
    if exact is not None:
        return exact
    if not 0 < found.low <= found.value <= found.high < 1:
        return None
    middle = logit(found.value)
    below, above = middle - logit(found.low), logit(found.high) - middle
    if not math.isclose(below, above, rel_tol=_SAME, abs_tol=_SAME):
        return None
    reach = above * math.sqrt(pairs / larger)
    return Interval(float(expit(middle - reach)), float(expit(middle + reach)))


def larger_balanced(
    found: Limited, fpr: float, sizes: tuple[int, int], times: int, *, confidence: float
) -> Interval | None:
    """Limits of a balanced accuracy where both sides have ``times`` as many samples.

    Args:
        found: The balanced accuracy and its limits.
        fpr: False-positive rate that was reached.
        sizes: Members and non-members behind it.
        times: How many times as many are asked about, a whole number, so that counts stay whole.
        confidence: Of the limits, in (0, 1).

    Returns:
        The limits of ``counted_balanced_accuracy``; None where those found are not these.
    """
    members, nonmembers = sizes
    if min(sizes) < 1:
        return None
    caught = round((2 * found.value - 1 + fpr) * members)
    cleared = round((1 - fpr) * nonmembers)
    if not (0 <= caught <= members and 0 <= cleared <= nonmembers):
        return None
    now, then = (
        counted_balanced_accuracy(
            k * caught, k * members, k * cleared, k * nonmembers, confidence=confidence
        )
        for k in (1, times)
    )
    return Interval(then.low, then.high) if _same(Interval(now.low, now.high), found) else None


def larger_mean(found: Limited, seeds: int, larger: int, *, confidence: float) -> Interval | None:
    """Limits of a mean over more seeds, with the spread between seeds that these limits show.

    Args:
        found: The mean and its limits by Student's t; one of them may be cut at an end.
        seeds: Runs behind it, at least two.
        larger: Runs asked about.
        confidence: Of the limits, in (0, 1).

    Returns:
        The limits; None where those found show no spread.

    Raises:
        BadInput: Fewer than two runs.
    """
    if min(seeds, larger) < 2:
        raise BadInput(f"a mean over seeds needs two of them, got {seeds} and {larger}")
    reach = max(found.high - found.value, found.value - found.low)
    spread = reach * math.sqrt(seeds) / float(stdtrit(seeds - 1, 1 - (1 - confidence) / 2))
    # As many runs with just this mean and this spread: half above, half below, an odd one between.
    half, odd = divmod(larger, 2)
    apart = spread if odd else spread * math.sqrt((larger - 1) / larger)
    runs = [found.value - apart] * half + [found.value] * odd + [found.value + apart] * half
    mean = mean_over_seeds(runs, confidence=confidence)
    return None if mean.low is None or mean.high is None else Interval(mean.low, mean.high)


def _same(limits: Interval, found: Limited) -> bool:
    return abs(limits.low - found.low) <= _SAME and abs(limits.high - found.high) <= _SAME
