"""Verdicts: of a comparison, of a claim in a regime, and of all claims of a paper together.

`docs/decisions/0015-two-regimes-and-one-error.md` says why the rules are as they are.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy.special import ndtr, ndtri, stdtr, stdtrit

from docs.claims.comparing import BY_STUDENT, Found, counts, found_of, gap_of, leaks, over_runs
from docs.claims.data import (
    Claim,
    Paper,
    Regime,
    Scale,
    Term,
    Test,
    named,
    regimes,
    variant_of,
)
from docs.claims.figures import Asked, rows
from docs.claims.titles import scale_of
from fedaudit.metrics.family import holm

ERROR = 0.05
LIMIT = -float(ndtri(ERROR / 2))
FEWEST_SEEDS = 2
"""Below so many seeds a regime does not count: one model may be an exception."""

Verdict = Literal[
    "confirmed",
    "contradicted",
    "not found at this scale",
    "no difference",
    "depends on the regime",
    "open",
    "not run",
]
VERDICTS: tuple[Verdict, ...] = (
    "confirmed",
    "contradicted",
    "not found at this scale",
    "no difference",
    "depends on the regime",
    "open",
    "not run",
)
UNDECIDED = ("open", "not run")
Reading = Literal["these runs", "further runs"]


class Judged(NamedTuple):
    """What came of one comparison in one regime."""

    regime: str
    test: Test
    other: Term
    verdict: Verdict
    one: Found | None = None
    held_against: Found | None = None
    gap: Found | None = None
    lacking: str = ""

    @property
    def p_value(self) -> float:
        """Two-sided, of the verdict; 1 if it is open."""
        if self.gap is None or self.verdict in UNDECIDED:
            return 1.0
        return _tail(self.gap, beyond(self, self.verdict))


class Held(NamedTuple):
    """A claim in one regime: all its comparisons together.

    Attributes:
        counts: Whether the regime was run with enough seeds, and leaks if the claim needs that.
        p_value: Of its verdict; 1 if it is open.
        wanting: Why it does not count, if it was run.
    """

    regime: str
    verdict: Verdict
    parts: Sequence[Judged]
    counts: bool
    p_value: float = 1.0
    wanting: Literal["", "leak", "seeds"] = ""


class Decided(NamedTuple):
    """A claim with its verdict and everything behind it.

    Attributes:
        claim: The claim.
        verdict: After correction over the claims of its paper.
        held: The claim in each of its regimes.
        p_value: Before correction; None if it was not tested.
        by_itself: The verdict before correction.
        further: The claim judged by intervals for further runs in place of those for these.
    """

    claim: Claim
    verdict: Verdict
    held: Sequence[Held]
    p_value: float | None = None
    by_itself: Verdict = "open"
    further: "Decided | None" = None

    @property
    def counted(self) -> list[Held]:
        """The regimes that count."""
        return [one for one in self.held if one.counts]


# One comparison.


def compared(name: str, test: Test, other: Term) -> Judged:
    """Judge a comparison in a regime, by its interval alone."""
    regime = regimes()[name]
    one, against = found_of(regime, test, test.one), found_of(regime, test, other)
    for term, found in ((test.one, one), (other, against)):
        if found is None:
            record = (term.study or regime.study, variant_of(regime, term))
            there = rows(*record) is not None
            what = term.figure or test.figure
            if term.attacks and not counts(regime, test, term):
                what = f"attack whose {what} is above chance undefended"
            wants = f"has no {what}" if there else "was not run"
            lacking = f"`{named(*record)}` {wants}"
            return Judged(name, test, other, "not run", one, against, None, lacking)
    return judged(Judged(name, test, other, "open", one, against, gap_of(regime, test, other)))


def judged(part: Judged) -> Judged:
    """Return a comparison with the verdict of its interval."""
    gap = part.gap
    if gap is None or gap.low is None or gap.high is None:
        return part._replace(verdict="open")
    return part._replace(verdict=verdict_of(part.test, gap.low, gap.high))


def over_further_runs(part: Judged) -> Judged:
    """Return a comparison judged by what further runs would give; not run if that is not known."""
    if part.gap is None or part.gap.further is None:
        return part._replace(verdict="not run", gap=None)
    low, high = part.gap.further
    is_of_games = regimes()[part.regime].kind == "games"
    method = part.gap.method if is_of_games else BY_STUDENT
    return judged(part._replace(gap=part.gap._replace(low=low, high=high, method=method)))


def verdict_of(test: Test, low: float, high: float) -> Verdict:
    """Beyond the margin, within it, on the other side of nothing, or none of these."""
    margin = test.margin
    if test.direction == "near":
        if -margin <= low and high <= margin:
            return "confirmed"
        return "contradicted" if low > margin or high < -margin else "open"
    if test.direction == "below":
        low, high = -high, -low
    if low > margin:
        return "confirmed"
    if -margin <= low and high <= margin:
        return "no difference"
    return "contradicted" if high < 0 else "open"


def beyond(part: Judged, verdict: Verdict) -> float:
    """How many limits' widths a figure lies beyond what a verdict excludes; negative if it lies
    on the other side of that."""
    gap = part.gap
    assert gap is not None
    assert gap.low is not None
    assert gap.high is not None
    value, margin = gap.value, part.test.margin
    down, up = value - gap.low, gap.high - value
    if part.test.direction == "below":
        value, down, up = -value, up, down
    near = part.test.direction == "near"
    if verdict == ("confirmed" if near else "no difference"):
        return min(_widths(margin + value, down), _widths(margin - value, up))
    if near:
        if verdict == "no difference":
            return -math.inf
        return max(_widths(value - margin, down), _widths(-margin - value, up))
    return _widths(value - margin, down) if verdict == "confirmed" else _widths(-value, up)


def _widths(distance: float, width: float) -> float:
    """How often a width goes into a distance; without end into any if there is none."""
    return distance / width if width > 1e-9 else math.copysign(math.inf, distance)


def _tail(gap: Found, widths: float) -> float:
    """Return the two-sided p-value of a figure so many limits' widths away."""
    if gap.method == BY_STUDENT and gap.seeds > 1:
        degrees = gap.seeds - 1
        return float(2 * stdtr(degrees, -stdtrit(degrees, 1 - ERROR / 2) * widths))
    return float(2 * ndtr(-LIMIT * widths))


