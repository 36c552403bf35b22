"""P-values of one unit, and its chance of membership."""

from math import inf
from random import Random

import numpy as np
import pytest
import scipy as sp
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    combined_p_values,
    conformal_p_value,
    individual_test,
    membership_posterior_limits,
)

RATE = 0.05
SCORES = st.integers(-4, 4).map(float) | st.sampled_from([-inf, inf])


def table(attacks: int, *, least: int = 1) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(
        st.lists(SCORES, min_size=attacks, max_size=attacks), min_size=least, max_size=9
    )


TABLES = st.integers(1, 4).flatmap(lambda attacks: table(attacks, least=2))


def by_definition(target: list[float], others: list[list[float]]) -> tuple[list[float], float]:
    """Rank every unit in the pool by each attack, and compare the sorted ranks."""
    pool = [target, *others]
    ranks = [[sum(b[a] >= u[a] for b in pool) for a in range(len(target))] for u in pool]
    combined = sum(sorted(r) <= sorted(ranks[0]) for r in ranks)
    return [rank / len(pool) for rank in ranks[0]], combined / len(pool)


def test_p_values_match_hand_calculation() -> None:
    nonmembers = [0.1, 0.4, 0.4, 0.9]
    assert conformal_p_value(1.0, nonmembers) == 1 / 5
    # Equal scores count against the unit.
    assert conformal_p_value(0.4, nonmembers) == 4 / 5
    assert conformal_p_value(0.0, nonmembers) == 1
    assert conformal_p_value(5.0, []) == 1


def test_combined_p_values_match_hand_calculation() -> None:
    # Ranks among all four units: (1, 3), (2, 1), (3, 4), (4, 2). In order of the sorted ranks, the
    # second unit (1, 2) precedes the first (1, 3).
    test = individual_test([9, 3], [[8, 9], [7, 1], [6, 5]])
    assert test.p_values == (1 / 4, 3 / 4)
    assert test.combined == 2 / 4


@given(TABLES)
def test_the_combined_p_value_matches_its_definition(rows: list[list[float]]) -> None:
    target_scores, *others = rows
    alone, combined = by_definition(target_scores, others)
    test = individual_test(target_scores, others)
    assert test.p_values == pytest.approx(alone)
    assert test.combined == combined
    assert combined_p_values([target_scores], others).tolist() == [combined]
    for column, p_value in enumerate(test.p_values):
        assert p_value == conformal_p_value(target_scores[column], [row[column] for row in others])


@given(TABLES, st.randoms(use_true_random=False))
def test_p_values_do_not_depend_on_the_order_of_samples_or_attacks(
    rows: list[list[float]], random: Random
) -> None:
    target_scores, *others = rows
    test = individual_test(target_scores, others)
    order = list(range(len(target_scores)))
    random.shuffle(order)
    random.shuffle(others)
    turned = individual_test(
        [target_scores[a] for a in order], [[row[a] for a in order] for row in others]
    )
    assert turned.combined == test.combined
    assert turned.p_values == tuple(test.p_values[a] for a in order)


@given(TABLES, st.data())
def test_a_higher_score_never_raises_a_p_value(
    rows: list[list[float]], data: st.DataObject
) -> None:
    target_scores, *others = rows
    raised = [score if data.draw(st.booleans()) else score + 1 for score in target_scores]
    before, after = individual_test(target_scores, others), individual_test(raised, others)
    assert after.combined <= before.combined
    assert all(a <= b for a, b in zip(after.p_values, before.p_values, strict=True))


@given(TABLES)
def test_one_attack_has_the_same_p_value_alone_and_combined(rows: list[list[float]]) -> None:
    target_scores, *others = ([row[0]] for row in rows)
    test = individual_test(target_scores, others)
    assert test.p_values == (test.combined,)


@given(TABLES)
def test_repeating_an_attack_changes_no_combined_p_value(rows: list[list[float]]) -> None:
    target_scores, *others = rows
    repeated = individual_test(target_scores * 2, [row * 2 for row in others])
    assert repeated.combined == individual_test(target_scores, others).combined


def correlated_scores(rng: np.random.Generator, units: int, attacks: int) -> np.ndarray:
    """Return scores that share half of their variance; some attacks are skewed or have ties."""
    scores = rng.normal(size=(units, 1)) + rng.normal(size=(units, attacks))
    scores[:, 1] = np.exp(scores[:, 1])
    scores[:, 2] = np.round(scores[:, 2])
    scores[:, 3] = -scores[:, 0]
    return scores


