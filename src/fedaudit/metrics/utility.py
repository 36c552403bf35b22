"""Utility of the trained model, and Pareto fronts of privacy and utility with their hypervolume.

A point of a front is one training configuration, with two coordinates: its leakage and the model's
error rate. Both are in [0, 1], and smaller values are better.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    EstimateWithLimits,
    SeedMean,
    clopper_pearson,
    format_percent,
    require_confidence,
)
from fedaudit.metrics.rate_limits import Proportion, proportion


@dataclass(frozen=True)
class GeneralisationGap(EstimateWithLimits[float]):
    """Accuracy on training samples minus accuracy on held-out samples, with its interval.

    A loss-threshold attack exploits this difference.

    Examples:
        >>> from fedaudit.metrics import generalisation_gap, proportion
        >>> round(generalisation_gap(proportion(95, 100), proportion(80, 100)).value, 3)
        0.15
    """


def accuracy(
    predicted: Int[np.ndarray, " samples"],
    labels: Int[np.ndarray, " labelled"],
    *,
    confidence: float = 0.95,
) -> Proportion:
    """Compute the fraction of samples classified correctly, with its Clopper-Pearson interval.

    Args:
        predicted: Predicted class of each sample.
        labels: True class of each sample.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, or no samples.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> correct = fa.metrics.accuracy(np.array([0, 1, 2, 1]), np.array([0, 1, 1, 1]))
        >>> correct.value, round(correct.low, 3)
        (0.75, 0.194)
    """
    if len(predicted) != len(labels):
        raise BadInput(
            f"every sample needs a prediction and a label, got {len(predicted)} and {len(labels)}"
        )
    is_correct: Bool[np.ndarray, " samples"] = predicted == labels
    return proportion(int(is_correct.sum()), len(is_correct), confidence=confidence)


def generalisation_gap(
    train: Proportion, test: Proportion, *, confidence: float = 0.95
) -> GeneralisationGap:
    """Compute the generalisation gap of the model, with a conservative interval.

    The limits are differences of the exact limits of both accuracies, each with half of the
    error probability.

    Args:
        train: Accuracy on training samples.
        test: Accuracy on held-out samples.
        confidence: Two-sided confidence, in (0, 1).

    Examples:
        >>> from fedaudit.metrics import generalisation_gap, proportion
        >>> gap = generalisation_gap(proportion(95, 100), proportion(80, 100))
        >>> round(gap.value, 3), round(gap.low, 3), round(gap.high, 3)
        (0.15, -0.005, 0.291)
    """
    each_confidence = 1 - (1 - confidence) / 2
    train_limits = clopper_pearson(train.hits, train.total, confidence=each_confidence)
    test_limits = clopper_pearson(test.hits, test.total, confidence=each_confidence)
    return GeneralisationGap(
        value=train.value - test.value,
        low=train_limits.low - test_limits.high,
        high=train_limits.high - test_limits.low,
    )


WORST = 1.0
"""Both coordinates of the hypervolume's reference point: an advantage and an error rate of 1."""

FEWEST_SEEDS = 10
"""Fewest seeds for confidence limits of a hypervolume."""
_RESAMPLES = 1_000
"""Number of bootstrap resamples of the seeds."""


@dataclass(frozen=True)
class HypervolumeEstimate(SeedMean):
    """Hypervolume of a front with its interval over seeds.

    The value is the fraction of the unit square that the front's points dominate. The limits are
    for the mean over all possible seeds. With fewer than ten seeds they are None, and ``method``
    states the reason.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> runs = np.array([[[0.2, 0.5]], [[0.4, 0.5]]])
        >>> round(fa.metrics.hypervolume_over_seeds(runs, rng=np.random.default_rng(0)).value, 3)
        0.35
    """


def advantage(auc: float) -> float:
    """Compute the membership advantage of an AUC: 2 AUC - 1, but at least 0.

    Args:
        auc: An AUC, in [0, 1].

    Returns:
        The advantage; 0 at an AUC of 0.5 or less.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.advantage(0.75), fa.metrics.advantage(0.4)
        (0.5, 0.0)
    """
    return min(max(2 * auc - 1, 0.0), 1.0)


