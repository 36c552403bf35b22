"""Confidence limits of the true-positive rate at a false-positive rate.

The threshold with that false-positive rate is unknown: it is estimated from the non-members, with
an error. ``rate_limits`` include this error and hold for the rate itself. ``limits_at_threshold``
take the threshold as fixed and hold for that threshold only.
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
class Share(Limited[float]):
    """Share of samples with its exact interval.

    Attributes:
        hits: Number of samples counted, out of ``total``.
        total: Number of samples.

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
        fpr: False-positive rate that was reached, with its interval.
        threshold: A sample is flagged if it scores above this.
        method: How intervals and threshold were computed.

    Examples:
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> from fedaudit.metrics import calibrated_tpr
        >>> calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0)).tpr.value
        1.0
    """

    tpr: Share
    fpr: Share
    threshold: float
    method: str


def share(count: int, total: int, *, confidence: float = 0.95) -> Share:
    """Compute a share with its Clopper-Pearson interval.

    Args:
        count: Successes among ``total``.
        total: Number of samples, at least 1.
        confidence: Two-sided confidence, in (0, 1).

    Returns:
        The share with its limits and counts.

    Raises:
        BadInput: ``total`` is 0, or below ``count``.

    Examples:
        >>> import fedaudit as fa
        >>> counted = fa.metrics.share(9, 10)
        >>> counted.value, round(counted.low, 3), round(counted.high, 3)
        (0.9, 0.555, 0.997)
    """
    low, high = clopper_pearson(count, total, confidence=confidence)
    return Share(count / total, low, high, count, total)


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
        raise BadInput(f"a false-positive rate to judge at is a share in (0, 1], got {fpr}")
    fewest = max(1, math.ceil(1 / fpr) - 1)
    return fewest if 1 / fewest <= fpr else fewest + 1


def inconclusive(fpr: float, n_nonmembers: int) -> str | None:
    """Return the reason why a rate at this false-positive rate is refused, or None if it is not.

    Args:
        fpr: False-positive rate, in (0, 1].
        n_nonmembers: Number of non-members.

    Returns:
        The reason in words, or None.

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

    Certified means that the one-sided Clopper-Pearson limit, at the given number of false
    positives, is at most ``fpr``.

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
        raise BadInput(f"a false-positive rate to certify is between 0 and 1, got {fpr}")
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
        confidence: Probability of the range, in (0, 1).

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
        raise BadInput(f"a threshold needs non-members to be set on, got {n_nonmembers}")
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
    """Compute the true-positive rate on one half of the samples, at a threshold from the other.

    Use it for claims. The threshold is the lowest score of a calibration non-member that keeps the
    *expected* false-positive rate on fresh non-members at or below ``fpr`` (split conformal). It
    therefore allows one false positive fewer than the empirical rate would.

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
        raise BadInput(f"a false-positive rate to aim at is between 0 and 1, got {fpr}")
    missing = 2 * (n_needed(fpr) - 1) - len(split.nonmembers)
    if missing > 0:
        raise BadInput(
            f"inconclusive: needs {missing} more non-members, got {len(split.nonmembers)}; half "
            f"of them set a threshold for a false-positive rate of {percent(fpr)}, or choose a "
            "higher rate"
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
"""Method of limits of a rate, to which the confidence is appended."""

# The error of a limit is divided between the threshold and the share of members above it. Any
# division that does not depend on scores gives valid limits. The one that is used minimises the
# expected width for binormal ROC curves with these distances between the means.
_SEPARATIONS = (0.5, 1.0, 1.5, 2.5)
_LEAST_WEIGHT = 1 / 16
_WEIGHTS = tuple(_LEAST_WEIGHT * 2.0**step for step in range(10))
"""Candidates, 1/16 to 32, for the least ratio of the members' error to the threshold's."""
_REFERENCE_ERROR = 0.025
_LARGE = 10_000


@dataclass(frozen=True, kw_only=True)
class RateLimits(Limits[float]):
    """Limits of the true-positive rate at a false-positive rate.

    The lower limit is 0 if there are too few non-members to bound the threshold.

    Attributes:
        needs: Additional non-members needed for a lower limit above 0; 0 if there are enough.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.rate_limits([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.01).needs
        372
    """

    needs: int


class Rank(NamedTuple):
    """Non-member whose score bounds the threshold, and the error that is left for the members.

    Attributes:
        place: Rank of the non-member; the largest score has rank 1. A rank of 0 (for a lower
            limit) means that no member is counted; a rank above the number of non-members (for an
            upper limit) means that all members are.
        error: One-sided error of the limit of the share of members.
    """

    place: int
    error: float


def rate_limits(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> RateLimits:
    """Compute two-sided limits of the true-positive rate at a false-positive rate.

    The limits bound the largest share of all members that a threshold flags if it flags at most a
    share ``fpr`` of all non-members. Equal scores are flagged together. Members and non-members are
    independent draws; nothing else is assumed, neither shape nor continuity.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: The false-positive rate, in (0, 1].
        confidence: Two-sided, in (0, 1); each side has half of the error.

    Raises:
        BadInput: Lengths differ, a score is NaN, a side is empty, or a share is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits = fa.metrics.rate_limits(scores, is_member, 0.1)
        >>> round(limits.low, 3), round(limits.high, 3)
        (0.097, 0.694)

    Source: the number of non-members above the threshold of a true rate a is binomial (n, a), so
        that their order statistics bound it (Wilks, Determination of sample sizes for setting
        tolerance limits, 1941); Clopper and Pearson 1934 at both bounds; errors added.
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
    """Compute two-sided limits of the share of members above the threshold that was used.

    The limits take the threshold as fixed, although it was estimated from the same non-members.
    They do not include the error of its false-positive rate (see ``true_fpr_range``). They contain
    the true-positive rate at ``fpr`` itself far less often than their confidence.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: Largest false-positive rate that the threshold was allowed, in [0, 1].
        confidence: Two-sided, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, a side is empty, or a share is out of range.

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
    """Return a function that computes limits of the true-positive rate at any errors.

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
        lower, upper = _ranks(fpr, *sizes, tuple(errors.tolist()))
        above = sizes[0] - np.searchsorted(members, _scores_at(nonmembers, lower, np.inf), "right")
        level = sizes[0] - np.searchsorted(members, _scores_at(nonmembers, upper, -np.inf), "left")
        # 0.5 keeps the parameters positive; these entries are replaced by 0 and 1 below.
        low = sp.special.betaincinv(np.maximum(above, 0.5), sizes[0] - above + 1, lower[:, 1])
        high = sp.special.betaincinv(level + 1, np.maximum(sizes[0] - level, 0.5), 1 - upper[:, 1])
        is_positive = (lower[:, 0] > 0) & (above > 0)
        is_full = (upper[:, 0] > sizes[1]) | (level == sizes[0])
        return LimitsByError(low=np.where(is_positive, low, 0.0), high=np.where(is_full, 1.0, high))

    return limits_at


def _scores_at(
    nonmembers: Float[np.ndarray, " nonmembers"],
    ranks: Float[np.ndarray, "errors 2"],
    default: float,
) -> Float[np.ndarray, " errors"]:
    """Return the score of the non-member at each rank, or the default if no non-member has it."""
    places = ranks[:, 0].astype(np.int64)
    exists = (places > 0) & (places <= len(nonmembers))
    index = len(nonmembers) - np.where(exists, places, 1)
    return np.where(exists, nonmembers[index], default)


@lru_cache(maxsize=1024)
def _ranks(
    fpr: float, members: int, nonmembers: int, errors: tuple[float, ...]
) -> tuple[Float[np.ndarray, "errors 2"], Float[np.ndarray, "errors 2"]]:
    """Return the ranks of both limits at each error; attacks on the same samples share them."""
    lower, upper = (
        np.array([rank(fpr, members, nonmembers, confidence=1 - error) for error in errors])
        for rank in (lower_rank, upper_rank)
    )
    return lower, upper


def n_to_bound(fpr: float, *, confidence: float) -> int:
    """Compute the fewest non-members with which a rate can have a lower limit above 0.

    With fewer, the threshold of this false-positive rate may lie above all of them.

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


def lower_rank(fpr: float, members: int, nonmembers: int, *, confidence: float) -> Rank:
    """Return the rank of the non-member above which members count for a lower limit.

    The true share of members above this non-member is at most the true-positive rate, unless the
    non-member's score has a false-positive rate above ``fpr``. The probability of that is the
    probability of at most ``place - 1`` successes in ``nonmembers`` trials of probability ``fpr``.
    The rank depends on the sizes alone, never on scores.

    Args:
        fpr: The false-positive rate, in (0, 1).
        members: Number of members.
        nonmembers: Number of non-members.
        confidence: Confidence of the one-sided limit, in (0, 1).
    """
    _require(fpr, confidence)
    weight = _weight(fpr, members, nonmembers, upper=False)
    return _step(fpr, nonmembers, 1 - confidence, weight)


def upper_rank(fpr: float, members: int, nonmembers: int, *, confidence: float) -> Rank:
    """Return the rank of the non-member at or above which members count for an upper limit.

    The arguments are those of :func:`lower_rank`.
    """
    _require(fpr, confidence)
    weight = _weight(fpr, members, nonmembers, upper=True)
    step = _step(1 - fpr, nonmembers, 1 - confidence, weight)
    return Rank(nonmembers + 1 - step.place, step.error)


def _lower_of_sides(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _require(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = map(len, split)
    rank = lower_rank(fpr, members, nonmembers, confidence=confidence)
    if rank.place == 0:
        return 0.0
    above = int((split.members > _nonmember_score(split, rank.place)).sum())
    return lower_limit(above, members, confidence=1 - rank.error)


def _upper_of_sides(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _require(fpr, confidence)
    if fpr == 1:
        return 1.0
    members, nonmembers = map(len, split)
    rank = upper_rank(fpr, members, nonmembers, confidence=confidence)
    if rank.place > nonmembers:
        return 1.0
    above = int((split.members >= _nonmember_score(split, rank.place)).sum())
    return upper_limit(above, members, confidence=1 - rank.error)


def _nonmember_score(split: SplitScores, place: int) -> float:
    index = len(split.nonmembers) - place
    return float(np.partition(split.nonmembers, index)[index])


def _require(fpr: float, confidence: float) -> None:
    require_confidence(confidence)
    if not 0 < fpr <= 1:
        raise BadInput(f"the false-positive rate of these limits is in (0, 1], got {fpr}")


def _step(share: float, trials: int, error: float, weight: float) -> Rank:
    """Return the largest rank that leaves the members their part of the error, and that part.

    The members' error is at least ``weight`` times that of the rank, and at most what the next rank
    would leave them. Both parts then only grow with the error, so that limits at a higher
    confidence are never narrower. At rank 1, without which there is no limit, the members' error
    may be as small as the least weight allows.
    """

    def needed(place: int) -> float:
        return _at_most(place - 1, trials, share) * (1 + _weight_at(place, weight))

    place = bisect_right(range(1, trials + 1), error, key=needed)
    remaining = error - _at_most(place - 1, trials, share)
    if place < trials:
        remaining = min(remaining, _weight_at(place + 1, weight) * _at_most(place, trials, share))
    return Rank(place, remaining)


def _weight_at(place: int, weight: float) -> float:
    return _LEAST_WEIGHT if place == 1 else weight


def _at_most(count: int, trials: int, share: float) -> float:
    """Return the probability of at most this many successes (binomial)."""
    if count < 0:
        return 0.0
    return (
        float(sp.special.betainc(trials - count, count + 1, 1 - share)) if count < trials else 1.0
    )


def _weight(fpr: float, members: int, nonmembers: int, *, upper: bool) -> float:
    # Searches for a sample size try many large ones: two digits make the cache effective.
    sizes = (n if n < _LARGE else round(n, 2 - len(str(n))) for n in (members, nonmembers))
    return _best_weight(fpr, *sizes, upper)


@lru_cache(maxsize=4096)
def _best_weight(fpr: float, members: int, nonmembers: int, upper: bool) -> float:
    return min(_WEIGHTS, key=partial(_expected_width, fpr, members, nonmembers, upper))


def _expected_width(fpr: float, members: int, nonmembers: int, upper: bool, weight: float) -> float:
    """Return the mean variance-stabilised distance of a limit from its rate for normal scores."""
    share = 1 - fpr if upper else fpr
    place, error = _step(share, nonmembers, _REFERENCE_ERROR, weight)
    # The score of the non-member at this rank has this false-positive rate on average.
    realised = place / (nonmembers + 1)
    quantile = sp.special.ndtri(1 - realised if upper else realised)
    separations = np.array(_SEPARATIONS)
    rates, expected = (
        sp.special.ndtr(separations + sp.special.ndtri(fpr)),
        members * sp.special.ndtr(separations + quantile),
    )
    limit = upper_limit if upper else lower_limit
    limits = [limit(float(count), members, confidence=1 - error) for count in expected]
    return float(np.abs(_stabilised(np.array(limits)) - _stabilised(rates)).mean())


def _stabilised(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.arcsin(np.sqrt(shares)))
