"""Contract of every metric in the table."""

import math
from statistics import fmean

import numpy as np
import pytest

from fedaudit.metrics import METRICS, Metric

TABLE = {name: metric for name, metric in METRICS.items() if isinstance(metric, Metric)}
"""Other metrics compute intervals; their tests use known answers and brute force."""
EACH = pytest.mark.parametrize("metric", TABLE.values(), ids=TABLE)
RNG = np.random.default_rng(5)
IS_MEMBER = np.arange(200) < 80
SCORES = RNG.normal(size=200) + IS_MEMBER


@EACH
def test_a_metric_does_not_depend_on_the_order_of_samples(metric: Metric) -> None:
    order = RNG.permutation(len(SCORES))
    assert metric.function(SCORES[order], IS_MEMBER[order]) == pytest.approx(
        metric.function(SCORES, IS_MEMBER)
    )


@EACH
def test_a_metric_does_not_depend_on_the_scale_of_scores(metric: Metric) -> None:
    assert metric.function(3 * SCORES + 7, IS_MEMBER) == pytest.approx(
        metric.function(SCORES, IS_MEMBER)
    )


@EACH
def test_metrics_are_finite_and_larger_for_a_perfect_attack(metric: Metric) -> None:
    perfect, actual = (
        metric.function(IS_MEMBER + 0.0, IS_MEMBER),
        metric.function(SCORES, IS_MEMBER),
    )
    guessed = fmean(metric.function(RNG.normal(size=200), IS_MEMBER) for _ in range(20))
    assert all(map(math.isfinite, (perfect, actual, guessed)))
    assert perfect > actual > guessed
