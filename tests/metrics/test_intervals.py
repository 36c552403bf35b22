from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    EstimateWithLimits,
    bootstrap_over_seeds,
    clopper_pearson,
    clopper_pearson_function,
    clopper_pearson_lower,
    clopper_pearson_upper,
    mean_limits_by_p_values,
    mean_limits_if_dependent,
    mean_limits_if_independent,
    student_t_over_seeds,
)
from fedaudit.metrics.intervals import _critical_values, mean_of_units


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(deadline=None, max_examples=50)
def test_clopper_pearson_matches_scipy(counts: tuple[int, int]) -> None:
    expected = binomtest(*counts).proportion_ci(method="exact")
    assert clopper_pearson(*counts) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("count", "total"), [(0, 100), (30, 100), (90, 100), (999, 1000)])
@pytest.mark.parametrize("alpha", [0.1, 0.01])
def test_upper_limit_has_the_stated_tail_probability(count: int, total: int, alpha: float) -> None:
    limit = clopper_pearson_upper(count, total, confidence=1 - alpha)
    assert binom.cdf(count, total, limit) == pytest.approx(alpha)


def test_lower_limit_has_the_stated_tail_probability() -> None:
    assert binom.sf(29, 100, clopper_pearson_lower(30, 100)) == pytest.approx(0.05)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="0 <= count <= total"):
        clopper_pearson(*counts)


def test_a_confidence_in_per_cent_is_refused() -> None:
    with pytest.raises(BadInput, match="between 0 and 1"):
        clopper_pearson(1, 2, confidence=95.0)


def test_the_interval_over_five_seeds_uses_students_t() -> None:
    # Mean 3, standard deviation sqrt(2.5), t(4) at 97.5% = 2.776.
    mean = student_t_over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean.value == 3
    reach = 2.776445 * np.sqrt(2.5 / 5)
    assert (mean.low, mean.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)
    assert mean.method == "Student t over 5 seeds 95%"


def test_the_interval_of_a_proportion_is_cut_to_zero_and_one() -> None:
    mean = student_t_over_seeds([0.0, 0.0, 0.0, 0.0, 0.03], within=(0.0, 1.0))
    assert mean.low == 0
    assert mean.high == student_t_over_seeds([0.0, 0.0, 0.0, 0.0, 0.03]).high


def test_equal_values_of_all_seeds_give_no_interval() -> None:
    mean = student_t_over_seeds([0.0] * 5)
    assert (mean.value, mean.low, mean.high) == (0, None, None)
    assert mean.method == "no spread over 5 seeds"


def test_the_bootstrap_over_many_seeds_nears_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=60).tolist()
    drawn = bootstrap_over_seeds(values, rng=np.random.default_rng(1))
    exact = student_t_over_seeds(values)
    assert drawn.low == pytest.approx(exact.low, abs=0.03)
    assert drawn.high == pytest.approx(exact.high, abs=0.03)


def test_too_few_or_infinite_values_raise_with_a_remedy() -> None:
    with pytest.raises(BadInput, match="an interval over further runs needs 5 seeds, got 2; run"):
        student_t_over_seeds([0.5, 0.6])
    with pytest.raises(BadInput, match="over games needs at least 2 games, got 1; take more"):
        mean_of_units([0.5], units="games")
    with pytest.raises(BadInput, match=r"at least 10 seeds, got 5; .* use student_t_over_seeds"):
        bootstrap_over_seeds([0.5] * 5, rng=np.random.default_rng(0))
    with pytest.raises(BadInput, match="finite"):
        student_t_over_seeds([0.5, 0.5, 0.5, 0.5, np.nan])


def counted(hits: int, total: int) -> EstimateWithLimits[float]:
    return EstimateWithLimits(hits / total, *clopper_pearson(hits, total))


def test_a_single_run_keeps_its_limits() -> None:
    limits = counted(30, 100)
    assert mean_limits_if_independent([limits]) == pytest.approx((limits.low, limits.high))
    assert mean_limits_if_dependent([limits]) == (limits.low, limits.high)
    assert mean_limits_by_p_values([clopper_pearson_function(30, 100)]) == (limits.low, limits.high)


