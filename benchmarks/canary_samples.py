"""Coverage and tightness of bounds from canary samples, over simulated runs with known epsilon.

    python -m benchmarks.canary_samples [--runs 1000] [--noise normal planted ...] [--epsilon 4 8]

Prints a table in Markdown. A simulated run releases the sum of the clipped gradients of those
canaries that a fair coin includes, with noise. An attack scores a canary by the projection of the
release onto its gradient. *Ratio* is the median of a bound divided by the actual epsilon. *Above*
is the percentage of runs in which a bound exceeds the actual epsilon; the nominal error is 5 %.
*Largest* is the largest of the three bounds of a run. The kinds of noise are:

- normal: one release with orthogonal gradients, to which the mechanism's epsilon applies exactly
- rounds: the sum of ten such releases, whose noise gives the same epsilon
- planted: the gradients of canaries of the kind "gradient", which are nearly orthogonal
- Laplace: noise that breaks the assumption of all bounds except that from coins
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.metrics.canaries import sample_bounds
from fedaudit.metrics.epsilon import count_guesses, gaussian_shift, one_run_epsilon_from_counts
from fedaudit.signals.canary_gradients import canary_gradient

DELTA = 1e-5
GUESSED = 0.2  # fraction of the canaries on which the attack guesses
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CANARIES = (100, 250, 500, 1000)
NOISES = ("normal", "rounds", "planted", "Laplace")
ROUNDS = 10
PARAMETERS = 50_000

# Runs of a cell repeat the same few counts of correct guesses.
bound_from_coins = cache(partial(one_run_epsilon_from_counts, delta=DELTA))


class Cell(NamedTuple):
    """Kind of noise, actual epsilon and number of canaries of simulated runs."""

    noise: str
    epsilon: float
    canaries: int


def cells(noises: Sequence[str], epsilons: Sequence[float]) -> Iterator[Cell]:
    """Yield the cells; noise other than normal is simulated with 500 canaries only."""
    for noise in noises:
        for epsilon in epsilons:
            for canaries in CANARIES if noise == "normal" else (500,):
                yield Cell(noise, epsilon, canaries)


@cache
def planted_gradients(canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and values of the non-zero entries of each planted gradient."""
    gradients = [canary_gradient(number, PARAMETERS) for number in range(canaries)]
    positions, values = zip(*gradients, strict=True)
    return torch.stack(positions).numpy(), torch.stack(values).numpy()


def scores_of(cell: Cell, is_member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the projection of a release onto the gradient of each canary, in clipping norms."""
    if cell.noise == "Laplace":
        return is_member + rng.laplace(0, 1 / cell.epsilon, cell.canaries)
    rounds = ROUNDS if cell.noise == "rounds" else 1
    noise = math.sqrt(rounds) / gaussian_shift(cell.epsilon, DELTA)
    if cell.noise == "planted":
        positions, values = planted_gradients(cell.canaries)
        release = noise * rng.standard_normal(PARAMETERS)
        release += np.bincount(
            positions[is_member].ravel(), values[is_member].ravel(), minlength=PARAMETERS
        )
        return np.asarray((release[positions] * values).sum(axis=1))
    noises = noise * rng.standard_normal((rounds, cell.canaries))
    return np.asarray((is_member + noises).sum(axis=0))


def simulate(cell: Cell, runs: int, seed: int) -> np.ndarray:
    """Return the bounds of each run: coins, Gaussian, normal (NaN if refused), and the largest."""
    rng = np.random.default_rng(
        [seed, cell.canaries, round(10 * cell.epsilon), *cell.noise.encode()]
    )
    guesses = 2 * int(GUESSED * cell.canaries / 2)
    bounds = np.full((runs, 4), np.nan)
    for run in bounds:
        is_member = rng.random(cell.canaries) < 0.5
        scores = scores_of(cell, is_member, rng)
        run[0] = bound_from_coins(count_guesses(scores, is_member, guesses)).value
        tighter = sample_bounds(scores, is_member, guesses=guesses, delta=DELTA)
        for column, bound in enumerate((tighter.if_gaussian, tighter.if_normal), 1):
            if bound is not None:
                run[column] = bound.value
        run[3] = np.nanmax(run[:3])
    return bounds


def format_bounds(values: np.ndarray, actual_epsilon: float) -> str:
    """Format a bound's median ratio, and the percentage of all runs in which it is too large."""
    accepted = values[~np.isnan(values)]
    ratio = f"{np.median(accepted) / actual_epsilon:.2f}" if len(accepted) else "-"
    return f"{ratio} | {100 * (accepted > actual_epsilon).sum() / len(values):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise", nargs="+", choices=NOISES, default=NOISES)
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS)
    args = parser.parse_args()
    print(
        "| noise | actual epsilon | canaries | coins, ratio | above | if Gaussian, ratio | above | "
        "if normal, ratio | above | refused | largest, ratio | above |"
    )
    print(f"|{'---|' * 12}")
    for cell in cells(args.noise, args.epsilon):
        bounds = simulate(cell, args.runs, args.seed)
        texts = [format_bounds(values, cell.epsilon) for values in bounds.T]
        texts.insert(3, f"{100 * np.isnan(bounds[:, 2]).mean():.1f} %")
        name = f"{cell.noise} | {cell.epsilon:g} | {cell.canaries:,}"
        print(f"| {name} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
