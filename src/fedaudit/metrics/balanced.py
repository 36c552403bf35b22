"""Balanced accuracy: at a given threshold, at the best in hindsight, at one held out."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedaudit.metrics.intervals import percent, require_confidence
from fedaudit.metrics.rates import share
from fedaudit.metrics.roc import SplitScores, halves, sides


class OptimisticAccuracy(NamedTuple):
    """A balanced accuracy whose threshold was chosen on the very samples it is measured on.

    Attributes:
        value: (TPR + TNR) / 2 at the best threshold; at least 0.5 even without any signal.
        threshold: The lowest score that is flagged; None where flagging nobody is best.
        note: The warning to print beside it.
    """

    value: float
    threshold: float | None
    note: str = "optimistic: threshold chosen on the same samples"


class HeldOutAccuracy(NamedTuple):
    """A balanced accuracy at a threshold that was chosen on other samples.

    Attributes:
        value: (TPR + TNR) / 2 on the evaluation half.
        low: Lower limit.
        high: Upper limit.
        realised_fpr: False-positive rate on the evaluation half.
        threshold: The lowest score that is flagged; None where flagging nobody is best.
        n_members: Members in the evaluation half.
        n_nonmembers: Non-members in the evaluation half.
        method: How the interval was made.
    """

    value: float
    low: float
    high: float
    realised_fpr: float
    threshold: float | None
    n_members: int
    n_nonmembers: int
    method: str


class CountedAccuracy(NamedTuple):
    """A balanced accuracy from counts of right answers.

    Attributes:
        value: (TPR + TNR) / 2.
        low: Lower limit.
        high: Upper limit.
        method: How the interval was made.
    """

    value: float
    low: float
    high: float
    method: str


def counted_balanced_accuracy(
    caught: int, members: int, cleared: int, nonmembers: int, *, confidence: float = 0.95
) -> CountedAccuracy:
    """(TPR + TNR) / 2 from counts, with an interval that is sound for any sizes.

    The limits are the means of the TPR's and the TNR's exact limits, each with half of the
    error allowed, so the interval is conservative.

    Args:
        caught: Members that are called members.
        members: All of them.
        cleared: Non-members that are called non-members.
        nonmembers: All of them.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: A side is empty, or has more right answers than samples.

    Source: IFCA-MIR, Eqs. (8)-(10); limits by Bonferroni's inequality.
    """
    require_confidence(confidence)
    each = 1 - (1 - confidence) / 2
    tpr = share(caught, members, confidence=each)
    tnr = share(cleared, nonmembers, confidence=each)
    return CountedAccuracy(
        value=(tpr.value + tnr.value) / 2,
        low=(tpr.low + tnr.low) / 2,
        high=(tpr.high + tnr.high) / 2,
        method=f"Clopper-Pearson {percent(confidence)}",
    )


def balanced_accuracy(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, threshold: float | None
) -> float:
    """(TPR + TNR) / 2 when samples that score at least ``threshold`` are called members.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        threshold: The lowest score that is flagged, fixed in advance; None flags nobody.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    split = sides(scores, is_member)
    tpr, fpr = (_flagged(side, threshold) / len(side) for side in split)
    return (tpr + 1 - fpr) / 2


def best_balanced_accuracy(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> OptimisticAccuracy:
    """The largest balanced accuracy over all thresholds, in hindsight.

    Optimistic by construction: for parity with published tables, never for a claim.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    return _best(sides(scores, is_member))


def held_out_balanced_accuracy(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> HeldOutAccuracy:
    """Balanced accuracy on one half of the samples, at the threshold best on the other.

    The limits are those of ``counted_balanced_accuracy``.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        rng: Draws the halves.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Fewer than two samples on a side, or bad scores.
    """
    require_confidence(confidence)
    calibration, evaluation = halves(sides(scores, is_member), rng=rng)
    threshold = _best(calibration).threshold
    members, nonmembers = (len(side) for side in evaluation)
    caught, alarms = (_flagged(side, threshold) for side in evaluation)
    found = counted_balanced_accuracy(
        caught, members, nonmembers - alarms, nonmembers, confidence=confidence
    )
    return HeldOutAccuracy(
        value=found.value,
        low=found.low,
        high=found.high,
        realised_fpr=alarms / nonmembers,
        threshold=threshold,
        n_members=members,
        n_nonmembers=nonmembers,
        method=f"{found.method}, threshold from the other half",
    )


def _flagged(scores: np.ndarray, threshold: float | None) -> int:
    return 0 if threshold is None else int((scores >= threshold).sum())


def _best(split: SplitScores) -> OptimisticAccuracy:
    levels = np.unique(np.concatenate(split))[::-1]
    tpr, fpr = (
        1 - np.searchsorted(np.sort(side), levels, side="left") / len(side) for side in split
    )
    values = (tpr + 1 - fpr) / 2
    # The highest of equally good thresholds: fewer are flagged.
    best = int(values.argmax())
    if values[best] <= 0.5:
        return OptimisticAccuracy(0.5, None)
    return OptimisticAccuracy(float(values[best]), float(levels[best]))
