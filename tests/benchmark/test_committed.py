"""The committed leaderboard, recomputed by scikit-learn from the committed ranks."""

import runpy
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from fedaudit.benchmark.leaderboard import ScoredRecording, regime_board
from results.benchmark import RANKS, committed

ROOT = Path(__file__).parents[2]
BOARD = committed()


@cache
def recordings(regime: str) -> tuple[ScoredRecording, ...]:
    """Return the committed ranks of all attacks on each recording of a regime."""
    scored: dict[str, dict[str, np.ndarray]] = {}
    with np.load(RANKS, allow_pickle=False) as arrays:
        for name in arrays.files:
            recording, _, attack = name.partition("/")
            if recording.rpartition("-")[0] == regime:
                scored.setdefault(recording, {})[attack] = arrays[name]
    return tuple(
        ScoredRecording(arrays.pop("is_member"), {n: r.astype(float) for n, r in arrays.items()})
        for arrays in scored.values()
    )


def largest_tpr(is_member: np.ndarray, scores: np.ndarray, fpr: float) -> float:
    false, true, _ = roc_curve(is_member, scores, drop_intermediate=False)
    return float(true[false <= fpr].max())


REGIMES = [regime.regime for regime in BOARD.regimes]


@pytest.mark.parametrize("name", REGIMES)
def test_every_figure_equals_that_of_scikit_learn(name: str) -> None:
    board = next(regime for regime in BOARD.regimes if regime.regime == name)
    scored = recordings(name)
    assert len(scored) == board.recordings
    assert sum(int(each.is_member.sum()) for each in scored) == board.members
    assert {entry.attack for entry in board.entries} == {*scored[0].by_attack}
    for entry in board.entries:
        pairs = [(each.is_member, each.by_attack[entry.attack]) for each in scored]
        expected = np.mean([roc_auc_score(*pair) for pair in pairs])
        assert entry.auc.value == pytest.approx(expected, abs=1e-12)
        for fpr, figure in entry.tpr.items():
            rates = [largest_tpr(*pair, float(fpr)) for pair in pairs]
            assert figure.value == pytest.approx(np.mean(rates), abs=1e-12)


def test_limits_and_ranks_follow_from_the_ranks_of_scores() -> None:
    board = BOARD.regimes[0]
    again = regime_board(
        board.regime, board.about, recordings(board.regime), comparisons=BOARD.comparisons
    )
    for entry in board.entries:
        computed = again.of(entry.attack)
        assert (computed.best_rank, computed.worst_rank) == (entry.best_rank, entry.worst_rank)
        assert (computed.auc.low, computed.auc.high) == pytest.approx(
            (entry.auc.low, entry.auc.high), abs=1e-9
        )


def bootstrap_limits(name: str, attack: str) -> Mapping[str, float]:
    """Return percentile limits of the mean AUC over recordings, by resampling samples."""
    rng = np.random.default_rng(0)
    means = []
    for _ in range(400):
        aucs = []
        for each in recordings(name):
            members, others = (np.flatnonzero(each.is_member == value) for value in (True, False))
            rows = np.concatenate(
                [rng.choice(members, len(members)), rng.choice(others, len(others))]
            )
            # The first rows are the members. AUC is the Mann-Whitney statistic of their ranks.
            ranks = rankdata(each.by_attack[attack][rows])[: len(members)]
            wins = ranks.sum() - len(members) * (len(members) + 1) / 2
            aucs.append(wins / len(members) / len(others))
        means.append(np.mean(aucs))
    low, high = np.quantile(means, [0.025, 0.975])
    return {"low": float(low), "high": float(high)}


@pytest.mark.parametrize("attack", ["loss-series", "fedmia-2"])
def test_limits_of_an_auc_agree_with_a_bootstrap(attack: str) -> None:
    entry = BOARD.regimes[0].of(attack)
    limits = bootstrap_limits(BOARD.regimes[0].regime, attack)
    width = entry.auc.high - entry.auc.low
    assert entry.auc.low == pytest.approx(limits["low"], abs=0.15 * width)
    assert entry.auc.high == pytest.approx(limits["high"], abs=0.15 * width)


def test_the_page_has_every_attack_and_federation() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "results.py"))["leaderboard_page"]()
    for regime in BOARD.regimes:
        assert f"## {regime.regime}" in page
        for entry in regime.entries:
            assert f"| {entry.attack} | {entry.auc.value:.3f} (" in page
