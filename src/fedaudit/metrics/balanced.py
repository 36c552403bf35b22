"""Balanced accuracy at a fixed threshold, or at one that is chosen on the same or other samples."""

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedaudit.metrics.intervals import IntervalEstimate, format_percent, require_confidence
from fedaudit.metrics.rate_limits import proportion
from fedaudit.metrics.roc import SplitScores, split_halves, split_scores


class OptimisticAccuracy(NamedTuple):
    """Balanced accuracy at a threshold chosen on the same samples.

    Attributes:
        value: (TPR + TNR) / 2 at the best threshold; at least 0.5 even for random scores.
        threshold: The lowest score that is flagged; None if flagging no sample is best.
        note: Warning to print next to the value.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.best_balanced_accuracy([0.9, 0.4, 0.6, 0.1], [True, True, False, False]).note
        'optimistic: threshold chosen on the same samples'
    """

    value: float
    threshold: float | None
    note: str = "optimistic: threshold chosen on the same samples"


@dataclass(frozen=True)
class HeldOutAccuracy(IntervalEstimate[float]):
    """Balanced accuracy at a threshold chosen on other samples: (TPR + TNR) / 2.

    Attributes:
        realised_fpr: False-positive rate on the evaluation half.
        threshold: The lowest score that is flagged; None if flagging no sample is best.
        n_members: Number of members in the evaluation half.
        n_nonmembers: Number of non-members in the evaluation half.

    Examples:
        >>> import numpy as np
        >>> scores, is_member = np.arange(40), np.arange(40) >= 20
        >>> from fedaudit.metrics import held_out_balanced_accuracy
        >>> held_out_balanced_accuracy(scores, is_member, rng=np.random.default_rng(0)).value
        0.9
    """

    realised_fpr: float
    threshold: float | None
    n_members: int
    n_nonmembers: int


def counted_balanced_accuracy(
    true_positives: int,
    members: int,
    true_negatives: int,
    nonmembers: int,
    *,
    confidence: float = 0.95,
) -> IntervalEstimate[float]:
    """Compute (TPR + TNR) / 2 from counts, with an interval that is valid for any sample size.

    Each limit is the mean of the exact limits of TPR and TNR, each with half of the error
    probability. The interval is conservative.

    Args:
        true_positives: Number of members that are classified as members.
        members: Number of members.
        true_negatives: Number of non-members that are classified as non-members.
        nonmembers: Number of non-members.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: There are no members or no non-members, or more correct answers than samples.

    Source: Jung et al. 2025 (IFCA-MIR), Eqs. (8)-(10); limits by Bonferroni's inequality.
    """
    require_confidence(confidence)
    each_confidence = 1 - (1 - confidence) / 2
    tpr = proportion(true_positives, members, confidence=each_confidence)
    tnr = proportion(true_negatives, nonmembers, confidence=each_confidence)
    return IntervalEstimate(
        value=(tpr.value + tnr.value) / 2,
        low=(tpr.low + tnr.low) / 2,
        high=(tpr.high + tnr.high) / 2,
        method=f"Clopper-Pearson {format_percent(confidence)}",
    )


def balanced_accuracy(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, threshold: float | None
) -> float:
    """Compute the balanced accuracy, (TPR + TNR) / 2, at a threshold fixed in advance.

    Samples that score at least ``threshold`` are classified as members.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        threshold: The lowest score that is flagged, fixed in advance; None flags no sample.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> from fedaudit.metrics import balanced_accuracy
        >>> balanced_accuracy([0.9, 0.4, 0.6, 0.1], [True, True, False, False], threshold=0.3)
        0.75
    """
    split = split_scores(scores, is_member)
    tpr, fpr = (_count_flagged(group, threshold) / len(group) for group in split)
    return (tpr + 1 - fpr) / 2


def best_balanced_accuracy(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> OptimisticAccuracy:
    """Compute the largest balanced accuracy over all thresholds.

    The value is optimistic, because the threshold is chosen on the same samples. Use it to
    reproduce published tables, never as evidence of a leak.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The accuracy and its threshold.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> from fedaudit.metrics import best_balanced_accuracy
        >>> best = best_balanced_accuracy([0.9, 0.4, 0.6, 0.1], [True, True, False, False])
        >>> best.value, best.threshold
        (0.75, 0.9)
    """
    return _best(split_scores(scores, is_member))


def held_out_balanced_accuracy(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> HeldOutAccuracy:
    """Compute the balanced accuracy on one half of the samples, at the other half's best threshold.

    The limits are those of ``counted_balanced_accuracy``.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        rng: Draws the halves.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: There are fewer than two members or two non-members, or scores are invalid.

    Examples:
        >>> from fedaudit.metrics import held_out_balanced_accuracy
        >>> import numpy as np
        >>> scores, is_member = np.arange(40), np.arange(40) >= 20
        >>> held_out = held_out_balanced_accuracy(scores, is_member, rng=np.random.default_rng(0))
        >>> held_out.n_members, held_out.value, round(held_out.low, 3)
        (10, 0.9, 0.523)
    """
    require_confidence(confidence)
    calibration, evaluation = split_halves(split_scores(scores, is_member), rng=rng)
    threshold = _best(calibration).threshold
    members, nonmembers = map(len, evaluation)
    true_positives = _count_flagged(evaluation.members, threshold)
    false_positives = _count_flagged(evaluation.nonmembers, threshold)
    estimate = counted_balanced_accuracy(
        true_positives, members, nonmembers - false_positives, nonmembers, confidence=confidence
    )
    return HeldOutAccuracy(
        **asdict(replace(estimate, method=f"{estimate.method}, threshold from the other half")),
        realised_fpr=false_positives / nonmembers,
        threshold=threshold,
        n_members=members,
        n_nonmembers=nonmembers,
    )


def _count_flagged(scores: np.ndarray, threshold: float | None) -> int:
    return 0 if threshold is None else int((scores >= threshold).sum())


def _best(split: SplitScores) -> OptimisticAccuracy:
    levels = np.unique(np.concatenate(split))[::-1]
    tpr, fpr = (
        1 - np.searchsorted(np.sort(group), levels, side="left") / len(group) for group in split
    )
    values = (tpr + 1 - fpr) / 2
    # Thresholds descend and argmax returns the first maximum, which flags the fewest samples.
    best = int(values.argmax())
    if values[best] <= 0.5:
        return OptimisticAccuracy(0.5, None)
    return OptimisticAccuracy(float(values[best]), float(levels[best]))
