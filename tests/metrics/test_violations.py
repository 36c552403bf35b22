"""Violations, by hand, and the interval of a balanced accuracy from counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.balanced import balanced_accuracy, counted_balanced_accuracy
from fedaudit.metrics.fairness import (
    ModelRisk,
    Violations,
    violations,
    violations_by_chance,
)


def test_a_client_is_violated_where_its_models_risk_is_above_its_threshold() -> None:
    # The paper's example: 0.65 is too much for who accepts 0.6, and not for who accepts 0.7.
    risks, thresholds = np.array([0.65, 0.65, 0.52, 0.52]), np.array([0.6, 0.7, 0.5, 0.8])
    lows = np.array([0.62, 0.62, 0.49, 0.49])
    assert violations(risks, thresholds, lows=lows) == Violations(above=2, sure=1, clients=4)


def test_a_risk_at_the_threshold_is_accepted_and_an_unknown_one_is_no_violation() -> None:
    found = violations(np.array([0.6, np.nan]), np.array([0.6, 0.5]), lows=np.array([0.7, 0.7]))
    assert found == (0, 0, 2)


def test_a_violation_is_not_sure_where_the_lower_limit_is_what_the_client_accepts() -> None:
    found = violations(np.array([0.7]), np.array([0.6]), lows=np.array([0.6]))
    assert found == (1, 0, 1)


def test_without_lower_limits_no_violation_is_sure() -> None:
    assert violations(np.array([0.9]), np.array([0.6])) == (1, 0, 1)


def test_the_noise_floor_of_violations_by_hand() -> None:
    # One member and one other: a risk of 0, 1/2, 1/2 or 1, each as likely.
    found = violations_by_chance([ModelRisk(1, 1, [0.5, 0.6, 1.0, 0.4])], rng=seeded_numpy(1, "x"))
    assert found == pytest.approx(0.25 + 0.25 + 0 + 0.75, abs=0.03)
    assert violations_by_chance([], rng=seeded_numpy(1, "x")) == 0


def test_some_of_two_hundred_clients_are_in_violation_where_every_true_risk_is_one_half() -> None:
    # 30 and 170 clients that accept between 50 and 80 %, on 5,000 members and fewer others.
    thresholds = seeded_numpy(1, "accepted").uniform(0.5, 0.8, 200)
    models = [
        ModelRisk(5_000, 1_500, thresholds[:30].tolist()),
        ModelRisk(5_000, 5_000, thresholds[30:].tolist()),
    ]
    found = violations_by_chance(models, rng=seeded_numpy(1, "drawn"))
    # The sum of the clients' chances, exactly.
    expected = 0.0
    for members, others, accepted in models:
        caught = np.arange(members + 1)
        weights = binom.pmf(caught, members, 0.5)
        for threshold in accepted:
            most = np.floor(others * (2 * threshold - caught / members) + 1e-9)
            expected += float((weights * binom.sf(most, others, 0.5)).sum())
    assert found == pytest.approx(expected, abs=0.05)
    assert 0.5 < found < 3


def test_models_that_nobody_was_asked_about_have_no_noise_floor() -> None:
    with pytest.raises(BadInput, match="got 0 and 3"):
        violations_by_chance([ModelRisk(0, 3, [0.6])], rng=seeded_numpy(1, "x"))


@pytest.mark.parametrize(
    ("risks", "thresholds", "lows"),
    [([0.5], [0.5, 0.6], None), ([], [], None), ([0.5], [0.5], [0.4, 0.4])],
)
def test_a_client_without_risk_or_threshold_is_refused(
    risks: list[float], thresholds: list[float], lows: list[float] | None
) -> None:
    limits = None if lows is None else np.array(lows)
    with pytest.raises(BadInput, match="risk and a threshold"):
        violations(np.array(risks), np.array(thresholds), lows=limits)


def test_a_balanced_accuracy_from_counts_is_the_mean_of_two_shares_with_their_limits() -> None:
    found = counted_balanced_accuracy(60, 100, 45, 50)
    sides = [binomtest(60, 100), binomtest(45, 50)]
    limits = [side.proportion_ci(0.975, method="exact") for side in sides]
    assert found.value == pytest.approx(0.75)
    assert found.low == pytest.approx(sum(one.low for one in limits) / 2)
    assert found.high == pytest.approx(sum(one.high for one in limits) / 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1), st.lists(st.booleans(), min_size=1))
def test_counts_and_answers_give_the_same_balanced_accuracy(
    members: list[bool], others: list[bool]
) -> None:
    called = np.array(members + others, dtype=np.float64)
    truth = np.array([True] * len(members) + [False] * len(others))
    cleared = len(others) - sum(others)
    found = counted_balanced_accuracy(sum(members), len(members), cleared, len(others))
    assert found.value == pytest.approx(balanced_accuracy(called, truth, threshold=1.0))
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize(("members", "others", "tpr", "tnr"), [(30, 30, 0.6, 0.9), (8, 60, 1, 0.5)])
def test_the_interval_holds_the_truth_at_least_as_often_as_it_says(
    members: int, others: int, tpr: float, tnr: float
) -> None:
    rng = seeded_numpy(2, "coverage")
    caught, cleared = rng.binomial(members, tpr, 2000), rng.binomial(others, tnr, 2000)
    cache = {
        pair: counted_balanced_accuracy(pair[0], members, pair[1], others)
        for pair in set(zip(caught.tolist(), cleared.tolist(), strict=True))
    }
    held = [
        cache[pair].low <= (tpr + tnr) / 2 <= cache[pair].high
        for pair in zip(caught.tolist(), cleared.tolist(), strict=True)
    ]
    assert np.mean(held) >= 0.95
