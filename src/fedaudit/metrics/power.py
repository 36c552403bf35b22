"""Statistical power: the smallest detectable AUC and rate, and confidence limits from more samples.

The functions ``larger_...`` predict the limits of an estimate if it were computed from more
samples. Their arguments are the estimate with its two-sided limits, and its sample size. A further
argument is the larger sample size, or the factor ``times`` by which both numbers of members and
non-members increase. For a balanced accuracy, this factor is a whole number, so that counts remain
whole numbers. The functions use the same interval method as the estimate. They return None if its
limits were computed by another method.
"""

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
    EstimateWithLimits,
    clopper_pearson,
    clopper_pearson_lower,
    clopper_pearson_upper,
    mean_of_units,
)
from fedaudit.metrics.rate_limits import ThresholdBound, lower_bound, upper_bound
from fedaudit.metrics.roc import allowed_false_positives
from fedaudit.metrics.significance import tpr_p_values

_SIMULATED_STUDIES = 10_000
"""Number of simulated studies from which the power over several runs is computed."""
_PRECISION = 2e-4
"""Largest error of the smallest detectable AUC or rate."""


def smallest_auc(
    strata: Sequence[tuple[int, int]],
    *,
    tests: int,
    rng: np.random.Generator,
    runs: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float | None:
    """Compute the smallest AUC that the corrected test of an attack detects with a given power.

    The test is the one-sided Mann-Whitney test within strata, combined over runs by Fisher's
    method. Its significance level is that of the first step of Holm's correction for the family of
    tests, which is the strictest. If another test of the family is significant, smaller leaks are
    detected too.

    Args:
        strata: Numbers of members and of non-members in each stratum, such as a client.
        tests: Number of tests in the family, at least 1.
        rng: Draws the simulated runs if ``runs`` is above 1.
        runs: Number of independent runs, each with these strata, at least 1.
        alpha: Family-wise error rate, in (0, 1).
        power: Probability of detecting the leak, in (0, 1).

    Returns:
        An AUC in (0.5, 1]. None if even an AUC of 1 would be detected with a lower probability.

    Raises:
        BadInput: A number out of range, or no stratum with both members and non-members.

    Source: Hanley and McNeil 1982, The meaning and use of the area under a receiver operating
        characteristic (ROC) curve, for the variance; Fisher 1925, section 21.1; Holm 1979.
    Differs: The test statistic, divided by its exact standard deviation under the null hypothesis,
        is approximated as normal. For several runs, the power is simulated.
    """
    pairs = sum(members * nonmembers for members, nonmembers in strata)
    if not (pairs and tests >= 1 and runs >= 1 and 0 < alpha < 1 and 0 < power < 1):
        raise BadInput(
            "detecting a leak requires at least one stratum with both members and non-members, at "
            "least one test and run, and alpha and power between 0 and 1; got "
            f"{list(strata)[:3]}, {tests} tests, {runs} runs, alpha={alpha}, power={power}"
        )
    noise = rng.standard_normal((_SIMULATED_STUDIES, runs)) if runs > 1 else None
    power_at = partial(_power, strata, alpha / tests, noise)
    if power_at(1.0) < power:
        return None
    low, high = 0.5, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if power_at(middle) < power:
            low = middle
        else:
            high = middle
    return high


def _power(
    strata: Sequence[tuple[int, int]],
    significance_level: float,
    noise: Float[np.ndarray, "draws runs"] | None,
    auc: float,
) -> float:
    """Return the probability that a test at this significance level detects an AUC."""
    pairs = sum(m * n for m, n in strata)
    # The standard deviation of the stratified AUC if membership is shuffled within strata.
    null_std = (sum(m * n * (m + n + 1) / 12 for m, n in strata) / pairs**2) ** 0.5
    mean, std = (auc - 0.5) / null_std, _variance(strata, auc) ** 0.5 / null_std
    if noise is None:
        critical_value = -NormalDist().inv_cdf(significance_level)
        if not std:
            return float(mean > critical_value)
        return NormalDist().cdf((mean - critical_value) / std)
    fisher_statistic = -2 * sp.special.log_ndtr(-(mean + std * noise)).sum(1)
    critical_value = sp.special.chdtri(2 * noise.shape[1], significance_level)
    return float((fisher_statistic > critical_value).mean())


def _variance(strata: Sequence[tuple[int, int]], auc: float) -> float:
    """Return the variance of the stratified AUC for exponentially distributed scores."""
    pairs = sum(m * n for m, n in strata)
    # Covariances of two pairs with the same non-member, and with the same member.
    same_nonmember = auc / (2 - auc) - auc**2
    same_member = 2 * auc**2 / (1 + auc) - auc**2
    terms = (
        m * n * (auc * (1 - auc) + (m - 1) * same_nonmember + (n - 1) * same_member)
        for m, n in strata
    )
    return max(sum(terms), 0.0) / pairs**2


def smallest_tpr(
    members: int,
    nonmembers: int,
    fpr: float,
    *,
    tests: int,
    rng: np.random.Generator,
    runs: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float | None:
    """Compute the smallest true-positive rate that the corrected test detects with a given power.

    The test is that of :func:`fedaudit.metrics.significance.tpr_p_value`, combined over runs by
    Fisher's method, at the level of the first step of Holm's correction.

    Args:
        members: Number of members in each run, at least 1.
        nonmembers: Number of non-members in each run, at least 1.
        fpr: False-positive rate, in (0, 1).
        tests: Number of tests in the family, at least 1.
        rng: Draws the simulated runs.
        runs: Number of independent runs, at least 1.
        alpha: Family-wise error rate, in (0, 1).
        power: Probability of detecting the leak, in (0, 1).

    Returns:
        A rate in (``fpr``, 1]. None if even a rate of 1 would be detected with a lower probability.

    Differs: The rate is that at the threshold which the non-members determine, so the variation of
        the threshold is not simulated.
    """
    allowed = allowed_false_positives(fpr, nonmembers)
    p_values = tpr_p_values(np.arange(members + 1), members, allowed=allowed, nonmembers=nonmembers)
    # A p-value may be 0 in floating point.
    statistics = -2 * np.log(np.maximum(p_values, 1e-300))
    critical_value = sp.special.chdtri(2 * runs, alpha / tests)
    draws = rng.random((_SIMULATED_STUDIES, runs))

    def power_at(rate: float) -> float:
        cumulative = sp.special.bdtr(np.arange(members), members, rate)
        counts = np.searchsorted(cumulative, draws)
        return float((statistics[counts].sum(1) > critical_value).mean())

    if power_at(1.0) < power:
        return None
    low, high = fpr, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if power_at(middle) < power else (low, middle)
    return high


_TOLERANCE = 1e-6
"""Largest difference between two limits that count as equal."""


def larger_proportion(
    estimate: EstimateWithLimits[float], total: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
    """Compute the Clopper-Pearson limits that a proportion would have with more trials."""
    if total < 1 or not _same_limits(
        clopper_pearson(estimate.value * total, total, confidence=confidence), estimate
    ):
        return None
    return clopper_pearson(estimate.value * larger, larger, confidence=confidence)


def larger_rate(
    estimate: EstimateWithLimits[float],
    fpr: float,
    sizes: tuple[int, int],
    times: float | int,
    *,
    confidence: float,
) -> ConfidenceLimits | None:
    """Compute the limits that a true-positive rate would have with ``times`` as many samples.

    Each limit is computed from the number of members above an order statistic of the non-members.
    This number is recovered by inverting the limit. The two numbers and the rate are three points
    of the ROC curve, which is interpolated linearly between them. The limits for larger samples use
    other points of this curve.

    Args:
        estimate: The rate and its limits, as ``tpr_limits`` computes them.
        fpr: The false-positive rate, in (0, 1].
        sizes: Number of members and number of non-members from which the estimate was computed.
        times: Factor by which both numbers increase, at least 1.
        confidence: Two-sided confidence of the limits, in (0, 1).
    """
    members, nonmembers = sizes
    if fpr == 1:
        return ConfidenceLimits(1.0, 1.0)
    one_sided = 1 - (1 - confidence) / 2
    lower = lower_bound(fpr, members, nonmembers, confidence=one_sided)
    upper = upper_bound(fpr, members, nonmembers, confidence=one_sided)
    # A rank outside of 1 to the number of non-members means that the limit is trivial.
    above_lower: int | None = 0
    above_upper: int | None = members
    if lower.rank > 0:
        above_lower = _count_with_limit(estimate.low, members, lower.error, clopper_pearson_lower)
    if upper.rank <= nonmembers:
        above_upper = _count_with_limit(estimate.high, members, upper.error, clopper_pearson_upper)
    if above_lower is None or above_upper is None:
        return None
    allowed = allowed_false_positives(fpr, nonmembers)
    ranks = np.array([0, lower.rank, allowed + 1, upper.rank, nonmembers + 1])
    fprs = ranks / (nonmembers + 1)
    rates = [0.0, above_lower / members, estimate.value, above_upper / members, 1.0]
    n_members, n_nonmembers = (max(1, round(times * size)) for size in sizes)

    def limit_for_larger(bound: ThresholdBound, limit: Callable[..., float]) -> float:
        rate = float(np.interp(bound.rank / (n_nonmembers + 1), fprs, rates))
        return limit(rate * n_members, n_members, confidence=1 - bound.error)

    lower = lower_bound(fpr, n_members, n_nonmembers, confidence=one_sided)
    upper = upper_bound(fpr, n_members, n_nonmembers, confidence=one_sided)
    return ConfidenceLimits(
        limit_for_larger(lower, clopper_pearson_lower) if lower.rank > 0 else 0.0,
        limit_for_larger(upper, clopper_pearson_upper) if upper.rank <= n_nonmembers else 1.0,
    )


def _count_with_limit(
    limit: float, total: int, error: float, limit_of: Callable[..., float]
) -> int | None:
    """Return the number of successes in ``total`` trials that has this limit, or None."""

    def limit_at(count: int) -> float:
        return limit_of(count, total, confidence=1 - error)

    count = bisect_left(range(total + 1), limit - _TOLERANCE, key=limit_at)
    return count if count <= total and abs(limit_at(count) - limit) <= _TOLERANCE else None


def larger_auc(
    estimate: EstimateWithLimits[float], smaller_group: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
    """Compute the limits that an AUC would have with more members and more non-members.

    Both numbers are multiplied by ``larger / smaller_group``. DeLong's variance is the sum of a
    term that is inversely proportional to the number of members and a term that is inversely
    proportional to the number of non-members. It is therefore divided by this factor. The interval
    does not determine each term, so the effect of increasing only one number cannot be predicted.

    Args:
        estimate: The AUC and its limits.
        smaller_group: The number of members or of non-members, whichever is smaller.
        larger: The size to which this number increases.
        confidence: Two-sided confidence of the limits, in (0, 1).
    """
    if smaller_group < 1:
        return None
    # An AUC near 0 or 1 has Clopper-Pearson limits on disjoint pairs instead of DeLong's.
    exact = larger_proportion(estimate, smaller_group, larger, confidence=confidence)
    if exact is not None:
        return exact
    if not 0 < estimate.low <= estimate.value <= estimate.high < 1:
        return None
    center = sp.special.logit(estimate.value)
    below, above = center - sp.special.logit(estimate.low), sp.special.logit(estimate.high) - center
    # DeLong's limits are symmetric on the logit scale.
    if not math.isclose(below, above, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        return None
    half_width = above * math.sqrt(smaller_group / larger)
    low, high = sp.special.expit(center - half_width), sp.special.expit(center + half_width)
    return ConfidenceLimits(float(low), float(high))


def larger_balanced(
    estimate: EstimateWithLimits[float],
    fpr: float,
    sizes: tuple[int, int],
    times: int,
    *,
    confidence: float,
) -> ConfidenceLimits | None:
    """Compute the limits that a balanced accuracy would have with ``times`` as many samples.

    The limits are those of ``counted_balanced_accuracy``. ``fpr`` is the false-positive rate of the
    estimate, from which its counts are recovered.
    """
    members, nonmembers = sizes
    if min(sizes) < 1:
        return None
    true_positives = round((2 * estimate.value - 1 + fpr) * members)
    true_negatives = round((1 - fpr) * nonmembers)
    if not (0 <= true_positives <= members and 0 <= true_negatives <= nonmembers):
        return None
    current, larger = (
        counted_balanced_accuracy(
            k * true_positives,
            k * members,
            k * true_negatives,
            k * nonmembers,
            confidence=confidence,
        )
        for k in (1, times)
    )
    is_same = _same_limits(ConfidenceLimits(current.low, current.high), estimate)
    return ConfidenceLimits(larger.low, larger.high) if is_same else None


def larger_mean(
    estimate: EstimateWithLimits[float], seeds: int, larger: int, *, confidence: float
) -> ConfidenceLimits | None:
    """Compute the limits that a mean over seeds would have with more seeds of equal variance.

    Returns:
        The limits; None if all seeds have the same value, which gives no interval.

    Raises:
        BadInput: Fewer than two seeds.
    """
    if min(seeds, larger) < 2:
        raise BadInput(f"an interval over seeds needs at least 2 seeds, got {seeds} and {larger}")
    half_width = max(estimate.high - estimate.value, estimate.value - estimate.low)
    quantile = float(sp.special.stdtrit(seeds - 1, 1 - (1 - confidence) / 2))
    std = half_width * math.sqrt(seeds) / quantile
    # Artificial values with this mean and standard deviation: half of them are below the mean and
    # half above. If the number is odd, one value equals the mean.
    half, odd = divmod(larger, 2)
    step = std if odd else std * math.sqrt((larger - 1) / larger)
    value = estimate.value
    runs = [value - step] * half + [value] * odd + [value + step] * half
    mean = mean_of_units(runs, units="seeds", confidence=confidence)
    return None if mean.low is None or mean.high is None else ConfidenceLimits(mean.low, mean.high)


def _same_limits(limits: ConfidenceLimits, estimate: EstimateWithLimits[float]) -> bool:
    return (
        abs(limits.low - estimate.low) <= _TOLERANCE
        and abs(limits.high - estimate.high) <= _TOLERANCE
    )
