"""What a report says of simulated studies, from one seed to several: a leak, and none.

    python -m benchmarks.verdicts [--studies 200] [--seeds 5] [--seed 0]

Prints a table in Markdown; progress goes to standard error. Scores of some attacks are drawn whose
true AUC is known; figures, corrected tests, means over seeds and the verdict are made from them by
the code that makes them of a study. A study with more seeds has the runs of one with fewer, and one
run more. Runs differ: each has a true AUC of its own about that of the study.
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
from fedaudit.evaluation.truth import Findings, UnitTruth
from fedaudit.report.evidence import LEAKS, main_figures, size_reached
from fedaudit.report.text.verdict import verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Environment, Record, ViewRow
from fedaudit.study.running.record import corrected_figures

AUCS = (0.5, 0.57, 0.65)
"""Of members against either kind of non-members: no leak, one that is called weak, and clear."""
SIZES = {Origin.MEMBER: 300, Origin.OTHER_CLIENT: 1000, Origin.UNSEEN: 1000}
ATTACKS = ("a", "b", "c")
SHARED = 0.5
"""Of the scores' variance, what the attacks have in common."""
BETWEEN = 0.05
"""Standard deviation of the runs' separations, which are about 0.25 and 0.54 for these AUCs."""
FPRS = (0.01, 0.001)
ALPHA = 0.05


class Run(NamedTuple):
    """One run's scores.

    Attributes:
        scores: A row an attack.
        auc: The true one of all of them.
    """

    scores: np.ndarray
    auc: float


class Told(NamedTuple):
    """What a report says of one study, and the interval of the first attack's AUC.

    Attributes:
        status: The verdict.
        width: Of the interval for these runs.
        holds: Whether it holds the mean of the runs' true AUCs.
    """

    status: str
    width: float
    holds: bool


def runs(rng: np.random.Generator, auc: float, seeds: int) -> list[Run]:
    """Scores of normal distributions; without a leak runs do not differ.

    Args:
        rng: Draws them.
        auc: The true one of the study.
        seeds: How many runs.
    """
    members, samples = SIZES[Origin.MEMBER], sum(SIZES.values())
    found = []
    for _ in range(seeds):
        apart = 2**0.5 * ndtri(auc) + (BETWEEN * rng.standard_normal() if auc > 0.5 else 0.0)
        common, own = rng.standard_normal(samples), rng.standard_normal((len(ATTACKS), samples))
        scores = SHARED**0.5 * common + (1 - SHARED) ** 0.5 * own
        scores[:, :members] += apart
        found.append(Run(scores, float(ndtr(apart / 2**0.5))))
    return found


def truth() -> UnitTruth:
    """The audited samples of every run."""
    origin = np.repeat(list(SIZES), list(SIZES.values()))
    nobody = np.zeros(len(origin), dtype=bool)
    return UnitTruth(0, "sample", origin, fair=nobody, ids=np.arange(len(origin)))


def findings_of(seed: int, run: Run, audited: UnitTruth) -> Findings:
    """What is found in one run."""
    findings = Findings()
    for name, scores in zip(ATTACKS, run.scores, strict=True):
        add_estimates(AttackRun(name, "none", "uploads", seed), scores, audited, findings, FPRS)
    return findings


def joined(parts: list[Findings]) -> Findings:
    """What is found in several runs."""
    whole = Findings()
    for part in parts:
        first = len(whole.estimates)
        whole.estimates += part.estimates
        whole.limits |= {first + place: limits for place, limits in part.limits.items()}
    return whole


def record_of(parts: list[Findings]) -> Record:
    """The record of runs, as a study makes it."""
    return Record(
        name="simulated",
        content_hash="0" * 64,
        config={},
        seeds=list(range(len(parts))),
        environment=Environment(),
        view=ViewRow(name="uploads", sees=[], description="A server."),
        attacks=[],
        clients=[],
        estimates=corrected_figures(joined(parts), ALPHA),
    )


def told(studied: list[Run]) -> list[Told]:
    """What a report says of the first run, of the first two, and so on."""
    audited = truth()
    parts = [findings_of(seed, run, audited) for seed, run in enumerate(studied)]
    found = []
    for count in range(1, len(parts) + 1):
        record = record_of(parts[:count])
        first = next(filter(_is_first, main_figures(record)))
        low, high = first.low or 0.0, first.high or 1.0
        truly = float(np.mean([run.auc for run in studied[:count]]))
        found.append(Told(verdict(record).status, high - low, low <= truly <= high))
    return found


def _is_first(figure: Estimate) -> bool:
    return (figure.attack, figure.contrast, figure.metric) == (ATTACKS[0], "unseen", "auc")


def larger(auc: float) -> list[str]:
    """Verdicts that would overstate the leak."""
    size = size_reached(auc, "auc")
    sizes = list(LEAKS)
    return [LEAKS[one] for one in sizes if size and sizes.index(one) < sizes.index(size)]


def row(auc: float, seeds: int, found: list[Told]) -> str:
    """A line of the table."""
    counts = Counter(one.status for one in found)
    size = size_reached(auc, "auc")
    told_of = {
        "leak": sum(counts[status] for status in LEAKS.values()),
        "right": counts[LEAKS[size]] if size else None,
        "larger": sum(counts[status] for status in larger(auc)) if size else None,
        "open": counts["inconclusive"],
    }
    shares = ["" if n is None else f"{100 * n / len(found):.1f} %" for n in told_of.values()]
    width, holds = (np.mean([one[place] for one in found]) for place in (1, 2))
    cells = (f"{auc:g}", f"{seeds}", f"{width:.4f}", f"{100 * holds:.1f} %", *shares)
    return "| " + " | ".join(cells) + " |"


HEAD = """| true AUC | seeds | width of the AUC's interval | holds | a leak is told \
| the right word \
| a larger word | inconclusive |
|---|---|---|---|---|---|---|---|"""


def simulated(studies: int, seeds: int, seed: int) -> Iterator[str]:
    """The lines of the table, each as soon as it is known.

    Args:
        studies: For each true AUC.
        seeds: The most that a study has.
        seed: Of the draws.
    """
    for place, auc in enumerate(AUCS):
        rng = np.random.default_rng([seed, place])
        found: list[list[Told]] = [[] for _ in range(seeds)]
        for study in range(studies):
            for of_count, one in zip(found, told(runs(rng, auc, seeds)), strict=True):
                of_count.append(one)
            print(f"AUC {auc:g}: {study + 1} of {studies}", end="\r", file=sys.stderr)
        yield from (row(auc, count, of_count) for count, of_count in enumerate(found, start=1))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(HEAD)
    for line in simulated(asked.studies, asked.seeds, asked.seed):
        print(line, flush=True)


if __name__ == "__main__":
    main()
