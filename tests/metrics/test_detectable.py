"""The smallest detectable leak, compared with simulated attacks and corrected tests."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics import fisher_p_value, holm
from fedaudit.metrics.power import smallest_auc, smallest_tpr
from fedaudit.metrics.significance import tpr_p_values


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_detectable_leak_matches_the_normal_approximation() -> None:
    members, others, tests = 3000, 5000, 40
    # This close to 0.5, the variance is that under the null hypothesis.
    spread = sqrt((members + others + 1) / (12 * members * others))
    normal = NormalDist()
    expected = 0.5 + spread * (normal.inv_cdf(1 - 0.05 / tests) + normal.inv_cdf(0.8))
    smallest = smallest_auc([(members, others)], tests=tests, rng=rng())
    assert smallest == pytest.approx(expected, abs=1e-3)


@pytest.mark.simulation
@pytest.mark.parametrize(("sizes", "runs"), [((40, 80), 1), ((30, 30), 3)])
def test_detectable_leak_has_power_of_four_in_five(sizes: tuple[int, int], runs: int) -> None:
    members, others = sizes
    tests, audits = 24, 400
    least = smallest_auc([sizes], tests=tests, runs=runs, rng=rng())
    assert least is not None
    drawn = rng()
    # Exponential scores, whose AUC is a ratio of rates.
    scale = least / (1 - least)
    of_members = drawn.exponential(scale, (audits * runs, members))
    of_others = drawn.exponential(1.0, (audits * runs, others))
    p_values = sp.stats.mannwhitneyu(of_members, of_others, alternative="greater", axis=1).pvalue
    by_chance: list[float | None] = [0.5] * (tests - 1)
    detected = [
        holm([fisher_p_value(run_p_values.tolist()), *by_chance]).significant[0]
        for run_p_values in p_values.reshape(audits, runs)
    ]
    assert 0.74 < np.mean([bool(is_significant) for is_significant in detected]) < 0.86


def test_detectable_leak_falls_with_samples_and_rises_with_tests() -> None:
    def least(*strata: tuple[int, int], tests: int = 10, runs: int = 1) -> float:
        smallest = smallest_auc(strata, tests=tests, runs=runs, rng=rng())
        assert smallest is not None
        return smallest

    plain = least((50, 100))
    assert least((50, 200)) < plain
    assert least((50, 100), (50, 100)) < plain
    assert least((50, 100), runs=5) < plain < least((50, 100), tests=200)
    # Two clients are little worse than one with the samples of both.
    assert least((50, 100), (50, 100)) == pytest.approx(least((100, 200)), abs=5e-3)


def test_too_small_a_sample_detects_no_auc() -> None:
    assert smallest_auc([(2, 3)], tests=100, rng=rng()) is None
    assert smallest_auc([(2, 3)], tests=100, runs=8, rng=rng()) is not None


@pytest.mark.parametrize("wrong", [{"tests": 0}, {"tests": 1, "alpha": 1.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="detecting a leak requires at least one stratum"):
        smallest_auc([(10, 10)], rng=rng(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="stratum with both members and non-members"):
        smallest_auc([(0, 10)], tests=1, rng=rng())


@pytest.mark.simulation
@pytest.mark.parametrize("runs", [1, 3])
def test_detectable_rate_has_power_of_four_in_five(runs: int) -> None:
    members, others, allowed, tests, audits = 80, 200, 10, 24, 1000
    least = smallest_tpr(members, others, 0.05, tests=tests, runs=runs, rng=rng())
    assert least is not None
    counts = rng().binomial(members, least, (audits, runs))
    p_values = tpr_p_values(counts, members, allowed=allowed, nonmembers=others)
    detected = [fisher_p_value(audit.tolist()) <= 0.05 / tests for audit in p_values]
    # With one run, the number of members above the threshold is discrete.
    assert 0.75 < np.mean(detected) < 0.86


def test_detectable_rate_falls_with_samples_and_may_not_exist() -> None:
    def least(members: int, others: int) -> float | None:
        return smallest_tpr(members, others, 0.05, tests=10, rng=rng())

    small, large = least(50, 100), least(200, 400)
    assert small is not None
    assert large is not None
    assert 0.05 < large < small < 1
    assert least(1, 100) is None
