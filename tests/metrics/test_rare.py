"""AUCs of scores that seldom differ from one value; `python -m benchmarks.coverage --part rare`."""

from dataclasses import astuple
from itertools import combinations

import numpy as np
import pytest

from fedaudit.metrics import (
    auc_interval,
    auc_p_value,
    clopper_pearson,
    clopper_pearson_upper,
    clustered_auc,
    compare_auc,
    evaluate,
    stratified_auc,
    stratified_auc_p_value,
)
from fedaudit.metrics.significance import most_frequent


def flags(members: int, fired: int, others: int, false: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of 1 for the samples that fire and 0 for all others, members first."""
    scores = np.concatenate([np.arange(members) < fired, np.arange(others) < false]).astype(float)
    return scores, np.arange(members + others) < members


def test_limits_of_auc_if_no_nonmember_has_the_rare_score() -> None:
    scores, truth = flags(1000, 100, 20, 0)
    interval = auc_interval(scores, truth)
    assert interval.value == pytest.approx(0.55)
    assert interval.method == "few scores differ 95%"
    # A firing non-member subtracts at most 0.55: Clopper and Pearson's limit of 0 in 20.
    at_least = 0.55 * clopper_pearson_upper(0, 20, confidence=0.975)
    assert interval.value - interval.low >= at_least
    assert interval.value - interval.low == pytest.approx(at_least, rel=0.02)


def test_limits_of_rare_scores_are_mirrored_if_scores_or_sides_are() -> None:
    scores, truth = flags(400, 60, 30, 2)
    interval = auc_interval(scores, truth)
    turned, swapped = auc_interval(-scores, truth), auc_interval(scores, ~truth)
    assert (1 - turned.high, 1 - turned.low) == pytest.approx((interval.low, interval.high))
    assert (1 - swapped.high, 1 - swapped.low) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("false", [7, 8])
def test_eight_other_scores_of_a_side_are_enough_for_delong(false: int) -> None:
    interval = auc_interval(*flags(1000, 100, 50, false))
    assert interval.method.startswith("few scores differ" if false < 8 else "DeLong")


def test_continuous_scores_of_few_samples_keep_their_interval() -> None:
    rng = np.random.default_rng(0)
    for size in (4, 8, 40):
        scores = np.concatenate([rng.normal(0.3, 1, 500), rng.normal(0, 1, size)])
        interval = auc_interval(scores, np.arange(500 + size) < 500)
        assert not interval.method.startswith("few scores differ")


@pytest.mark.simulation
@pytest.mark.parametrize(("members", "others"), [(1000, 20), (1000, 100), (20, 1000)])
def test_intervals_have_their_coverage_for_rare_scores(members: int, others: int) -> None:
    rng, missed, runs = np.random.default_rng(1), 0, 150
    truth = np.arange(members + others) < members
    for _ in range(runs):
        scores = rng.random(len(truth)) < np.where(truth, 0.1, 0.01)
        interval = auc_interval(scores.astype(float), truth)
        missed += not interval.low <= 0.545 <= interval.high
    assert missed <= 0.06 * runs


def test_rare_scores_have_equal_limits_pooled_and_single() -> None:
    scores, truth = flags(1000, 100, 40, 1)
    rng = np.random.default_rng(0)
    client = rng.integers(10, size=len(scores))
    interval, pooled = auc_interval(scores, truth), stratified_auc(scores, truth, client)
    assert pooled.method == "few scores differ within strata 95%"
    assert pooled.low == pytest.approx(interval.low, abs=0.06)
    # Each shifted stratum has another most frequent score.
    moved = stratified_auc(scores + 5 * client, truth, client)
    assert astuple(moved)[:3] == pytest.approx(astuple(pooled)[:3])


def test_clients_with_one_sample_a_side_have_no_most_frequent_score() -> None:
    rng = np.random.default_rng(0)
    scores, truth = rng.normal(size=120), np.arange(120) % 2 == 0
    assert stratified_auc(scores, truth, np.arange(120) // 2).method.startswith("DeLong")


def test_people_with_rare_scores_count_once() -> None:
    scores, truth = flags(300, 60, 20, 1)
    person = np.arange(320)
    once = clustered_auc(scores, truth, person)
    often = clustered_auc(*(np.repeat(part, 8) for part in (scores, truth, person)))
    assert once.method == often.method == "few scores differ between people 95%"
    assert astuple(often)[:3] == pytest.approx(astuple(once)[:3])
    alone = auc_interval(scores, truth)
    # Student's t for the few people is wider than the normal of independent samples.
    assert once.low <= alone.low < alone.high <= once.high


def test_people_on_both_sides_make_rare_limits_wider() -> None:
    scores, truth = flags(300, 60, 20, 1)
    interval = clustered_auc(scores, truth, np.arange(320))
    shared = clustered_auc(scores, truth, np.append(np.arange(300), np.arange(20)))
    assert shared.high - shared.low > interval.high - interval.low


def test_differences_of_rare_scores_use_both_limits() -> None:
    scores, truth = flags(1000, 100, 20, 0)
    other = np.random.default_rng(0).normal(size=1020)
    difference = compare_auc(scores, other, is_member=truth)
    assert (difference.p_value, difference.method) == (1.0, "separate intervals 95%")


def test_the_test_of_rare_scores_is_exact() -> None:
    """Counted over every way to divide twelve samples of which three fire."""
    scores, truth = flags(9, 1, 3, 2)
    turned = -scores
    as_low = [sum(scores[list(chosen)]) >= 2 for chosen in combinations(range(12), 3)]
    assert auc_p_value(turned, truth) == pytest.approx(np.mean(as_low))


def test_rare_scores_on_both_ends_are_tested_twice() -> None:
    scores, truth = flags(400, 40, 20, 0)
    once = auc_p_value(scores, truth)
    lowered = scores.copy()
    lowered[399] = -1
    assert auc_p_value(lowered, truth) == pytest.approx(2 * once, rel=0.15)


def test_pooled_test_of_rare_scores_is_exact() -> None:
    scores = np.array([1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    client = np.repeat([0, 1], 6)
    truth = np.array([False, True, True, True, True, True] * 2)
    # The only member that fires is of client 0; a non-member fires too.
    chance = 1 - stratified_auc_p_value(-scores, truth, client)
    assert chance == pytest.approx(1 - 1 / 3)


@pytest.mark.parametrize("members", [100, 500])
def test_equal_scores_are_no_evidence_whichever_side_is_smaller(members: int) -> None:
    client = np.repeat([0, 1], 600)
    truth = np.tile(np.arange(600) < members, 2)
    equal = np.zeros(1200)
    assert auc_p_value(equal, truth) == 1.0
    assert stratified_auc_p_value(equal, truth, client) == 1.0
    origin = np.where(truth, "member", "unseen")
    assert evaluate(equal, origin, strata=client, contrasts=("unseen",))[0].p_value == 1.0


def test_one_score_for_each_stratum_is_no_evidence() -> None:
    client = np.repeat([0, 1, 2], 400)
    truth = np.arange(1200) % 400 < np.repeat([50, 20, 90], 400)
    assert stratified_auc_p_value(client.astype(float), truth, client) == 1.0
    # One stratum that differs is tested as if the others were not there.
    scores, first = client.astype(float), client == 0
    scores[:5] = 9.0
    test = stratified_auc_p_value(scores, truth, client)
    assert test == pytest.approx(auc_p_value(scores[first], truth[first]))
    assert 0 < test < 1e-3


def test_the_rank_test_is_used_for_sides_of_similar_size() -> None:
    scores, truth = flags(40, 6, 40, 2)
    expected = 0.0666
    assert auc_p_value(scores, truth) == pytest.approx(expected, abs=5e-3)


def test_most_frequent_score_needs_more_than_half() -> None:
    assert most_frequent(np.array([1.0, 1.0, 2.0])) == 1.0
    assert np.isnan(most_frequent(np.array([1.0, 2.0])))
    assert most_frequent(np.full(3, np.inf)) == np.inf


def test_perfect_separation_stays_exact_on_pairs() -> None:
    interval = auc_interval(*flags(100, 100, 20, 0))
    assert (interval.low, interval.high) == clopper_pearson(20, 20)
