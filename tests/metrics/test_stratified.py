"""Comparisons within strata: known values, a slow method and simulated coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    auc_interval,
    evaluate,
    label_matched_mask,
    labels_alone_auc,
    scale_within_strata,
    stratified_auc,
    stratified_auc_p_value,
)


def test_only_pairs_within_a_stratum_count() -> None:
    scores = [3.0, 1.0, 2.0, 10.0, 11.0]
    is_member = [True, False, False, True, False]
    interval = stratified_auc(scores, is_member, ["a", "a", "a", "b", "b"])
    # Both pairs of the first stratum are ordered correctly, the pair of the second is not.
    assert interval.value == pytest.approx(2 / 3)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_stratified_auc_is_the_share_of_ordered_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(6, 40))
    scores = rng.integers(0, 5, count).astype(float)
    truth, strata = rng.random(count) < 0.5, rng.integers(0, 3, count)
    pairs = [
        (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
        for i in np.flatnonzero(truth)
        for j in np.flatnonzero(~truth)
        if strata[i] == strata[j]
    ]
    if not pairs:
        with pytest.raises(BadInput, match="no stratum has both"):
            stratified_auc(scores, truth, strata)
    else:
        interval = stratified_auc(scores, truth, strata)
        assert interval.value == pytest.approx(np.mean(pairs))
        assert interval.low <= interval.value <= interval.high


def test_one_stratum_agrees_with_delong() -> None:
    rng = np.random.default_rng(1)
    truth = np.arange(400) < 200
    scores = rng.normal(size=400) + 0.8 * truth
    interval, auc_limits = auc_interval(scores, truth), stratified_auc(scores, truth, np.zeros(400))
    assert auc_limits.value == pytest.approx(interval.value)
    assert auc_limits.low == pytest.approx(interval.low, abs=1e-3)
    assert auc_limits.high == pytest.approx(interval.high, abs=1e-3)


@pytest.mark.simulation
@pytest.mark.parametrize(("strata", "size"), [(40, 2), (20, 6), (8, 60), (3, 200)])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.slow
def test_intervals_have_their_coverage_for_many_small_strata(
    strata: int, size: int, shift: float
) -> None:
    """The truth is the AUC of pairs within strata, whose offsets differ widely."""
    rng, covered, runs = np.random.default_rng(strata), 0, 400
    client = np.repeat(np.arange(strata), size)
    true = 0.5 if not shift else 0.7602499389  # Phi(1 / sqrt 2)
    for _ in range(runs):
        truth = rng.random(len(client)) < 0.5
        scores = rng.normal(size=len(client)) + shift * truth + 5 * rng.normal(size=strata)[client]
        interval = stratified_auc(scores, truth, client)
        covered += interval.low <= true <= interval.high
    assert covered / runs >= 0.94 - 2 * 0.011


@pytest.mark.simulation
@pytest.mark.slow
def test_the_stratified_test_has_its_error_rate() -> None:
    rng, client = np.random.default_rng(3), np.repeat(np.arange(12), 10)
    p_values = np.array(
        [
            stratified_auc_p_value(
                rng.normal(size=120) + 3 * (client % 2), rng.random(120) < 0.5, client
            )
            for _ in range(600)
        ]
    )
    assert (p_values <= 0.05).mean() <= 0.05 + 2 * 0.009
    assert stratified_auc_p_value(np.ones(4), [True, False, True, False], [0, 0, 1, 1]) == 1.0


@pytest.mark.simulation
@pytest.mark.slow
def test_pooled_tpr_intervals_have_their_coverage_without_leak() -> None:
    """Clients' scores differ in location and scale; a coin decides about membership."""
    rng, client, covered = np.random.default_rng(5), np.repeat(np.arange(10), 60), 0
    for _ in range(200):
        scores = (rng.normal(size=600) * (1 + client)) + 10 * client
        truth = rng.random(600) < 0.5
        figures = evaluate(scores, truth, strata=client, contrasts=("unseen",), fprs=(0.1,))
        rate = next(estimate for estimate in figures if estimate.metric == "tpr@0.1")
        assert rate.high is not None
        covered += (rate.low or 0.0) <= 0.1 <= rate.high
    assert covered / 200 >= 0.94


