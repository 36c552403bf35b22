"""Bounds on client-level epsilon from statistics with a known distribution."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import nct, norm

from fedaudit.core.errors import BadInput
from fedaudit.metrics.canaries import canary_bounds, sample_bounds
from fedaudit.metrics.epsilon import (
    Guesses,
    count_guesses,
    describe_equal_coins,
    gaussian_budget,
    gaussian_shift,
    one_run_epsilon_from_counts,
    one_run_epsilon_from_scores,
    one_run_gaussian_bound,
)

DELTA = 1e-5


def drawn(rng: np.random.Generator, epsilon: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw statistics of a Gaussian mechanism with this epsilon, and which clients took part."""
    inside = rng.random(count) < 0.5
    return rng.normal(size=count) + inside * gaussian_shift(epsilon, DELTA), inside


def test_canary_bounds_match_hand_calculation() -> None:
    inside = np.arange(20) < 9
    z = np.where(inside, 4.0, 0.0)
    bounds = canary_bounds(z, inside, delta=DELTA)
    shift = 4.0 - norm.ppf(0.95) / 3
    assert bounds.mean_only is not None
    assert bounds.mean_only.value == pytest.approx(gaussian_budget(shift, DELTA))
    assert bounds.mean_only.method == "mean-only Gaussian 95%, delta 1e-05"
    assert bounds.one_run == one_run_epsilon_from_scores(z, inside, guesses=6, delta=DELTA)


def test_partial_participation_has_no_gaussian_bound() -> None:
    z, inside = drawn(np.random.default_rng(1), 2.0, 40)
    bounds = canary_bounds(z, inside, delta=DELTA, every_round=False)
    assert bounds.mean_only is None
    assert bounds.one_run == canary_bounds(z, inside, delta=DELTA).one_run


@pytest.mark.simulation
@pytest.mark.parametrize(("epsilon", "count"), [(0.5, 30), (2.0, 100), (8.0, 30), (4.0, 300)])
@pytest.mark.slow
def test_the_true_epsilon_is_exceeded_no_more_often_than_nominal(
    epsilon: float, count: int
) -> None:
    rng, runs = np.random.default_rng(7), 200
    bounds = [canary_bounds(*drawn(rng, epsilon, count), delta=DELTA) for _ in range(runs)]
    gaussian = [
        run_bounds.mean_only.value for run_bounds in bounds if run_bounds.mean_only is not None
    ]
    # Four standard errors above the nominal 5 %.
    allowed = 0.05 + 4 * (0.05 * 0.95 / runs) ** 0.5
    assert np.mean(np.array(gaussian) > epsilon) <= allowed
    assert np.mean([run_bounds.one_run.value > epsilon for run_bounds in bounds]) <= allowed


def test_bounds_approach_the_true_epsilon_with_more_canaries() -> None:
    rng = np.random.default_rng(3)
    estimates = [canary_bounds(*drawn(rng, 4.0, n), delta=DELTA).mean_only for n in (20, 20_000)]
    few, many = (estimate.value for estimate in estimates if estimate is not None)
    assert few < many
    assert many == pytest.approx(4.0, abs=0.15)