# One claim in one regime.


def held(claim: Claim, name: str, reading: Reading = "these runs") -> Held:
    """Judge a claim in a regime."""
    parts = [compared(name, test, other) for test in claim.tests for other in test.others]
    if reading == "further runs":
        parts = [over_further_runs(part) for part in parts]
    return together(parts, leaking=not claim.leaks or leaks(name))


def together(parts: Sequence[Judged], *, leaking: bool) -> Held:
    """Comparisons in one regime as one: all must hold, and one on the other side is enough against.

    Whoever looks for the one among several finds it by chance, so that its error is shared.
    """
    name = parts[0].regime
    run = [part for part in parts if part.verdict != "not run"]
    if not run:
        return Held(name, "not run", parts, counts=False)
    if not leaking:
        return Held(name, "open", parts, counts=False, wanting="leak")
    if regimes()[name].kind != "games" and min(map(seeds_of, run)) < FEWEST_SEEDS:
        return Held(name, "open", parts, counts=False, wanting="seeds")
    against = [part.p_value for part in run if part.verdict == "contradicted"]
    if against and (least := min(against) * len(run)) <= ERROR:
        return Held(name, "contradicted", parts, True, least)
    if len(run) < len(parts):
        return Held(name, "not run", parts, counts=False)
    said = {part.verdict for part in parts}
    largest = max(part.p_value for part in parts)
    if said == {"confirmed"}:
        return Held(name, "confirmed", parts, True, largest)
    if said <= {"confirmed", "no difference"}:
        return Held(name, "no difference", parts, True, largest)
    return Held(name, "open", parts, counts=True)


def seeds_of(part: Judged) -> int:
    """Return the seeds that a comparison rests on; enough if it rests on numbers alone."""
    seeds = part.gap.seeds if part.gap else 0
    return seeds or FEWEST_SEEDS


# All claims of a paper.


def decided(paper: Paper) -> list[Decided]:
    """Judge all claims of a paper; those that were tested share one error."""
    here = _read(paper, "these runs")
    further = _read(paper, "further runs")
    return [
        one._replace(
            verdict=at_scale(one, paper.scale),
            further=wider._replace(verdict=at_scale(wider, paper.scale)),
        )
        for one, wider in zip(here, further, strict=True)
    ]


