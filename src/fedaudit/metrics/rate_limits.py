"""Confidence limits of the true-positive rate at a false-positive rate.

The threshold that has this false-positive rate is unknown. It is estimated from the non-members,
with an error. The limits of ``rate_limits`` include this error. The limits of
``limits_at_threshold`` do not: they treat the threshold as fixed and are valid for it only.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    Limited,
    Limits,
    LimitsAt,
    LimitsByError,
    clopper_pearson,
    lower_limit,
    percent,
    require_confidence,
    upper_limit,
)
from fedaudit.metrics.roc import SplitScores, allowed_false_positives, halves, sides, tpr_at_fpr


@dataclass(frozen=True)
class Proportion(Limited[float]):
    """Proportion of samples with its exact (Clopper-Pearson) interval.

    Attributes:
        hits: Number of samples with the property, out of ``total``.
        total: Number of all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.share(9, 10).value
        0.9
    """

    hits: int
    total: int


class CalibratedTpr(NamedTuple):
    """Rates at a threshold that was chosen on other samples.

    Attributes:
        tpr: True-positive rate with its interval.
        fpr: False-positive rate on the evaluation half, with its interval.
        threshold: A sample is flagged if its score is above this value.
        method: How the intervals and the threshold were computed.

    Examples:
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> from fedaudit.metrics import calibrated_tpr
        >>> calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0)).tpr.value
        1.0
    """

    tpr: Proportion
    fpr: Proportion
    threshold: float
    method: str


def share(count: int, total: int, *, confidence: float = 0.95) -> Proportion:
    """Compute a proportion with its Clopper-Pearson interval.

    Args:
        count: Number of samples with the property, out of ``total``.
        total: Number of samples, at least 1.
        confidence: Two-sided confidence, in (0, 1).

    Returns:
        The proportion with its limits and counts.

    Raises:
        BadInput: ``total`` is 0, or below ``count``.

    Examples:
        >>> import fedaudit as fa
        >>> counted = fa.metrics.share(9, 10)
        >>> counted.value, round(counted.low, 3), round(counted.high, 3)
        (0.9, 0.555, 0.997)
    """
    low, high = clopper_pearson(count, total, confidence=confidence)
    return Proportion(count / total, low, high, count, total)


def n_needed(fpr: float) -> int:
    """Compute the fewest non-members at which a false-positive rate allows one false positive.

    Args:
        fpr: False-positive rate, in (0, 1].

    Returns:
        Number of non-members.

    Raises:
        BadInput: The rate is not in (0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.n_needed(0.01)
        100
    """
    if not 0 < fpr <= 1:
        raise BadInput(f"the false-positive rate must be in (0, 1], got {fpr}")
    fewest = max(1, math.ceil(1 / fpr) - 1)
    return fewest if 1 / fewest <= fpr else fewest + 1


def inconclusive(fpr: float, n_nonmembers: int) -> str | None:
    """Return why there are too few non-members for a false-positive rate, or None if enough.

    Args:
        fpr: False-positive rate, in (0, 1].
        n_nonmembers: Number of non-members.

    Returns:
        A text with the number of missing non-members, or None if there are enough.

    Raises:
        BadInput: The rate is not in (0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.inconclusive(0.01, n_nonmembers=60)
        'inconclusive: needs 40 more non-members'
    """
    missing = n_needed(fpr) - n_nonmembers
    return f"inconclusive: needs {missing} more non-members" if missing > 0 else None


def n_to_certify(fpr: float, false_positives: int = 0, *, confidence: float = 0.95) -> int:
    """Compute the fewest non-members that certify a false-positive rate.

    A rate is certified if the upper one-sided Clopper-Pearson limit of the false-positive rate, at
    the given number of false positives, is at most ``fpr``.

    Args:
        fpr: False-positive rate, in (0, 1).
        false_positives: Number of non-members that score above the threshold.
        confidence: Confidence of the limit, in (0, 1).

    Returns:
        Number of non-members.

    Raises:
        BadInput: The rate is not in (0, 1).

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.n_to_certify(0.01), fa.metrics.n_to_certify(0.01, false_positives=2)
        (299, 628)
    """
    if not 0 < fpr < 1:
        raise BadInput(f"the false-positive rate to certify must be between 0 and 1, got {fpr}")
    low, high = false_positives, 2 * max(false_positives, n_needed(fpr))
    while upper_limit(false_positives, high, confidence=confidence) > fpr:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = upper_limit(false_positives, middle, confidence=confidence) <= fpr
        low, high = (low, middle) if enough else (middle, high)
    return high


def true_fpr_range(fpr: float, n_nonmembers: int, *, confidence: float = 0.95) -> ConfidenceLimits:
    """Compute the range of the true false-positive rate at an empirical threshold.

    A threshold just above the (k+1)-th best of n non-members has a true false-positive rate
    distributed as Beta(k + 1, n - k), whatever the scores' distribution (ties make it lower).

    Args:
        fpr: The empirical false-positive rate at the threshold, in [0, 1].
        n_nonmembers: Number of non-members on which the threshold was set.
        confidence: Probability that the true rate lies in the range, in (0, 1).

    Raises:
        BadInput: The rate is out of range, or there are no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> low, high = fa.metrics.true_fpr_range(0.01, n_nonmembers=1000)
        >>> round(low, 4), round(high, 4)
        (0.0055, 0.0183)
    """
    require_confidence(confidence)
    if n_nonmembers < 1:
        raise BadInput(f"setting a threshold needs at least 1 non-member, got {n_nonmembers}")
    allowed = allowed_false_positives(fpr, n_nonmembers)
    if allowed == n_nonmembers:
        return ConfidenceLimits(1.0, 1.0)
    tail = (1 - confidence) / 2
    low, high = sp.special.betaincinv(allowed + 1, n_nonmembers - allowed, [tail, 1 - tail])
    return ConfidenceLimits(float(low), float(high))


def calibrated_tpr(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    fpr: float,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> CalibratedTpr:
    """Compute the true-positive rate on one half of the samples, at a threshold set on the other.

    Use this function for claims about one threshold. The threshold is the lowest score of a
    calibration non-member that keeps the *expected* false-positive rate on other non-members at or
    below ``fpr`` (split conformal). It can therefore allow one false positive fewer than the
    threshold with the same empirical rate.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        fpr: Largest expected false-positive rate, in (0, 1).
        rng: Draws the halves.
        confidence: Confidence of each of the two intervals, in (0, 1).

    Raises:
        BadInput: Too few non-members for this rate ("inconclusive: needs N more"), or bad
            scores.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> rates = fa.metrics.calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0))
        >>> rates.tpr.value, round(rates.tpr.low, 3)
        (1.0, 0.832)
    """
    split = sides(scores, is_member)
    if not 0 < fpr < 1:
        raise BadInput(f"the false-positive rate must be between 0 and 1, got {fpr}")
    missing = 2 * (n_needed(fpr) - 1) - len(split.nonmembers)
    if missing > 0:
        raise BadInput(
            f"inconclusive: needs {missing} more non-members, got {len(split.nonmembers)}; half of "
            f"them set the threshold for a false-positive rate of {percent(fpr)}; audit more "
            "non-members or choose a higher rate"
        )
    calibration, evaluation = halves(split, rng=rng)
    rank = allowed_false_positives(fpr, len(calibration.nonmembers) + 1)
    threshold = float(np.sort(calibration.nonmembers)[-rank])
    tpr, realised = (
        share(int((side > threshold).sum()), len(side), confidence=confidence)
        for side in evaluation
    )
    method = f"Clopper-Pearson {percent(confidence)}, threshold from the other half"
    return CalibratedTpr(tpr, realised, threshold, method)


RATE_METHOD = "order statistics and Clopper-Pearson"
"""Name of the method of a rate's limits, to which the confidence is appended."""

