"""How often verdicts on unlearning are wrong, over simulated scores with a known truth.

    python -m benchmarks.unlearning [--runs 2000]

Prints a table in Markdown, in some minutes of one core. A sample's score is normal; how hard it is
shows in the scores of all models (correlation 0.7, which pairing makes use of), and forgotten
samples are moved up so that the AUC is the truth. Of five seeds the mean is judged as a record
judges it: by the limits of the runs taken together. Nominal: "forgotten" is said in at most 5 % of
cases where the truth is the margin or beyond, "not forgotten" in at most 5 % where it is 0.
"""

import argparse
import math
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fedaudit.core.metric_names import FORGOTTEN, NOT_FORGOTTEN
from fedaudit.metrics import unlearned
from fedaudit.metrics.unlearning import unlearning_verdict
from fedaudit.results.aggregate import average_runs
from fedaudit.results.estimate import Estimate

MARGIN, BEFORE, CORRELATION = 0.05, 0.75, 0.7
TRUTHS = (-0.05, 0.0, 0.025, 0.05, 0.1)
SIZES = ((50, 50), (100, 900), (500, 500), (1000, 1000))
YARDSTICKS = ("retrained", "0.5")


class Verdicts(NamedTuple):
    """Shares of the two verdicts that claim something."""

    forgotten: float
    not_forgotten: float


def scores(
    rng: np.random.Generator, level: float, shared: np.ndarray, forgotten: np.ndarray
) -> np.ndarray:
    """Scores whose AUC of forgotten against unseen samples is the level."""
    own = rng.standard_normal(len(shared))
    noise = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * own
    return np.asarray(noise + math.sqrt(2) * float(ndtri(level)) * forgotten)


def judged(
    rng: np.random.Generator, truth: float, sizes: tuple[int, int], yardstick: str, seeds: int
) -> str:
    """The verdict on one simulated study."""
    forgotten = np.arange(sum(sizes)) < sizes[0]
    runs, told = [], []
    for _ in range(seeds):
        shared = rng.standard_normal(len(forgotten))
        before, after, retrained = (
            scores(rng, level, shared, forgotten) for level in (BEFORE, 0.5 + truth, 0.5)
        )
        against = retrained if yardstick == "retrained" else None
        found = unlearned(before, after, against, is_forgotten=forgotten, margin=MARGIN)
        if seeds == 1:
            return found.verdict
        excess = asdict(found.excess)
        del excess["p_value"]
        runs.append(Estimate(metric="auc", against=yardstick, **excess))
        told.append(found.before.low > 0.5)
    whole = average_runs(runs)
    assert whole.low is not None
    assert whole.high is not None
    return unlearning_verdict(whole.low, whole.high, margin=MARGIN, leaked_before=all(told))


def simulated(
    truth: float,
    sizes: tuple[int, int],
    yardstick: str = "retrained",
    *,
    runs: int,
    seeds: int = 1,
    seed: int = 1,
) -> Verdicts:
    """How often each verdict is said of a truth, an excess of AUC over the yardstick."""
    rng = np.random.default_rng(seed)
    said = [judged(rng, truth, sizes, yardstick, seeds) for _ in range(runs)]
    return Verdicts(said.count(FORGOTTEN) / runs, said.count(NOT_FORGOTTEN) / runs)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    given = parser.parse_args()
    heads = " | ".join(f"truth {truth:+g}" for truth in TRUTHS)
    print(f"| forgotten, unseen | yardstick | seeds | {heads} |")
    print(f"|---|---|---|{'---|' * len(TRUTHS)}")
    for sizes in SIZES:
        for yardstick in YARDSTICKS:
            for seeds in (1, 5):
                runs = given.runs // (1 if seeds == 1 else 2)
                found = [
                    simulated(truth, sizes, yardstick, runs=runs, seeds=seeds) for truth in TRUTHS
                ]
                shown = " | ".join(
                    f"{100 * one.forgotten:.1f} % / {100 * one.not_forgotten:.1f} %"
                    for one in found
                )
                print(f"| {sizes[0]}, {sizes[1]} | {yardstick} | {seeds} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
