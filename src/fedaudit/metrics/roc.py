"""Checks of scores and membership labels, and the exact ROC curve.

The curve has one point per distinct score and is not interpolated.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int, Shaped

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin

_ORIGIN_BY_NAME = {origin.name.lower(): origin for origin in Origin}
_ALLOWED_ORIGINS = ", ".join(f"{origin.value} ({origin.name})" for origin in Origin)
_PASS_BOOLEANS = (
    "0 is Origin.MEMBER among origins and a non-member among 0/1 labels; pass booleans (True for "
    "a member), or Origin values such as [Origin(number) for number in origin]"
)


class SplitScores(NamedTuple):
    """Scores of members and of non-members.

    Attributes:
        members: Scores of samples that the target client trained on.
        nonmembers: Scores of all other samples.
    """

    members: Float[np.ndarray, " members"]
    nonmembers: Float[np.ndarray, " nonmembers"]


class Halves(NamedTuple):
    """Two disjoint halves of the same samples.

    Attributes:
        calibration: Scores on which a threshold is chosen.
        evaluation: Scores on which a metric is computed at that threshold.
    """

    calibration: SplitScores
    evaluation: SplitScores


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return an array, list, table column or tensor as a numpy array.

    Tensors may require gradients, be on any device and have any floating-point type. Torch itself
    is not imported.

    Raises:
        BadInput: Entries of an array are masked.
    """
    if np.ma.is_masked(values):
        raise BadInput(
            "some entries are masked; leave these samples out of both scores and membership"
        )
    if isinstance(values, list | tuple) and any(hasattr(value, "detach") for value in values):
        values = [_on_cpu(value) for value in values]
    return np.asarray(_on_cpu(values))


def _on_cpu(value: object) -> object:
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    # Numpy has no bfloat16, and every smaller floating-point type is exact in double precision.
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()


def as_origins(
    truth: npt.ArrayLike, samples: int, *, codes: bool = False
) -> Int[np.ndarray, " samples"]:
    """Return the origin of each sample.

    Args:
        truth: Booleans (True for a member, False for an unseen sample), ``Origin`` values, their
            names, or their numbers if a 2 is among these.
        samples: Number of samples.
        codes: Whether numbers are ``Origin`` values even if no 2 is among them.

    Raises:
        BadInput: The length is wrong, a value is unknown, booleans are mixed with other values, or
            the numbers could be either origins or membership.
    """
    is_enum = isinstance(truth, list | tuple) and _all_are(truth, Origin)
    is_mixed = isinstance(truth, list | tuple) and _mixes_booleans(truth)
    try:
        values = as_array(truth)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"membership has one entry per sample: {error}; pass booleans") from error
    if values.shape != (samples,):
        raise BadInput(
            "scores and membership must have one entry per sample, "
            f"got {samples} scores and membership of shape {values.shape}"
        )
    if not samples:
        return np.empty(0, dtype=np.int64)
    if values.dtype == object:
        entries = cast(list[object], values.tolist())
        is_enum, is_mixed = _all_are(entries, Origin), _mixes_booleans(entries)
        values = np.asarray(entries) if not is_mixed else values
    if is_mixed:
        raise BadInput(f"membership mixes booleans with other values; {_PASS_BOOLEANS}")
    if values.dtype == bool:
        return np.where(values, Origin.MEMBER, Origin.UNSEEN).astype(np.int64)
    if values.dtype.kind in "UST":
        return _origins_by_name(values)
    if values.dtype.kind not in "iu":
        raise BadInput(
            f"membership is given as booleans or origins, got {values.dtype}; {_PASS_BOOLEANS}"
        )
    unknown = sorted({str(value) for value in values[~np.isin(values, list(Origin))]})
    if unknown:
        raise BadInput(
            f"unknown origins {', '.join(unknown[:5])}; allowed: {_ALLOWED_ORIGINS}; "
            f"{_PASS_BOOLEANS}"
        )
    if not is_enum and not codes and Origin.UNSEEN not in values:
        raise BadInput(f"whole numbers without a 2 are ambiguous: {_PASS_BOOLEANS}")
    return values.astype(np.int64)


