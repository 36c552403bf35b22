"""How often bounds from canary records exceed the true epsilon, over simulated trainings.

    python -m benchmarks.canary_records [--runs 200] [--seed 1]

Prints a table in Markdown. A training releases the sum of the clipped gradients of those canary
records that a coin let in, with noise; an attack scores a canary by how far the release lies along
its gradient. With normal noise the truth is the epsilon of the Gaussian mechanism; in *rounds* ten
releases are added up. With Laplace noise along each canary's gradient, no bound's hypothesis holds
but that of the coins. Nominal: 5 %.
"""

import argparse
import math
from typing import NamedTuple

import numpy as np

from fedaudit.metrics.canaries import record_bounds
from fedaudit.metrics.epsilon import gaussian_budget, gaussian_shift, one_run_epsilon

DELTA = 1e-5
GUESSED = 0.2
EPSILONS = (1.0, 3.9, 8.0)
CANARIES = (200, 500, 2000)
ROUNDS = 10


class Cell(NamedTuple):
    """A training: its noise, the true epsilon and the number of canaries."""

    noise: str
    epsilon: float
    canaries: int


class Bounds(NamedTuple):
    """The bounds of every run; NaN where one was refused."""

    coins: np.ndarray
    if_gaussian: np.ndarray
    if_normal: np.ndarray
    estimate: np.ndarray


def scores_of(cell: Cell, is_member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how far a release lies along the gradient of each canary, in clips."""
    if cell.noise == "Laplace":
        return is_member + rng.laplace(0, 1 / cell.epsilon, len(is_member))
    rounds = ROUNDS if cell.noise == "normal, rounds" else 1
    noise = math.sqrt(rounds) / gaussian_shift(cell.epsilon, DELTA)
    # Gradients are orthogonal: the worst case that the mechanism's epsilon is about.
    drawn = noise * rng.standard_normal((rounds, len(is_member)))
    return np.asarray((is_member + drawn).sum(axis=0))


def run(cell: Cell, runs: int, seed: int) -> Bounds:
    """Return the bounds of many runs of a cell."""
    rng = np.random.default_rng([seed, cell.canaries, *cell.noise.encode()])
    found = []
    for _ in range(runs):
        is_member = rng.random(cell.canaries) < 0.5
        scores = scores_of(cell, is_member, rng)
        guesses = 2 * int(GUESSED * cell.canaries / 2)
        coins = one_run_epsilon(scores, is_member, guesses=guesses, delta=DELTA)
        more = record_bounds(scores, is_member, guesses=guesses, delta=DELTA)
        inside, outside = scores[is_member], scores[~is_member]
        spread = math.sqrt((inside.var() + outside.var()) / 2)
        shift = float(inside.mean() - outside.mean()) / spread
        gaussian, normal = (
            np.nan if bound is None else bound.value for bound in (more.if_gaussian, more.if_normal)
        )
        estimate = gaussian_budget(shift, DELTA)
        found.append((coins.value, gaussian, normal, estimate))
    return Bounds(*np.array(found).T)


def shown(values: np.ndarray, truth: float) -> str:
    """Return a bound's mean, and how often it lies above the truth among all runs."""
    known = values[~np.isnan(values)]
    mean = f"{known.mean():.2f}" if len(known) else "-"
    return f"{mean} | {100 * (known > truth).sum() / len(values):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(
        "| noise | true epsilon | canaries | coins, mean | above the truth | if Gaussian, mean | "
        "above | if normal, mean | above | refused | estimate from the means | above |"
    )
    print(f"|{'---|' * 12}")
    for noise in ("normal", "normal, rounds", "Laplace"):
        for epsilon in EPSILONS:
            for canaries in CANARIES:
                if noise == "normal, rounds" and canaries != 500:
                    continue
                found = run(Cell(noise, epsilon, canaries), given.runs, given.seed)
                refused = float(np.isnan(found.if_normal).mean())
                parts = [shown(part, epsilon) for part in found]
                parts.insert(3, f"{100 * refused:.0f} %")
                print(f"| {noise} | {epsilon:g} | {canaries:,} | {' | '.join(parts)} |", flush=True)


if __name__ == "__main__":
    main()
