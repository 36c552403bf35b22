"""True-positive rates at a low false-positive rate: what a sample can and cannot show."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    clopper_pearson,
    percent,
    require_confidence,
    upper_limit,
)
from fedaudit.metrics.roc import allowed_false_positives, halves, sides


class Share(NamedTuple):
    """A counted share with its exact interval.

    Attributes:
        value: The share.
        low: Lower limit.
        high: Upper limit.
        hits: Samples counted.
        total: Out of so many.
    """

    value: float
    low: float
    high: float
    hits: int
    total: int


class CalibratedTpr(NamedTuple):
    """Rates at a threshold that was fixed on other samples.

    Attributes:
        tpr: True-positive rate with its interval.
        fpr: False-positive rate really reached, with its interval.
        threshold: Samples are flagged when they score above this.
        method: How intervals and threshold were made.
    """

    tpr: Share
    fpr: Share
    threshold: float
    method: str


def share(count: int, total: int, *, confidence: float = 0.95) -> Share:
    """A counted share with its Clopper-Pearson interval.

    Raises:
        BadInput: A total of 0, or more counted than there are.
    """
    low, high = clopper_pearson(count, total, confidence=confidence)
    return Share(count / total, low, high, count, total)


def n_needed(fpr: float) -> int:
    """Fewest non-members with which this false-positive rate allows one false positive.

    Raises:
        BadInput: The rate is not in (0, 1].
    """
    if not 0 < fpr <= 1:
        raise BadInput(f"a false-positive rate to judge at is a share in (0, 1], got {fpr}")
    fewest = max(1, math.ceil(1 / fpr) - 1)
    return fewest if 1 / fewest <= fpr else fewest + 1


def inconclusive(fpr: float, n_nonmembers: int) -> str | None:
    """Reason why a rate at this false-positive rate cannot be given, or None where it can.

    Raises:
        BadInput: The rate is not in (0, 1].
    """
    missing = n_needed(fpr) - n_nonmembers
    return f"inconclusive: needs {missing} more non-members" if missing > 0 else None


def n_to_certify(fpr: float, false_positives: int = 0, *, confidence: float = 0.95) -> int:
    """Fewest non-members that certify a false-positive rate, given so many false positives.

    Certified means that the one-sided Clopper-Pearson limit is at most ``fpr``.

    Raises:
        BadInput: The rate is not in (0, 1).
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
    """Range of the true false-positive rate behind an empirical one.

    A threshold just above the (k+1)-th best of n non-members has a true false-positive rate
    distributed as Beta(k + 1, n - k), whatever the scores' distribution (ties make it lower).

    Args:
        fpr: The empirical rate that the threshold was set at, on these non-members.
        n_nonmembers: Non-members that it was set on.
        confidence: Probability of the range, in (0, 1).

    Raises:
        BadInput: The rate is no share, or there are no non-members.
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
    """True-positive rate for a claim: threshold from one half of the samples, rates on the other.

    The threshold is the lowest calibration non-member that keeps the *expected*
    false-positive rate on fresh non-members at or below ``fpr`` (split conformal), so it
    leaves one false positive fewer than the empirical rate would allow.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        fpr: False-positive rate aimed at, in (0, 1).
        rng: Draws the halves.
        confidence: Confidence of each of the two intervals, in (0, 1).

    Raises:
        BadInput: Too few non-members for this rate ("inconclusive: needs N more"), or bad
            scores.
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