@pytest.mark.simulation
@pytest.mark.slow
def test_non_members_are_flagged_at_the_stated_rate() -> None:
    rng, trials = np.random.default_rng(7), 10_000
    alone, together = np.zeros(6), 0
    for _ in range(trials):
        target_scores, *others = correlated_scores(rng, 1 + 79, 6)
        test = individual_test(target_scores, others)
        alone += np.array(test.p_values) <= RATE
        together += test.combined <= RATE
    # Of 10,000 trials, 99.9 % of simulations at the exact rate count 430 to 573.
    low, high = sp.stats.binom.interval(0.999, trials, RATE)
    assert low <= together <= high
    assert all(count <= high for count in alone)
    # Without ties, a single attack is exact as well.
    assert all(low <= count <= high for count in alone[[0, 1, 3, 4, 5]])


def test_bonferroni_over_attacks_flags_fewer_members() -> None:
    rng = np.random.default_rng(3)
    others = correlated_scores(rng, 79, 6)
    members = correlated_scores(rng, 500, 6) + 1.5
    p_values = combined_p_values(members, others)
    alone = np.array([individual_test(member, others).p_values for member in members])
    bonferroni = np.minimum(1, 6 * alone.min(1))
    # With 79 non-members the smallest corrected p-value is 6 / 80, which flags no member.
    assert (bonferroni <= RATE).sum() == 0
    assert (p_values <= RATE).mean() > 0.25


def test_limits_of_the_chance_of_membership_follow_from_the_rates() -> None:
    is_member = np.arange(30) < 10
    scores = np.where(is_member, 1.0, 0.0)
    scores[[9, 29]] = 0.0, 1.0
    low, high = membership_posterior_limits(1.0, scores, is_member, prior=0.2)
    # 9 of 10 members and 1 of 20 non-members score as high; each limit has an error of 1.25 %.
    beta = sp.stats.beta
    hits = beta.ppf(0.0125, 9, 2), beta.ppf(0.9875, 10, 1)
    alarms = beta.ppf(0.0125, 1, 20), beta.ppf(0.9875, 2, 19)
    odds = 0.25 * hits[0] / alarms[1], 0.25 * hits[1] / alarms[0]
    assert low == pytest.approx(odds[0] / (1 + odds[0]))
    assert high == pytest.approx(odds[1] / (1 + odds[1]))


def test_an_unreached_score_has_an_upper_limit_of_one() -> None:
    assert membership_posterior_limits(9.0, [1, 0], [True, False], prior=0.5) == (0.0, 1.0)


@given(st.integers(0, 6).map(float), st.floats(0.01, 0.98))
def test_the_chance_of_membership_grows_with_the_prior(score: float, prior: float) -> None:
    scores, is_member = np.arange(12) % 7, np.arange(12) < 6
    small, large = (
        membership_posterior_limits(score, scores, is_member, prior=p)
        for p in (prior, prior + 0.01)
    )
    assert small.low <= large.low
    assert small.high <= large.high
    assert small.low <= small.high


@pytest.mark.simulation
def test_limits_of_the_chance_contain_the_true_one() -> None:
    rng, trials, covered = np.random.default_rng(1), 2_000, 0
    is_member = np.arange(120) < 60
    for score in rng.normal(0.5, 1, size=trials):
        limits = membership_posterior_limits(score, rng.normal(is_member), is_member, prior=0.3)
        rates = sp.stats.norm.sf(score - np.array([1.0, 0.0]))
        chance = 0.3 * rates[0] / (0.3 * rates[0] + 0.7 * rates[1])
        covered += limits.low <= chance <= limits.high
    assert covered / trials >= 0.95


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1])
def test_a_prior_of_zero_or_one_raises(prior: float) -> None:
    with pytest.raises(BadInput, match="prior is a probability between 0 and 1"):
        membership_posterior_limits(1.0, [1, 0], [True, False], prior=prior)


def test_mismatched_attacks_or_missing_scores_raise() -> None:
    with pytest.raises(BadInput, match="scores of 1 attacks and non-members of 2"):
        individual_test([1], [[1, 2]])
    with pytest.raises(BadInput, match="without NaNs"):
        combined_p_values([[np.nan]], [[1]])
    with pytest.raises(BadInput, match="a row for each unit"):
        individual_test([1], [1, 2])
