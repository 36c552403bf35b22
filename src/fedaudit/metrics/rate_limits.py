"""Confidence limits of the true-positive rate at a false-positive rate.

The threshold with this false-positive rate is estimated from the non-members. The limits of
``tpr_limits`` include the error of this estimate. The limits of ``limits_at_threshold`` treat the
threshold as fixed.
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
    EstimateWithLimits,
    Limits,
    LimitsAt,
    LimitsByError,
    clopper_pearson,
    clopper_pearson_lower,
    clopper_pearson_upper,
    format_percent,
    require_confidence,
)
from fedaudit.metrics.roc import (
    SplitScores,
    allowed_false_positives,
    split_halves,
    split_scores,
    tpr_at_fpr,
)


@dataclass(frozen=True)
class Proportion(EstimateWithLimits[float]):
    """Proportion of samples with its exact (Clopper-Pearson) interval.

    Attributes:
        hits: Number of samples with the property, out of ``total``.
        total: Number of all samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.proportion(9, 10).value
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


def proportion(count: int, total: int, *, confidence: float = 0.95) -> Proportion:
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
        >>> counted = fa.metrics.proportion(9, 10)
        >>> counted.value, round(counted.low, 3), round(counted.high, 3)
        (0.9, 0.555, 0.997)
    """
    low, high = clopper_pearson(count, total, confidence=confidence)
    return Proportion(count / total, low, high, count, total)


def nonmembers_for_one_false_positive(fpr: float) -> int:
    """Compute the fewest non-members at which a false-positive rate allows one false positive.

    Args:
        fpr: False-positive rate, in (0, 1].

    Raises:
        BadInput: The rate is not in (0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.nonmembers_for_one_false_positive(0.01)
        100
    """
    if not 0 < fpr <= 1:
        raise BadInput(f"the false-positive rate must be in (0, 1], got {fpr}")
    n_nonmembers = max(1, math.ceil(1 / fpr) - 1)
    return n_nonmembers if 1 / n_nonmembers <= fpr else n_nonmembers + 1


def nonmember_shortage(fpr: float, n_nonmembers: int) -> str | None:
    """Describe how many non-members are missing for a false-positive rate; None if enough.

    Args:
        fpr: False-positive rate, in (0, 1].
        n_nonmembers: Number of non-members.

    Raises:
        BadInput: The rate is not in (0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.nonmember_shortage(0.01, n_nonmembers=60)
        'inconclusive: needs 40 more non-members'
    """
    n_missing = nonmembers_for_one_false_positive(fpr) - n_nonmembers
    return f"inconclusive: needs {n_missing} more non-members" if n_missing > 0 else None


def nonmembers_to_certify_fpr(
    fpr: float, false_positives: int = 0, *, confidence: float = 0.95
) -> int:
    """Compute the fewest non-members that certify a false-positive rate.

    A rate is certified if the upper one-sided Clopper-Pearson limit of the false-positive rate, at
    this number of false positives, is at most ``fpr``.

    Args:
        fpr: False-positive rate, in (0, 1).
        false_positives: Number of non-members that score above the threshold.
        confidence: Confidence of the limit, in (0, 1).

    Raises:
        BadInput: The rate is not in (0, 1).

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.nonmembers_to_certify_fpr(0.01, false_positives=2)
        628
    """
    if not 0 < fpr < 1:
        raise BadInput(f"the false-positive rate to certify must be between 0 and 1, got {fpr}")
    low, high = false_positives, 2 * max(false_positives, nonmembers_for_one_false_positive(fpr))
    while clopper_pearson_upper(false_positives, high, confidence=confidence) > fpr:
        low, high = high, 2 * high
    # Bisection: ``high`` non-members are enough, ``low`` are not.
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson_upper(false_positives, middle, confidence=confidence) <= fpr:
            high = middle
        else:
            low = middle
    return high


def true_fpr_range(fpr: float, n_nonmembers: int, *, confidence: float = 0.95) -> ConfidenceLimits:
    """Compute the range of the true false-positive rate at an empirical threshold.

    A threshold just above the (k+1)-th highest score of n non-members has a true false-positive
    rate distributed as Beta(k + 1, n - k) for any continuous distribution of scores. Ties make the
    rate lower.

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

    Use this function for claims about one threshold. The threshold is a score of a non-member in
    the calibration half. It is the lowest such score at which the *expected* false-positive rate on
    new non-members is at most ``fpr`` (split conformal prediction). It may therefore allow one
    false positive fewer than the threshold whose empirical rate is ``fpr``.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        fpr: Largest expected false-positive rate, in (0, 1).
        rng: Draws the halves.
        confidence: Confidence of each of the two intervals, in (0, 1).

    Raises:
        BadInput: There are too few non-members for this rate, or scores are invalid.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> rates = fa.metrics.calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0))
        >>> rates.tpr.value, round(rates.tpr.low, 3)
        (1.0, 0.832)
    """
    split = split_scores(scores, is_member)
    if not 0 < fpr < 1:
        raise BadInput(f"the false-positive rate must be between 0 and 1, got {fpr}")
    missing = 2 * (nonmembers_for_one_false_positive(fpr) - 1) - len(split.nonmembers)
    if missing > 0:
        raise BadInput(
            f"inconclusive: needs {missing} more non-members, got {len(split.nonmembers)}; half of "
            f"them set the threshold for a false-positive rate of {format_percent(fpr)}; audit "
            "more non-members or choose a higher rate"
        )
    calibration, evaluation = split_halves(split, rng=rng)
    rank = allowed_false_positives(fpr, len(calibration.nonmembers) + 1)
    threshold = float(np.sort(calibration.nonmembers)[-rank])
    tpr, realised_fpr = (
        proportion(int((scores > threshold).sum()), len(scores), confidence=confidence)
        for scores in evaluation
    )
    method = f"Clopper-Pearson {format_percent(confidence)}, threshold from the other half"
    return CalibratedTpr(tpr, realised_fpr, threshold, method)


RATE_METHOD = "order statistics and Clopper-Pearson"
"""Name of the method for a rate's limits, followed by the confidence."""

