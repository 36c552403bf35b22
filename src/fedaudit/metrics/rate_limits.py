"""Confidence limits of the true-positive rate at a false-positive rate, threshold included.

The threshold that a false-positive rate stands for belongs to the population and is not known: it
is estimated from the non-members, and that estimate errs as well. Limits that take it as given
(``limits_at_threshold``) hold for the threshold that was used, and for no other; ``rate_limits``
hold for the rate itself.
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
    """Counted share with its exact interval.

    Attributes:
        hits: Samples counted, out of ``total``.
        total: All samples.

    Examples:
        >>> share(9, 10).value
        0.9
    """

    hits: int
    total: int


class CalibratedTpr(NamedTuple):
    """Rates at a threshold that was fixed on other samples.

    Attributes:
        tpr: True-positive rate with its interval.
        fpr: False-positive rate that was reached, with its interval.
        threshold: Samples are flagged when they score above this.
        method: How intervals and threshold were computed.

    Examples:
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0)).tpr.value
        1.0
    """

    tpr: Share
    fpr: Share
    threshold: float
    method: str


def share(count: int, total: int, *, confidence: float = 0.95) -> Share:
    """Compute a counted share with its Clopper-Pearson interval.

    Args:
        count: Number that is counted, at most ``total``.
        total: Number of all, at least 1.
        confidence: Confidence of the interval, in (0, 1).

    Returns:
        The share with its limits and counts.

    Raises:
        BadInput: A total of 0, or more counted than there are.

    Examples:
        >>> counted = share(9, 10)
        >>> counted.value, round(counted.low, 3), round(counted.high, 3)
        (0.9, 0.555, 0.997)
    """
    low, high = clopper_pearson(count, total, confidence=confidence)
    return Share(count / total, low, high, count, total)


def n_needed(fpr: float) -> int:
    """Compute the fewest non-members with which a false-positive rate allows one false positive.

    Args:
        fpr: False-positive rate, in (0, 1].

    Returns:
        Number of non-members.

    Raises:
        BadInput: The rate is not in (0, 1].

    Examples:
        >>> n_needed(0.01)
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
        >>> inconclusive(0.01, n_nonmembers=60)
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
        >>> n_to_certify(0.01), n_to_certify(0.01, false_positives=2)
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
        fpr: The empirical rate at which the threshold was set, on these non-members.
        n_nonmembers: Number of non-members on which the threshold was set.
        confidence: Probability of the range, in (0, 1).

    Raises:
        BadInput: The rate is no share, or there are no non-members.

    Examples:
        >>> low, high = true_fpr_range(0.01, n_nonmembers=1000)
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

    Use it for claims. The threshold is the lowest calibration non-member that keeps the *expected*
    false-positive rate on fresh non-members at or below ``fpr`` (split conformal), so that it
    allows one false positive fewer than the empirical rate would.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        fpr: False-positive rate aimed at, in (0, 1).
        rng: Draws the halves.
        confidence: Confidence of each of the two intervals, in (0, 1).

    Raises:
        BadInput: Too few non-members for this rate ("inconclusive: needs N more"), or bad
            scores.

    Examples:
        >>> import numpy as np
        >>> scores, is_member = np.arange(80), np.arange(80) >= 40
        >>> rates = calibrated_tpr(scores, is_member, 0.1, rng=np.random.default_rng(0))
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
"""How limits of a rate were made; the level follows."""

_LEAST_WEIGHT = 1 / 16
_WEIGHTS = tuple(_LEAST_WEIGHT * 2.0**step for step in range(10))
"""What the members' error may be at least, as a multiple of the threshold's: 1/16 to 32."""
_REFERENCE_ERROR = 0.025
_LARGE = 10_000
_SEPARATIONS = (0.5, 1.0, 1.5, 2.5)
"""Between unit normals: the curves that limits are made narrow for. They hold for any."""


@dataclass(frozen=True, kw_only=True)
class RateLimits(Limits[float]):
    """Limits of the true-positive rate at a false-positive rate.

    The lower limit is 0 if no threshold is certain to keep the false-positive rate.

    Attributes:
        needs: Non-members missing for a lower limit above 0; 0 if there are enough.

    Examples:
        >>> rate_limits([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.01).needs
        372
    """

    needs: int