# The error of a limit is divided between the threshold and the fraction of members above it. Any
# division that does not depend on scores gives valid limits. The division used here minimises the
# expected width of the interval, averaged over binormal ROC curves with these separations.
_SEPARATIONS = (0.5, 1.0, 1.5, 2.5)
_LEAST_WEIGHT = 1 / 16
_WEIGHTS = tuple(_LEAST_WEIGHT * 2.0**step for step in range(10))
"""Candidates, 1/16 to 32, for the least ratio of the members' error to the threshold's error."""
_REFERENCE_ERROR = 0.025
"""One-sided error at which the candidates are compared; that of a two-sided limit of 95 %."""
_LARGE = 10_000
"""Numbers of samples from this size on are rounded to two digits before the comparison."""


@dataclass(frozen=True, kw_only=True)
class RateLimits(Limits[float]):
    """Limits of the true-positive rate at a false-positive rate.

    If there are too few non-members to bound the threshold, the lower limit is 0.

    Attributes:
        needs: Additional non-members needed for a lower limit above 0; 0 if there are enough.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.rate_limits([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.01).needs
        372
    """

    needs: int


class ThresholdBound(NamedTuple):
    """Non-member whose score bounds the threshold, and the error that remains for the members.

    Attributes:
        rank: Rank of the non-member; the largest score has rank 1. For a lower limit, a rank of 0
            means that no member is counted. For an upper limit, a rank above the number of
            non-members means that all members are counted.
        error: One-sided error of the limit of the fraction of members.
    """

    rank: int
    error: float


