import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from fedaudit.errors import BadInput
from fedaudit.metrics import (
    bootstrap_over_seeds,
    clopper_pearson,
    lower_limit,
    mean_over_seeds,
    upper_limit,
)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(deadline=None, max_examples=50)
def test_clopper_pearson_is_scipys_exact_interval(counts: tuple[int, int]) -> None:
    known = binomtest(*counts).proportion_ci(method="exact")
    assert clopper_pearson(*counts) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize(("count", "total"), [(0, 100), (30, 100), (90, 100), (999, 1000)])
@pytest.mark.parametrize("alpha", [0.1, 0.01])
def test_at_the_upper_limit_so_few_successes_have_the_stated_chance(
    count: int, total: int, alpha: float
) -> None:
    limit = upper_limit(count, total, confidence=1 - alpha)
    assert binom.cdf(count, total, limit) == pytest.approx(alpha)


def test_at_the_lower_limit_so_many_successes_have_the_stated_chance() -> None:
    assert binom.sf(29, 100, lower_limit(30, 100)) == pytest.approx(0.05)


def test_limits_at_the_ends_are_worked_by_hand() -> None:
    assert clopper_pearson(0, 10) == pytest.approx((0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10) == pytest.approx((0.025**0.1, 1))


def test_the_interval_of_five_per_cent_of_a_thousand_is_the_published_one() -> None:
    low, high = clopper_pearson(50, 1000)
    assert (round(low, 3), round(high, 3)) == (0.037, 0.065)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="0 <= count <= total"):
        clopper_pearson(*counts)


def test_a_confidence_in_per_cent_is_refused() -> None:
    with pytest.raises(BadInput, match="between 0 and 1"):
        clopper_pearson(1, 2, confidence=95.0)


def test_the_interval_over_five_seeds_uses_students_t() -> None:
    # Mean 3, standard deviation sqrt(2.5), t(4) at 97.5% = 2.776.
    mean = mean_over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean.value == 3
    reach = 2.776445 * np.sqrt(2.5 / 5)
    assert (mean.low, mean.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)
    assert mean.method == "Student t over 5 seeds 95%"


def test_the_interval_of_a_share_stays_a_share() -> None:
    mean = mean_over_seeds([0.0, 0.0, 0.03], within=(0.0, 1.0))
    assert mean.low == 0
    assert mean.high == mean_over_seeds([0.0, 0.0, 0.03]).high


def test_seeds_that_agree_exactly_give_no_interval_rather_than_certainty() -> None:
    mean = mean_over_seeds([0.0, 0.0, 0.0])
    assert (mean.value, mean.low, mean.high) == (0, None, None)
    assert mean.method == "no spread over 3 seeds"


def test_the_bootstrap_over_many_seeds_nears_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=60).tolist()
    drawn = bootstrap_over_seeds(values, rng=np.random.default_rng(1))
    exact = mean_over_seeds(values)
    assert drawn.low == pytest.approx(exact.low, abs=0.03)
    assert drawn.high == pytest.approx(exact.high, abs=0.03)


def test_few_or_unfinished_seeds_are_refused_with_a_way_out() -> None:
    with pytest.raises(BadInput, match="at least 2 runs, got 1; run more seeds or report"):
        mean_over_seeds([0.5])
    with pytest.raises(BadInput, match=r"at least 10 runs, got 5; .* use mean_over_seeds"):
        bootstrap_over_seeds([0.5] * 5, rng=np.random.default_rng(0))
    with pytest.raises(BadInput, match="finite"):
        mean_over_seeds([0.5, np.nan])