class Rank(NamedTuple):
    """A non-member to count members from, and what error is left for the count.

    Attributes:
        place: The non-member's place, the best being 1. For a lower limit 0 stands for counting
            nobody; for an upper limit one more than there are non-members, for counting everybody.
        error: One-sided error of the limit of the counted share.
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
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits = rate_limits(scores, is_member, 0.1)
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

    The limits take the threshold as given, although the same non-members set it. They do not
    include the error of its false-positive rate (see ``true_fpr_range``). They contain the
    true-positive rate at ``fpr`` itself far less often than their confidence.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: Largest false-positive rate that the threshold was allowed, in [0, 1].
        confidence: Two-sided, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, a side is empty, or a share is out of range.

    Examples:
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> low, high = limits_at_threshold(scores, is_member, 0.1)
        >>> round(low, 3), round(high, 3)
        (0.179, 0.446)

    Source: Clopper and Pearson 1934.
    """
    members = len(sides(scores, is_member).members)
    found = tpr_at_fpr(scores, is_member, fpr).true_positives
    return clopper_pearson(found, members, confidence=confidence)


def lower_rate_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided lower limit of the true-positive rate at a false-positive rate.

    The rate lies below the limit with probability at most 1 - confidence.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: The false-positive rate, in (0, 1].
        confidence: One-sided, in (0, 1).

    Raises:
        BadInput: As ``rate_limits``.

    Examples:
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(lower_rate_limit(scores, is_member, 0.1), 3)
        0.105
    """
    return _lower_of_sides(sides(scores, is_member), fpr, confidence=confidence)


def upper_rate_limit(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float, *, confidence: float = 0.95
) -> float:
    """Compute a one-sided upper limit of the true-positive rate at a false-positive rate.

    The rate lies above the limit with probability at most 1 - confidence. Refusals are those of
    :func:`lower_rate_limit`.

    Args:
        scores: One score a sample, larger for likelier members.
        is_member: Whether each sample is a member.
        fpr: False-positive rate, in (0, 1).
        confidence: Confidence of the limit, in (0, 1).

    Returns:
        The limit, in [0, 1].

    Examples:
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> round(upper_rate_limit(scores, is_member, 0.1), 3)
        0.681
    """
    return _upper_of_sides(sides(scores, is_member), fpr, confidence=confidence)


def limits_of_rate(scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float) -> LimitsAt:
    """Return a function that gives limits of the true-positive rate at any errors.

    Pass the functions of several runs to ``held_together``.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        fpr: The false-positive rate, in (0, 1].

    Raises:
        BadInput: As ``rate_limits``; of the rate, once limits are asked for.

    Examples:
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> limits_of_rate(scores, is_member, 0.1)(np.array([0.025, 0.05])).low.round(3).tolist()
        [0.097, 0.105]
    """
    split = sides(scores, is_member)
    members, nonmembers = (np.sort(side) for side in split)
    sizes = (len(members), len(nonmembers))

    def at(errors: Float[np.ndarray, " errors"]) -> LimitsByError:
        if fpr == 1:
            return LimitsByError(low=np.ones(len(errors)), high=np.ones(len(errors)))
        lower, upper = _ranks(fpr, *sizes, tuple(errors.tolist()))
        above = sizes[0] - np.searchsorted(members, _reach(nonmembers, lower, np.inf), "right")
        level = sizes[0] - np.searchsorted(members, _reach(nonmembers, upper, -np.inf), "left")
        low = sp.special.betaincinv(np.maximum(above, 0.5), sizes[0] - above + 1, lower[:, 1])
        high = sp.special.betaincinv(level + 1, np.maximum(sizes[0] - level, 0.5), 1 - upper[:, 1])
        known = (lower[:, 0] > 0) & (above > 0)
        full = (upper[:, 0] > sizes[1]) | (level == sizes[0])
        return LimitsByError(low=np.where(known, low, 0.0), high=np.where(full, 1.0, high))

    return at


def _reach(
    nonmembers: Float[np.ndarray, " nonmembers"],
    ranks: Float[np.ndarray, "errors 2"],
    nobody: float,
) -> Float[np.ndarray, " errors"]:
    """The score of each rank's non-member; of places beyond them, what leaves the count open."""
    places = ranks[:, 0].astype(np.int64)
    there = (places > 0) & (places <= len(nonmembers))
    at = len(nonmembers) - np.where(there, places, 1)
    return np.where(there, nonmembers[at], nobody)