# The error probability of a limit is divided between the threshold and the fraction of members
# above it. Any division that does not depend on scores gives valid limits. The division used here
# minimises the expected width of the interval, averaged over binormal ROC curves. The mean score of
# members is above that of non-members by one of these numbers of standard deviations.
_SEPARATIONS = (0.5, 1.0, 1.5, 2.5)
_SMALLEST_RATIO = 1 / 16
_RATIOS = tuple(_SMALLEST_RATIO * 2.0**step for step in range(10))
"""Candidates, 1/16 to 32, for the smallest ratio of the members' error to the threshold's error."""
_REFERENCE_ERROR = 0.025
"""One-sided error probability at which the candidates are compared; that of a two-sided limit of 95
%."""
_ROUNDED_FROM = 10_000
"""Numbers of samples of at least this size are rounded to two digits before the comparison."""


@dataclass(frozen=True, kw_only=True)
class TprLimits(Limits[float]):
    """Limits of the true-positive rate at a false-positive rate.

    If there are too few non-members to bound the threshold, the lower limit is 0.

    Attributes:
        needs: Additional non-members needed for a lower limit above 0; 0 if there are enough.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.tpr_limits([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.01).needs
        372
    """

    needs: int


class ThresholdBound(NamedTuple):
    """Non-member whose score bounds the threshold, and the error that remains for the members.

    Attributes:
        rank: Rank of the non-member; the largest score has rank 1. For a lower limit, a rank of 0
            means that no member is counted. For an upper limit, a rank above the number of
            non-members means that all members are counted.
        error: One-sided error probability of the limit of the fraction of members.
    """

    rank: int
    error: float


