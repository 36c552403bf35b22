from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from fedaudit.benchmark.leaderboard import ScoredRecording, n_comparisons, regime_board
from fedaudit.metrics import compare_auc


def recordings(seed: int, *, samples: int = 400, runs: int = 2) -> list[ScoredRecording]:
    """Return scores of attacks with known strengths; one attack has ties."""
    rng = np.random.default_rng(seed)
    scored = []
    for _ in range(runs):
        is_member = rng.permutation(np.arange(samples) < samples // 3)
        noise = rng.normal(size=(4, samples))
        by_attack = {
            "strong": 1.5 * is_member + noise[0],
            "twin": 1.5 * is_member + noise[0],
            "tied": np.round(0.8 * is_member + noise[1]),
            "useless": noise[2],
            "reversed": -0.8 * is_member + noise[3],
        }
        scored.append(ScoredRecording(is_member, by_attack))
    return scored


def largest_tpr(is_member: np.ndarray, scores: np.ndarray, fpr: float) -> float:
    """Return the TPR at the last point of scikit-learn's curve with at most this FPR."""
    false, true, _ = roc_curve(is_member, scores, drop_intermediate=False)
    return float(true[false <= fpr].max())


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_figures_equal_those_of_scikit_learn(seed: int) -> None:
    scored = recordings(seed)
    board = regime_board("r", "", scored, comparisons=10)
    for entry in board.entries:
        pairs = [(each.is_member, each.by_attack[entry.attack]) for each in scored]
        assert entry.auc.value == pytest.approx(np.mean([roc_auc_score(*p) for p in pairs]))
        expected = np.mean([largest_tpr(*pair, 0.01) for pair in pairs])
        assert entry.tpr["0.01"].value == pytest.approx(expected)
        assert entry.auc.low < entry.auc.value < entry.auc.high
        assert entry.tpr["0.01"].low <= entry.tpr["0.01"].value <= entry.tpr["0.01"].high
    aucs = [entry.auc.value for entry in board.entries]
    assert aucs == sorted(aucs, reverse=True)


def test_rates_without_enough_non_members_are_left_out() -> None:
    board = regime_board("r", "", recordings(1), comparisons=10)
    assert set(board.shortage) == {"0.001"}
    assert all(set(entry.tpr) == {"0.01"} for entry in board.entries)


def test_a_difference_is_that_of_paired_samples() -> None:
    scored = recordings(2, runs=1)
    board = regime_board("r", "", scored, attack="strong", comparisons=4)
    (only,) = scored
    for other in ("tied", "useless", "reversed"):
        expected = compare_auc(
            only.by_attack["strong"], only.by_attack[other], is_member=only.is_member
        )
        difference = board.of(other).difference
        assert difference is not None
        assert (difference.value, difference.low, difference.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )


def test_limits_of_a_mean_are_narrower_than_those_of_its_recordings() -> None:
    one, four = (
        regime_board("r", "", recordings(3, runs=runs), attack="strong", comparisons=4)
        for runs in (1, 4)
    )

    def width(board_index: int) -> float:
        difference = (one, four)[board_index].of("useless").difference
        assert difference is not None
        return difference.high - difference.low

    assert width(1) == pytest.approx(width(0) / 2, rel=0.15)


def test_ranks_count_the_attacks_that_differ() -> None:
    scored = recordings(4)
    board = regime_board("r", "", scored, comparisons=10)
    names = [entry.attack for entry in board.entries]
    assert {*names[:2]} == {"strong", "twin"}
    ranks = {e.attack: (e.best_rank, e.worst_rank) for e in board.entries}
    # Equal scores are not separable, and share the first two ranks.
    assert ranks["strong"] == ranks["twin"] == (1, 2)
    assert ranks["tied"] == (3, 3)
    assert ranks["useless"] == (4, 4)
    assert ranks["reversed"] == (5, 5)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), samples=st.integers(30, 120))
def test_outcomes_agree_between_both_kinds_of_leaderboard(seed: int, samples: int) -> None:
    scored = recordings(seed, samples=samples)
    names = list(scored[0].by_attack)
    all_pairs = regime_board("r", "", scored, comparisons=10)
    by_attack = {n: regime_board("r", "", scored, attack=n, comparisons=10) for n in names}
    for name in names:
        own, of_pairs = by_attack[name].of(name), all_pairs.of(name)
        assert (own.best_rank, own.worst_rank) == (of_pairs.best_rank, of_pairs.worst_rank)
        assert own.best_rank is not None
        assert own.worst_rank is not None
        assert 1 <= own.best_rank <= own.worst_rank <= len(names)
    opposite = {"better": "worse", "worse": "better", "not separable": "not separable"}
    for first, second in combinations(names, 2):
        outcome = by_attack[first].of(second).outcome
        assert outcome is not None
        assert by_attack[second].of(first).outcome == opposite[outcome]


def test_useless_attacks_are_rarely_separable() -> None:
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        is_member = np.arange(200) < 100
        noise = {f"n{number}": rng.normal(size=200) for number in range(4)}
        board = regime_board("r", "", [ScoredRecording(is_member, noise)], comparisons=6)
        wrong += any(entry.worst_rank != 4 for entry in board.entries)
    # With a probability of at most 5 % each, 7 or more of 40 have a probability below 0.4 %.
    assert wrong < 7


def test_comparisons_are_counted() -> None:
    assert n_comparisons(5, 3, scored=True) == 12
    assert n_comparisons(5, 3, scored=False) == 30
