"""How often bounds from canary samples exceed the true epsilon, over simulated training runs.

    python -m benchmarks.canary_samples [--runs 200] [--seed 1]

Prints a table in Markdown. A simulated training run releases the sum of the clipped gradients of
those canary samples that a fair coin includes, with noise. An attack scores a canary by the
projection of the release onto its gradient. With normal noise, the true epsilon is that of the
Gaussian mechanism. *Rounds* adds up ten releases. With Laplace noise along each canary's gradient,
only the bound from one run of coin tosses is valid: the assumptions of the others do not hold. The
nominal error is 5 %.
"""

import argparse
import math
from typing import NamedTuple

import numpy as np

from fedaudit.metrics.canaries import sample_bounds
from fedaudit.metrics.epsilon import gaussian_budget, gaussian_shift, one_run_epsilon

DELTA = 1e-5
GUESSED = 0.2  # fraction of the canaries on which the attack guesses
EPSILONS = (1.0, 3.9, 8.0)
CANARIES = (200, 500, 2000)
ROUNDS = 10


class Cell(NamedTuple):
    """A training run: its noise, the true epsilon and the number of canaries."""

    noise: str
    epsilon: float
    canaries: int


class Bounds(NamedTuple):
    """The bounds of every run; NaN for a bound that was refused."""

    one_run: np.ndarray
    if_gaussian: np.ndarray
    if_normal: np.ndarray
    estimate: np.ndarray


def scores_of(cell: Cell, is_member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the projection of a release onto the gradient of each canary, in clipping norms."""
    if cell.noise == "Laplace":
        return is_member + rng.laplace(0, 1 / cell.epsilon, len(is_member))
    rounds = ROUNDS if cell.noise == "normal, rounds" else 1
    noise = math.sqrt(rounds) / gaussian_shift(cell.epsilon, DELTA)
    # Orthogonal gradients are the worst case, to which the mechanism's epsilon applies.
    drawn = noise * rng.standard_normal((rounds, len(is_member)))
    return np.asarray((is_member + drawn).sum(axis=0))


def run(cell: Cell, runs: int, seed: int) -> Bounds:
    """Return the bounds of many runs of a cell."""
    rng = np.random.default_rng([seed, cell.canaries, *cell.noise.encode()])
    bounds = []
    for _ in range(runs):
        is_member = rng.random(cell.canaries) < 0.5
        scores = scores_of(cell, is_member, rng)
        guesses = 2 * int(GUESSED * cell.canaries / 2)
        one_run = one_run_epsilon(scores, is_member, guesses=guesses, delta=DELTA)
        tighter = sample_bounds(scores, is_member, guesses=guesses, delta=DELTA)
        members, others = scores[is_member], scores[~is_member]
        std = math.sqrt((members.var() + others.var()) / 2)
        shift = float(members.mean() - others.mean()) / std
        gaussian, normal = (
            np.nan if bound is None else bound.value
            for bound in (tighter.if_gaussian, tighter.if_normal)
        )
        estimate = gaussian_budget(shift, DELTA)
        bounds.append((one_run.value, gaussian, normal, estimate))
    return Bounds(*np.array(bounds).T)


def format_bounds(values: np.ndarray, true_epsilon: float) -> str:
    """Format a bound's mean, and the percentage of all runs in which it exceeds the truth."""
    known = values[~np.isnan(values)]
    mean = f"{known.mean():.2f}" if len(known) else "-"
    return f"{mean} | {100 * (known > true_epsilon).sum() / len(values):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        "| noise | true epsilon | canaries | one run, mean | above the truth | if Gaussian, mean | "
        "above | if normal, mean | above | refused | estimate from the means | above |"
    )
    print(f"|{'---|' * 12}")
    for noise in ("normal", "normal, rounds", "Laplace"):
        for epsilon in EPSILONS:
            for canaries in CANARIES:
                if noise == "normal, rounds" and canaries != 500:
                    continue
                bounds = run(Cell(noise, epsilon, canaries), args.runs, args.seed)
                refused = float(np.isnan(bounds.if_normal).mean())
                cells = [format_bounds(values, epsilon) for values in bounds]
                cells.insert(3, f"{100 * refused:.0f} %")
                print(f"| {noise} | {epsilon:g} | {canaries:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