def rate_limits(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> RateLimits:
    """Compute two-sided limits of the true-positive rate at a false-positive rate.

    Among thresholds that flag at most a fraction ``fpr`` of the population of non-members, consider
    the one that flags the largest fraction of the population of members. The limits are for this
    fraction. Equal scores are flagged together. Members and non-members must be independent draws.
    Their distributions may have any shape and need not be continuous.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: The false-positive rate, in (0, 1].
        confidence: Two-sided confidence, in (0, 1); each side has half of the error.

    Raises:
        BadInput: Lengths differ, a score is NaN, there are no members or no non-members, or ``fpr``
            or ``confidence`` is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits = fa.metrics.rate_limits(scores, is_member, 0.1)
        >>> round(limits.low, 3), round(limits.high, 3)
        (0.097, 0.694)

    Source: Wilks, Determination of sample sizes for setting tolerance limits, 1941: the number of
        the n non-members above a threshold with true rate a is binomial (n, a), so the order
        statistics of their scores bound the threshold. Clopper and Pearson 1934 for the members
        above each bound. The errors of both steps are added.
    """
    require_confidence(confidence)
    one_sided = 1 - (1 - confidence) / 2
    split = sides(scores, is_member)
    low, high = (
        limit(split, fpr, confidence=one_sided) for limit in (_lower_of_sides, _upper_of_sides)
    )
    missing = n_to_bound(fpr, confidence=one_sided) - len(split.nonmembers)
    method = f"{RATE_METHOD} {percent(confidence)}"
    return RateLimits(low=low, high=high, method=method, needs=max(0, missing))


def limits_at_threshold(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> ConfidenceLimits:
    """Compute two-sided limits of the fraction of members above the empirical threshold.

    The limits treat the threshold as fixed, although it was estimated from the same non-members.
    They do not include the error of its false-positive rate (see ``true_fpr_range``). The
    probability that they contain the true-positive rate at ``fpr`` is far below ``confidence``.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: Largest false-positive rate that the threshold was allowed, in [0, 1].
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, there are no members or no non-members, or ``fpr``
            or ``confidence`` is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> low, high = fa.metrics.limits_at_threshold(scores, is_member, 0.1)
        >>> round(low, 3), round(high, 3)
        (0.179, 0.446)

    Source: Clopper and Pearson 1934.
    """
    members = len(sides(scores, is_member).members)
    flagged = tpr_at_fpr(scores, is_member, fpr).true_positives
    return clopper_pearson(flagged, members, confidence=confidence)


def lower_rate_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided lower limit of the true-positive rate at a false-positive rate.

    The rate lies below the limit with probability at most 1 - confidence. Arguments and errors are
    those of :func:`rate_limits`, with a one-sided confidence.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(fa.metrics.lower_rate_limit(scores, is_member, 0.1), 3)
        0.105
    """
    return _lower_of_sides(sides(scores, is_member), fpr, confidence=confidence)


def upper_rate_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided upper limit of the true-positive rate at a false-positive rate.

    The rate lies above the limit with probability at most 1 - confidence. Arguments and errors are
    those of :func:`rate_limits`, with a one-sided confidence.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(fa.metrics.upper_rate_limit(scores, is_member, 0.1), 3)
        0.681
    """
    return _upper_of_sides(sides(scores, is_member), fpr, confidence=confidence)


def limits_of_rate(scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float) -> LimitsAt:
    """Return a function that computes limits of the true-positive rate at any error probabilities.

    Pass the functions of several runs to ``held_together``. Arguments and errors are those of
    :func:`rate_limits`. A rate out of range is reported when the returned function is called.

    Examples:
        >>> from fedaudit.metrics import limits_of_rate
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits_of_rate(scores, is_member, 0.1)(np.array([0.025, 0.05])).low.round(3).tolist()
        [0.097, 0.105]
    """
    split = sides(scores, is_member)
    members, nonmembers = (np.sort(side) for side in split)
    sizes = (len(members), len(nonmembers))

    def limits_at(errors: Float[np.ndarray, " errors"]) -> LimitsByError:
        if fpr == 1:
            return LimitsByError(low=np.ones(len(errors)), high=np.ones(len(errors)))
        lower, upper = _bounds_by_error(fpr, *sizes, tuple(errors.tolist()))
        above = sizes[0] - np.searchsorted(members, _scores_at(nonmembers, lower, np.inf), "right")
        level = sizes[0] - np.searchsorted(members, _scores_at(nonmembers, upper, -np.inf), "left")
        # The value 0.5 keeps the parameters positive. Such entries are replaced by 0 or 1 below.
        low = sp.special.betaincinv(np.maximum(above, 0.5), sizes[0] - above + 1, lower[:, 1])
        high = sp.special.betaincinv(level + 1, np.maximum(sizes[0] - level, 0.5), 1 - upper[:, 1])
        is_positive = (lower[:, 0] > 0) & (above > 0)
        is_full = (upper[:, 0] > sizes[1]) | (level == sizes[0])
        return LimitsByError(low=np.where(is_positive, low, 0.0), high=np.where(is_full, 1.0, high))

    return limits_at


def _scores_at(
    nonmembers: Float[np.ndarray, " nonmembers"],
    bounds: Float[np.ndarray, "errors 2"],
    default: float,
) -> Float[np.ndarray, " errors"]:
    """Return the score of the non-member at each rank, or the default if the rank does not exist.

    Non-members are sorted in ascending order.
    """
    rank = bounds[:, 0].astype(np.int64)
    exists = (rank > 0) & (rank <= len(nonmembers))
    index = len(nonmembers) - np.where(exists, rank, 1)
    return np.where(exists, nonmembers[index], default)


@lru_cache(maxsize=1024)
def _bounds_by_error(
    fpr: float, members: int, nonmembers: int, errors: tuple[float, ...]
) -> tuple[Float[np.ndarray, "errors 2"], Float[np.ndarray, "errors 2"]]:
    """Return the lower and the upper bound of the threshold at each error, as (rank, error) rows.

    They depend only on sizes, so attacks on the same samples find them in the cache.
    """
    lower, upper = (
        np.array([bound_of(fpr, members, nonmembers, confidence=1 - error) for error in errors])
        for bound_of in (lower_bound, upper_bound)
    )
    return lower, upper


def n_to_bound(fpr: float, *, confidence: float) -> int:
    """Compute the fewest non-members at which a true-positive rate can have a lower limit above 0.

    With fewer non-members, the true threshold for this false-positive rate may be above all of
    their scores.

    Args:
        fpr: The false-positive rate, in (0, 1].
        confidence: Confidence of the one-sided limit, in (0, 1).

    Raises:
        BadInput: An argument is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.n_to_bound(0.01, confidence=0.975)
        374
    """
    _require(fpr, confidence)
    if fpr == 1:
        return 1
    error = (1 - confidence) / (1 + _LEAST_WEIGHT)
    # The factor keeps an exact quotient from being rounded up to the next whole number.
    return max(1, math.ceil(math.log(error) / math.log1p(-fpr) * (1 - 1e-12)))


def lower_bound(fpr: float, members: int, nonmembers: int, *, confidence: float) -> ThresholdBound:
    """Return the rank of the non-member above which members are counted for a lower limit.

    The true fraction of members above this non-member is at most the true-positive rate, unless the
    non-member's score has a false-positive rate above ``fpr``. The probability of this exception is
    that of at most ``rank - 1`` successes in ``nonmembers`` trials with probability ``fpr``. The
    rank depends only on the sizes, never on scores.

    Args:
        fpr: The false-positive rate, in (0, 1).
        members: Number of members.
        nonmembers: Number of non-members.
        confidence: Confidence of the one-sided limit, in (0, 1).
    """
    _require(fpr, confidence)
    weight = _weight(fpr, members, nonmembers, upper=False)
    return _divide_error(fpr, nonmembers, 1 - confidence, weight)


def upper_bound(fpr: float, members: int, nonmembers: int, *, confidence: float) -> ThresholdBound:
    """Return the rank of the non-member at or above which members are counted for an upper limit.

    The arguments are those of :func:`lower_bound`.
    """
    _require(fpr, confidence)
    weight = _weight(fpr, members, nonmembers, upper=True)
    from_below = _divide_error(1 - fpr, nonmembers, 1 - confidence, weight)
    return ThresholdBound(nonmembers + 1 - from_below.rank, from_below.error)


def _lower_of_sides(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _require(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = map(len, split)
    bound = lower_bound(fpr, members, nonmembers, confidence=confidence)
    if bound.rank == 0:
        return 0.0
    above = int((split.members > _nonmember_score(split, bound.rank)).sum())
    return lower_limit(above, members, confidence=1 - bound.error)


def _upper_of_sides(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _require(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = map(len, split)
    bound = upper_bound(fpr, members, nonmembers, confidence=confidence)
    if bound.rank > nonmembers:
        return 1.0
    above = int((split.members >= _nonmember_score(split, bound.rank)).sum())
    return upper_limit(above, members, confidence=1 - bound.error)


def _nonmember_score(split: SplitScores, rank: int) -> float:
    index = len(split.nonmembers) - rank
    return float(np.partition(split.nonmembers, index)[index])


def _require(fpr: float, confidence: float) -> None:
    require_confidence(confidence)
    if not 0 < fpr <= 1:
        raise BadInput(f"the false-positive rate of these limits is in (0, 1], got {fpr}")


def _divide_error(probability: float, trials: int, error: float, weight: float) -> ThresholdBound:
    """Divide an error between a threshold and the fraction of members above it.

    The rank is the largest one for which the members' error is at least ``weight`` times the
    threshold's error. The members' error is also at most what the next rank would leave for them.
    Both errors then never decrease as the total grows, so limits at a higher confidence are never
    narrower. Below rank 1 there is no limit, so at rank 1 the smallest weight is sufficient.
    """

    def needed(rank: int) -> float:
        return _at_most(rank - 1, trials, probability) * (1 + _weight_at(rank, weight))

    rank = bisect_right(range(1, trials + 1), error, key=needed)
    remaining = error - _at_most(rank - 1, trials, probability)
    if rank < trials:
        of_next = _weight_at(rank + 1, weight) * _at_most(rank, trials, probability)
        remaining = min(remaining, of_next)
    return ThresholdBound(rank, remaining)


def _weight_at(rank: int, weight: float) -> float:
    return _LEAST_WEIGHT if rank == 1 else weight


def _at_most(count: int, trials: int, probability: float) -> float:
    """Return the binomial probability of at most ``count`` successes."""
    if count < 0:
        return 0.0
    if count >= trials:
        return 1.0
    return float(sp.special.betainc(trials - count, count + 1, 1 - probability))


def _weight(fpr: float, members: int, nonmembers: int, *, upper: bool) -> float:
    # A search for a sample size tries many large sizes. Rounding them makes the cache effective.
    sizes = (n if n < _LARGE else round(n, 2 - len(str(n))) for n in (members, nonmembers))
    return _best_weight(fpr, *sizes, upper)


@lru_cache(maxsize=4096)
def _best_weight(fpr: float, members: int, nonmembers: int, upper: bool) -> float:
    return min(_WEIGHTS, key=partial(_expected_width, fpr, members, nonmembers, upper))


def _expected_width(fpr: float, members: int, nonmembers: int, upper: bool, weight: float) -> float:
    """Return the mean distance of a limit from the true rate for normally distributed scores.

    The distance is measured on the variance-stabilised (arcsine) scale.
    """
    probability = 1 - fpr if upper else fpr
    rank, error = _divide_error(probability, nonmembers, _REFERENCE_ERROR, weight)
    # The score of the non-member at this rank has this false-positive rate on average.
    realised = rank / (nonmembers + 1)
    quantile = sp.special.ndtri(1 - realised if upper else realised)
    separations = np.array(_SEPARATIONS)
    rates, expected = (
        sp.special.ndtr(separations + sp.special.ndtri(fpr)),
        members * sp.special.ndtr(separations + quantile),
    )
    limit = upper_limit if upper else lower_limit
    limits = [limit(float(count), members, confidence=1 - error) for count in expected]
    return float(np.abs(_stabilised(np.array(limits)) - _stabilised(rates)).mean())


def _stabilised(rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.arcsin(np.sqrt(rates)))
