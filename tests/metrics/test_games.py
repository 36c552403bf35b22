"""Success in security games and bounds from claims."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedaudit.core.errors import BadInput
from fedaudit.metrics.games import (
    BoundedMean,
    certify,
    expected_success,
    game_success,
    hoeffding_margin,
    max_success_rate,
    predict_tnr,
    signs_of_means,
)

RATES = st.floats(0, 1)


def test_game_success_matches_hand_calculation() -> None:
    result = game_success(90, 100, 30, 60)
    assert result.tpr.value == 0.9
    assert result.tnr.value == 0.5
    assert result.adv.value == pytest.approx(0.7)
    assert result.adv.low < 0.7 < result.adv.high
    assert (result.tpr.low, result.tpr.high) == pytest.approx(
        tuple(stats.binomtest(90, 100).proportion_ci(0.95, "exact"))
    )


@given(RATES, RATES, st.integers(1, 4))
def test_expected_success_matches_enumeration_of_batches(p: float, f: float, batch: int) -> None:
    tpr = tnr = 0.0
    for fires in product((True, False), repeat=batch):
        with_target = [p] + [f] * (batch - 1)
        tpr += any(fires) * math.prod(
            q if has_fired else 1 - q for q, has_fired in zip(with_target, fires, strict=True)
        )
        tnr += (not any(fires)) * math.prod(f if has_fired else 1 - f for has_fired in fires)
    assert expected_success(p, f, batch) == pytest.approx((tpr + tnr) / 2, abs=1e-9)


@given(st.floats(0, 20), RATES, st.integers(2, 6))
def test_expected_success_is_below_the_dp_bound(epsilon: float, flip: float, batch: int) -> None:
    # One bit a sample, kept with the odds e^eps: the target's is 1, all others' are 0.
    keep = max_success_rate(epsilon)
    assert expected_success(keep, 1 - keep, batch) <= keep + 1e-12
    assert max_success_rate(0.0) == 0.5
    assert max_success_rate(math.inf) == 1.0
    assert max_success_rate(3.0) == pytest.approx(0.9526, abs=1e-4)


@given(RATES, RATES, st.integers(1, 200), st.integers(0, 10**6))
def test_certificates_hold_for_all_rates_within_their_limits(
    p: float, f: float, batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    result = certify(int(rng.binomial(50, p)), 50, int(rng.binomial(400, f)), 400, batch=batch)
    for share_ in np.linspace(0, 1, 7):
        for other in np.linspace(0, 1, 7):
            target = result.of_target.low + share_ * (result.of_target.high - result.of_target.low)
            rate = result.of_others.low + other * (result.of_others.high - result.of_others.low)
            assert result.low - 1e-9 <= expected_success(target, rate, batch) <= result.high + 1e-9


@pytest.mark.simulation
@pytest.mark.parametrize(("p", "f", "batch"), [(0.9, 0.01, 20), (0.5, 0.1, 5), (1.0, 0.0005, 100)])
def test_certificates_have_their_error_rate(p: float, f: float, batch: int) -> None:
    rng, truth = np.random.default_rng(1), expected_success(p, f, batch)
    wrong = 0
    for fired, alarms in zip(rng.binomial(60, p, 400), rng.binomial(800, f, 400), strict=True):
        result = certify(int(fired), 60, int(alarms), 800, batch=batch, confidence=0.9)
        wrong += not result.low <= truth <= result.high
    assert wrong <= 40


def test_certificates_narrow_with_more_samples() -> None:
    few, many = (certify(n, n, 0, 10 * n, batch=20) for n in (50, 5000))
    assert few.low < many.low
    assert many.low == pytest.approx(1.0, abs=0.01)
    assert certify(0, 50, 0, 500, batch=20).low == pytest.approx(0.5, abs=0.1)


def test_success_above_the_dp_bound_refutes_a_claim() -> None:
    assert game_success(990, 1000, 990, 1000).epsilon.value > 3
    assert game_success(505, 1000, 505, 1000).epsilon.value == 0.0


def test_signs_of_means_match_a_line_search() -> None:
    target, others = BoundedMean(0.8, 400, 10.0), BoundedMean(-0.9, 300, 8.0)
    result = signs_of_means(target, others)

    def holds(delta: float) -> bool:
        low = target.mean - hoeffding_margin(target, delta)
        high = others.mean + hoeffding_margin(others, delta)
        return low > 0 and high <= 0

    line = 10 ** np.linspace(-12, -1e-9, 4000)
    searched = next(delta for delta in line if holds(delta))
    assert result.delta == pytest.approx(searched, rel=0.01)
    assert result.failure == pytest.approx(2 * result.delta)
    # exp(-2 * 400 * (0.8 / 10)^2) = exp(-5.12)
    assert result.delta == pytest.approx(math.exp(-5.12))


def test_means_of_the_wrong_sign_give_no_certificate() -> None:
    good, bad = BoundedMean(1.0, 100, 2.0), BoundedMean(0.5, 100, 2.0)
    assert signs_of_means(good, bad) == (1.0, 1.0)
    assert signs_of_means(bad._replace(mean=-0.1), BoundedMean(-1.0, 10, 1.0)) == (1.0, 1.0)


@pytest.mark.simulation
def test_the_hoeffding_margin_has_its_error_rate() -> None:
    rng, sample = np.random.default_rng(2), BoundedMean(0.0, 30, 1.0)
    means = rng.binomial(30, 0.5, 4000) / 30
    for delta in (0.3, 0.05):
        wrong = (means - hoeffding_margin(sample, delta) > 0.5).mean()
        assert wrong <= delta


def test_certified_means_do_not_bound_game_success() -> None:
    """The means are certified with near certainty, yet half of the games are lost."""
    rng = np.random.default_rng(3)
    target, others = rng.normal(0.5, 1, 4000), rng.normal(-0.5, 1, 4000)
    sign = signs_of_means(
        BoundedMean(float(target.mean()), 4000, 12.0), BoundedMean(float(others.mean()), 4000, 12.0)
    )
    assert sign.failure < 1e-5
    game = certify(int((target > 0).sum()), 4000, int((others > 0).sum()), 4000, batch=100)
    assert game.high < 0.51


@given(st.floats(0, 6), st.floats(0, 0.5))
def test_success_is_below_the_bound_for_epsilon_and_delta(epsilon: float, delta: float) -> None:
    # Worst case: the worlds differ visibly with probability delta, else by the odds e^eps.
    sure, odds = delta, math.exp(epsilon)
    tpr = sure + (1 - sure) * odds / (1 + odds)
    fpr = (1 - sure) / (1 + odds)
    assert (tpr + 1 - fpr) / 2 == pytest.approx(max_success_rate(epsilon, delta), abs=1e-9)
    assert max_success_rate(epsilon, 1.0) == pytest.approx(1.0)


def test_success_within_delta_refutes_no_budget() -> None:
    assert game_success(3000, 5000, 3000, 5000).epsilon.value > 0.3
    assert game_success(3000, 5000, 3000, 5000, delta=0.2).epsilon.value == 0.0


@given(st.integers(0, 8), st.integers(1, 8), st.integers(1, 4))
def test_predicted_silence_matches_enumeration_of_batches(
    fired: int, records: int, batch: int
) -> None:
    fired = min(fired, records)
    batches = list(combinations(range(records), batch))
    if records < 2 * batch:
        assert predict_tnr([fired], [records], batch=batch) is None
        return
    silent = sum(min(chosen) >= fired for chosen in batches) / len(batches)
    assert predict_tnr([fired, 0], [records, 2 * batch], batch=batch) == pytest.approx(
        (silent + 1) / 2
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: game_success(5, 0, 1, 1),
        lambda: game_success(5, 4, 1, 1),
        lambda: certify(1, 0, 1, 5, batch=2),
        lambda: certify(1, 2, 6, 5, batch=2),
        lambda: certify(1, 2, 1, 5, batch=0),
        lambda: max_success_rate(-1.0),
        lambda: max_success_rate(math.nan),
        lambda: max_success_rate(1.0, 2.0),
        lambda: hoeffding_margin(BoundedMean(1.0, 5, 1.0), 0.0),
        lambda: hoeffding_margin(BoundedMean(1.0, 0, 1.0), 0.5),
        lambda: signs_of_means(BoundedMean(1.0, 5, math.inf), BoundedMean(-1.0, 5, 1.0)),
        lambda: signs_of_means(BoundedMean(math.nan, 5, 1.0), BoundedMean(-1.0, 5, 1.0)),
    ],
)
def test_impossible_counts_raise(wrong: object) -> None:
    with pytest.raises(BadInput):
        wrong()  # type: ignore[operator]
