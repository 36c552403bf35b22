"""How often bounds from canary clients exceed the actual epsilon, over simulated releases.

    python -m benchmarks.canaries [--runs 500] [--dimensions 2000] [--kind rounds]

Prints a table in Markdown, in half an hour. *One release* is the sum of the clipped updates of 20
clients and of those canary clients that a fair coin includes, with normal noise. *Rounds* is the
sum of ten such releases with the same canaries. In *sampling*, each of ten rounds includes every
client with probability one half. The actual epsilon is that of the Gaussian mechanism. With
sampling, it is the epsilon that a Renyi accountant claims, which is an upper bound. The nominal
error is 5 %.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.metrics.canaries import canary_bounds
from fedaudit.metrics.epsilon import gaussian_budget, gaussian_shift

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CANARIES = (30, 100, 300, 1000)
ROUNDS, CLIENTS, PARTICIPATION = 10, 20, 0.5


class Cell(NamedTuple):
    """A kind of release, its epsilon and the number of canaries."""

    kind: str
    epsilon: float
    canaries: int


class Outcome(NamedTuple):
    """Actual epsilon of a cell, and the bounds of all its runs."""

    actual_epsilon: float
    one_run: np.ndarray
    mean_only: np.ndarray | None
    one_shot: np.ndarray


def noise_of(kind: str, epsilon: float) -> float:
    """Return the noise of one round, in clipping norms, that gives the release its epsilon."""
    rounds = 1 if kind == "one release" else ROUNDS
    return math.sqrt(rounds) / gaussian_shift(epsilon, DELTA)


def actual_epsilon_of(cell: Cell, noise: float) -> float:
    if cell.kind == "sampling":
        return gaussian_mechanism_epsilon(noise, ROUNDS, delta=DELTA, rate=PARTICIPATION)
    return cell.epsilon


def released(
    cell: Cell, noise: float, directions: np.ndarray, sends: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the change of the released model over all rounds, in clipping norms."""
    dimensions = directions.shape[1]
    total = np.zeros(dimensions)
    for _ in range(1 if cell.kind == "one release" else ROUNDS):
        included = sends
        if cell.kind == "sampling":
            included = sends & (rng.random(len(sends)) < PARTICIPATION)
        # Clients' updates are far from orthogonal to each other: half of each is common.
        direction = rng.normal(size=dimensions)
        common = direction * (CLIENTS * 0.5 / np.linalg.norm(direction))
        canaries = included.astype(np.float32) @ directions
        total += common + canaries + noise * rng.normal(size=dimensions)
    return total


def run(cell: Cell, runs: int, dimensions: int, rng: np.random.Generator) -> Outcome:
    noise = noise_of(cell.kind, cell.epsilon)
    one_run, mean_only, one_shot = [], [], []
    for _ in range(runs):
        # Each run draws new directions, as an audit does, since they are not exactly orthogonal.
        directions = rng.standard_normal((cell.canaries, dimensions), dtype=np.float32)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        sends = rng.random(cell.canaries) < 0.5
        change = released(cell, noise, directions, sends, rng)
        projections = directions @ change.astype(np.float32)
        z = math.sqrt(dimensions) * projections / np.linalg.norm(change)
        bounds = canary_bounds(z, sends, delta=DELTA, every_round=cell.kind != "sampling")
        one_run.append(bounds.one_run.value)
        if bounds.mean_only is not None:
            mean_only.append(bounds.mean_only.value)
        one_shot.append(gaussian_budget(float(z[sends].mean()), DELTA))
    return Outcome(
        actual_epsilon_of(cell, noise),
        np.array(one_run),
        np.array(mean_only) if mean_only else None,
        np.array(one_shot),
    )


KINDS = ("one release", "rounds", "sampling")


def cells(kinds: Sequence[str]) -> Iterator[Cell]:
    for kind in kinds:
        for epsilon in EPSILONS:
            for canaries in CANARIES:
                yield Cell(kind, epsilon, canaries)


def format_bounds(values: np.ndarray | None, actual_epsilon: float) -> str:
    if values is None:
        return "- | -"
    return f"{values.mean():.2f} | {100 * (values > actual_epsilon).mean():.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--dimensions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    print(f"{args.runs} runs a cell, {args.dimensions:,} dimensions, delta {DELTA:g}\n")
    print(
        "| release | actual epsilon | canaries | one run, mean | above actual | "
        "mean-only, mean | above actual | estimate of the mean only | above actual |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for cell in cells(args.kind):
        outcome = run(cell, args.runs, args.dimensions, rng)
        texts = [format_bounds(bounds, outcome.actual_epsilon) for bounds in outcome[1:]]
        print(
            f"| {cell.kind} | {outcome.actual_epsilon:.2f} | {cell.canaries} | "
            f"{' | '.join(texts)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
