"""Bounds on the epsilon of a client's presence, from statistics whose distribution is known."""

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.core.errors import BadInput
from fedaudit.metrics.canaries import canary_bounds
from fedaudit.metrics.epsilon import gaussian_budget, gaussian_shift, one_run_epsilon

DELTA = 1e-5


def drawn(rng: np.random.Generator, epsilon: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Statistics under a Gaussian mechanism with this epsilon, and who took part."""
    inside = rng.random(count) < 0.5
    return rng.normal(size=count) + inside * gaussian_shift(epsilon, DELTA), inside


def test_both_bounds_by_hand() -> None:
    inside = np.arange(20) < 9
    z = np.where(inside, 4.0, 0.0)
    found = canary_bounds(z, inside, delta=DELTA)
    shift = 4.0 - norm.ppf(0.95) / 3
    assert found.mean_only is not None
    assert found.mean_only.value == pytest.approx(gaussian_budget(shift, DELTA))
    assert found.mean_only.method == "mean-only Gaussian 95%, delta 1e-05"
    assert found.one_run == one_run_epsilon(z, inside, guesses=6, delta=DELTA)


def test_where_rounds_draw_their_clients_no_gaussian_bound_is_made() -> None:
    z, inside = drawn(np.random.default_rng(1), 2.0, 40)
    found = canary_bounds(z, inside, delta=DELTA, every_round=False)
    assert found.mean_only is None
    assert found.one_run == canary_bounds(z, inside, delta=DELTA).one_run


@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 30), (2.0, 100), (8.0, 30), (4.0, 300)])
@pytest.mark.slow
def test_the_true_epsilon_is_exceeded_no_more_often_than_nominal(
    epsilon: float, count: int
) -> None:
    rng, runs = np.random.default_rng(7), 400
    bounds = [canary_bounds(*drawn(rng, epsilon, count), delta=DELTA) for _ in range(runs)]
    gaussian = [found.mean_only.value for found in bounds if found.mean_only is not None]
    # Four standard errors above the nominal 5 %.
    most = 0.05 + 4 * (0.05 * 0.95 / runs) ** 0.5
    assert np.mean(np.array(gaussian) > epsilon) <= most
    assert np.mean([found.one_run.value > epsilon for found in bounds]) <= most


def test_bounds_rise_to_the_truth_with_canaries() -> None:
    rng = np.random.default_rng(3)
    found = [canary_bounds(*drawn(rng, 4.0, n), delta=DELTA).mean_only for n in (20, 20_000)]
    few, many = (one.value for one in found if one is not None)
    assert few < many
    assert many == pytest.approx(4.0, abs=0.15)


@pytest.mark.parametrize(
    ("z", "inside", "match"),
    [
        (np.zeros(19), np.arange(19) < 9, "take 20 canary clients, got 19"),
        (np.full(20, np.nan), np.arange(20) < 9, "one finite statistic"),
        (np.zeros(20), np.arange(10) < 5, "must have one entry a sample"),
        (np.zeros(60), np.ones(60, dtype=bool), "non-members|fair coins"),
    ],
)
def test_what_says_nothing_is_refused(z: np.ndarray, inside: np.ndarray, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        canary_bounds(z, inside, delta=DELTA)