def as_membership(is_member: npt.ArrayLike, samples: int) -> Bool[np.ndarray, " samples"]:
    """Return whether each sample is a member, with the checks of :func:`as_origins`."""
    members: Bool[np.ndarray, " samples"] = as_origins(is_member, samples) == Origin.MEMBER
    return members


def as_strata(strata: npt.ArrayLike, samples: int) -> Shaped[np.ndarray, " samples"]:
    """Return the stratum of each sample.

    Raises:
        BadInput: The length is wrong, or a sample has no stratum.
    """
    labels = as_array(strata)
    if labels.shape != (samples,):
        raise BadInput(
            f"every sample needs a stratum, got strata of shape {labels.shape} for {samples} scores"
        )
    # NaN differs from itself, so its samples would belong to no stratum.
    if labels.dtype.kind in "fcO" and any(map(_is_missing, labels.tolist())):
        raise BadInput("some samples have no stratum; leave them out, or give them one")
    return labels


def _is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)
    # Comparing pandas.NA gives pandas.NA, which has no truth value.
    except TypeError:
        return True


def raise_if_misaligned(scores: object, truth: object) -> None:
    """Raise if two table columns have different indices, because rows would not correspond."""
    indices: list[Any] = [getattr(column, "index", None) for column in (scores, truth)]
    # Lists have a method called index, hence the test for a method of pandas indices.
    if all(hasattr(index, "equals") for index in indices) and not indices[0].equals(indices[1]):
        raise BadInput(
            "scores and membership are table columns with different indices; reindex one like the "
            "other, or pass .to_numpy() if rows correspond by position"
        )


def _all_are(values: list[object] | tuple[object, ...], expected_type: type) -> bool:
    return bool(values) and all(isinstance(value, expected_type) for value in values)


def _mixes_booleans(values: list[object] | tuple[object, ...]) -> bool:
    booleans = sum(isinstance(value, bool | np.bool_) for value in values)
    return 0 < booleans < len(values)


def _origins_by_name(values: Shaped[np.ndarray, " samples"]) -> Int[np.ndarray, " samples"]:
    names = [str(value).strip().lower() for value in values.tolist()]
    unknown = sorted(set(names) - set(_ORIGIN_BY_NAME))
    if unknown:
        raise BadInput(
            f"unknown origins {', '.join(unknown[:5])}; allowed: {', '.join(_ORIGIN_BY_NAME)}; or "
            "pass booleans (True for a member)"
        )
    return np.array([_ORIGIN_BY_NAME[name] for name in names], dtype=np.int64)


def as_scores(scores: npt.ArrayLike) -> Float[np.ndarray, " samples"]:
    """Return the scores as a one-dimensional float64 array, which may contain infinities.

    Raises:
        BadInput: The array has several axes, or contains values that are not numbers or are NaN.
    """
    try:
        array = as_array(scores)
        # astype would drop imaginary parts and turn dates into numbers without an error.
        if array.dtype.kind in "cmMV":
            raise TypeError(f"these are {array.dtype}")
        values = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"scores must be numbers, one per sample, got {type(scores).__name__}: {error}"
        ) from error
    if values.ndim != 1:
        raise BadInput(f"scores must have one axis, the samples, got shape {values.shape}")
    n_missing = int(np.isnan(values).sum())
    if n_missing:
        raise BadInput(
            f"{n_missing} of {len(values)} scores are NaN; leave these samples out of both scores "
            "and membership, or find out why the attack gave no score"
        )
    return values