def test_variance_of_a_mean_of_independent_runs() -> None:
    # Two standard errors of 0.03 and 0.04: that of the mean is 0.05 / 2.
    low, high = mean_limits_if_independent(
        [EstimateWithLimits(0.5, 0.44, 0.56), EstimateWithLimits(0.7, 0.62, 0.78)]
    )
    assert (low, high) == pytest.approx((0.6 - 0.05, 0.6 + 0.05))


def test_averaging_dependent_figures_does_not_narrow_limits() -> None:
    assert mean_limits_if_dependent(
        [EstimateWithLimits(0.5, 0.4, 0.6), EstimateWithLimits(0.7, 0.5, 0.8)]
    ) == pytest.approx((0.45, 0.7))


@pytest.mark.parametrize(
    "put_together", [mean_limits_if_independent, mean_limits_if_dependent, mean_limits_by_p_values]
)
def test_the_mean_of_no_runs_is_refused(put_together: object) -> None:
    assert callable(put_together)
    with pytest.raises(BadInput, match="at least one run, got none"):
        put_together([])


@pytest.mark.parametrize("hits", [(30, 34), (0, 0), (3, 9)])
def test_combined_limits_are_the_smallest_mean_not_rejected(
    hits: tuple[int, int],
) -> None:
    """The limits agree with a search over a fine grid of both shares."""
    low, high = mean_limits_by_p_values([clopper_pearson_function(hit, 60) for hit in hits])
    grid = np.linspace(0, 1, 401)
    at_least, at_most = ([tail(hit, grid) for hit in hits] for tail in (_at_least, _at_most))
    means = (grid[:, None] + grid[None, :]) / 2
    for limit, tails, end in ((low, at_least, np.min), (high, at_most, np.max)):
        with np.errstate(divide="ignore"):
            scores = -np.log(tails[0])[:, None] - np.log(tails[1])[None, :]
        least = np.minimum(tails[0][:, None], tails[1][None, :])
        # Half of the 2.5 % is split between the two p-values; the sum gets what remains.
        exact = end(means[(scores <= 5.6391) & (least >= 0.025 / 4)])
        outwards = exact - limit if end is np.min else limit - exact
        assert -0.003 <= outwards <= 0.01


@pytest.mark.simulation
@pytest.mark.parametrize(("runs", "total"), [(2, 5.6391), (5, 10.681)])
def test_error_rate_of_critical_values_is_nominal(runs: int, total: float) -> None:
    budget = _critical_values(runs, 0.025)
    assert budget.total == pytest.approx(total, abs=1e-3)
    assert budget.single == pytest.approx(np.log(2 * runs / 0.025))
    drawn = np.random.default_rng(0).exponential(size=(400_000, runs))
    over = (drawn.sum(axis=1) > budget.total) | (drawn.max(axis=1) > budget.single)
    assert over.mean() == pytest.approx(0.025, abs=0.001)


def _at_least(hit: int, shares: np.ndarray) -> np.ndarray:
    return np.asarray(binom.sf(hit - 1, 60, shares))


def _at_most(hit: int, shares: np.ndarray) -> np.ndarray:
    return np.asarray(binom.cdf(hit, 60, shares))


def test_simultaneous_limits_narrow_and_contain_the_mean() -> None:
    intervals = [
        mean_limits_by_p_values([clopper_pearson_function(30, 100)] * runs) for runs in range(1, 7)
    ]
    widths = [interval.high - interval.low for interval in intervals]
    assert widths == sorted(widths, reverse=True)
    assert all(interval.low < 0.3 < interval.high for interval in intervals)


@pytest.mark.simulation
def test_combined_limits_of_runs_have_their_coverage() -> None:
    """Sum over all counts of two runs with different shares, weighted by probability."""
    sizes, shares = (14, 20), (0.1, 0.4)
    middle = sum(shares) / 2
    covered = {"summed": 0.0, "held": 0.0}
    for hits in product(*(range(size + 1) for size in sizes)):
        chance = float(
            np.prod([binom.pmf(k, n, p) for k, n, p in zip(hits, sizes, shares, strict=True)])
        )
        if chance < 1e-5:
            continue
        runs = list(zip(hits, sizes, strict=True))
        limits = mean_limits_if_independent([counted(*run) for run in runs])
        covered["summed"] += chance * (limits.low <= middle <= limits.high)
        two = mean_limits_by_p_values([clopper_pearson_function(*run) for run in runs])
        covered["held"] += chance * (two.low <= middle <= two.high)
    assert covered["summed"] >= 0.94
    assert covered["held"] >= 0.95
