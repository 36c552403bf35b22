"""Statistical power: what this sample size can detect, and what limits a larger one would give."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from statistics import NormalDist

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    Limited,
    clopper_pearson,
    lower_limit,
    mean_of_units,
    upper_limit,
)
from fedaudit.metrics.rate_limits import lower_rank, upper_rank
from fedaudit.metrics.roc import allowed_false_positives

_DRAWS = 10_000
_PRECISION = 2e-4


def smallest_auc(
    strata: Sequence[tuple[int, int]],
    *,
    tests: int,
    rng: np.random.Generator,
    runs: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float | None:
    """Compute the smallest AUC that the corrected test of an attack finds with some probability.

    The test is the one-sided Mann-Whitney test within strata, combined over runs as Fisher does,
    at the error that Holm's correction leaves to the first of so many tests. That is the strictest
    one: once another test of the family is significant, smaller leaks are found too.

    Args:
        strata: Members and non-members of each stratum, such as a client.
        tests: Size of the family of tests, at least 1.
        rng: Simulates several runs.
        runs: Independent runs of these sizes, at least 1.
        alpha: Family-wise error, in (0, 1).
        power: Probability of finding the leak, in (0, 1).

    Returns:
        An AUC in (0.5, 1]; None if not even perfectly separated members would be found.

    Raises:
        BadInput: A number out of range, or no stratum with members and non-members.

    Source: Hanley and McNeil 1982, The meaning and use of the area under a receiver operating
        characteristic (ROC) curve, for the variance; Fisher 1925, section 21.1; Holm 1979.
    Differs: The test statistic is taken as normal, on the scale of its exact variance by chance.
        Over several runs the probability is simulated.
    """
    pairs = sum(members * others for members, others in strata)
    if not (pairs and tests >= 1 and runs >= 1 and 0 < alpha < 1 and 0 < power < 1):
        raise BadInput(
            "a leak is found by at least one test of members against non-members, with an error "
            f"and a power between 0 and 1; got {list(strata)[:3]}, {tests} tests, {runs} runs, "
            f"alpha={alpha}, power={power}"
        )
    drawn = rng.standard_normal((_DRAWS, runs)) if runs > 1 else None
    finds = partial(_power, strata, alpha / tests, drawn)
    if finds(1.0) < power:
        return None
    low, high = 0.5, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if finds(middle) < power else (low, middle)
    return high


def _power(
    strata: Sequence[tuple[int, int]],
    error: float,
    drawn: Float[np.ndarray, "draws runs"] | None,
    auc: float,
) -> float:
    """The probability that an AUC is found at an error."""
    scale = _variance_by_chance(strata) ** 0.5
    mean, spread = (auc - 0.5) / scale, _variance(strata, auc) ** 0.5 / scale
    if drawn is None:
        least = -NormalDist().inv_cdf(error)
        return NormalDist().cdf((mean - least) / spread) if spread else float(mean > least)
    statistic = -2 * sp.special.log_ndtr(-(mean + spread * drawn)).sum(1)
    return float((statistic > sp.special.chdtri(2 * drawn.shape[1], error)).mean())


def _variance_by_chance(strata: Sequence[tuple[int, int]]) -> float:
    """The variance of the AUC over pairs within strata if membership is shuffled within them."""
    pairs = sum(m * n for m, n in strata)
    return sum(m * n * (m + n + 1) / 12 for m, n in strata) / pairs**2


def _variance(strata: Sequence[tuple[int, int]], auc: float) -> float:
    """The same variance at an AUC, of scores with exponential distributions."""
    pairs = sum(m * n for m, n in strata)
    of_members = auc / (2 - auc) - auc**2
    of_others = 2 * auc**2 / (1 + auc) - auc**2
    each = (
        m * n * (auc * (1 - auc) + (m - 1) * of_members + (n - 1) * of_others) for m, n in strata
    )
    return max(sum(each), 0.0) / pairs**2


_SAME = 1e-6


def larger_share(
    found: Limited[float], total: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
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


def larger_rate(
    found: Limited[float],
    fpr: float,
    sizes: tuple[int, int],
    times: float | int,
    *,
    confidence: float,
) -> ConfidenceLimits | None:
    """Limits of a true-positive rate where both sides have ``times`` as many samples.

    The limits found tell how many members lie above the two non-members that they were counted
    from. With the rate itself these are points of the receiver operating characteristic, which is
    taken to run straight between them; larger samples count from places between them.

    Args:
        found: The rate and its limits, as ``rate_limits`` gives them.
        fpr: The false-positive rate, in (0, 1].
        sizes: Members and non-members behind it.
        times: How many times as many are asked about, at least 1.
        confidence: Of the limits, in (0, 1).

    Returns:
        Limits of the same kind; None where those found are of another.
    """
    members, nonmembers = sizes
    if fpr == 1:
        return ConfidenceLimits(1.0, 1.0)
    one_sided = 1 - (1 - confidence) / 2
    lower, upper = (
        rank(fpr, members, nonmembers, confidence=one_sided) for rank in (lower_rank, upper_rank)
    )
    above = _counted(found.low, members, lower.error, lower_limit) if lower.place else 0
    none_above = upper.place > nonmembers
    reaching = members if none_above else _counted(found.high, members, upper.error, upper_limit)
    if above is None or reaching is None:
        return None
    allowed = allowed_false_positives(fpr, nonmembers)
    places = np.array([0, lower.place, allowed + 1, upper.place, nonmembers + 1])
    rates = [0.0, above / members, found.value, reaching / members, 1.0]
    many = [max(1, round(times * size)) for size in sizes]
    low, high = 0.0, 1.0
    for rank, limit in ((lower_rank, lower_limit), (upper_rank, upper_limit)):
        at = rank(fpr, *many, confidence=one_sided)
        if not 0 < at.place <= many[1]:
            continue
        rate = float(np.interp(at.place / (many[1] + 1), places / (nonmembers + 1), rates))
        bound = limit(rate * many[0], many[0], confidence=1 - at.error)
        low, high = (bound, high) if rank is lower_rank else (low, bound)
    return ConfidenceLimits(low, high)


def _counted(bound: float, total: int, error: float, limit: Callable[..., float]) -> int | None:
    """Of so many, how many give this limit; None where no count does."""

    def at(count: int) -> float:
        return limit(count, total, confidence=1 - error)

    count = bisect_left(range(total + 1), bound - _SAME, key=at)
    return count if count <= total and abs(at(count) - bound) <= _SAME else None


def larger_auc(
    found: Limited[float], pairs: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
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
    if pairs < 1:
        return None
    exact = larger_share(found, pairs, larger, confidence=confidence)
    if exact is not None:
        return exact
    if not 0 < found.low <= found.value <= found.high < 1:
        return None
    middle = sp.special.logit(found.value)
    below, above = middle - sp.special.logit(found.low), sp.special.logit(found.high) - middle
    if not math.isclose(below, above, rel_tol=_SAME, abs_tol=_SAME):
        return None
    reach = above * math.sqrt(pairs / larger)
    return ConfidenceLimits(
        float(sp.special.expit(middle - reach)), float(sp.special.expit(middle + reach))
    )


def larger_balanced(
    found: Limited[float], fpr: float, sizes: tuple[int, int], times: int, *, confidence: float
) -> ConfidenceLimits | None:
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
    return (
        ConfidenceLimits(then.low, then.high)
        if _same(ConfidenceLimits(now.low, now.high), found)
        else None
    )


def larger_mean(
    found: Limited[float], seeds: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
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
    spread = (
        reach * math.sqrt(seeds) / float(sp.special.stdtrit(seeds - 1, 1 - (1 - confidence) / 2))
    )
    # As many runs with just this mean and this spread: half above, half below, an odd one between.
    half, odd = divmod(larger, 2)
    apart = spread if odd else spread * math.sqrt((larger - 1) / larger)
    runs = [found.value - apart] * half + [found.value] * odd + [found.value + apart] * half
    mean = mean_of_units(runs, units="seeds", confidence=confidence)
    return None if mean.low is None or mean.high is None else ConfidenceLimits(mean.low, mean.high)


def _same(limits: ConfidenceLimits, found: Limited[float]) -> bool:
    return abs(limits.low - found.low) <= _SAME and abs(limits.high - found.high) <= _SAME
