"""Keeps the leaderboard of the benchmark, and the ranks of all scores from which it follows.

python results/benchmark.py runs/benchmark

`results/leaderboard.json` has the figures. `results/benchmark.npz` has the membership and twice the
midrank of each score (a whole number) in each recording, so that other code can compute AUCs and
rates. `docs/results.py` writes the page.
"""

import sys
from pathlib import Path

import numpy as np

from fedaudit.benchmark.leaderboard import Leaderboard, leaderboard_text
from fedaudit.benchmark.scoring import catalogue_leaderboard
from fedaudit.benchmark.suite import read_answers, read_suite
from fedaudit.core.files import read_object
from fedaudit.metrics.roc import midranks
from fedaudit.results.text import without_digest

HERE = Path(__file__).parent
FIGURES, RANKS = HERE / "leaderboard.json", HERE / "benchmark.npz"


def keep(folder: Path) -> Leaderboard:
    """Write the figures and the ranks of a suite."""
    arrays = {}
    for entry in read_suite(folder).recordings:
        answers = read_answers(folder / entry.answers.path)
        arrays[f"{entry.name}/is_member"] = answers.is_member
        for attack, scores in answers.by_attack.items():
            doubled = np.round(2 * midranks(scores)).astype(np.uint16)
            arrays[f"{entry.name}/{attack}"] = doubled
    np.savez_compressed(RANKS, **arrays)  # type: ignore[arg-type]
    board = catalogue_leaderboard(folder)
    FIGURES.write_text(leaderboard_text(board), encoding="utf-8")
    return board


def committed() -> Leaderboard:
    """Return the committed leaderboard."""
    return Leaderboard.model_validate(without_digest(read_object(FIGURES)))


if __name__ == "__main__":
    for regime in keep(Path(sys.argv[1])).regimes:
        print(f"{regime.regime}: {len(regime.entries)} attacks")
