"""How often the page of claims gives a wrong verdict if every claim is at its margin.

python -m benchmarks.claims --families 2000     papers in which all claims are at their margins
python -m benchmarks.claims --near-zero         Student's limits of rates near 0
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from docs.claims.comparing import Figure
from docs.claims.data import Claim, Term, Test
from docs.claims.judging import (
    ClaimResult,
    PartResult,
    combine_parts,
    correct_claims,
    judge_claim,
    verdict_of,
)

REGIMES = ("location30", "tiny-cnn", "tiny-alexnet", "mnist")
MARGIN, ERROR, FAR = 0.02, 0.005, 0.1
OTHER = Term(value=0.0)
TESTS = {
    direction: Test(one=Term(), others=[OTHER], direction=direction, margin=MARGIN)
    for direction in ("above", "near")
}


class Design(NamedTuple):
    """A claim with known true differences.

    Attributes:
        tier: Tier of the claim, which determines the number of regimes that it needs.
        direction: Claimed direction: "above" or "near".
        true: True differences by regime, one for each comparison.
    """

    tier: Literal[1, 2]
    direction: str
    true: Sequence[Sequence[float]]

    def allows(self, verdict: str) -> bool:
        """Return whether a verdict is correct. A difference equal to the margin is within it."""
        needed = 2 if self.tier == 1 else 1
        numbers = Counter(state for differences in self.true for state in self._states(differences))
        if verdict == "depends on the regime":
            return 0 < numbers["confirmed"] < len(self.true)
        return verdict == "open" or numbers[verdict] >= needed

    def _states(self, differences: Sequence[float]) -> set[str]:
        """Return the correct verdicts in a regime.

        A small opposite difference is also within the margin.
        """
        if self.direction == "near":
            return {"confirmed" if max(map(abs, differences)) <= MARGIN else "contradicted"}
        if min(differences) > MARGIN:
            return {"confirmed"}
        within = {"no difference"} if min(differences) >= -MARGIN else set()
        return within | ({"contradicted"} if min(differences) < 0 else set())


AT, ABOVE, BELOW = MARGIN, MARGIN + 1e-9, -1e-9
"""True differences at the margin, slightly above it, and slightly below 0."""
DESIGNS = {
    "one comparison at its margin": Design(2, "above", [[AT]]),
    "one slightly above its margin": Design(2, "above", [[ABOVE]]),
    "one without a difference": Design(2, "above", [[0.0]]),
    "one at its margin in one regime, far above it in another": Design(1, "above", [[AT], [FAR]]),
    "one slightly above its margin in one regime, far above it in another": Design(
        1, "above", [[ABOVE], [FAR]]
    ),
    "one of six at its margin": Design(2, "above", [[AT, *[FAR] * 5]]),
    "six without a difference": Design(2, "above", [[0.0] * 6]),
    "six without a difference, in three regimes": Design(1, "above", [[0.0] * 6] * 3),
    "claimed to be near, at its margin": Design(2, "near", [[AT]]),
    "claimed to be near, slightly above its margin": Design(2, "near", [[ABOVE]]),
    "holds in one of four, at its margin in the others": Design(1, "above", [[FAR], *[[AT]] * 3]),
    "at its margin in three, open in one": Design(1, "above", [*[[AT]] * 3, [AT / 2]]),
    "does not hold in one, without a difference in the others": Design(
        1, "above", [[-FAR], *[[0.0]] * 2]
    ),
    "slightly below 0 in two regimes": Design(1, "above", [[BELOW]] * 2),
}
TRUE = Design(2, "above", [[FAR]])


def simulated_verdict(design: Design, rng: np.random.Generator) -> ClaimResult:
    """Return the verdict on one claim, from estimates with a normal error."""
    test = TESTS[design.direction]
    claim = Claim(id="x", says="", where="", theirs="", tier=design.tier, regimes=[*REGIMES])
    results = []
    for name, differences in zip(REGIMES, design.true, strict=False):
        parts = []
        for value in rng.normal(differences, ERROR):
            half = 1.959963984540054 * ERROR
            gap = Figure(float(value), float(value - half), float(value + half), "", 3)
            verdict = verdict_of(test, gap)
            parts.append(PartResult(name, test, OTHER, verdict, gap, gap, gap))
        results.append(combine_parts(parts, leaking=True))
    return judge_claim(claim, results)


def wrong_families(
    families: int,
    *,
    each: int,
    true: int,
    seed: int,
    correct: Callable[[Sequence[ClaimResult]], Sequence[ClaimResult]] = correct_claims,
) -> float:
    """Return the fraction of papers with at least one wrong verdict in a family of claims.

    Main claims and details have separate errors. The larger fraction is returned.

    Args:
        families: Number of simulated papers.
        each: Number of claims of every design.
        true: Number of additional claims that hold clearly.
        seed: Seed of the draws.
        correct: Corrects the verdicts over a family.
    """
    rng = np.random.default_rng(seed)
    designs = [design for design in DESIGNS.values() for _ in range(each)] + [TRUE] * true
    is_wrong = np.zeros((2, families), dtype=bool)
    for paper in range(families):
        verdicts = correct([simulated_verdict(design, rng) for design in designs])
        for result, design in zip(verdicts, designs, strict=True):
            is_wrong[design.tier - 1, paper] |= not design.allows(result.verdict)
    return float(is_wrong.mean(axis=1).max())


def rows(families: int) -> Iterator[str]:
    for each, true in ((1, 0), (4, 0), (4, 10)):
        by_holm = wrong_families(families, each=each, true=true, seed=1)
        uncorrected = wrong_families(families, each=each, true=true, seed=1, correct=list)
        yield (
            f"{len(DESIGNS) * each} claims at their margins, {true} that hold: a family has a "
            f"wrong verdict in {by_holm:.1%} of {families} papers, {uncorrected:.1%} without "
            "correction"
        )


def near_zero(hits: float, rng: np.random.Generator, *, seeds: int = 5) -> tuple[float, float]:
    """Return error rates of Student's limits of a rate over seeds.

    Args:
        hits: Expected number of hits among 200 samples of a seed.
        rng: Draws the counts.
        seeds: Number of runs.

    Returns:
        The fraction of intervals that contain the rate, and the fraction that do not contain it and
        are above 0.
    """
    rates = rng.binomial(200, hits / 200, size=(20_000, seeds)) / 200
    margin = stdtrit(seeds - 1, 0.975) * rates.std(axis=1, ddof=1) / math.sqrt(seeds)
    low, high = rates.mean(axis=1) - margin, rates.mean(axis=1) + margin
    covers = (low <= hits / 200) & (hits / 200 <= high)
    return float(covers.mean()), float(((low > 0) & ~covers).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=1000)
    parser.add_argument("--near-zero", action="store_true")
    args = parser.parse_args()
    if args.near_zero:
        for hits in (0.1, 0.3, 1, 3, 10, 30):
            covered, missed = near_zero(hits, np.random.default_rng(1))
            print(
                f"{hits:g} hits a seed: covers {covered:.1%}, within [0, 1] and misses {missed:.1%}"
            )
    else:
        for line in rows(args.families):
            print(line)
