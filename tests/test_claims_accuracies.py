"""Differences of accuracies that are paired by test sample."""

import math
from pathlib import Path

import numpy as np
import pytest

from docs.claims import accuracies, comparing, data, judging, routes
from docs.claims.accuracies import AccuracyPair, paired_accuracy
from docs.claims.data import Term
from fedaudit.core.errors import BadInput
from fedaudit.core.files import write_atomically


def test_paired_limits_of_one_seed_by_hand() -> None:
    # Of ten samples, only the first model is right on four, and only the second on one.
    first = np.array([[1, 1, 1, 1, 0, 1, 1, 0, 0, 1]], dtype=bool)
    second = np.array([[0, 0, 0, 0, 1, 1, 1, 0, 0, 1]], dtype=bool)
    # With half a pseudo-sample for each direction: 4.5 and 1.5 of 12 samples.
    center, variance = 3 / 12, 6 / 12 - (3 / 12) ** 2
    half = 1.959963984540054 * math.sqrt(variance / 12)
    assert paired_accuracy(first, second) == pytest.approx((0.3, center - half, center + half))


def test_equal_models_have_limits_with_a_width() -> None:
    same = np.ones((3, 1000), dtype=bool)
    value, low, high = paired_accuracy(same, same)
    assert value == 0
    assert low == -high
    assert 0.001 < high < 0.003


def test_exchanged_models_have_the_opposite_difference() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 3, 200)) < 0.7
    value, low, high = paired_accuracy(first, second)
    assert paired_accuracy(second, first) == pytest.approx((-value, -high, -low))


@pytest.mark.parametrize("shared", [0.5, 0.95, 0.995])
@pytest.mark.parametrize("samples", [100, 1000])
def test_paired_limits_contain_the_difference_over_all_test_samples(
    shared: float, samples: int
) -> None:
    # A population of samples, on which models of three seeds agree more or less often.
    rng = np.random.default_rng(1)
    hard = rng.random(100_000) < 0.35
    population = []
    for changed in (0.0, 0.04):
        own = rng.random((3, 100_000)) < 0.65 - changed
        population.append(np.where(rng.random((3, 100_000)) < shared, ~hard, own))
    first, second = population
    true = first.mean() - second.mean()
    contained = []
    for _ in range(1000):
        chosen = rng.integers(100_000, size=samples)
        _, low, high = paired_accuracy(first[:, chosen], second[:, chosen])
        contained.append(low <= true <= high)
    assert np.mean(contained) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 1000)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AccuracyPair:
    """Write one paired difference of a study, in place of the committed ones."""
    taken = AccuracyPair(
        one="partition",
        other="compensation",
        seeds=[1, 2, 3],
        samples=1003,
        value=0.01,
        low=0.004,
        high=0.016,
        accuracy=0.66,
        other_accuracy=0.65,
    )
    monkeypatch.setattr(accuracies, "TAKEN", tmp_path)
    accuracies.accuracy_pairs.cache_clear()
    text = accuracies.PAIRS.dump_json([taken]).decode()
    write_atomically(tmp_path / "cofedmid-location30-modules.json", text)
    return taken


def test_accuracies_of_claims_are_paired_in_both_directions(pair: AccuracyPair) -> None:
    test = data.Test(
        figure="test_accuracy",
        one=Term(variant="compensation"),
        others=[Term(variant="partition")],
        direction="near",
        margin=0.02,
    )
    compared = judging.compare("cofedmid-location30-modules", test, test.others[0])
    accuracies.accuracy_pairs.cache_clear()
    assert compared.gap is not None
    assert compared.gap.method == accuracies.METHOD
    assert (compared.gap.low, compared.gap.high) == (-pair.high, -pair.low)
    assert compared.verdict == "confirmed"
    # The figures are those of the same models, so the difference is not over common samples.
    assert compared.one == comparing.Figure(0.65, None, None, "", 3)
    assert not compared.is_over_common_samples
    assert "paired by sample" not in routes.more_of(compared, 4.0)


def test_accuracies_of_a_study_without_claims_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no claim compares test accuracies in fedmia-mnist"):
        accuracies.take_accuracies("fedmia-mnist", data_dir=None, out=tmp_path)


def test_a_model_that_differs_from_its_record_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(accuracies, "final_predictions", lambda *_: np.zeros(1003, dtype=bool))
    with pytest.raises(BadInput, match=r"has a test accuracy of 0\.0000, but its record has 0\.5"):
        accuracies.take_accuracies("cofedmid-location30-modules", data_dir=None, out=tmp_path)