def tpr_limits(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> TprLimits:
    """Compute two-sided limits of the true-positive rate at a false-positive rate.

    Consider all thresholds that flag at most a fraction ``fpr`` of the population of non-members.
    The limits are for the largest fraction of the population of members that such a threshold
    flags. Equal scores are flagged together. Members and non-members must be independent draws.
    Their distributions may have any shape and need not be continuous.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: The false-positive rate, in (0, 1].
        confidence: Two-sided confidence, in (0, 1); each limit has half of the error probability.

    Raises:
        BadInput: Lengths differ, a score is NaN, there are no members or no non-members, or ``fpr``
            or ``confidence`` is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits = fa.metrics.tpr_limits(scores, is_member, 0.1)
        >>> round(limits.low, 3), round(limits.high, 3)
        (0.097, 0.694)

    Source: Wilks, Determination of sample sizes for setting tolerance limits, 1941: the number of
        the n non-members above a threshold with true rate a is binomial (n, a), so the order
        statistics of their scores bound the threshold. Clopper and Pearson 1934 for the members
        above each bound. The error probabilities of both steps are added.
    """
    require_confidence(confidence)
    one_sided = 1 - (1 - confidence) / 2
    split = split_scores(scores, is_member)
    missing = nonmembers_for_tpr_lower_limit(fpr, confidence=one_sided) - len(split.nonmembers)
    return TprLimits(
        low=_tpr_lower_limit(split, fpr, confidence=one_sided),
        high=_tpr_upper_limit(split, fpr, confidence=one_sided),
        method=f"{RATE_METHOD} {format_percent(confidence)}",
        needs=max(0, missing),
    )


def limits_at_threshold(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> ConfidenceLimits:
    """Compute two-sided limits of the fraction of members above the empirical threshold.

    The limits treat the threshold as fixed, although it was estimated from the same non-members.
    They do not include the error of its false-positive rate (see :func:`true_fpr_range`). They
    contain the true-positive rate at ``fpr`` with a probability far below ``confidence``.

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
    members = len(split_scores(scores, is_member).members)
    flagged = tpr_at_fpr(scores, is_member, fpr).true_positives
    return clopper_pearson(flagged, members, confidence=confidence)


def tpr_lower_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided lower limit of the true-positive rate at a false-positive rate.

    The rate lies below the limit with probability at most 1 - confidence. Arguments and errors are
    those of :func:`tpr_limits`, with a one-sided confidence.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(fa.metrics.tpr_lower_limit(scores, is_member, 0.1), 3)
        0.105
    """
    return _tpr_lower_limit(split_scores(scores, is_member), fpr, confidence=confidence)


def tpr_upper_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided upper limit of the true-positive rate at a false-positive rate.

    The rate lies above the limit with probability at most 1 - confidence. Arguments and errors are
    those of :func:`tpr_limits`, with a one-sided confidence.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(fa.metrics.tpr_upper_limit(scores, is_member, 0.1), 3)
        0.681
    """
    return _tpr_upper_limit(split_scores(scores, is_member), fpr, confidence=confidence)


def tpr_limits_function(scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float) -> LimitsAt:
    """Return a function that computes limits of the true-positive rate at any error probabilities.

    Pass the functions of several runs to :func:`mean_limits_by_p_values`. Arguments and errors are
    those of :func:`tpr_limits`. An error about a rate out of range is raised when the returned
    function is called.

    Examples:
        >>> from fedaudit.metrics import tpr_limits_function
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits_at = tpr_limits_function(scores, is_member, 0.1)
        >>> limits_at(np.array([0.025, 0.05])).low.round(3).tolist()
        [0.097, 0.105]
    """
    split = split_scores(scores, is_member)
    members, nonmembers = np.sort(split.members), np.sort(split.nonmembers)
    n_members, n_nonmembers = len(members), len(nonmembers)

    def limits_at(errors: Float[np.ndarray, " errors"]) -> LimitsByError:
        if fpr == 1:
            return LimitsByError(low=np.ones(len(errors)), high=np.ones(len(errors)))
        lower, upper = _bounds_by_error(fpr, n_members, n_nonmembers, tuple(errors.tolist()))
        above_lower = n_members - np.searchsorted(
            members, _scores_at(nonmembers, lower, np.inf), side="right"
        )
        above_upper = n_members - np.searchsorted(
            members, _scores_at(nonmembers, upper, -np.inf), side="left"
        )
        # The value 0.5 keeps the parameters positive. Such entries are replaced by 0 or 1 below.
        low = sp.special.betaincinv(
            np.maximum(above_lower, 0.5), n_members - above_lower + 1, lower[:, 1]
        )
        high = sp.special.betaincinv(
            above_upper + 1, np.maximum(n_members - above_upper, 0.5), 1 - upper[:, 1]
        )
        is_positive = (lower[:, 0] > 0) & (above_lower > 0)
        is_one = (upper[:, 0] > n_nonmembers) | (above_upper == n_members)
        return LimitsByError(low=np.where(is_positive, low, 0.0), high=np.where(is_one, 1.0, high))

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

    The bounds depend only on numbers of samples, so all attacks on the same samples share them.
    """
    lower = [lower_bound(fpr, members, nonmembers, confidence=1 - error) for error in errors]
    upper = [upper_bound(fpr, members, nonmembers, confidence=1 - error) for error in errors]
    return np.array(lower), np.array(upper)


def nonmembers_for_tpr_lower_limit(fpr: float, *, confidence: float) -> int:
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
        >>> fa.metrics.nonmembers_for_tpr_lower_limit(0.01, confidence=0.975)
        374
    """
    _raise_if_out_of_range(fpr, confidence)
    if fpr == 1:
        return 1
    error = (1 - confidence) / (1 + _SMALLEST_RATIO)
    # The factor keeps an exact quotient from being rounded up to the next whole number.
    return max(1, math.ceil(math.log(error) / math.log1p(-fpr) * (1 - 1e-12)))


def lower_bound(fpr: float, members: int, nonmembers: int, *, confidence: float) -> ThresholdBound:
    """Return the rank of the non-member above which members are counted for a lower limit.

    The true fraction of members above this non-member is at most the true-positive rate, unless the
    false-positive rate at the non-member's score is above ``fpr``. The probability of this
    exception is that of at most ``rank - 1`` successes in ``nonmembers`` trials with probability
    ``fpr``. The rank depends only on numbers of samples, never on scores.

    Args:
        fpr: The false-positive rate, in (0, 1).
        members: Number of members.
        nonmembers: Number of non-members.
        confidence: Confidence of the one-sided limit, in (0, 1).
    """
    _raise_if_out_of_range(fpr, confidence)
    ratio = _best_ratio(fpr, members, nonmembers, upper=False)
    return _divide_error(fpr, nonmembers, 1 - confidence, ratio)


def upper_bound(fpr: float, members: int, nonmembers: int, *, confidence: float) -> ThresholdBound:
    """Return the rank of the non-member at or above which members are counted for an upper limit.

    The arguments are those of :func:`lower_bound`.
    """
    _raise_if_out_of_range(fpr, confidence)
    ratio = _best_ratio(fpr, members, nonmembers, upper=True)
    # This rank counts from the smallest score.
    bound = _divide_error(1 - fpr, nonmembers, 1 - confidence, ratio)
    return ThresholdBound(nonmembers + 1 - bound.rank, bound.error)


def _tpr_lower_limit(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _raise_if_out_of_range(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = len(split.members), len(split.nonmembers)
    bound = lower_bound(fpr, members, nonmembers, confidence=confidence)
    if bound.rank == 0:
        return 0.0
    n_above = int((split.members > _nonmember_score(split, bound.rank)).sum())
    return clopper_pearson_lower(n_above, members, confidence=1 - bound.error)


def _tpr_upper_limit(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _raise_if_out_of_range(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = len(split.members), len(split.nonmembers)
    bound = upper_bound(fpr, members, nonmembers, confidence=confidence)
    if bound.rank > nonmembers:
        return 1.0
    n_above = int((split.members >= _nonmember_score(split, bound.rank)).sum())
    return clopper_pearson_upper(n_above, members, confidence=1 - bound.error)


def _nonmember_score(split: SplitScores, rank: int) -> float:
    index = len(split.nonmembers) - rank
    return float(np.partition(split.nonmembers, index)[index])


def _raise_if_out_of_range(fpr: float, confidence: float) -> None:
    require_confidence(confidence)
    if not 0 < fpr <= 1:
        raise BadInput(f"the false-positive rate of these limits is in (0, 1], got {fpr}")


def _divide_error(probability: float, trials: int, error: float, ratio: float) -> ThresholdBound:
    """Divide an error between a threshold and the fraction of members above it.

    The result has the largest rank at which the members' error is at least ``ratio`` times the
    threshold's error. The members' error is also at most that ratio of the next rank's error at the
    threshold. Both errors then never decrease as the total error grows, so limits at a higher
    confidence are never narrower. There is no limit below rank 1, so at rank 1 the smallest ratio
    is sufficient.
    """

    def required_error(rank: int) -> float:
        threshold_error = _binomial_cdf(rank - 1, trials, probability)
        return threshold_error * (1 + _ratio_at(rank, ratio))

    rank = bisect_right(range(1, trials + 1), error, key=required_error)
    members_error = error - _binomial_cdf(rank - 1, trials, probability)
    if rank < trials:
        largest = _ratio_at(rank + 1, ratio) * _binomial_cdf(rank, trials, probability)
        members_error = min(members_error, largest)
    return ThresholdBound(rank, members_error)


def _ratio_at(rank: int, ratio: float) -> float:
    return _SMALLEST_RATIO if rank == 1 else ratio


def _binomial_cdf(count: int, trials: int, probability: float) -> float:
    if count < 0:
        return 0.0
    if count >= trials:
        return 1.0
    return float(sp.special.betainc(trials - count, count + 1, 1 - probability))


def _best_ratio(fpr: float, members: int, nonmembers: int, *, upper: bool) -> float:
    """Return the ratio of errors with the smallest expected width, for rounded sample sizes."""
    # A search for a sample size tries many large sizes. Rounding them makes the cache effective.
    return _best_ratio_of_sizes(fpr, _rounded_size(members), _rounded_size(nonmembers), upper)


def _rounded_size(samples: int) -> int:
    return samples if samples < _ROUNDED_FROM else round(samples, 2 - len(str(samples)))


@lru_cache(maxsize=4096)
def _best_ratio_of_sizes(fpr: float, members: int, nonmembers: int, upper: bool) -> float:
    return min(_RATIOS, key=partial(_expected_width, fpr, members, nonmembers, upper))


def _expected_width(fpr: float, members: int, nonmembers: int, upper: bool, ratio: float) -> float:
    """Return the mean distance of a limit from the true rate for normally distributed scores.

    The distance is measured on the variance-stabilised (arcsine) scale.
    """
    probability = 1 - fpr if upper else fpr
    rank, error = _divide_error(probability, nonmembers, _REFERENCE_ERROR, ratio)
    # The mean false-positive rate at the score of the non-member with this rank.
    realised_fpr = rank / (nonmembers + 1)
    quantile = sp.special.ndtri(1 - realised_fpr if upper else realised_fpr)
    separations = np.array(_SEPARATIONS)
    true_rates = sp.special.ndtr(separations + sp.special.ndtri(fpr))
    expected_counts = members * sp.special.ndtr(separations + quantile)
    limit = clopper_pearson_upper if upper else clopper_pearson_lower
    limits = [limit(float(count), members, confidence=1 - error) for count in expected_counts]
    return float(np.abs(np.arcsin(np.sqrt(limits)) - np.arcsin(np.sqrt(true_rates))).mean())