def _read(paper: Paper, reading: Reading) -> list[Decided]:
    return corrected(
        [
            alone(claim, [held(claim, name, reading) for name in claim.regimes])
            for claim in paper.claim
        ]
    )


def needed_regimes(claim: Claim) -> int:
    """Return in how many regimes a claim has to be decided alike."""
    return 2 if claim.tier == 1 else 1


def alone(claim: Claim, found: Sequence[Held]) -> Decided:
    """A claim's verdict before correction over its paper's other claims, and its p-value.

    A claim of tier 1 is confirmed if it holds in at least two of the regimes that count, one of
    tier 2 in at least one, and if no regime decides otherwise; "no difference" likewise. It is
    contradicted in as many, if it holds in none. Where regimes decide differently it depends on
    the regime.
    """
    if claim.not_run:
        return Decided(claim, "not run", ())
    counted = [one for one in found if one.counts]
    if not counted:
        verdict: Verdict = "not run" if all(one.verdict == "not run" for one in found) else "open"
        return Decided(claim, verdict, found)
    needed, among = needed_regimes(claim), len(counted)
    by: dict[str, list[float]] = {}
    for one in counted:
        by.setdefault(one.verdict, []).append(one.p_value)
    holds, level, against = (by.get(v, []) for v in ("confirmed", "no difference", "contradicted"))
    if holds and (level or against):
        p_value = max(partial(side, among, 1) for side in (holds, level + against))
        return Decided(claim, "depends on the regime", found, p_value)
    for verdict, p_values in (
        ("contradicted", against),
        ("confirmed", holds),
        ("no difference", level),
    ):
        if len(p_values) >= needed and (verdict == "contradicted" or not against):
            return Decided(claim, verdict, found, partial(p_values, among, needed))
    return Decided(claim, "open", found, 1.0)


def partial(p_values: Sequence[float], among: int, least: int) -> float:
    """Return the p-value of a verdict that holds in at least so many of all regimes.

    Args:
        p_values: Of the regimes that have the verdict; all others have 1.
        among: Regimes that count.
        least: In how many of them it has to hold, in [1, among].

    Source: Benjamini and Heller, Screening for partial conjunction hypotheses, 2008, with Simes'
        test of the largest p-values, which holds for regimes that are independent or depend on
        each other positively.
    """
    ordered, rest = sorted(p_values)[least - 1 :], among - least + 1
    return min(1.0, *(rest / place * p_value for place, p_value in enumerate(ordered, 1)))


def corrected(claims: Sequence[Decided]) -> list[Decided]:
    """Correct with Holm's procedure over all claims that were tested, those that are open too."""
    adjusted = holm([one.p_value for one in claims], alpha=ERROR).adjusted
    return [
        one._replace(
            verdict="open" if p_value is not None and p_value > ERROR else one.verdict,
            by_itself=one.verdict,
        )
        for one, p_value in zip(claims, adjusted, strict=True)
    ]


# The scale.


def at_scale(one: Decided, paper: Scale) -> Verdict:
    """Return the verdict; not "contradicted" where every regime that says so is too small."""
    if one.verdict != "contradicted":
        return one.verdict
    theirs = one.claim.scale if one.claim.scale is not None else paper
    smaller = all(scale_of(name).smaller_than(theirs) for name in against_in(one))
    return "not found at this scale" if smaller else one.verdict


def scale_words(one: Decided, paper: Scale) -> str:
    """Return the scale at which a claim was not found, with the paper's; else nothing."""
    if one.verdict != "not found at this scale":
        return ""
    theirs = one.claim.scale if one.claim.scale is not None else paper
    here = [f"`{name}`: {measured_scale(name).words(theirs)}" for name in against_in(one)]
    return f"{'; '.join(here)}; the paper: {theirs.words(theirs)}"


def against_in(one: Decided) -> list[str]:
    """Return the regimes that count in which a claim does not hold."""
    return [here.regime for here in one.counted if here.verdict == "contradicted"]


def measured_scale(name: str) -> Scale:
    """Return the scale of a regime with the test accuracy of its base."""
    regime: Regime = regimes()[name]
    known = rows(regime.study, regime.base) or {}
    accuracy = known.get(Asked("test_accuracy"))
    if accuracy is None:
        return scale_of(name)
    return scale_of(name).model_copy(update={"test_accuracy": over_runs(accuracy).value})
