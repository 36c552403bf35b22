"""The receiver operating characteristic, exact: ties grouped, nothing interpolated."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from fedaudit.core.errors import BadInput
from fedaudit.metrics.truth import as_array, as_truth, refuse_misaligned


class SplitScores(NamedTuple):
    """Scores apart by truth.

    Attributes:
        members: Scores of samples that the target trained on.
        nonmembers: Scores of all others.
    """

    members: Float[np.ndarray, " members"]
    nonmembers: Float[np.ndarray, " nonmembers"]


class Halves(NamedTuple):
    """Two disjoint parts of the same samples.

    Attributes:
        calibration: For choosing a threshold.
        evaluation: For the figure at that threshold.
    """

    calibration: SplitScores
    evaluation: SplitScores


def as_scores(scores: npt.ArrayLike) -> Float[np.ndarray, " samples"]:
    """The scores as a one-dimensional float64 array; infinities are fine, NaNs are not.

    Raises:
        BadInput: Another number of dimensions, not numbers, or NaNs (with their count).
    """
    try:
        array = as_array(scores)
        # Complex numbers would lose a part, and dates would become numbers.
        if array.dtype.kind in "cmMV":
            raise TypeError(f"these are {array.dtype}")
        values = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise BadInput(
            f"scores must be numbers, one a sample, got {type(scores).__name__}: {problem}"
        ) from problem
    if values.ndim != 1:
        raise BadInput(f"scores must have one axis, the samples, got shape {values.shape}")
    missing = int(np.isnan(values).sum())
    if missing:
        raise BadInput(
            f"{missing} of {len(values)} scores are NaN; a sample without a score cannot be "
            "ranked: leave it out on both sides, or find out why the attack gave none"
        )
    return values


def sides(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> SplitScores:
    """Splits scores by truth.

    Raises:
        BadInput: Lengths differ, a score is NaN, or one of the sides is empty.
    """
    refuse_misaligned(scores, is_member)
    values = as_scores(scores)
    truth = as_truth(is_member, len(values))
    split = SplitScores(values[truth], values[~truth])
    if not len(split.members) or not len(split.nonmembers):
        raise BadInput(
            f"both members and non-members are needed, got {len(split.members)} members and "
            f"{len(split.nonmembers)} non-members"
        )
    return split


def halves(split: SplitScores, *, rng: np.random.Generator) -> Halves:
    """A random half of each side for calibration, the other for evaluation.

    An odd sample out goes to the evaluation.

    Raises:
        BadInput: A side has fewer than two samples.
    """
    if min(map(len, split)) < 2:
        raise BadInput(
            f"a calibration split needs at least 2 members and 2 non-members, got "
            f"{len(split.members)} and {len(split.nonmembers)}"
        )
    shuffled = [rng.permutation(side) for side in split]
    return Halves(
        SplitScores(*(side[: len(side) // 2] for side in shuffled)),
        SplitScores(*(side[len(side) // 2 :] for side in shuffled)),
    )


def midranks(scores: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " samples"]:
    """The place of each score from the smallest, which has 1; infinities are fine, NaNs are not."""
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Float[np.ndarray, " samples"] = (np.cumsum(counts) - (counts - 1) / 2)[level]
    return ranks


def ranked(split: SplitScores) -> SplitScores:
    """Midranks among members and non-members together in the place of their scores."""
    together = midranks(np.concatenate(split))
    return SplitScores(*np.split(together, [len(split.members)]))


def within_side(ranks: Float[np.ndarray, " side"]) -> Float[np.ndarray, " side"]:
    """Midranks within one side of samples that are ranked already: counted, not sorted."""
    place = (2 * ranks).astype(np.int64)  # midranks are whole or half
    upto = np.cumsum(np.bincount(place))
    before = np.concatenate([[0], upto[:-1]])
    ranks_within: Float[np.ndarray, " side"] = 0.5 * (upto[place] + before[place] + 1)
    return ranks_within


@dataclass(frozen=True)
class Roc:
    """ROC curve with one point for each distinct score, and one before them all.

    Attributes:
        fpr: Share of non-members flagged at each threshold, rising from 0 to 1.
        tpr: Share of members flagged.
        thresholds: A sample is flagged when its score is at least this. The first is
            infinite and flags no sample, even if a score is infinite.
        n_members: Members behind ``tpr``.
        n_nonmembers: Non-members behind ``fpr``.

    Examples:
        >>> roc_curve([0.9, 0.4, 0.6, 0.1], [True, True, False, False]).thresholds.tolist()
        [inf, 0.9, 0.6, 0.4, 0.1]
    """

    fpr: Float[np.ndarray, " points"]
    tpr: Float[np.ndarray, " points"]
    thresholds: Float[np.ndarray, " points"]
    n_members: int
    n_nonmembers: int


class TprAtFpr(NamedTuple):
    """Largest true-positive rate among thresholds whose false-positive rate is low enough.

    Attributes:
        tpr: True-positive rate.
        realised_fpr: False-positive rate that was reached; at most the requested rate.
        threshold: The lowest score that is flagged; None if no sample is flagged.
        true_positives: Members flagged.
        false_positives: Non-members flagged.

    Examples:
        >>> tpr_at_fpr([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.5).tpr
        1.0
    """

    tpr: float
    realised_fpr: float
    threshold: float | None
    true_positives: int
    false_positives: int


def roc_curve(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> Roc:
    """Compute the exact ROC curve; samples with equal scores are flagged together.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member: booleans or origins, as in ``evaluate``.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> curve = roc_curve([0.9, 0.4, 0.6, 0.1], [True, True, False, False])
        >>> curve.fpr.tolist()
        [0.0, 0.0, 0.5, 0.5, 1.0]
        >>> curve.tpr.tolist()
        [0.0, 0.5, 0.5, 1.0, 1.0]
    """
    split = sides(scores, is_member)
    levels = np.unique(np.concatenate(split))[::-1]
    counts = [len(side) - np.searchsorted(np.sort(side), levels, side="left") for side in split]
    tpr, fpr = (
        np.concatenate([[0.0], count / len(side)])
        for count, side in zip(counts, split, strict=True)
    )
    thresholds = np.concatenate([[np.inf], levels])
    return Roc(fpr, tpr, thresholds, len(split.members), len(split.nonmembers))


def auc(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """Compute the chance that a random member scores above a random non-member, ties counting half.

    It is never flipped: an attack below 0.5 is reported as it is.

    Args:
        scores: One score a sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The AUC, in [0, 1]; 0.5 is chance level.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> auc([0.9, 0.4, 0.6, 0.1], [True, True, False, False])
        0.75
    """
    members, nonmembers = ranked(sides(scores, is_member))
    n = len(members)
    return float((members.sum() - n * (n + 1) / 2) / (n * len(nonmembers)))


def allowed_false_positives(fpr: float, n_nonmembers: int) -> int:
    """The largest count that is at most this share of so many non-members.

    Compares quotients rather than multiplying: 0.29 * 100 is below 29 in floating point,
    29 / 100 is 0.29.

    Raises:
        BadInput: The rate is not in [0, 1].
    """
    if not 0 <= fpr <= 1:
        raise BadInput(f"a false-positive rate is a share in [0, 1], got {fpr}")
    count = min(int(fpr * n_nonmembers) + 1, n_nonmembers)
    while count / n_nonmembers > fpr:
        count -= 1
    return count


def tpr_at_fpr(scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float) -> TprAtFpr:
    """Compute the true-positive rate at the last ROC point with at most this false-positive rate.

    Ties are grouped and nothing is interpolated, so the realised rate may be lower. The threshold
    is set and judged on the same non-members, which favours the attack if they are few. Report it
    with ``rate_limits``, or use ``calibrated_tpr`` for claims about one threshold.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member: booleans or origins, as in ``evaluate``.
        fpr: Largest false-positive rate allowed, in [0, 1].

    Raises:
        BadInput: Lengths differ, a score is NaN, a side is empty, or the rate is no share.

    Examples:
        >>> point = tpr_at_fpr([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.1)
        >>> point.tpr, point.realised_fpr, point.threshold
        (0.5, 0.0, 0.9)
    """
    members, nonmembers = sides(scores, is_member)
    allowed = allowed_false_positives(fpr, len(nonmembers))
    if allowed == len(nonmembers):
        flagged_members, flagged_nonmembers = members, nonmembers
    else:
        # Everything above the first non-member that is one too many.
        limit = np.sort(nonmembers)[len(nonmembers) - 1 - allowed]
        flagged_members = members[members > limit]
        flagged_nonmembers = nonmembers[nonmembers > limit]
    flagged = np.concatenate([flagged_members, flagged_nonmembers])
    return TprAtFpr(
        tpr=len(flagged_members) / len(members),
        realised_fpr=len(flagged_nonmembers) / len(nonmembers),
        threshold=float(flagged.min()) if len(flagged) else None,
        true_positives=len(flagged_members),
        false_positives=len(flagged_nonmembers),
    )


def thin(roc: Roc, points: int) -> Roc:
    """Reduce a curve to fewer points that look the same on logarithmic axes.

    Only the top of each vertical run is kept (draw it as steps). Half of the points go to the
    lowest false-positive rates, which stay complete. The rest are spaced evenly in the logarithm of
    the false-positive rate up to 1.

    Args:
        roc: The full curve.
        points: Most points to keep, at least 10.

    Raises:
        BadInput: Fewer than 10 points asked for.

    Examples:
        >>> import numpy as np
        >>> curve = roc_curve(np.arange(1000), np.arange(1000) % 2 == 1)
        >>> len(curve.fpr), len(thin(curve, 20).fpr) <= 20
        (1001, True)
    """
    if points < 10:
        raise BadInput(f"a thinned curve needs at least 10 points, got {points}")
    # The last index of each run of equal false-positive rates, and the empty rule.
    tops = np.flatnonzero(np.append(np.diff(roc.fpr) > 0, True))
    kept = np.unique(np.append(0, tops))
    if len(kept) > points:
        dense = points // 2
        spaced = np.geomspace(roc.fpr[kept[dense]], 1.0, points - dense)
        rest = np.searchsorted(roc.fpr[kept], spaced, side="right") - 1
        kept = kept[np.unique(np.concatenate([np.arange(dense), rest]))]
    return Roc(roc.fpr[kept], roc.tpr[kept], roc.thresholds[kept], roc.n_members, roc.n_nonmembers)
