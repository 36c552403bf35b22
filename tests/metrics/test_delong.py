from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logit, ndtr, stdtrit
from scipy.stats import binomtest, norm, rankdata

from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc, auc_interval, clustered_auc, compare_auc
from fedaudit.metrics.delong import _covariance, interval_of_ranks, placements_of
from fedaudit.metrics.roc import SplitScores, rank_scores, split_scores


def slow_variance(scores: np.ndarray, truth: np.ndarray) -> float:
    """DeLong's variance from the full matrix of pairs, as the paper writes it."""
    members, nonmembers = scores[truth], scores[~truth]
    wins = (members[:, None] > nonmembers) + 0.5 * (members[:, None] == nonmembers)
    spreads = wins.mean(1).var(ddof=1), wins.mean(0).var(ddof=1)
    return float(spreads[0] / len(members) + spreads[1] / len(nonmembers))


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=15),
    st.lists(st.integers(0, 6), min_size=2, max_size=15),
)
@settings(deadline=None)
def test_delong_variance_matches_the_sum_over_pairs(
    members: list[int], nonmembers: list[int]
) -> None:
    scores = np.array(members + nonmembers, dtype=float)
    truth = np.arange(len(scores)) < len(members)
    placed = placements_of(rank_scores(split_scores(scores, truth)))
    assert placed.auc == pytest.approx(auc(scores, truth))
    assert _covariance(placed, placed) == pytest.approx(slow_variance(scores, truth), abs=1e-12)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
)
@settings(deadline=None)
def test_auc_intervals_contain_the_auc_and_have_positive_width(
    members: list[int], nonmembers: list[int]
) -> None:
    scores = np.array(members + nonmembers, dtype=float)
    interval = auc_interval(scores, np.arange(len(scores)) < len(members))
    assert 0 <= interval.low <= interval.value + 1e-12
    assert interval.value - 1e-12 <= interval.high <= 1
    assert interval.high - interval.low > 0.01


def test_perfect_separation_has_an_exact_lower_limit() -> None:
    # If the true AUC were a, 20 disjoint pairs would all be ordered with chance a**20.
    interval = auc_interval(np.arange(60.0), np.arange(60) >= 40)
    assert interval.value == 1
    assert (interval.low, interval.high) == pytest.approx((0.025 ** (1 / 20), 1))
    assert interval.method == "exact on pairs 95%"


def test_equal_scores_give_a_wide_interval_around_one_half() -> None:
    interval = auc_interval(np.zeros(200), np.arange(200) < 100)
    assert interval.value == 0.5
    assert interval.low == pytest.approx(1 - interval.high)
    assert interval.low < 0.41


def test_swapping_the_sides_mirrors_the_interval() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(300) < 100
    scores = rng.normal(size=300) + truth
    interval, other = auc_interval(scores, truth), auc_interval(scores, ~truth)
    assert (interval.low, interval.high) == pytest.approx((1 - other.high, 1 - other.low))
    assert interval.method == "DeLong 95%"


@pytest.mark.simulation
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5, 3.0])
def test_the_auc_interval_has_its_coverage(shift: float) -> None:
    rng = np.random.default_rng(0)
    truth, true_auc = np.arange(150) < 50, ndtr(shift / np.sqrt(2))
    covered = 0
    for _ in range(400):
        interval = auc_interval(rng.normal(size=150) + shift * truth, truth)
        covered += interval.low <= true_auc <= interval.high
    # 0.92 is 2.7 standard deviations below 0.95; near-perfect attacks are over-covered.
    assert covered / 400 >= 0.92


def test_the_paired_difference_is_tighter_than_two_separate_intervals() -> None:
    rng = np.random.default_rng(1)
    truth = np.arange(2000) < 1000
    first = rng.normal(size=2000) + truth
    second = first + rng.normal(size=2000)
    difference = compare_auc(first, second, is_member=truth)
    assert difference.value == pytest.approx(auc(first, truth) - auc(second, truth))
    assert difference.low < difference.value < difference.high
    interval = auc_interval(first, truth)
    assert difference.high - difference.low < interval.high - interval.low
    assert difference.p_value < 1e-3
    assert difference.method == "paired DeLong 95%"


@pytest.mark.simulation
def test_the_paired_test_has_its_error_rate() -> None:
    rng = np.random.default_rng(2)
    truth = np.arange(120) < 60
    alarms = 0
    for _ in range(400):
        common = rng.normal(size=120) + truth
        first, second = common + rng.normal(size=(2, 120))
        alarms += compare_auc(first, second, is_member=truth).p_value < 0.05
    assert 0.02 <= alarms / 400 <= 0.085


def test_attacks_with_equal_ranks_have_no_difference() -> None:
    rng = np.random.default_rng(3)
    scores, truth = rng.normal(size=100), np.arange(100) < 50
    difference = compare_auc(scores, np.exp(scores), is_member=truth)
    assert (difference.value, difference.p_value) == (0, 1)
    assert difference.low < 0 < difference.high


