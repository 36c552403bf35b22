import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    calibrated_tpr,
    clopper_pearson,
    nonmember_shortage,
    nonmembers_for_one_false_positive,
    nonmembers_to_certify_fpr,
    true_fpr_range,
)


@pytest.mark.parametrize(("fpr", "fewest"), [(0.001, 1000), (0.01, 100), (0.003, 334), (1.0, 1)])
def test_a_rate_needs_one_nonmember_over_the_rate(fpr: float, fewest: int) -> None:
    assert nonmembers_for_one_false_positive(fpr) == fewest


def test_an_fpr_of_one_in_n_needs_n_nonmembers() -> None:
    assert [nonmembers_for_one_false_positive(1 / fewest) for fewest in range(1, 5000)] == list(
        range(1, 5000)
    )


def test_too_few_nonmembers_are_inconclusive_with_the_shortage() -> None:
    assert nonmember_shortage(0.001, 300) == "inconclusive: needs 700 more non-members"
    assert nonmember_shortage(0.001, 1000) is None


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [
        (1_000, 0.024, 0.556),
        (5_000, 0.044, 0.233),
        (10_000, 0.055, 0.184),
        (20_000, 0.065, 0.154),
        (100_000, 0.082, 0.122),
    ],
)
def test_range_of_the_true_rate_at_fpr_0_001(n: int, low: float, high: float) -> None:
    behind = true_fpr_range(0.001, n)
    assert (round(100 * behind.low, 3), round(100 * behind.high, 3)) == (low, high)


@pytest.mark.simulation
def test_the_range_of_the_true_rate_matches_simulation() -> None:
    rng = np.random.default_rng(0)
    # Uniform scores: the true rate of a threshold t is 1 - t.
    true = [1 - np.sort(rng.random(200))[-3] for _ in range(2000)]
    low, high = true_fpr_range(0.01, 200)
    assert np.mean((np.array(true) >= low) & (np.array(true) <= high)) == pytest.approx(
        0.95, abs=0.015
    )


@pytest.mark.parametrize(
    ("false_positives", "needed"), [(0, 2_995), (1, 4_742), (5, 10_511), (10, 16_959), (50, 63_281)]
)
def test_nonmembers_needed_to_certify_fpr_0_001(false_positives: int, needed: int) -> None:
    assert nonmembers_to_certify_fpr(0.001, false_positives) == needed


def test_a_calibrated_rate_keeps_the_false_positive_rate_on_average() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(500) < 100
    realised = [
        calibrated_tpr(rng.normal(size=500), truth, 0.05, rng=rng).fpr.value for _ in range(400)
    ]
    # 10 of 201 order statistics: expected 0.0498, standard error about 0.001.
    assert np.mean(realised) == pytest.approx(0.05, abs=0.004)


def test_a_calibrated_rate_counts_the_other_half_with_exact_intervals() -> None:
    scores, truth = np.arange(400.0), np.arange(400) >= 200
    calibrated = calibrated_tpr(scores, truth, 0.05, rng=np.random.default_rng(0))
    assert (calibrated.tpr.hits, calibrated.tpr.total, calibrated.fpr.total) == (100, 100, 100)
    assert (calibrated.tpr.low, calibrated.tpr.high) == clopper_pearson(100, 100)
    assert 0 <= calibrated.fpr.low <= calibrated.fpr.value <= calibrated.fpr.high
    assert calibrated.threshold < 200


def test_tied_nonmembers_lower_the_calibrated_rate_and_never_raise_it() -> None:
    truth = np.arange(200) < 100
    calibrated = calibrated_tpr(np.zeros(200), truth, 0.1, rng=np.random.default_rng(0))
    assert (calibrated.tpr.hits, calibrated.fpr.hits) == (0, 0)


def test_a_calibrated_claim_needs_enough_nonmembers_in_each_half() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BadInput, match="inconclusive: needs 1 more non-members, got 197"):
        calibrated_tpr(np.arange(297.0), np.arange(297) < 100, 0.01, rng=rng)
    calibrated = calibrated_tpr(np.arange(298.0), np.arange(298) < 100, 0.01, rng=rng)
    assert calibrated.fpr.total == 99


@pytest.mark.parametrize("fpr", [0.0, 1.5, -0.1])
def test_rates_outside_of_their_range_are_refused(fpr: float) -> None:
    with pytest.raises(BadInput, match=r"must be in \(0, 1\]"):
        nonmembers_for_one_false_positive(fpr)
    with pytest.raises(BadInput, match="between 0 and 1"):
        nonmembers_to_certify_fpr(fpr)


def test_a_threshold_without_nonmembers_is_refused() -> None:
    with pytest.raises(BadInput, match="needs at least 1 non-member"):
        true_fpr_range(0.1, 0)
    assert true_fpr_range(1.0, 5) == (1, 1)