def test_scaling_keeps_infinite_scores_and_order() -> None:
    scaled = scale_within_strata(
        np.array([1.0, 2.0, 9.0, np.inf, 100.0, 300.0]), [0, 0, 0, 0, 1, 1]
    )
    assert scaled.tolist() == [-1.0, 0.0, 7.0, np.inf, -1.0, 1.0]
    assert scale_within_strata(np.array([4.0, 4.0]), [0, 0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "scores",
    [
        [1e-30, 1e-20, 1e-20, 0.3, 0.5, 0.9],
        [0.5, 1 - 2**-53, 1.0, -1e17, 1e17, 0.0],
        [-np.inf, 0.0, 1e-310, 1e300, -1e300, np.inf],
        [0.0, 0.0, 0.0, 0.0, 5e-324, 1.0],
    ],
    ids=["tiny probabilities", "wide range", "infinite", "mostly equal"],
)
def test_scaling_keeps_order_and_ties_within_a_stratum(scores: list[float]) -> None:
    values, strata = np.array(scores), np.zeros(len(scores))
    scaled = scale_within_strata(values, strata)
    assert not np.isnan(scaled).any()
    _, expected_ranks = np.unique(values, return_inverse=True)
    _, ranks = np.unique(scaled, return_inverse=True)
    assert ranks.tolist() == expected_ranks.tolist()


def test_the_auc_over_clients_counts_pairs_of_tiny_scores() -> None:
    """Scores of a client whose median is far above them; rounding once made them equal."""
    scores = np.array([1e-30, 1e-20, 0.5, 0.6, 0.7, 0.8])
    truth = np.array([False, True, True, False, True, False])
    figures = evaluate(scores, truth, strata=np.zeros(6), contrasts=("unseen",), fprs=(0.1,))
    auc = next(estimate for estimate in figures if estimate.metric == "auc")
    assert auc.value == stratified_auc(scores, truth, np.zeros(6)).value


@given(st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_matched_members_and_nonmembers_have_one_label_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 200))
    labels = rng.choice(5, count, p=rng.dirichlet(np.ones(5) * 0.5))
    truth = rng.random(count) < rng.uniform(0.05, 0.95)
    chosen = label_matched_mask(labels, truth, rng=rng)
    both = set(labels[truth]) & set(labels[~truth])
    assert chosen.any() == bool(both)
    if both:
        ours = np.bincount(labels[chosen & truth], minlength=5)
        theirs = np.bincount(labels[chosen & ~truth], minlength=5)
        assert np.allclose(ours * theirs.sum(), theirs * ours.sum())


def test_the_label_baseline_reaches_its_known_auc() -> None:
    rng = np.random.default_rng(2)
    truth = np.arange(2000) < 1000
    # Members are of class 1 with probability .8, others with .2: the best AUC is .8.
    labels = (rng.random(2000) < np.where(truth, 0.8, 0.2)).astype(int)
    assert labels_alone_auc(labels, truth, rng=rng) == pytest.approx(0.8, abs=0.03)
    same = [labels_alone_auc(rng.integers(0, 10, 80), truth[960:1040], rng=rng) for _ in range(50)]
    assert 0.5 <= np.mean([area for area in same if area is not None]) <= 0.56
    assert labels_alone_auc(np.array([1, 2]), [True, False], rng=rng) is None


def test_strata_of_another_length_are_refused() -> None:
    with pytest.raises(BadInput, match="every sample needs a stratum"):
        stratified_auc([1.0, 2.0], [True, False], [1])


def test_the_pooled_label_baseline_is_at_chance_for_fair_coins() -> None:
    rng = np.random.default_rng(3)
    client = np.repeat([0, 1, 2], 600)
    # Clients differ in classes and in their share of members; within a client, class and
    # membership are independent.
    truth = rng.random(1800) < np.array([0.2, 0.5, 0.8])[client]
    labels = client * 2 + (rng.random(1800) < 0.3)
    alone = labels_alone_auc(labels, truth, rng=rng)
    within = labels_alone_auc(labels, truth, rng=rng, strata=client)
    assert alone is not None
    assert within is not None
    assert alone > 0.7
    assert within <= 0.53


def test_the_stratified_label_baseline_matches_a_slow_method() -> None:
    rng = np.random.default_rng(4)
    strata = rng.integers(0, 3, 900)
    truth = rng.random(900) < 0.5
    labels = (rng.random(900) < np.where(truth, 0.7, 0.3)).astype(int)
    within = labels_alone_auc(labels, truth, rng=rng, strata=strata)
    assert within == pytest.approx(stratified_auc(labels, truth, strata).value, abs=0.02)


def test_the_label_baseline_needs_strata_with_both_sides() -> None:
    rng = np.random.default_rng(5)
    truth = [True, True, True, False, False, False]
    strata = [0, 0, 0, 1, 1, 1]
    assert labels_alone_auc(np.zeros(6, int), truth, rng=rng, strata=strata) is None