@pytest.mark.parametrize(
    ("z", "inside", "match"),
    [
        (np.zeros(19), np.arange(19) < 9, "need 20 canary clients, got 19"),
        (np.full(20, np.nan), np.arange(20) < 9, "one finite statistic"),
        (np.zeros(20), np.arange(10) < 5, "must have one entry per sample"),
        (np.zeros(60), np.ones(60, dtype=bool), "non-members|fair coins"),
    ],
)
def test_uninformative_canaries_raise(z: np.ndarray, inside: np.ndarray, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        canary_bounds(z, inside, delta=DELTA)


def record_scores(
    rng: np.random.Generator, epsilon: float, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores of canary samples in clips, whose mean and noise level are unknown."""
    z, inside = drawn(rng, epsilon, count)
    return 7.0 + 0.3 * z, inside


def test_canary_sample_bounds_match_hand_calculation() -> None:
    scores, inside = record_scores(np.random.default_rng(2), 3.9, 500)
    bounds = sample_bounds(scores, inside, guesses=100, delta=DELTA)
    counted = count_guesses(scores, inside, 100)
    assert counted == Guesses(100, counted.correct, 500)
    assert bounds.if_gaussian == one_run_gaussian_bound(counted, delta=DELTA)
    assert bounds.if_normal is not None
    # At the lower limit, a distance at least this large has a probability of 5 %.
    root = np.sqrt(inside.sum() * (~inside).sum() / 500)
    spread = np.sqrt(
        (inside.sum() * scores[inside].var() + (~inside).sum() * scores[~inside].var()) / 498
    )
    distance = (scores[inside].mean() - scores[~inside].mean()) / spread
    shift = gaussian_shift(bounds.if_normal.value, DELTA)
    assert nct.sf(distance * root, 498, shift * root) == pytest.approx(0.05, rel=1e-3)
    assert bounds.if_normal.method == "mean-only normal 95%, delta 1e-05"


def test_stronger_assumptions_give_larger_bounds() -> None:
    scores, inside = record_scores(np.random.default_rng(3), 3.9, 500)
    bounds = sample_bounds(scores, inside, guesses=100, delta=DELTA)
    coins = one_run_epsilon_from_scores(scores, inside, guesses=100, delta=DELTA)
    assert bounds.if_gaussian is not None
    assert bounds.if_normal is not None
    assert 0 < coins.value < bounds.if_gaussian.value < bounds.if_normal.value


def test_scores_without_leak_give_bounds_of_zero() -> None:
    rng = np.random.default_rng(4)
    scores, inside = rng.normal(size=400), rng.random(400) < 0.5
    bounds = sample_bounds(scores, inside, guesses=80, delta=DELTA)
    assert bounds.if_gaussian is not None
    assert bounds.if_normal is not None
    assert (bounds.if_gaussian.value, bounds.if_normal.value) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("shape", "refusal"),
    [
        (lambda rng, n: rng.laplace(size=n), "not normal about their means"),
        (lambda rng, n: np.where(rng.random(n) < 0.01, np.inf, 0.0), "infinite or all equal"),
        (lambda rng, n: np.zeros(n), "infinite or all equal"),
    ],
    ids=["laplace", "infinite", "equal"],
)
def test_non_normal_scores_have_no_normal_bound(
    shape: Callable[[np.random.Generator, int], np.ndarray], refusal: str
) -> None:
    rng = np.random.default_rng(5)
    inside = rng.random(600) < 0.5
    bounds = sample_bounds(shape(rng, 600), inside, guesses=100, delta=DELTA)
    assert bounds.if_normal is None
    assert refusal in bounds.refusal


def test_unequal_variances_have_no_normal_bound() -> None:
    rng = np.random.default_rng(6)
    inside = rng.random(2000) < 0.5
    scores = rng.normal(size=2000) * np.where(inside, 1.15, 1.0)
    bounds = sample_bounds(scores, inside, guesses=400, delta=DELTA)
    assert bounds.if_normal is None
    assert "have different variances" in bounds.refusal


def test_few_canaries_have_no_normal_bound() -> None:
    scores, inside = record_scores(np.random.default_rng(7), 3.9, 199)
    bounds = sample_bounds(scores, inside, guesses=38, delta=DELTA)
    assert (bounds.if_normal, bounds.refusal) == (
        None,
        "the test of normality needs 200 canaries, got 199",
    )


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_bounds_from_canary_samples_are_tight_and_rarely_exceed_the_true_epsilon(
    epsilon: float,
) -> None:
    rng, runs = np.random.default_rng(8), 200
    values = np.zeros((runs, 3))
    for run in values:
        scores, inside = record_scores(rng, epsilon, 500)
        coins = one_run_epsilon_from_counts(count_guesses(scores, inside, 100), delta=DELTA)
        tighter = sample_bounds(scores, inside, guesses=100, delta=DELTA)
        assert tighter.if_gaussian is not None
        normal = tighter.if_normal.value if tighter.if_normal else np.nan
        run[:] = coins.value, tighter.if_gaussian.value, normal
    # Four standard errors above the nominal 5 %.
    allowed = 0.05 + 4 * (0.05 * 0.95 / runs) ** 0.5
    assert ((values > epsilon).mean(axis=0) <= allowed).all()
    assert np.isnan(values[:, 2]).mean() < 0.05
    if epsilon >= 4:
        assert np.nanmedian(values[:, 2]) >= 0.75 * epsilon


@pytest.mark.parametrize("is_member", [np.ones(8, bool), np.zeros(8, bool)])
def test_equal_coins_give_a_refusal_instead_of_bounds(
    is_member: np.ndarray,
) -> None:
    bounds = sample_bounds(np.arange(8.0), is_member, guesses=2, delta=DELTA)
    assert (bounds.if_gaussian, bounds.if_normal) == (None, None)
    assert bounds.refusal == describe_equal_coins(is_member)
    members = int(is_member.sum())
    assert f"{members} members and {8 - members} non-members" in bounds.refusal
    with pytest.raises(BadInput, match="both members and non-members are needed"):
        one_run_epsilon_from_scores(np.arange(8.0), is_member, guesses=2)


def test_one_different_coin_is_sufficient_for_a_bound() -> None:
    assert describe_equal_coins(np.arange(8) < 7) == ""
    bounds = sample_bounds(np.arange(8.0), np.arange(8) < 7, guesses=2, delta=DELTA)
    assert bounds.if_gaussian is not None
