"""How often the page of claims gives a wrong verdict if the truth of every claim is its margin.

python -m benchmarks.claims --families 2000     papers whose claims all lie at their margins
python -m benchmarks.claims --near-zero         coverage of Student's limits for rates near 0
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from docs.claims.comparing import Figure
from docs.claims.data import Claim, Term, Test
from docs.claims.judging import ClaimResult, PartResult, alone, corrected, together, verdict_of

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
        true: True differences of each regime.
        wrong: Verdicts that are wrong for these differences.
    """

    tier: Literal[1, 2]
    direction: str
    true: Sequence[Sequence[float]]
    wrong: frozenset[str]


ANY = frozenset({"confirmed", "contradicted", "no difference", "depends on the regime"})
DESIGNS = {
    "one comparison at its margin": Design(2, "above", [[MARGIN]], ANY),
    "one at its margin in one regime, far beyond it in another": Design(
        1, "above", [[MARGIN], [FAR]], ANY
    ),
    "one of six at its margin": Design(2, "above", [[MARGIN, *[FAR] * 5]], ANY),
    "six of nothing": Design(2, "above", [[0.0] * 6], ANY - {"no difference"}),
    "six of nothing, in three regimes": Design(
        1, "above", [[0.0] * 6] * 3, ANY - {"no difference"}
    ),
    "said to be near, at its margin": Design(2, "near", [[MARGIN]], ANY),
    "holds in one of four, at its margin in the others": Design(
        1, "above", [[FAR], *[[MARGIN]] * 3], ANY
    ),
    "at its margin in three, cannot be told in one": Design(
        1, "above", [*[[MARGIN]] * 3, [MARGIN / 2]], ANY
    ),
    "does not hold in one, at nothing in the others": Design(
        1, "above", [[-FAR], *[[0.0]] * 2], ANY - {"no difference"}
    ),
}
TRUE = Design(2, "above", [[FAR]], frozenset())


def drawn(design: Design, rng: np.random.Generator) -> ClaimResult:
    """Return a claim's verdict before the correction, from estimates with a normal error."""
    test = TESTS[design.direction]
    claim = Claim(id="x", says="", where="", theirs="", tier=design.tier, regimes=[*REGIMES])
    by_regime = []
    for name, differences in zip(REGIMES, design.true, strict=False):
        parts = []
        for value in rng.normal(differences, ERROR):
            half_width = 1.959963984540054 * ERROR
            low, high = float(value - half_width), float(value + half_width)
            gap = Figure(float(value), low, high, "", 3)
            assert gap.low is not None
            assert gap.high is not None
            verdict = verdict_of(test, gap.low, gap.high)
            parts.append(PartResult(name, test, OTHER, verdict, gap, gap, gap))
        by_regime.append(together(parts, leaking=True))
    return alone(claim, by_regime)


def wrong_families(
    families: int,
    *,
    each: int,
    true: int,
    seed: int,
    correct: Callable[[Sequence[ClaimResult]], Sequence[ClaimResult]] = corrected,
) -> float:
    """Return the fraction of families of claims with at least one wrong verdict.

    Args:
        families: Number of simulated papers.
        each: Number of claims of every design in a paper.
        true: Number of further claims in a paper that are true by far.
        seed: Seed of the draws.
        correct: Correction for multiple claims.
    """
    rng = np.random.default_rng(seed)
    designs = [design for design in DESIGNS.values() for _ in range(each)] + [TRUE] * true
    return float(
        np.mean(
            [
                any(
                    result.verdict in design.wrong
                    for result, design in zip(
                        correct([drawn(design, rng) for design in designs]), designs, strict=True
                    )
                )
                for _ in range(families)
            ]
        )
    )


def rows(families: int) -> Iterator[str]:
    for each, true in ((1, 0), (4, 0), (4, 10)):
        by_holm = wrong_families(families, each=each, true=true, seed=1)
        alone_ = wrong_families(families, each=each, true=true, seed=1, correct=list)
        yield (
            f"{len(DESIGNS) * each} claims at their margins, {true} that hold: wrong in "
            f"{by_holm:.1%} of {families} families, {alone_:.1%} without correction"
        )


def near_zero(hits: float, rng: np.random.Generator, *, seeds: int = 5) -> tuple[float, float]:
    """Simulate Student's limits of a rate over seeds.

    Args:
        hits: Expected number of hits among the 200 samples of each seed.
        rng: Draws the counts.
        seeds: Number of runs.

    Returns:
        The fraction of intervals that contain the rate, and the fraction that do not contain it
        although their lower limit is above 0.
    """
    rates = rng.binomial(200, hits / 200, size=(20_000, seeds)) / 200
    reach = stdtrit(seeds - 1, 0.975) * rates.std(axis=1, ddof=1) / math.sqrt(seeds)
    low, high = rates.mean(axis=1) - reach, rates.mean(axis=1) + reach
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