@lru_cache(maxsize=1024)
def _ranks(
    fpr: float, members: int, nonmembers: int, errors: tuple[float, ...]
) -> tuple[Float[np.ndarray, "errors 2"], Float[np.ndarray, "errors 2"]]:
    """Places and errors of the limits' counts: attacks on the same samples have the same."""
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
        confidence: Of the one-sided limit, in (0, 1).

    Raises:
        BadInput: A share is out of range.

    Examples:
        >>> n_to_bound(0.01, confidence=0.975)
        374
    """
    _require(fpr, confidence)
    if fpr == 1:
        return 1
    error = (1 - confidence) / (1 + _LEAST_WEIGHT)
    return max(1, math.ceil(math.log(error) / math.log1p(-fpr) * (1 - 1e-12)))


def lower_rank(fpr: float, members: int, nonmembers: int, *, confidence: float) -> Rank:
    """Which non-member the members of a lower limit lie above, strictly.

    The share of all members above it is at most the rate, unless its own false-positive rate is
    above ``fpr``, which is as probable as ``place - 1`` successes or fewer among so many trials.
    It depends on sizes alone, never on scores.

    Args:
        fpr: The false-positive rate, in (0, 1).
        members: How many there are.
        nonmembers: How many there are.
        confidence: Of the one-sided limit, in (0, 1).
    """
    _require(fpr, confidence)
    weight = _weight(fpr, members, nonmembers, upper=False)
    return _step(fpr, nonmembers, 1 - confidence, weight)


def upper_rank(fpr: float, members: int, nonmembers: int, *, confidence: float) -> Rank:
    """Which non-member the members of an upper limit lie above, or level with.

    Args:
        fpr: The false-positive rate, in (0, 1).
        members: How many there are.
        nonmembers: How many there are.
        confidence: Of the one-sided limit, in (0, 1).
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
    above = int((split.members > _placed(split, rank.place)).sum())
    return lower_limit(above, members, confidence=1 - rank.error)


def _upper_of_sides(split: SplitScores, fpr: float, *, confidence: float) -> float:
    _require(fpr, confidence)
    members, nonmembers = map(len, split)
    if fpr == 1:
        return 1.0
    rank = upper_rank(fpr, members, nonmembers, confidence=confidence)
    if rank.place > nonmembers:
        return 1.0
    above = int((split.members >= _placed(split, rank.place)).sum())
    return upper_limit(above, members, confidence=1 - rank.error)


def _placed(split: SplitScores, place: int) -> float:
    """The score of the non-member at a place, the best being 1."""
    at = len(split.nonmembers) - place
    return float(np.partition(split.nonmembers, at)[at])


def _require(fpr: float, confidence: float) -> None:
    require_confidence(confidence)
    if not 0 < fpr <= 1:
        raise BadInput(f"a false-positive rate to bound a rate at is a share in (0, 1], got {fpr}")


def _step(share: float, trials: int, error: float, weight: float) -> Rank:
    """The furthest place whose error leaves the members theirs, and what that is.

    The members' error is at least ``weight`` times that of the place, and no more than what the
    next place would leave them: both then only grow with the error, so that limits at a higher
    confidence are never narrower. At the first place, without which there is no limit, the least
    weight will do.
    """

    def needed(place: int) -> float:
        return _at_most(place - 1, trials, share) * (1 + _weight_at(place, weight))

    place = bisect_right(range(1, trials + 1), error, key=needed)
    left = error - _at_most(place - 1, trials, share)
    if place < trials:
        left = min(left, _weight_at(place + 1, weight) * _at_most(place, trials, share))
    return Rank(place, left)


def _weight_at(place: int, weight: float) -> float:
    return _LEAST_WEIGHT if place == 1 else weight


def _at_most(count: int, trials: int, share: float) -> float:
    """Chance of so many successes or fewer."""
    if count < 0:
        return 0.0
    return (
        float(sp.special.betainc(trials - count, count + 1, 1 - share)) if count < trials else 1.0
    )


def _weight(fpr: float, members: int, nonmembers: int, *, upper: bool) -> float:
    """Best share of the error, by sizes alone: few members need more of it."""
    return _best_weight(fpr, _about(members), _about(nonmembers), upper)


def _about(size: int) -> int:
    """A size, a large one in two digits: searches for a sample's size ask for many."""
    digits = len(str(size)) - 2
    return size if size < _LARGE else round(size, -digits)


@lru_cache(maxsize=4096)
def _best_weight(fpr: float, members: int, nonmembers: int, upper: bool) -> float:
    return min(_WEIGHTS, key=partial(_expected_width, fpr, members, nonmembers, upper))


def _expected_width(fpr: float, members: int, nonmembers: int, upper: bool, weight: float) -> float:
    """Mean distance of a limit from its rate, variance-stabilised, where scores are normal."""
    share = 1 - fpr if upper else fpr
    place, error = _step(share, nonmembers, _REFERENCE_ERROR, weight)
    # The non-member at a place has this false-positive rate on average.
    realised = place / (nonmembers + 1)
    at = sp.special.ndtri(1 - realised if upper else realised)
    apart = np.array(_SEPARATIONS)
    rates, expected = (
        sp.special.ndtr(apart + sp.special.ndtri(fpr)),
        members * sp.special.ndtr(apart + at),
    )
    limit = upper_limit if upper else lower_limit
    limits = [limit(float(count), members, confidence=1 - error) for count in expected]
    return float(np.abs(_stable(np.array(limits)) - _stable(rates)).mean())


def _stable(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.arcsin(np.sqrt(shares)))
