from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    AucInterval,
    BlindClassifier,
    auc,
    blind_classifier,
    permuted_membership,
)
from fedaudit.metrics.delong import interval_of_ranks
from fedaudit.metrics.roc import SplitScores


def test_permuted_membership_gives_chance_level() -> None:
    truth = np.arange(300) < 100
    scores = np.random.default_rng(0).normal(size=300) + 2 * truth
    null = permuted_membership(scores, truth, rng=np.random.default_rng(1), permutations=400)
    assert null.passed
    assert null.auc == pytest.approx(auc(scores, truth))
    assert null.mean == pytest.approx(0.5, abs=0.01)
    assert null.p_value == 1 / 401
    # The spread is Mann-Whitney's: sqrt(301 / (12 * 100 * 200)).
    assert (null.high - null.low) / 2 == pytest.approx(1.96 * np.sqrt(301 / 240_000), rel=0.15)


def test_permutation_p_values_are_uniform_when_nothing_leaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # P-values do not depend on the intervals, which take nearly all of the time.
    none = AucInterval(0.5, 0.0, 1.0, "none")
    monkeypatch.setattr("fedaudit.metrics.controls.interval_of_ranks", lambda *_: none)
    rng = np.random.default_rng(2)
    truth = np.arange(40) < 20
    p_values = [
        permuted_membership(rng.normal(size=40), truth, rng=rng, permutations=39).p_value
        for _ in range(200)
    ]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.06)


def test_constant_scores_have_a_permutation_p_value_of_one() -> None:
    null = permuted_membership(np.zeros(20), np.arange(20) < 10, rng=np.random.default_rng(0))
    assert (null.p_value, null.low, null.high) == (1, 0.5, 0.5)
    assert null.passed


def test_too_narrow_intervals_fail_the_permutation_control(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_as_wide(split: SplitScores, confidence: float) -> AucInterval:
        interval = interval_of_ranks(split, confidence)
        low, high = ((interval.value + limit) / 2 for limit in (interval.low, interval.high))
        return replace(interval, low=low, high=high)

    monkeypatch.setattr("fedaudit.metrics.controls.interval_of_ranks", half_as_wide)
    rng = np.random.default_rng(3)
    null = permuted_membership(
        rng.normal(size=300), np.arange(300) < 100, rng=rng, permutations=400
    )
    # A half-width of 0.98 standard errors is exceeded in a third of the cases.
    assert null.alarms == pytest.approx(0.33 * 400, rel=0.25)
    assert not null.passed


def test_too_few_permutations_are_refused() -> None:
    with pytest.raises(BadInput, match="at least 20 permutations, got 5"):
        permuted_membership([1.0, 0.0], [1, 0], rng=np.random.default_rng(0), permutations=5)


def images(samples: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(samples, 1, 5, 5)).astype(np.float32)


def test_exchangeable_inputs_show_no_shift() -> None:
    result = blind_classifier(images(400), np.arange(400) < 200, rng=np.random.default_rng(1))
    assert not result.shifted
    assert result.low < 0.5
    assert (result.n_members, result.n_nonmembers) == (100, 100)


def test_brighter_members_are_found_by_the_linear_classifier() -> None:
    truth = np.arange(400) < 150
    features = images(400) + 0.3 * truth[:, None, None, None].astype(np.float32)
    result = blind_classifier(features, truth, rng=np.random.default_rng(1))
    assert result.shifted
    assert result.classifier == "linear"
    assert "better of 2 classifiers" in result.method


def test_members_with_a_larger_variance_are_found_by_trees() -> None:
    truth = np.arange(600) < 300
    features = images(600)[:, 0, 0, :2] * np.where(truth, 3.0, 1.0)[:, None]
    result = blind_classifier(features, truth, rng=np.random.default_rng(1))
    assert result.shifted
    assert result.classifier == "trees"


def test_a_label_shift_is_found_if_labels_are_given() -> None:
    rng = np.random.default_rng(3)
    truth = np.arange(400) < 200
    labels = np.where(truth, rng.integers(0, 3, 400), rng.integers(1, 5, 400))
    assert not blind_classifier(images(400), truth, rng=np.random.default_rng(1)).shifted
    seen = blind_classifier(images(400), truth, rng=np.random.default_rng(1), labels=labels)
    assert seen.shifted


def test_large_samples_are_subsampled_by_seed() -> None:
    settings = BlindClassifier(most_samples=100, components=5)
    truth = np.arange(300) < 120
    first, repeated = (
        blind_classifier(images(300), truth, rng=np.random.default_rng(4), settings=settings)
        for _ in range(2)
    )
    assert first == repeated
    assert (first.n_members, first.n_nonmembers) == (25, 25)


def test_constant_inputs_give_chance_level() -> None:
    result = blind_classifier(np.ones((60, 4)), np.arange(60) < 30, rng=np.random.default_rng(0))
    assert not result.shifted


def test_the_blind_classifier_does_not_depend_on_threads() -> None:
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            truth = np.arange(400) < 200
            results.append(blind_classifier(images(400), truth, rng=np.random.default_rng(1)))
    assert results[0] == results[1]


def test_inputs_that_cannot_be_classified_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BadInput, match="at least 4 members and 4 non-members"):
        blind_classifier(images(20), np.arange(20) < 3, rng=rng)
    broken = images(20)
    broken[3] = np.nan
    with pytest.raises(BadInput, match="finite inputs"):
        blind_classifier(broken, np.arange(20) < 10, rng=rng)


@pytest.mark.simulation
@pytest.mark.slow
def test_the_blind_classifier_has_its_false_alarm_rate() -> None:
    alarms = [
        blind_classifier(
            np.random.default_rng(draw).normal(size=(160, 6)),
            np.arange(160) < 80,
            rng=np.random.default_rng(draw),
            confidence=0.9,
        ).shifted
        for draw in range(20)
    ]
    # At most 5% each way for two classifiers: 20 draws give over 4 alarms once in 300 times.
    assert sum(alarms) <= 4