def split_scores(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> SplitScores:
    """Split scores into scores of members and of non-members.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.
    """
    raise_if_misaligned(scores, is_member)
    values = as_scores(scores)
    truth = as_membership(is_member, len(values))
    split = SplitScores(values[truth], values[~truth])
    if not len(split.members) or not len(split.nonmembers):
        raise BadInput(
            f"both members and non-members are needed, got {len(split.members)} members and "
            f"{len(split.nonmembers)} non-members"
        )
    return split


def split_halves(split: SplitScores, *, rng: np.random.Generator) -> Halves:
    """Split members and non-members at random into a calibration half and an evaluation half.

    If the number of members (or non-members) is odd, the evaluation half has one more.

    Raises:
        BadInput: There are fewer than two members or fewer than two non-members.
    """
    if min(map(len, split)) < 2:
        raise BadInput(
            f"a calibration split needs at least 2 members and 2 non-members, got "
            f"{len(split.members)} and {len(split.nonmembers)}"
        )
    members, nonmembers = rng.permutation(split.members), rng.permutation(split.nonmembers)
    half_members, half_nonmembers = len(members) // 2, len(nonmembers) // 2
    return Halves(
        SplitScores(members[:half_members], nonmembers[:half_nonmembers]),
        SplitScores(members[half_members:], nonmembers[half_nonmembers:]),
    )


def midranks(scores: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " samples"]:
    """Return the rank of each score; the smallest has rank 1, and ties share their mean rank."""
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Float[np.ndarray, " samples"] = (np.cumsum(counts) - (counts - 1) / 2)[level]
    return ranks


def rank_scores(split: SplitScores) -> SplitScores:
    """Replace scores by their midranks among members and non-members together."""
    pooled_ranks = midranks(np.concatenate(split))
    return SplitScores(*np.split(pooled_ranks, [len(split.members)]))


def ranks_within_group(ranks: Float[np.ndarray, " group"]) -> Float[np.ndarray, " group"]:
    """Compute the midranks among only the members, or only the non-members, without sorting.

    Args:
        ranks: Midranks of the group's samples among all samples.
    """
    # Midranks are multiples of one half, so twice a midrank indexes a table of counts.
    index = (2 * ranks).astype(np.int64)
    up_to = np.cumsum(np.bincount(index))
    up_to_previous = np.concatenate([[0], up_to[:-1]])
    ranks_within: Float[np.ndarray, " group"] = 0.5 * (up_to[index] + up_to_previous[index] + 1)
    return ranks_within


@dataclass(frozen=True)
class Roc:
    """ROC curve with a point for each distinct score, after a point at which no sample is flagged.

    Attributes:
        fpr: Fraction of non-members flagged at each threshold, rising from 0 to 1.
        tpr: Fraction of members flagged at each threshold.
        thresholds: A sample is flagged if its score is at least the threshold. The first threshold
            is infinite and flags no sample, even if a score is infinite.
        n_members: Number of members.
        n_nonmembers: Number of non-members.

    Examples:
        >>> from fedaudit.metrics import roc_curve
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
        true_positives: Number of members flagged.
        false_positives: Number of non-members flagged.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.tpr_at_fpr([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.5).tpr
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
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> curve = fa.metrics.roc_curve([0.9, 0.4, 0.6, 0.1], [True, True, False, False])
        >>> curve.fpr.tolist()
        [0.0, 0.0, 0.5, 0.5, 1.0]
        >>> curve.tpr.tolist()
        [0.0, 0.5, 0.5, 1.0, 1.0]
    """
    split = split_scores(scores, is_member)
    levels = np.unique(np.concatenate(split))[::-1]
    tpr, fpr = (
        np.concatenate([[0.0], _flagged_counts(scores, levels) / len(scores)]) for scores in split
    )
    thresholds = np.concatenate([[np.inf], levels])
    return Roc(fpr, tpr, thresholds, len(split.members), len(split.nonmembers))


def _flagged_counts(
    scores: Float[np.ndarray, " samples"], thresholds: Float[np.ndarray, " thresholds"]
) -> Int[np.ndarray, " thresholds"]:
    """Return the number of samples that score at least each threshold."""
    counts: Int[np.ndarray, " thresholds"] = len(scores) - np.searchsorted(
        np.sort(scores), thresholds, side="left"
    )
    return counts


def auc(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """Compute the probability that a random member scores above a random non-member.

    Ties count half. The scores are never negated: an AUC below 0.5 is returned unchanged.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The AUC, in [0, 1]; 0.5 is chance level.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.auc([0.9, 0.4, 0.6, 0.1], [True, True, False, False])
        0.75
    """
    return auc_of_ranks(rank_scores(split_scores(scores, is_member)))


def auc_of_ranks(ranks: SplitScores) -> float:
    """Compute the AUC from midranks among members and non-members together."""
    members, nonmembers = ranks
    n = len(members)
    return float((members.sum() - n * (n + 1) / 2) / (n * len(nonmembers)))


def allowed_false_positives(fpr: float, n_nonmembers: int) -> int:
    """Return the largest number of false positives with a rate of at most ``fpr``.

    Raises:
        BadInput: The rate is not in [0, 1].
    """
    if not 0 <= fpr <= 1:
        raise BadInput(f"a false-positive rate is in [0, 1], got {fpr}")
    count = min(int(fpr * n_nonmembers) + 1, n_nonmembers)
    # Quotients are compared because products round: 0.29 * 100 < 29, but 29 / 100 == 0.29.
    while count / n_nonmembers > fpr:
        count -= 1
    return count


def tpr_at_fpr(scores: npt.ArrayLike, is_member: npt.ArrayLike, fpr: float) -> TprAtFpr:
    """Compute the true-positive rate at the last ROC point with at most this false-positive rate.

    Tied samples are flagged together and the curve is not interpolated, so the realised
    false-positive rate may be lower than ``fpr``. The threshold is chosen on the same non-members
    that determine the realised rate. With few non-members, this favours the attack. Also report the
    limits of :func:`tpr_limits`. For claims about one threshold, use :func:`calibrated_tpr`.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member: booleans or origins, as in ``evaluate``.
        fpr: Largest false-positive rate allowed, in [0, 1].

    Raises:
        BadInput: Lengths differ, a score is NaN, there are no members or no non-members, or the
            false-positive rate is not in [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> point = fa.metrics.tpr_at_fpr([0.9, 0.4, 0.6, 0.1], [True, True, False, False], 0.1)
        >>> point.tpr, point.realised_fpr, point.threshold
        (0.5, 0.0, 0.9)
    """
    members, nonmembers = split_scores(scores, is_member)
    allowed = allowed_false_positives(fpr, len(nonmembers))
    if allowed == len(nonmembers):
        flagged_members, flagged_nonmembers = members, nonmembers
    else:
        # Flagging the non-member at this score would exceed the allowed number.
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


def thin_roc(roc: Roc, points: int) -> Roc:
    """Reduce a curve to fewer points, such that it looks the same on logarithmic axes.

    Among points with equal false-positive rates, only the highest is kept. Draw the curve as steps.
    Half of the returned points have the lowest false-positive rates, without any omission. The
    other half is evenly spaced in the logarithm of the false-positive rate up to 1.

    Args:
        roc: The full curve.
        points: Largest number of points to return, at least 10.

    Raises:
        BadInput: ``points`` is below 10.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> curve = fa.metrics.roc_curve(np.arange(1000), np.arange(1000) % 2 == 1)
        >>> len(curve.fpr), len(fa.metrics.thin_roc(curve, 20).fpr) <= 20
        (1001, True)
    """
    if points < 10:
        raise BadInput(f"a thinned curve needs at least 10 points, got {points}")
    # The last point of each sequence of equal false-positive rates, and the point that flags no
    # sample.
    tops = np.flatnonzero(np.append(np.diff(roc.fpr) > 0, True))
    index = np.unique(np.append(0, tops))
    if len(index) > points:
        dense = points // 2
        rates = np.geomspace(roc.fpr[index[dense]], 1.0, points - dense)
        spaced = np.searchsorted(roc.fpr[index], rates, side="right") - 1
        index = index[np.unique(np.concatenate([np.arange(dense), spaced]))]
    return Roc(
        roc.fpr[index], roc.tpr[index], roc.thresholds[index], roc.n_members, roc.n_nonmembers
    )
