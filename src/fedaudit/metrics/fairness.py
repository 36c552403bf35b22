"""Leakage by group, fairness gaps of a classifier, and risks above the limits of clients."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    EstimateWithLimits,
    Limits,
    require_confidence,
)
from fedaudit.metrics.roc import as_membership, as_scores, split_scores


@dataclass(frozen=True, kw_only=True)
class GroupAuc(Limits[float | None]):
    """AUC within one group, such as a class or a client.

    Attributes:
        group: Number of the group, such as a class index or a client number.
        value: The AUC. The AUC and its limits are None if the group has fewer than two members or
            fewer than two non-members.
        n_members: Number of members in the group.
        n_nonmembers: Number of non-members in the group.

    Examples:
        >>> import numpy as np
        >>> from fedaudit.metrics import auc_by_group
        >>> auc_by_group([3, 1, 2, 0], [True, True, False, False], groups=np.zeros(4, int))[0].value
        0.75
    """

    group: int
    value: float | None
    n_members: int
    n_nonmembers: int


class ExposedMember(NamedTuple):
    """Member that scores above most non-members.

    Attributes:
        position: Index of the member in the array of scores.
        above_nonmembers: Fraction of non-members that score strictly below this member.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.most_exposed([3, 1, 2, 0], [True, True, False, False], top=1)
        [ExposedMember(position=0, above_nonmembers=1.0)]
    """

    position: int
    above_nonmembers: float


def auc_by_group(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    groups: Int[np.ndarray, " grouped"],
    confidence: float = 0.95,
) -> list[GroupAuc]:
    """Compute, for every group, the AUC of its members against its non-members.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        groups: The group of each sample.
        confidence: Confidence of each interval, in (0, 1); not corrected for multiple intervals.

    Raises:
        BadInput: Lengths differ or a score is NaN.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, is_member = np.arange(8), np.arange(8) % 2 == 1
        >>> classes = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> [group.value for group in fa.metrics.auc_by_group(scores, is_member, groups=classes)]
        [0.75, 0.75]
    """
    values, truth = _checked_groups(scores, is_member, groups)
    aucs = []
    for group in np.unique(groups):
        in_group = groups == group
        aucs.append(_auc_of_group(int(group), values[in_group], truth[in_group], confidence))
    return aucs


def auc_by_owner(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    owners: Int[np.ndarray, " grouped"],
    confidence: float = 0.95,
) -> list[GroupAuc]:
    """Compute, for every other client, the AUC of all members against that client's samples.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        owners: The client that owns each sample; -1 for samples of no client.
        confidence: Confidence of each interval, in (0, 1); not corrected for multiple intervals.

    Raises:
        BadInput: Lengths differ or a score is NaN.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, owners = [0.9, 0.8, 0.7, 0.6, 0.95, 0.5], np.array([0, 0, 1, 1, 2, 2])
        >>> clients = fa.metrics.auc_by_owner(scores, owners == 0, owners=owners)
        >>> [(client.group, client.value) for client in clients]
        [(1, 1.0), (2, 0.5)]
    """
    values, truth = _checked_groups(scores, is_member, owners)
    aucs = []
    for owner in np.unique(owners[~truth]):
        compared = truth | (owners == owner)
        aucs.append(_auc_of_group(int(owner), values[compared], truth[compared], confidence))
    return aucs


def fraction_of_nonmembers_below(
    scores: npt.ArrayLike, is_member: npt.ArrayLike
) -> Float[np.ndarray, " members"]:
    """Compute, for each member, the fraction of non-members that score strictly below it.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        One fraction for each member, in [0, 1], in the order of the members.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> scores, is_member = [0.9, 0.4, 0.6, 0.1], [True, True, False, False]
        >>> fa.metrics.fraction_of_nonmembers_below(scores, is_member).tolist()
        [1.0, 0.5]
    """
    members, nonmembers = split_scores(scores, is_member)
    return np.searchsorted(np.sort(nonmembers), members, side="left") / len(nonmembers)


def most_exposed(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, top: int = 20
) -> list[ExposedMember]:
    """Return the members that score above the most non-members, the most exposed member first.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        top: Largest number of members to return.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> from fedaudit.metrics import most_exposed
        >>> [member.position for member in most_exposed([3, 1, 2, 0], [True, True, False, False])]
        [0, 1]
    """
    fractions = fraction_of_nonmembers_below(scores, is_member)
    positions = np.flatnonzero(as_membership(is_member, len(as_scores(scores))))
    # Members with equal fractions are sorted by their scores.
    order = np.lexsort((-as_scores(scores)[positions], -fractions))[: max(0, top)]
    return [ExposedMember(int(positions[index]), float(fractions[index])) for index in order]


def _auc_of_group(
    group: int,
    scores: Float[np.ndarray, " samples"],
    truth: npt.NDArray[np.bool_],
    confidence: float,
) -> GroupAuc:
    members = int(truth.sum())
    nonmembers = len(truth) - members
    interval: dict[str, Any] = {"value": None, "low": None, "high": None}
    if min(members, nonmembers) >= 2:
        interval = asdict(auc_interval(scores, truth, confidence=confidence))
    return GroupAuc(group=group, n_members=members, n_nonmembers=nonmembers, **interval)


def _checked_groups(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, groups: Int[np.ndarray, " grouped"]
) -> tuple[Float[np.ndarray, " samples"], npt.NDArray[np.bool_]]:
    values = as_scores(scores)
    truth = as_membership(is_member, len(values))
    if len(groups) != len(values):
        raise BadInput(
            f"every sample needs a group, got {len(groups)} groups for {len(values)} samples"
        )
    return values, truth


FAIRNESS_METRICS = ("demographic parity", "equal opportunity", "equalised odds")
"""Names of the fairness metrics, in the order in which functions return them."""


@dataclass(frozen=True)
class GroupGap(EstimateWithLimits[float]):
    """Largest difference of a rate between two groups, with bootstrap limits.

    A gap of 0 means equal treatment.

    Attributes:
        metric: One of ``FAIRNESS_METRICS``.
    """

    metric: str


def fairness_gaps(
    labels: Int[ndarray, " samples"],
    predictions: Int[ndarray, " predicted"],
    group: Int[ndarray, " grouped"],
    *,
    rng: np.random.Generator,
    resamples: int = 500,
    confidence: float = 0.95,
) -> list[GroupGap]:
    """Compute demographic parity, equal opportunity and equalised odds, with bootstrap intervals.

    If all classes are 0 or 1, a prediction of 1 is the favourable one. Otherwise, the gap is the
    mean over one-vs-rest gaps. For each class, the gap of equalised odds is the larger of the gaps
    of the true-positive and of the false-positive rate.

    An absolute difference is never negative, so its expectation is above 0 even under equal
    treatment. Resampling increases this bias, so a gap may be below its lower limit. Only compare
    gaps that were computed from the same numbers of samples.

    Args:
        labels: True class of each sample.
        predictions: Class that the model of the sample's client predicts.
        group: Group of each sample; two or more groups.
        rng: Draws the resamples, within each group.
        resamples: Number of resamples, at least 1.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, there are fewer than two groups, ``resamples`` is below 1, or no
            class can be compared. A class can be compared if every group has samples of this class
            and samples of other classes.
        Unsupported: fairlearn is not installed.

    Source: Jung et al. 2025 (IFCA-MIR), section 3.2, Eqs. (5)-(7); the value is fairlearn's.
    Differs: The paper defines the gaps for two classes; this toolkit adds the one-vs-rest mean over
        more classes. fairlearn counts a rate without samples as 0, so a class that is absent from
        a group would have a gap. Here, equal opportunity and equalised odds omit such classes.
    """
    require_confidence(confidence)
    confusion = _confusion_matrices(labels, predictions, group)
    if resamples < 1:
        raise BadInput(f"an interval needs at least 1 resample, got {resamples}; 500 are usual")
    comparable = _comparable_classes(confusion)
    values = _gaps_by_fairlearn(confusion, comparable)
    resampled = gaps_of(_resample(confusion, resamples, rng))
    return [
        GroupGap(value, *_percentile_limits(gaps, (1 - confidence) / 2), metric)
        for metric, value, gaps in zip(FAIRNESS_METRICS, values, resampled.T, strict=True)
    ]


def gaps_of(
    confusion: Float[ndarray, "draws groups classes classes"],
) -> Float[ndarray, "draws metrics"]:
    """Compute the three gaps from confusion matrices, for many draws at once.

    Args:
        confusion: For each group, the number of samples by true class and predicted class. If there
            are two classes, only the second is compared. If there are more, all are compared.

    Returns:
        Gaps in the order of ``FAIRNESS_METRICS``; NaN if no class can be compared.
    """
    rates = _rates(confusion)
    selection_gap, tpr_gap, fpr_gap = (np.ptp(rate, axis=-2) for rate in rates)
    odds = np.maximum(tpr_gap, fpr_gap)
    return np.stack([_finite_mean(gap) for gap in (selection_gap, tpr_gap, odds)], axis=-1)


def _percentile_limits(gaps: Float[ndarray, " draws"], tail: float) -> ConfidenceLimits:
    """Return the percentiles of the finite gaps, or the full range [0, 1] if no gap is finite."""
    finite = gaps[np.isfinite(gaps)]
    if not len(finite):
        return ConfidenceLimits(0.0, 1.0)
    low, high = np.quantile(finite, [tail, 1 - tail])
    return ConfidenceLimits(float(low), float(high))


class _Rates(NamedTuple):
    """Rates of each compared class in each group; NaN for a rate without samples."""

    selection: Float[ndarray, "draws groups compared"]
    true_positive: Float[ndarray, "draws groups compared"]
    false_positive: Float[ndarray, "draws groups compared"]


def _rates(confusion: Float[ndarray, "draws groups classes classes"]) -> _Rates:
    size = confusion.sum((-2, -1))[..., None]
    actual, predicted = confusion.sum(-1), confusion.sum(-2)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    if confusion.shape[-1] == 2:
        actual, predicted, hits = actual[..., 1:], predicted[..., 1:], hits[..., 1:]
    with np.errstate(invalid="ignore"):
        return _Rates(predicted / size, hits / actual, (predicted - hits) / (size - actual))


def _finite_mean(gap: Float[ndarray, "draws compared"]) -> Float[ndarray, " draws"]:
    finite = np.isfinite(gap)
    with np.errstate(invalid="ignore"):
        mean: Float[ndarray, " draws"] = np.where(finite, gap, 0.0).sum(-1) / finite.sum(-1)
    return mean


def _confusion_matrices(
    labels: Int[ndarray, " samples"],
    predictions: Int[ndarray, " predicted"],
    group: Int[ndarray, " grouped"],
) -> Float[ndarray, "groups classes classes"]:
    if not len(labels) == len(predictions) == len(group):
        raise BadInput(
            "every sample needs a label, a prediction and a group, got "
            f"{len(labels)}, {len(predictions)} and {len(group)}"
        )
    groups, group_index = np.unique(group, return_inverse=True)
    if len(groups) < 2:
        raise BadInput(
            f"fairness gaps compare groups, got {len(groups)}; pass samples of at least 2 groups"
        )
    all_classes = np.concatenate([labels, predictions])
    # Binary classes have two columns even if one class never occurs.
    is_binary = np.isin(all_classes, (0, 1)).all()
    classes = np.array([0, 1]) if is_binary else np.unique(all_classes)
    actual, predicted = np.searchsorted(classes, labels), np.searchsorted(classes, predictions)
    confusion = np.zeros((len(groups), len(classes), len(classes)))
    np.add.at(confusion, (group_index, actual, predicted), 1)
    return confusion


class _ComparableClasses(NamedTuple):
    """Masks of the classes that have the required rates in every group, for two metrics."""

    equal_opportunity: Bool[ndarray, " compared"]
    equalised_odds: Bool[ndarray, " compared"]


def _comparable_classes(confusion: Float[ndarray, "groups classes classes"]) -> _ComparableClasses:
    rates = _rates(confusion[None])
    has_tpr = np.isfinite(rates.true_positive[0]).all(0)
    has_fpr = np.isfinite(rates.false_positive[0]).all(0)
    if not (has_tpr & has_fpr).any():
        raise BadInput(
            "rates of a class can only be compared if every group has samples of this class and of "
            "other classes, which no class satisfies; pass more samples of each group"
        )
    return _ComparableClasses(has_tpr, has_tpr & has_fpr)


def _gaps_by_fairlearn(
    confusion: Float[ndarray, "groups classes classes"], comparable: _ComparableClasses
) -> tuple[float, float, float]:
    """Compute the gaps with fairlearn, from one weighted row per cell of the confusion matrices.

    With one row per sample, fairlearn would take seconds.
    """
    try:
        from fairlearn.metrics import (
            MetricFrame,
            false_positive_rate,
            selection_rate,
            true_positive_rate,
        )
    except ImportError as error:
        raise Unsupported(
            "fairness metrics need fairlearn, which is not installed; run: "
            "pip install fedaudit[fairness]"
        ) from error
    # Axes of weights: compared class, group, whether the sample has this class, whether the model
    # predicts this class.
    compared = range(1, 2) if confusion.shape[-1] == 2 else range(confusion.shape[-1])
    weights = np.stack([_one_vs_rest(confusion, index) for index in compared])
    class_index, group, actual, predicted = np.indices(weights.shape).reshape(4, -1)
    metrics = {
        "selection": selection_rate,
        "true_positive": true_positive_rate,
        "false_positive": false_positive_rate,
    }
    frame = MetricFrame(
        metrics=metrics,
        y_true=actual,
        y_pred=predicted,
        sensitive_features=group,
        control_features=class_index,
        sample_params={name: {"sample_weight": weights.ravel()} for name in metrics},
    )
    gaps = frame.difference()
    tpr_gap, fpr_gap = gaps["true_positive"].to_numpy(), gaps["false_positive"].to_numpy()
    return (
        float(gaps["selection"].mean()),
        float(tpr_gap[comparable.equal_opportunity].mean()),
        float(np.maximum(tpr_gap, fpr_gap)[comparable.equalised_odds].mean()),
    )


def _one_vs_rest(
    confusion: Float[ndarray, "groups classes classes"], index: int
) -> Float[ndarray, "groups 2 2"]:
    """Reduce the confusion matrices to one class (index 1) and all others together (index 0)."""
    size, hits = confusion.sum((1, 2)), confusion[:, index, index]
    actual, predicted = confusion[:, index].sum(1), confusion[:, :, index].sum(1)
    neither = size - actual - predicted + hits
    cells = np.stack([neither, predicted - hits, actual - hits, hits], axis=-1)
    return cells.reshape(len(confusion), 2, 2)


def _resample(
    confusion: Float[ndarray, "groups classes classes"], resamples: int, rng: np.random.Generator
) -> Float[ndarray, "draws groups classes classes"]:
    """Draw bootstrap resamples of each group's samples, as confusion matrices."""
    resampled = np.zeros((resamples, len(confusion), confusion[0].size))
    for group, counts in enumerate(confusion.reshape(len(confusion), -1)):
        cells = np.flatnonzero(counts)
        total = int(counts.sum())
        resampled[:, group, cells] = rng.multinomial(total, counts[cells] / total, size=resamples)
    return resampled.reshape(resamples, *confusion.shape)


