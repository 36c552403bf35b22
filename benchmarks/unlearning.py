"""How often verdicts on unlearning are wrong, over simulated scores with a known true AUC.

    python -m benchmarks.unlearning [--runs 2000]

Prints a table in Markdown, in some minutes on one core. Scores are normal. A sample's scores on
different models have a correlation of 0.7, which paired comparisons exploit. The scores of
forgotten samples are shifted to give the true AUC. For five seeds, the verdict is that of a record:
from the limits of all runs together. Nominally, the verdict "forgotten" has a probability of at
most 5 % if the true excess is the margin or larger, and "not forgotten" of at most 5 % if it is 0.
"""

import argparse
import math
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fedaudit.core.metric_names import FORGOTTEN, NOT_FORGOTTEN
from fedaudit.metrics import evaluate_unlearning
from fedaudit.metrics.unlearning import unlearning_verdict
from fedaudit.results.aggregate import average_runs
from fedaudit.results.estimate import Estimate

MARGIN, BEFORE, CORRELATION = 0.05, 0.75, 0.7
TRUTHS = (-0.05, 0.0, 0.025, 0.05, 0.1)
SIZES = ((50, 50), (100, 900), (500, 500), (1000, 1000))
REFERENCES = ("retrained", "0.5")


class Verdicts(NamedTuple):
    """Fractions of simulated studies with these two verdicts."""

    forgotten: float
    not_forgotten: float


def scores(
    rng: np.random.Generator, level: float, shared: np.ndarray, forgotten: np.ndarray
) -> np.ndarray:
    """Return scores whose AUC of forgotten against unseen samples is ``level``."""
    independent = rng.standard_normal(len(shared))
    noise = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * independent
    return np.asarray(noise + math.sqrt(2) * float(ndtri(level)) * forgotten)


def judged(
    rng: np.random.Generator, truth: float, sizes: tuple[int, int], reference: str, seeds: int
) -> str:
    """Return the verdict on one simulated study."""
    forgotten = np.arange(sum(sizes)) < sizes[0]
    runs, leaked_before = [], []
    for _ in range(seeds):
        shared = rng.standard_normal(len(forgotten))
        before, after, retrained = (
            scores(rng, level, shared, forgotten) for level in (BEFORE, 0.5 + truth, 0.5)
        )
        against = retrained if reference == "retrained" else None
        result = evaluate_unlearning(before, after, against, is_deleted=forgotten, margin=MARGIN)
        if seeds == 1:
            return result.verdict
        excess = asdict(result.excess)
        del excess["p_value"]
        runs.append(Estimate(metric="auc", against=reference, **excess))
        leaked_before.append(result.before.low > 0.5)
    mean = average_runs(runs)
    assert mean.low is not None
    assert mean.high is not None
    return unlearning_verdict(mean.low, mean.high, margin=MARGIN, leaked_before=all(leaked_before))


def simulated(
    truth: float,
    sizes: tuple[int, int],
    reference: str = "retrained",
    *,
    runs: int,
    seeds: int = 1,
    seed: int = 1,
) -> Verdicts:
    """Return how often each verdict occurs if the true excess over the reference is ``truth``."""
    rng = np.random.default_rng(seed)
    verdicts = [judged(rng, truth, sizes, reference, seeds) for _ in range(runs)]
    return Verdicts(verdicts.count(FORGOTTEN) / runs, verdicts.count(NOT_FORGOTTEN) / runs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    args = parser.parse_args()
    heads = " | ".join(f"truth {truth:+g}" for truth in TRUTHS)
    print(f"| forgotten, unseen | reference | seeds | {heads} |")
    print(f"|---|---|---|{'---|' * len(TRUTHS)}")
    for sizes in SIZES:
        for reference in REFERENCES:
            for seeds in (1, 5):
                runs = args.runs // (1 if seeds == 1 else 2)
                verdicts = [
                    simulated(truth, sizes, reference, runs=runs, seeds=seeds) for truth in TRUTHS
                ]
                cells = " | ".join(
                    f"{100 * rates.forgotten:.1f} % / {100 * rates.not_forgotten:.1f} %"
                    for rates in verdicts
                )
                print(f"| {sizes[0]}, {sizes[1]} | {reference} | {seeds} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
