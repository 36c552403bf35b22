"""Increase of an estimate between two audits."""

from statistics import NormalDist, fmean

import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import EstimateWithLimits, auc_interval
from fedaudit.metrics.increase import Increase

Z = NormalDist().inv_cdf(0.975)


def test_symmetric_limits_combine_like_standard_errors() -> None:
    # Limits outside (0, 1), so that distances are in proportion to the quantile.
    increase = Increase(
        EstimateWithLimits(3.0, 3 - 3 * Z, 3 + 3 * Z), EstimateWithLimits(1.0, 1 - 4 * Z, 1 + 4 * Z)
    )
    assert increase.value == 2
    assert increase.limits() == pytest.approx((2 - 5 * Z, 2 + 5 * Z))
    assert increase.p_value() == pytest.approx(1 - NormalDist().cdf(2 / 5))
    assert increase.p_value(allowed=2.0) == 1
    detectable = (NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf(0.8)) * 5
    assert increase.smallest_detectable(tests=1) == pytest.approx(detectable)


def test_the_p_value_is_the_level_at_which_the_lower_limit_is_the_allowed_increase() -> None:
    increase = Increase(EstimateWithLimits(0.93, 0.88, 0.96), EstimateWithLimits(0.8, 0.73, 0.86))
    low, high = increase.limits(0.99)
    assert increase.p_value(allowed=low) == pytest.approx(0.005)
    assert high < 1 - 0.8 + 0.1
    wider = Increase(increase.new, increase.old, (0.9, 0.9))
    assert wider.p_value() > increase.p_value()


def test_estimates_without_width_differ_certainly() -> None:
    assert (
        Increase(EstimateWithLimits(1.0, 1.0, 1.0), EstimateWithLimits(0.5, 0.5, 0.5)).p_value()
        < 1e-100
    )


def test_a_confidence_outside_of_the_unit_interval_raises() -> None:
    with pytest.raises(BadInput, match="confidence is between 0 and 1"):
        Increase(EstimateWithLimits(0.5, 0.4, 0.6), EstimateWithLimits(0.5, 0.4, 0.6), (0.95, 1.0))


def audit(shift: float, rng: np.random.Generator, size: int = 60) -> EstimateWithLimits[float]:
    scores = rng.normal(size=2 * size)
    scores[:size] += shift
    return auc_interval(scores, np.arange(2 * size) < size)


@pytest.mark.simulation
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_equal_leakage_is_rejected_in_at_most_five_percent_of_pairs(shift: float) -> None:
    rng = np.random.default_rng(1)
    rejected = fmean(
        Increase(audit(shift, rng), audit(shift, rng)).p_value() <= 0.05 for _ in range(600)
    )
    # Three standard errors of 600 simulated pairs.
    assert 0.01 < rejected < 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


@pytest.mark.simulation
def test_the_smallest_detectable_increase_is_found_with_the_stated_power() -> None:
    rng = np.random.default_rng(2)
    pairs = [Increase(audit(1.3, rng), audit(0.5, rng)) for _ in range(400)]
    true_increase = NormalDist().cdf(1.3 / 2**0.5) - NormalDist().cdf(0.5 / 2**0.5)
    detectable = fmean(pair.smallest_detectable(tests=4) for pair in pairs)
    # The shift was chosen so that the true increase is the detectable one.
    assert detectable == pytest.approx(true_increase, abs=0.02)
    detected = fmean(pair.p_value() <= 0.05 / 4 for pair in pairs)
    assert detected == pytest.approx(0.8, abs=0.07)
