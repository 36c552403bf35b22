"""Verdicts of reports on simulated studies with and without a leak, by the number of seeds.

    python -m benchmarks.verdicts [--studies 200] [--seeds 5] [--seed 0]

Prints a table in Markdown. Progress goes to standard error. The scores of several attacks are drawn
with a known true AUC. Figures, corrected tests, means over seeds and the verdict are computed from
them by the code that studies use. Each further seed adds a run to those of the same study. If there
is a leak, the true AUCs of the runs vary around that of the study.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from fedaudit.core.metric_names import Origin
from fedaudit.evaluation.analysis import AttackRun, add_estimates
from fedaudit.evaluation.truth import EvaluationResults, UnitTruth
from fedaudit.report.evidence import LEAKS, main_estimates, size_reached
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Environment, Record, ViewRow
from fedaudit.study.running.record import corrected_estimates

AUCS = (0.5, 0.57, 0.65)
"""True AUCs of members against both kinds of non-members: no leak, a weak leak, a clear leak."""
SIZES = {Origin.MEMBER: 300, Origin.OTHER_CLIENT: 1000, Origin.UNSEEN: 1000}
ATTACKS = ("a", "b", "c")
SHARED = 0.5
"""Fraction of the scores' variance that the attacks have in common."""
BETWEEN = 0.05
"""Standard deviation over runs of the distance between members' and non-members' means. The mean
distance is about 0.25 and 0.54 for the AUCs above 0.5."""
FPRS = (0.01, 0.001)
ALPHA = 0.05


class Run(NamedTuple):
    """Scores of one run.

    Attributes:
        scores: Scores with one row per attack.
        auc: True AUC of all attacks.
    """

    scores: np.ndarray
    auc: float


class Outcome(NamedTuple):
    """Verdict of a report on one study, and the interval of the first attack's AUC.

    Attributes:
        status: The verdict.
        width: Width of the interval for these runs.
        covers: Whether the interval contains the mean of the runs' true AUCs.
    """

    status: str
    width: float
    covers: bool


def runs(rng: np.random.Generator, auc: float, seeds: int) -> list[Run]:
    """Draw normal scores. Without a leak, all runs have the same true AUC.

    Args:
        rng: Draws the scores.
        auc: True AUC of the study.
        seeds: Number of runs.
    """
    members, samples = SIZES[Origin.MEMBER], sum(SIZES.values())
    result = []
    for _ in range(seeds):
        shift = 2**0.5 * ndtri(auc) + (BETWEEN * rng.standard_normal() if auc > 0.5 else 0.0)
        common = rng.standard_normal(samples)
        independent = rng.standard_normal((len(ATTACKS), samples))
        scores = SHARED**0.5 * common + (1 - SHARED) ** 0.5 * independent
        scores[:, :members] += shift
        result.append(Run(scores, float(ndtr(shift / 2**0.5))))
    return result


def truth() -> UnitTruth:
    """Return the audited samples of every run."""
    origin = np.repeat(list(SIZES), list(SIZES.values()))
    fair = np.zeros(len(origin), dtype=bool)
    return UnitTruth(0, "sample", origin, fair=fair, ids=np.arange(len(origin)))


def findings_of(seed: int, run: Run, audited: UnitTruth) -> EvaluationResults:
    """Return the results of one run."""
    results = EvaluationResults()
    for name, scores in zip(ATTACKS, run.scores, strict=True):
        add_estimates(AttackRun(name, "none", "uploads", seed), scores, audited, results, FPRS)
    return results


def joined(parts: list[EvaluationResults]) -> EvaluationResults:
    """Return the results of several runs as one object."""
    together = EvaluationResults()
    for part in parts:
        first = len(together.estimates)
        together.estimates += part.estimates
        together.limits |= {first + index: limits for index, limits in part.limits.items()}
    return together


def record_of(parts: list[EvaluationResults]) -> Record:
    """Return the record of several runs, as a study computes it."""
    return Record(
        name="simulated",
        content_hash="0" * 64,
        config={},
        seeds=list(range(len(parts))),
        environment=Environment(),
        view=ViewRow(name="uploads", sees=[], description="A server."),
        attacks=[],
        clients=[],
        estimates=corrected_estimates(joined(parts), ALPHA),
    )


def outcomes_of(studied: list[Run]) -> list[Outcome]:
    """Return the outcome of a study with the first run, with the first two runs, and so on."""
    audited = truth()
    parts = [findings_of(seed, run, audited) for seed, run in enumerate(studied)]
    outcomes = []
    for count in range(1, len(parts) + 1):
        record = record_of(parts[:count])
        first = next(filter(_is_first, main_estimates(record)))
        low, high = first.low or 0.0, first.high or 1.0
        true_auc = float(np.mean([run.auc for run in studied[:count]]))
        outcomes.append(
            Outcome(summarise_verdict(record).status, high - low, low <= true_auc <= high)
        )
    return outcomes


def _is_first(figure: Estimate) -> bool:
    return (figure.attack, figure.contrast, figure.metric) == (ATTACKS[0], "unseen", "auc")


def larger(auc: float) -> list[str]:
    """Return the verdicts that overstate a leak with this true AUC."""
    size = size_reached(auc, "auc")
    sizes = list(LEAKS)
    return [LEAKS[other] for other in sizes if size and sizes.index(other) < sizes.index(size)]


def row(auc: float, seeds: int, outcomes: list[Outcome]) -> str:
    """Return a line of the table."""
    counts = Counter(outcome.status for outcome in outcomes)
    size = size_reached(auc, "auc")
    numbers = {
        "leak": sum(counts[status] for status in LEAKS.values()),
        "correct size": counts[LEAKS[size]] if size else None,
        "larger size": sum(counts[status] for status in larger(auc)) if size else None,
        "inconclusive": counts["inconclusive"],
    }
    rates = ["" if n is None else f"{100 * n / len(outcomes):.1f} %" for n in numbers.values()]
    width = np.mean([outcome.width for outcome in outcomes])
    coverage = np.mean([outcome.covers for outcome in outcomes])
    cells = (f"{auc:g}", f"{seeds}", f"{width:.4f}", f"{100 * coverage:.1f} %", *rates)
    return "| " + " | ".join(cells) + " |"


HEAD = """| true AUC | seeds | width of the AUC's interval | coverage | a leak is reported \
| with the correct size \
| with a larger size | inconclusive |
|---|---|---|---|---|---|---|---|"""


def simulated(studies: int, seeds: int, seed: int) -> Iterator[str]:
    """Yield the lines of the table as soon as they are computed.

    Args:
        studies: Number of studies for each true AUC.
        seeds: Largest number of seeds of a study.
        seed: Seed of the draws.
    """
    for index, auc in enumerate(AUCS):
        rng = np.random.default_rng([seed, index])
        by_count: list[list[Outcome]] = [[] for _ in range(seeds)]
        for study in range(studies):
            outcomes = outcomes_of(runs(rng, auc, seeds))
            for same_count, outcome in zip(by_count, outcomes, strict=True):
                same_count.append(outcome)
            print(f"AUC {auc:g}: {study + 1} of {studies}", end="\r", file=sys.stderr)
        yield from (row(auc, count, same) for count, same in enumerate(by_count, start=1))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(HEAD)
    for line in simulated(args.studies, args.seeds, args.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
