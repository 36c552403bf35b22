"""Forgotten and held-out samples: verdicts and their error rates."""

import math

import numpy as np
import pytest

from benchmarks.unlearning import MARGIN, scores, simulated
from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc, evaluate_unlearning
from fedaudit.metrics.unlearning import unlearning_verdict


def halves(each: int) -> np.ndarray:
    return np.arange(2 * each) < each


def test_unlearning_auc_of_forgotten_against_held_out_samples() -> None:
    truth = np.array([True, True, False, False])
    before, after, retrained = [4.0, 3.0, 1.0, 2.0], [1.0, 4.0, 2.0, 3.0], [1.0, 3.0, 2.0, 4.0]
    result = evaluate_unlearning(before, after, retrained, is_deleted=truth)
    assert result.retrained is not None
    assert (result.before.value, result.after.value, result.retrained.value) == (1.0, 0.5, 0.25)
    assert result.excess.value == 0.25
    # Score drops: 3 and -1 of the forgotten samples, -1 and -1 of the unseen ones.
    assert result.both.value == 0.75


def test_both_models_together_reveal_deletion() -> None:
    rng = np.random.default_rng(0)
    hard = 5 * rng.standard_normal(400)
    truth = halves(200)
    before, after = hard + truth, hard + 0.1 * rng.standard_normal(400)
    result = evaluate_unlearning(before, after, is_deleted=truth)
    assert result.before.value < 0.65
    assert 0.4 < result.after.value < 0.6
    assert result.both.value > 0.99


def test_only_retraining_has_the_verdict_forgotten() -> None:
    rng = np.random.default_rng(1)
    shared = rng.standard_normal(1600)
    before, retrained, other = (
        scores(rng, level, shared, halves(800)) for level in (0.6, 0.5, 0.5)
    )
    truth = halves(800)
    unchanged = evaluate_unlearning(before, before, retrained, is_deleted=truth)
    assert unchanged.verdict == "not forgotten"
    assert unchanged.both.value == 0.5
    assert "not forgotten" in str(unchanged)
    deleted = evaluate_unlearning(before, other, retrained, is_deleted=truth)
    assert deleted.verdict == "forgotten"


@pytest.mark.parametrize(
    ("low", "high", "leaked", "verdict"),
    [
        (-0.04, 0.04, True, "forgotten"),
        (0.01, 0.04, True, "forgotten"),
        (-0.04, 0.04, False, "not detected before"),
        (0.01, 0.2, True, "not forgotten"),
        (0.06, 0.2, False, "not forgotten"),
        (-0.2, -0.06, True, "overdone"),
        (-0.2, -0.04, True, "inconclusive"),
        (-0.01, 0.06, True, "inconclusive"),
    ],
)
def test_unlearning_verdicts_follow_from_the_interval(
    low: float, high: float, leaked: bool, verdict: str
) -> None:
    assert unlearning_verdict(low, high, margin=0.05, leaked_before=leaked) == verdict


def test_not_forgotten_requires_the_corrected_test() -> None:
    uncorrected = unlearning_verdict(0.01, 0.2, margin=0.05, leaked_before=True, above=False)
    assert uncorrected == "inconclusive"


def largest_share(runs: int) -> float:
    """Return 5 % plus four standard errors of a share simulated in this many runs."""
    return 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edge", "yardstick", "seeds", "runs"),
    [
        (MARGIN, "retrained", 1, 200),
        (-MARGIN, "retrained", 1, 200),
        (MARGIN, "0.5", 1, 200),
        (MARGIN, "retrained", 5, 40),
    ],
)
def test_false_forgotten_verdicts_are_at_most_five_per_cent(
    edge: float, yardstick: str, seeds: int, runs: int
) -> None:
    rates = simulated(edge, (400, 400), yardstick, runs=runs, seeds=seeds)
    assert rates.forgotten < largest_share(runs)


@pytest.mark.simulation
@pytest.mark.slow
def test_false_not_forgotten_verdicts_are_at_most_five_per_cent() -> None:
    assert simulated(0.0, (60, 200), runs=300).not_forgotten < largest_share(300)


def test_mismatched_scores_and_invalid_margins_raise() -> None:
    truth = halves(2)
    with pytest.raises(BadInput, match="margin"):
        evaluate_unlearning([1, 2, 3, 4], [1, 2, 3, 4], is_deleted=truth, margin=0.6)
    with pytest.raises(BadInput):
        evaluate_unlearning([1, 2, 3, 4], [1, 2, 3], is_deleted=truth)
    with pytest.raises(BadInput):
        evaluate_unlearning([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3], is_deleted=truth)


def test_simulated_scores_have_the_requested_auc() -> None:
    rng = np.random.default_rng(4)
    for level in (0.45, 0.5, 0.6):
        shared = rng.standard_normal(80_000)
        measured = auc(scores(rng, level, shared, halves(40_000)), halves(40_000))
        assert measured == pytest.approx(level, abs=0.01)
