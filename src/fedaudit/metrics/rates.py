"""True-positive rates at a low false-positive rate: what a sample can and cannot show."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    Limited,
    clopper_pearson,
    percent,
    require_confidence,
    upper_limit,
)
from fedaudit.metrics.roc import allowed_false_positives, halves, sides


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
