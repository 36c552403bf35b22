import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.metrics import balanced_accuracy, best_balanced_accuracy, held_out_balanced_accuracy


def test_balanced_accuracy_weighs_both_sides_equally() -> None:
    # At 2, both members and one of four non-members are flagged.
    scores, truth = [3.0, 2.0, 2.0, 1.0, 1.0, 0.0], [True, True, False, False, False, False]
    assert balanced_accuracy(scores, truth, threshold=2.0) == (1 + 0.75) / 2
    assert balanced_accuracy(scores, truth, threshold=None) == 0.5
    assert balanced_accuracy(scores, truth, threshold=-1.0) == 0.5


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=20))
@settings(deadline=None)
def test_the_best_in_hindsight_is_the_best_of_all_thresholds(pairs: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in pairs] + [2.0, 3.0])
    truth = np.array([member for _, member in pairs] + [True, False])
    best = best_balanced_accuracy(scores, truth)
    every = [balanced_accuracy(scores, truth, threshold=level) for level in scores]
    assert best.value == pytest.approx(max(0.5, *every))
    assert balanced_accuracy(scores, truth, threshold=best.threshold) == pytest.approx(best.value)
    assert "optimistic" in best.note


def test_infinite_members_are_flagged_by_the_best_threshold() -> None:
    best = best_balanced_accuracy([np.inf, np.inf, 0.0], [True, True, False])
    assert (best.value, best.threshold) == (1, np.inf)


def test_an_attack_on_noise_is_at_chance_on_held_out_samples() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(60) < 30
    hindsight, held_out, covered = [], [], 0
    for _ in range(300):
        scores = rng.normal(size=60)
        hindsight.append(best_balanced_accuracy(scores, truth).value)
        interval = held_out_balanced_accuracy(scores, truth, rng=rng)
        held_out.append(interval.value)
        covered += interval.low <= 0.5 <= interval.high
    assert np.mean(hindsight) > 0.55
    assert np.mean(held_out) == pytest.approx(0.5, abs=0.015)
    assert covered / 300 >= 0.95


def test_a_held_out_figure_counts_the_other_half() -> None:
    scores, truth = np.arange(41.0), np.arange(41) >= 20
    estimate = held_out_balanced_accuracy(scores, truth, rng=np.random.default_rng(0))
    assert (estimate.n_members, estimate.n_nonmembers) == (11, 10)
    assert 0.5 < estimate.low < estimate.value <= estimate.high <= 1
    repeated = held_out_balanced_accuracy(scores, truth, rng=np.random.default_rng(0))
    assert estimate == repeated


def test_one_sample_on_a_side_cannot_be_split() -> None:
    with pytest.raises(BadInput, match="at least 2 members and 2 non-members, got 1 and 2"):
        held_out_balanced_accuracy(
            [1.0, 0.0, 2.0], [True, False, False], rng=np.random.default_rng(0)
        )
