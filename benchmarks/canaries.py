"""How often bounds from canary clients exceed the true epsilon, over simulated releases.

    python -m benchmarks.canaries [--runs 500] [--dimensions 2000] [--kind rounds]

Prints a table in Markdown, in half an hour. A release is the sum of the clipped updates of 20
clients and of the canary clients that a coin let in, with normal noise; in *rounds* it is the sum
of ten such releases with the same canaries, and in *sampling* each of ten rounds asks every client
with probability one half. The truth is the epsilon of the Gaussian mechanism without sampling; with
sampling the epsilon that a Renyi accountant claims, which is an upper limit. Nominal: 5 %.
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
ROUNDS, CLIENTS, SHARE = 10, 20, 0.5


class Cell(NamedTuple):
    """A mechanism and its truth."""

    kind: str
    epsilon: float
    canaries: int


class Outcome(NamedTuple):
    """Bounds of all runs of a cell."""

    truth: float
    one_run: np.ndarray
    mean_only: np.ndarray | None
    one_shot: np.ndarray


def noise_of(kind: str, epsilon: float) -> float:
    """Noise in clips, of one round, that gives the whole release its epsilon."""
    rounds = 1 if kind == "one release" else ROUNDS
    return math.sqrt(rounds) / gaussian_shift(epsilon, DELTA)


def truth_of(cell: Cell, noise: float) -> float:
    if cell.kind == "sampling":
        return gaussian_mechanism_epsilon(noise, ROUNDS, delta=DELTA, rate=SHARE)
    return cell.epsilon


def released(
    cell: Cell, noise: float, directions: np.ndarray, inside: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The movement of the released model over all rounds, in clips."""
    dimensions = directions.shape[1]
    total = np.zeros(dimensions)
    for _ in range(1 if cell.kind == "one release" else ROUNDS):
        asked = inside
        if cell.kind == "sampling":
            asked = inside & (rng.random(len(inside)) < SHARE)
        # Clients' updates are far from orthogonal to each other: half of each is common.
        drawn = rng.normal(size=dimensions)
        common = drawn * (CLIENTS * 0.5 / np.linalg.norm(drawn))
        canaries = asked.astype(np.float32) @ directions
        total += common + canaries + noise * rng.normal(size=dimensions)
    return total


def run(cell: Cell, runs: int, dimensions: int, rng: np.random.Generator) -> Outcome:
    noise = noise_of(cell.kind, cell.epsilon)
    one_run, mean_only, one_shot = [], [], []
    for _ in range(runs):
        # Anew for each run, as an audit draws them: two directions are hardly orthogonal.
        directions = rng.standard_normal((cell.canaries, dimensions), dtype=np.float32)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        inside = rng.random(cell.canaries) < 0.5
        movement = released(cell, noise, directions, inside, rng)
        along = directions @ movement.astype(np.float32)
        z = math.sqrt(dimensions) * along / np.linalg.norm(movement)
        bounds = canary_bounds(z, inside, delta=DELTA, every_round=cell.kind != "sampling")
        one_run.append(bounds.one_run.value)
        if bounds.mean_only is not None:
            mean_only.append(bounds.mean_only.value)
        one_shot.append(gaussian_budget(float(z[inside].mean()), DELTA))
    return Outcome(
        truth_of(cell, noise),
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


def shown(values: np.ndarray | None, truth: float) -> str:
    if values is None:
        return "- | -"
    return f"{values.mean():.2f} | {100 * (values > truth).mean():.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--dimensions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    print(f"{given.runs} runs a cell, {given.dimensions:,} dimensions, delta {DELTA:g}\n")
    print(
        "| release | true epsilon | canaries | one run, mean | above the truth | "
        "mean-only, mean | above the truth | estimate of the mean alone | above the truth |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for cell in cells(given.kind):
        found = run(cell, given.runs, given.dimensions, rng)
        parts = [shown(part, found.truth) for part in found[1:]]
        print(
            f"| {cell.kind} | {found.truth:.2f} | {cell.canaries} | {' | '.join(parts)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