def test_two_perfect_attacks_have_a_wide_difference_interval() -> None:
    scores, truth = np.arange(40.0), np.arange(40) >= 20
    difference = compare_auc(scores, scores**3, is_member=truth)
    assert difference.high > 0.1
    assert difference.method == "separate intervals 95%"


def test_a_confidence_out_of_range_is_refused() -> None:
    with pytest.raises(BadInput, match="between 0 and 1"):
        auc_interval([1.0, 0.0], [1, 0], confidence=1.0)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.data())
@settings(deadline=None)
def test_ranks_give_the_same_interval_as_scores(scores: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(scores) - 1))
    values, ranks = np.array(scores, dtype=float), rankdata(scores)
    of_scores = auc_interval(values, np.arange(len(values)) < n)
    assert interval_of_ranks(SplitScores(ranks[:n], ranks[n:]), 0.95) == of_scores


def test_clustered_auc_of_single_samples_equals_delong() -> None:
    rng = np.random.default_rng(1)
    scores, is_member = rng.standard_normal(4000), np.arange(4000) < 2000
    scores[is_member] += 0.3
    alone, people = (
        auc_interval(scores, is_member),
        clustered_auc(scores, is_member, np.arange(4000)),
    )
    assert people.value == alone.value
    assert (people.low, people.high) == pytest.approx((alone.low, alone.high), abs=2e-4)


def test_copied_samples_do_not_narrow_the_clustered_interval() -> None:
    rng = np.random.default_rng(2)
    scores, is_member, person = rng.standard_normal(80), np.arange(80) < 40, np.arange(80)
    once = clustered_auc(scores, is_member, person)
    often = clustered_auc(*(np.repeat(part, 7) for part in (scores, is_member, person)))
    assert astuple(often)[:3] == pytest.approx(astuple(once)[:3])
    naive = auc_interval(np.repeat(scores, 7), np.repeat(is_member, 7))
    assert naive.high - naive.low < 0.5 * (often.high - often.low)


def test_people_with_samples_on_both_sides_are_counted_once() -> None:
    rng = np.random.default_rng(4)
    person, is_member = rng.integers(30, size=200), rng.random(200) < 0.4
    scores = rng.standard_normal(200) + rng.standard_normal(30)[person]
    interval = clustered_auc(scores, is_member, person)
    reach = (logit(interval.high) - logit(interval.low)) / 2 * interval.value * (1 - interval.value)
    variance, fewest = obuchowski(scores, is_member, person)
    assert reach == pytest.approx(-stdtrit(fewest - 1, 0.025) * np.sqrt(variance))


def test_perfect_clustered_auc_has_an_exact_interval() -> None:
    scores, is_member = np.array([4.0, 3.0, 5.0, 1.0, 2.0, 0.0, 0.5]), np.arange(7) < 3
    interval = clustered_auc(scores, is_member, np.array([0, 1, 2, 3, 4, 5, 5]))
    assert interval.value == interval.high == 1.0
    assert interval.low == pytest.approx(0.025 ** (1 / 3))
    assert interval.method == "exact on pairs of people 95%"


def obuchowski(scores: np.ndarray, truth: np.ndarray, person: np.ndarray) -> tuple[float, int]:
    """Return Obuchowski's variance (1997) from all pairs, and the people of the smaller side."""
    wins = (scores[truth][:, None] > scores[~truth]) + 0.5 * (
        scores[truth][:, None] == scores[~truth]
    )
    theta, (m, n) = wins.mean(), wins.shape
    members = {p: (wins.mean(1)[person[truth] == p] - theta).sum() for p in person[truth]}
    others = {p: (wins.mean(0)[person[~truth] == p] - theta).sum() for p in person[~truth]}
    i10, i01, i = len(members), len(others), len(members | others)
    s10 = i10 / ((i10 - 1) * m) * sum(v**2 for v in members.values())
    s01 = i01 / ((i01 - 1) * n) * sum(v**2 for v in others.values())
    both = members.keys() & others.keys()
    s11 = i / (i - 1) * sum(members[p] * others[p] for p in both)
    return s10 / m + s01 / n + 2 * s11 / (m * n), min(i10, i01)


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("people", "samples", "person_share", "shift"), [(40, 8, 0.5, 0.0), (60, 20, 0.2, 0.3)]
)
def test_clustered_auc_intervals_have_their_coverage(
    people: int, samples: int, person_share: float, shift: float
) -> None:
    rng = np.random.default_rng(3)
    truth = norm.cdf(shift / np.sqrt(2))
    missed, runs = 0, 400
    for _ in range(runs):
        person = np.repeat(np.arange(2 * people), rng.integers(1, 2 * samples, 2 * people))
        is_member = person < people
        scores = np.sqrt(person_share) * rng.standard_normal(2 * people)[person]
        scores += np.sqrt(1 - person_share) * rng.standard_normal(len(person)) + shift * is_member
        interval = clustered_auc(scores, is_member, person)
        missed += not interval.low <= truth <= interval.high
    assert binomtest(missed, runs, 0.05, alternative="greater").pvalue > 0.001
