import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc_p_value, fisher_p_value, holm, tpr_p_value


def test_holm_matches_hand_calculation() -> None:
    result = holm([0.04, 0.01, None, 0.03, 0.005])
    # Sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, running maximum .02 .03 .06 .06.
    assert result.adjusted == pytest.approx((0.06, 0.03, None, 0.06, 0.02))
    assert result.significant == (False, True, None, False, True)


@given(st.lists(st.floats(0, 1), max_size=20))
@settings(deadline=None)
def test_adjusting_keeps_the_order_and_never_lowers_a_p_value(p_values: list[float]) -> None:
    adjusted = np.array(holm(p_values).adjusted, dtype=float)
    assert all(new >= old and new <= 1 for new, old in zip(adjusted, p_values, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff([adjusted[place] for place in order]) >= 0)


@pytest.mark.simulation
@pytest.mark.slow
def test_forty_audits_without_leak_rarely_alarm_after_correction() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(60) < 30
    raw, corrected = 0, 0
    for _ in range(30):
        p_values = [auc_p_value(rng.normal(size=60), truth) for _ in range(40)]
        raw += min(p_values) <= 0.05
        corrected += any(holm(p_values).significant)
    assert raw / 30 > 0.7
    assert corrected / 30 < 0.15


def test_above_chance_is_exact_for_few_samples() -> None:
    truth = [True] * 3 + [False] * 3
    # Three members above three non-members: one arrangement of twenty.
    assert auc_p_value([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], truth) == pytest.approx(1 / 20)
    assert auc_p_value([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], truth) == 1


def test_equal_scores_are_no_evidence() -> None:
    assert auc_p_value(np.zeros(10), np.arange(10) < 5) == 1


def test_infinite_scores_are_ranked_like_others() -> None:
    truth = np.arange(40) < 20
    assert auc_p_value(np.where(truth, np.inf, -np.inf), truth) < 1e-6


def test_an_empty_family_is_empty() -> None:
    assert holm([]).significant == ()


def test_rate_p_value_is_the_fraction_of_orders_that_reach_it() -> None:
    # 2 members and 2 non-members, none allowed to be flagged: both members lead in 1 order of 6,
    # at least one does in 3 of 6.
    assert tpr_p_value(2, 2, allowed=0, nonmembers=2) == pytest.approx(1 / 6)
    assert tpr_p_value(1, 2, allowed=0, nonmembers=2) == pytest.approx(3 / 6)
    assert tpr_p_value(0, 2, allowed=0, nonmembers=2) == 1


@pytest.mark.simulation
@pytest.mark.parametrize("allowed", [0, 2])
def test_a_rate_without_signal_is_rarely_significant(allowed: int) -> None:
    rng = np.random.default_rng(3)
    truth = np.arange(60) < 20
    p_values = []
    for _ in range(400):
        order = truth[rng.permutation(60)]
        hits = int(order[: np.flatnonzero(~order)[allowed]].sum())
        p_values.append(tpr_p_value(hits, 20, allowed=allowed, nonmembers=40))
    assert np.mean(np.array(p_values) <= 0.1) <= 0.14


def test_combined_p_values_follow_fisher() -> None:
    # The product of two uniforms is below p with probability p (1 - ln p).
    assert fisher_p_value([0.2, 0.3]) == pytest.approx(0.06 * (1 - np.log(0.06)))
    assert fisher_p_value([0.4]) == pytest.approx(0.4)
    assert fisher_p_value([0.0, 0.5]) < 1e-100


def test_counts_and_p_values_out_of_range_are_refused() -> None:
    with pytest.raises(BadInput, match="pass None for a test that was not computed"):
        holm([0.5, float("nan")])
    with pytest.raises(BadInput, match="family-wise"):
        holm([0.5], alpha=5.0)
    with pytest.raises(BadInput, match="between 0 and their totals"):
        tpr_p_value(3, 2, allowed=0, nonmembers=2)
    with pytest.raises(BadInput, match="at least one p-value"):
        fisher_p_value([])
