"""How often the page of claims decides a claim wrongly where every claim lies at its margin.

python -m benchmarks.claims --families 2000     papers whose claims all lie at their margins
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
    """A claim whose truth is known.

    Attributes:
        true: Differences by regime.
    """

    tier: Literal[1, 2]
    direction: str
    true: Sequence[Sequence[float]]

    def allows(self, verdict: str) -> bool:
        """Whether a verdict is right. A difference equal to the margin is within the margin."""
        needed = 2 if self.tier == 1 else 1
        numbers = Counter(state for differences in self.true for state in self._states(differences))
        if verdict == "depends on the regime":
            return 0 < numbers["confirmed"] < len(self.true)
        return verdict == "open" or numbers[verdict] >= needed

    def _states(self, differences: Sequence[float]) -> set[str]:
        """The right verdicts in a regime; a small opposite difference is also within the margin."""
        if self.direction == "near":
            return {"confirmed" if max(map(abs, differences)) <= MARGIN else "contradicted"}
        if min(differences) > MARGIN:
            return {"confirmed"}
        within = {"no difference"} if min(differences) >= -MARGIN else set()
        return within | ({"contradicted"} if min(differences) < 0 else set())


AT, ABOVE, BELOW = MARGIN, MARGIN + 1e-9, -1e-9
"""True differences at the margin, just beyond it, and just opposite."""
DESIGNS = {
    "one comparison at its margin": Design(2, "above", [[AT]]),
    "one just beyond its margin": Design(2, "above", [[ABOVE]]),
    "one of nothing": Design(2, "above", [[0.0]]),
    "one at its margin in one regime, far beyond it in another": Design(1, "above", [[AT], [FAR]]),
    "one just beyond its margin in one regime, far beyond it in another": Design(
        1, "above", [[ABOVE], [FAR]]
    ),
    "one of six at its margin": Design(2, "above", [[AT, *[FAR] * 5]]),
    "six of nothing": Design(2, "above", [[0.0] * 6]),
    "six of nothing, in three regimes": Design(1, "above", [[0.0] * 6] * 3),
    "said to be near, at its margin": Design(2, "near", [[AT]]),
    "said to be near, just beyond its margin": Design(2, "near", [[ABOVE]]),
    "holds in one of four, at its margin in the others": Design(1, "above", [[FAR], *[[AT]] * 3]),
    "at its margin in three, open in one": Design(1, "above", [*[[AT]] * 3, [AT / 2]]),
    "does not hold in one, at nothing in the others": Design(1, "above", [[-FAR], *[[0.0]] * 2]),
    "just opposite in two regimes": Design(1, "above", [[BELOW]] * 2),
}
TRUE = Design(2, "above", [[FAR]])


def drawn(design: Design, rng: np.random.Generator) -> ClaimResult:
    """A claim's verdict by itself, from estimates with a normal error."""
    test = TESTS[design.direction]
    claim = Claim(id="x", says="", where="", theirs="", tier=design.tier, regimes=[*REGIMES])
    held = []
    for name, differences in zip(REGIMES, design.true, strict=False):
        parts = []
        for value in rng.normal(differences, ERROR):
            half = 1.959963984540054 * ERROR
            gap = Figure(float(value), float(value - half), float(value + half), "", 3)
            said = verdict_of(test, gap)
            parts.append(PartResult(name, test, OTHER, said, gap, gap, gap))
        held.append(combine_parts(parts, leaking=True))
    return judge_claim(claim, held)


def wrong_families(
    families: int,
    *,
    each: int,
    true: int,
    seed: int,
    correct: Callable[[Sequence[ClaimResult]], Sequence[ClaimResult]] = correct_claims,
) -> float:
    """Share of papers with at least one wrong decision in a family of claims.

    Main claims and details have separate errors; the larger share is returned.

    Args:
        families: Simulated papers.
        each: Claims of every design.
        true: Claims that hold by far, among them.
    """
    rng = np.random.default_rng(seed)
    designs = [design for design in DESIGNS.values() for _ in range(each)] + [TRUE] * true
    is_wrong = np.zeros((2, families), dtype=bool)
    for paper in range(families):
        results = correct([drawn(design, rng) for design in designs])
        for result, design in zip(results, designs, strict=True):
            is_wrong[design.tier - 1, paper] |= not design.allows(result.verdict)
    return float(is_wrong.mean(axis=1).max())


def rows(families: int) -> Iterator[str]:
    for each, true in ((1, 0), (4, 0), (4, 10)):
        by_holm = wrong_families(families, each=each, true=true, seed=1)
        uncorrected = wrong_families(families, each=each, true=true, seed=1, correct=list)
        yield (
            f"{len(DESIGNS) * each} claims at their margins, {true} that hold: a family is wrong "
            f"in {by_holm:.1%} of {families} papers, {uncorrected:.1%} without correction"
        )


def near_zero(hits: float, rng: np.random.Generator, *, seeds: int = 5) -> tuple[float, float]:
    """Simulate Student's limits of a rate over seeds.

    Args:
        hits: Expected number of hits among 200 samples of a seed.
        rng: Draws the counts.
        seeds: Runs.

    Returns:
        The share of intervals that hold the rate, and the share that stay above 0 and miss it.
    """
    rates = rng.binomial(200, hits / 200, size=(20_000, seeds)) / 200
    reach = stdtrit(seeds - 1, 0.975) * rates.std(axis=1, ddof=1) / math.sqrt(seeds)
    low, high = rates.mean(axis=1) - reach, rates.mean(axis=1) + reach
    holds = (low <= hits / 200) & (hits / 200 <= high)
    return float(holds.mean()), float(((low > 0) & ~holds).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=1000)
    parser.add_argument("--near-zero", action="store_true")
    asked = parser.parse_args()
    if asked.near_zero:
        for hits in (0.1, 0.3, 1, 3, 10, 30):
            covered, missed = near_zero(hits, np.random.default_rng(1))
            print(
                f"{hits:g} hits a seed: covers {covered:.1%}, within [0, 1] and misses {missed:.1%}"
            )
    else:
        for line in rows(asked.families):
            print(line)