class Violations(NamedTuple):
    """Number of clients whose model has a membership risk above the client's threshold.

    Attributes:
        above: Number of clients with a measured risk above the threshold.
        significant: Number of clients for which the risk's lower confidence limit is also above it.
        clients: Number of all clients.
    """

    above: int
    significant: int
    clients: int


def violations(
    risks: Float[ndarray, " clients"],
    thresholds: Float[ndarray, " thresholds"],
    *,
    lows: Float[ndarray, " lows"] | None = None,
) -> Violations:
    """Count the clients whose model has a higher membership risk than the client accepts.

    A risk equal to the threshold is not a violation.

    Args:
        risks: Membership risk of each client's model, in [0, 1]; NaN for a risk that was not
            measured, which is not a violation.
        thresholds: The highest risk that each client accepts, in [0, 1].
        lows: Lower confidence limits of the risks. If None, ``significant`` is 0.

    Raises:
        BadInput: Lengths differ, or there is no client.

    Source: Jung et al. 2025 (IFCA-MIR), section 5.2.2.
    """
    if not len(risks) or len(thresholds) != len(risks):
        raise BadInput(
            f"every client needs a risk and a threshold, got {len(risks)} risks and "
            f"{len(thresholds)} thresholds"
        )
    if lows is not None and len(lows) != len(risks):
        raise BadInput(f"every risk needs a lower limit, got {len(lows)} for {len(risks)} risks")
    above = risks > thresholds
    significant = 0 if lows is None else int((above & (lows > thresholds)).sum())
    return Violations(int(above.sum()), significant, len(risks))


