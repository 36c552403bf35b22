"""Predicted limits of larger samples."""

import numpy as np
import pytest

from fedaudit.metrics import (
    EstimateWithLimits,
    auc_interval,
    clopper_pearson,
    tpr_at_fpr,
    tpr_limits,
)
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.intervals import mean_of_units
from fedaudit.metrics.power import (
    larger_auc,
    larger_balanced,
    larger_mean,
    larger_proportion,
    larger_rate,
)


def scores(size: int, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = np.concatenate([rng.normal(shift, 1, size), rng.normal(0, 1, 2 * size)])
    return drawn, np.arange(3 * size) < size


def test_larger_share_gives_exact_limits() -> None:
    limits = EstimateWithLimits(0.03, *clopper_pearson(3, 100))
    assert larger_proportion(limits, 100, 1000, confidence=0.95) == clopper_pearson(30, 1000)


def test_larger_share_ignores_unknown_limits() -> None:
    assert larger_proportion(EstimateWithLimits(0.03, 0.0, 0.1), 100, 1000, confidence=0.95) is None
    limits = EstimateWithLimits(0.03, *clopper_pearson(3, 100))
    assert larger_proportion(limits, 200, 1000, confidence=0.95) is None
    assert larger_proportion(limits, 0, 1000, confidence=0.95) is None


def limited(drawn: np.ndarray, is_member: np.ndarray, fpr: float) -> EstimateWithLimits[float]:
    limits = tpr_limits(drawn, is_member, fpr)
    return EstimateWithLimits(tpr_at_fpr(drawn, is_member, fpr).tpr, limits.low, limits.high)


@pytest.mark.parametrize("fpr", [0.005, 0.05])
@pytest.mark.parametrize("times", [3, 10])
def test_larger_rate_predicts_the_limits_of_larger_samples(fpr: float, times: int) -> None:
    drawn, is_member = scores(1500)
    predicted = larger_rate(
        limited(drawn, is_member, fpr), fpr, (1500, 3000), times, confidence=0.95
    )
    then = limited(np.tile(drawn, times), np.tile(is_member, times), fpr)
    # The prediction interpolates the curve linearly between three points.
    assert predicted == pytest.approx((then.low, then.high), abs=0.02)


def test_larger_rate_of_equal_size_keeps_the_limits() -> None:
    drawn, is_member = scores(300)
    for fpr in (0.001, 0.01, 0.2):
        limits = limited(drawn, is_member, fpr)
        predicted = larger_rate(limits, fpr, (300, 600), 1, confidence=0.95)
        assert predicted == pytest.approx((limits.low, limits.high), abs=1e-9)


def test_larger_rate_limits_narrow_around_the_rate() -> None:
    drawn, is_member = scores(300)
    limits = limited(drawn, is_member, 0.05)
    ends = [larger_rate(limits, 0.05, (300, 600), k, confidence=0.95) for k in (1, 10, 100, 10_000)]
    predicted = [end for end in ends if end is not None]
    assert [end.low for end in predicted] == sorted(end.low for end in predicted)
    assert [-end.high for end in predicted] == sorted(-end.high for end in predicted)
    assert predicted[-1] == pytest.approx((limits.value, limits.value), abs=0.01)


def test_larger_rate_ignores_limits_at_the_used_threshold() -> None:
    used = EstimateWithLimits(0.2, *clopper_pearson(60, 300))
    assert larger_rate(used, 0.05, (300, 600), 10, confidence=0.95) is None


@pytest.mark.parametrize("times", [2, 5, 30])
def test_larger_auc_predicts_the_limits_of_repeated_samples(times: int) -> None:
    drawn, is_member = scores(150)
    interval = auc_interval(drawn, is_member)
    then = auc_interval(np.tile(drawn, times), np.tile(is_member, times))
    predicted = larger_auc(interval, 150, 150 * times, confidence=0.95)
    assert interval.method.startswith("DeLong")
    # A sample's own variance divides by one less than its size: a third of a per cent here.
    assert predicted == pytest.approx((then.low, then.high), abs=2e-4)


def test_larger_auc_keeps_exact_limits() -> None:
    interval = auc_interval([3.0, 4.0, 5.0, 1.0, 2.0, 0.0], [True, True, True, False, False, False])
    assert interval.method.startswith("exact on pairs")
    predicted = larger_auc(interval, 3, 30, confidence=0.95)
    assert predicted == clopper_pearson(30, 30)


def test_larger_auc_ignores_unknown_limits() -> None:
    assert larger_auc(EstimateWithLimits(0.6, 0.5, 0.9), 100, 200, confidence=0.95) is None


def test_larger_balanced_accuracy_matches_larger_counts() -> None:
    now = counted_balanced_accuracy(70, 100, 180, 200)
    then = counted_balanced_accuracy(210, 300, 540, 600)
    limits = EstimateWithLimits(now.value, now.low, now.high)
    assert larger_balanced(limits, 0.1, (100, 200), 3, confidence=0.95) == (then.low, then.high)
    assert larger_balanced(limits, 0.2, (100, 200), 3, confidence=0.95) is None


@pytest.mark.parametrize("larger", [3, 4, 8, 51])
def test_larger_mean_assumes_the_same_variance(larger: int) -> None:
    now = mean_of_units([0.5, 0.6, 0.7], units="seeds")
    assert now.low is not None
    assert now.high is not None
    predicted = larger_mean(
        EstimateWithLimits(now.value, now.low, now.high), 3, larger, confidence=0.95
    )
    assert predicted is not None
    # Student's quantile for 2 degrees of freedom is 4.303, and the spread of these runs is 0.1.
    quantile = {3: 4.3027, 4: 3.1824, 8: 2.3646, 51: 2.0086}[larger]
    assert predicted.high - 0.6 == pytest.approx(quantile * 0.1 / larger**0.5, rel=1e-4)
    assert 0.6 - predicted.low == pytest.approx(predicted.high - 0.6)


def test_larger_mean_uses_the_limit_that_is_not_clipped() -> None:
    predicted = larger_mean(EstimateWithLimits(0.1, 0.0, 0.53027), 3, 3, confidence=0.95)
    assert predicted is not None
    assert predicted.high == pytest.approx(0.53027)


def test_larger_mean_needs_variance_between_runs() -> None:
    assert larger_mean(EstimateWithLimits(0.5, 0.5, 0.5), 3, 4, confidence=0.95) is None