def is_pareto_optimal(points: Float[np.ndarray, "points 2"]) -> Bool[np.ndarray, " points"]:
    """Return a mask of the points that no other point dominates.

    A point dominates another if one coordinate is smaller and the other is not larger.

    Args:
        points: Leakage and error of each point, in [0, 1]. Equal points do not dominate each other.

    Raises:
        BadInput: No points, or a value outside of [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> fa.metrics.is_pareto_optimal(np.array([[0.1, 0.5], [0.4, 0.2], [0.5, 0.5]])).tolist()
        [True, True, False]
    """
    from moocore import is_nondominated

    _raise_if_out_of_range(points)
    front: Bool[np.ndarray, " points"] = np.asarray(is_nondominated(points, keep_weakly=True))
    return front


def hypervolume(points: Float[np.ndarray, "points 2"]) -> float:
    """Compute the area of the unit square that the points dominate, in [0, 1].

    An area of 1 means that a point has no leakage and no error. An area of 0 means that every point
    has a leakage or an error of 1.

    Args:
        points: Leakage and error of each point, in [0, 1].

    Raises:
        BadInput: No points, or a value outside of [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> fa.metrics.hypervolume(np.array([[0.5, 0.5], [0.75, 0.25]]))
        0.3125

    Source: Zhu et al. 2024 (FedMIA), appendix A, Definition 1, with the reference point (1, 1).
    """
    from moocore import hypervolume as area_of

    _raise_if_out_of_range(points)
    return float(area_of(points, ref=[WORST, WORST]))


def hypervolume_over_seeds(
    runs: Float[np.ndarray, "seeds points 2"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    n_baseline_points: int = 0,
) -> HypervolumeEstimate:
    """Compute the hypervolume of the points' means over seeds, with a bootstrap over seeds.

    A resample has the same seeds for every point, since all points of one seed use the same data.
    With fewer than ten seeds, the limits are None, because bootstrap percentiles are too narrow.

    Args:
        runs: For each seed, leakage and error of each point, in [0, 1].
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        n_baseline_points: Number of points at the beginning that form a baseline, such as the point
            without a defense. Their hypervolume is subtracted; 0 for no baseline.

    Raises:
        BadInput: No seeds or points, or a value outside of [0, 1].

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> runs = np.array([[[0.2, 0.5]], [[0.4, 0.5]]])
        >>> area = fa.metrics.hypervolume_over_seeds(runs, rng=np.random.default_rng(0))
        >>> round(area.value, 3), area.seeds
        (0.35, 2)
    """
    require_confidence(confidence)
    _raise_if_out_of_range(runs.reshape(-1, 2))
    seeds = len(runs)

    def areas_of(means: Float[np.ndarray, "draws points 2"]) -> Float[np.ndarray, " draws"]:
        return _areas(means) - (_areas(means[:, :n_baseline_points]) if n_baseline_points else 0.0)

    value = float(areas_of(runs.mean(axis=0)[None])[0])
    if seeds < FEWEST_SEEDS:
        method = f"an interval over further runs needs {FEWEST_SEEDS} seeds here, got {seeds}"
        return HypervolumeEstimate(value, None, None, method, seeds)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=_RESAMPLES) / seeds
    areas = areas_of(np.einsum("ds,spc->dpc", weights, runs))
    tail = (1 - confidence) / 2
    low, high = map(float, np.quantile(areas, [tail, 1 - tail]))
    method = f"bootstrap over {seeds} seeds {format_percent(confidence)}"
    return HypervolumeEstimate(value, low, high, method, seeds)


def _areas(fronts: Float[np.ndarray, "draws points 2"]) -> Float[np.ndarray, " draws"]:
    """Compute the hypervolume of each front as a sum of strips between sorted leakage values."""
    order = np.argsort(fronts[:, :, :1], axis=1)
    leakage, error = np.moveaxis(np.take_along_axis(fronts, order, axis=1), 2, 0)
    widths = np.diff(leakage, axis=1, append=WORST)
    heights = WORST - np.minimum.accumulate(error, axis=1)
    areas: Float[np.ndarray, " draws"] = (widths * heights).sum(axis=1)
    return areas


def _raise_if_out_of_range(points: Float[np.ndarray, "points 2"]) -> None:
    if points.size == 0:
        raise BadInput("a front needs at least one point, got none; pass its leakage and error")
    if not ((points >= 0) & (points <= 1)).all():
        raise BadInput(
            f"leakage and error must be in [0, 1], got {points.min():g} to {points.max():g}; "
            "convert an AUC to an advantage first (fedaudit.metrics.advantage)"
        )