class ModelRisk(NamedTuple):
    """Numbers of samples behind a model's risk, and the risks that its clients accept.

    Attributes:
        members: Number of audited members, at least 1.
        nonmembers: Number of audited non-members, at least 1.
        thresholds: The highest risk that each client of the model accepts.
    """

    members: int
    nonmembers: int
    thresholds: Sequence[float]


def violations_by_chance(
    models: Sequence[ModelRisk], *, rng: np.random.Generator, draws: int = 10_000
) -> float:
    """Compute the expected number of violations if every true risk is at chance level (one half).

    A measured risk is a balanced accuracy and has sampling error. If a client accepts only slightly
    more than one half, noise alone can cause a violation. The simulated attack classifies each
    sample as a member with probability one half, which gives the largest variance.

    Raises:
        BadInput: A model has no audited members or no audited non-members.
    """
    total = 0.0
    for members, nonmembers, thresholds in models:
        if members < 1 or nonmembers < 1:
            raise BadInput(
                "the noise floor of violations needs models measured on members and non-members, "
                f"got {members} and {nonmembers}; leave out models whose risk was not measured"
            )
        tpr = rng.binomial(members, 0.5, draws) / members
        tnr = rng.binomial(nonmembers, 0.5, draws) / nonmembers
        risks = np.sort((tpr + tnr) / 2)
        not_above = np.searchsorted(risks, np.asarray(thresholds, dtype=np.float64), side="right")
        total += float((draws - not_above).sum()) / draws
    return total
