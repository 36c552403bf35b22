"""Verdicts on a comparison, on a claim in a regime, and on all claims of a paper.

`docs/decisions/0015-two-regimes-and-one-error.md` gives the reasons for the rules.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy.special import ndtr, ndtri, stdtr, stdtrit

from docs.claims.comparing import (
    BY_STUDENT,
    Figure,
    counts,
    figure_of,
    figures_of_gap,
    gap_of,
    leaks,
)
from docs.claims.data import Claim, Paper, Scale, Term, Test, regimes, variant_of
from docs.claims.figures import rows
from docs.claims.names import figure_words, setting_words
from docs.claims.titles import scale_of
from fedaudit.metrics.significance import holm

ERROR = 0.05
LIMIT = -float(ndtri(ERROR / 2))
FEWEST_SEEDS = 2
"""Smallest number of seeds of a regime that counts, since a single model may be an exception."""

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
SYMMETRIC = 0.85
"""Smallest ratio of the two distances between a figure and its limits if these are normal."""
ROUNDING = 1e-9
"""Largest difference between figures that count as equal."""
Reading = Literal["these runs", "further runs"]


class PartResult(NamedTuple):
    """Result of one comparison in one regime."""

    regime: str
    test: Test
    other: Term
    verdict: Verdict
    one: Figure | None = None
    reference: Figure | None = None
    gap: Figure | None = None
    lacking: str = ""

    @property
    def p_value(self) -> float:
        """Return the p-value of the verdict; 1 if it is open."""
        if self.gap is None or self.verdict in UNDECIDED:
            return 1.0
        return p_value_of(self.test, self.gap, self.verdict)

    @property
    def is_over_common_samples(self) -> bool:
        """Return whether the difference leaves out samples, and differs from that of the figures.

        CoFedMID holds out members for validation, which are non-members in its runs. A coalition's
        average has the members of several clients. A difference paired by sample leaves out samples
        whose origin differs between the two runs
        (:func:`fedaudit.evaluation.sample_scores.paired_auc`), but the figures do not.
        """
        if self.one is None or self.reference is None or self.gap is None:
            return False
        return abs(self.one.value - self.reference.value - self.gap.value) > ROUNDING


class RegimeResult(NamedTuple):
    """Result of a claim in one regime, over all its comparisons."""

    regime: str
    verdict: Verdict
    parts: Sequence[PartResult]
    # Whether the regime was run with enough seeds, and leaks if the claim needs that.
    counts: bool
    # The p-value of its verdict; 1 if it is open.
    p_value: float = 1.0
    # Reason why it does not count, if it was run.
    wanting: Literal["", "leak", "seeds"] = ""


class ClaimResult(NamedTuple):
    """Result of a claim over its regimes."""

    # The claim.
    claim: Claim
    # Verdict after correction over the claims of its paper.
    verdict: Verdict
    # The claim in each of its regimes.
    held: Sequence[RegimeResult]
    # The p-value before correction; None if it was not tested.
    p_value: float | None = None
    # The verdict before correction.
    by_itself: Verdict = "open"
    # The claim judged by intervals for further runs.
    further: "ClaimResult | None" = None

    @property
    def counted(self) -> list[RegimeResult]:
        return [first for first in self.held if first.counts]


# One comparison.


def compare(name: str, test: Test, other: Term) -> PartResult:
    regime = regimes()[name]
    first, against = figure_of(regime, test, test.one), figure_of(regime, test, other)
    for term, figure in ((test.one, first), (other, against)):
        if figure is None:
            record = (term.study or regime.study, variant_of(regime, term))
            exists = rows(*record) is not None
            what = figure_words(term.figure or test.figure)
            if term.attacks and not counts(regime, test, term):
                what = f"attack with a {what} above chance level without a defense"
            settings = ", ".join(setting_words(term.variant)) if term.variant else ""
            run = f"a run of `{name}`{f' with {settings}' if settings else ''}"
            lacking = f"`{name}` has no {what}" if exists else run
            return PartResult(name, test, other, "not run", first, against, None, lacking)
    gap = gap_of(regime, test, other)
    return with_verdict(
        PartResult(name, test, other, "open", *figures_of_gap(regime, test, other, gap), gap)
    )


def with_verdict(part: PartResult) -> PartResult:
    if part.gap is None:
        return part._replace(verdict="open")
    return part._replace(verdict=verdict_of(part.test, part.gap))


def over_further_runs(part: PartResult) -> PartResult:
    """Judge a comparison by its interval for further runs; "not run" if the interval is unknown."""
    if part.gap is None or part.gap.further is None:
        return part._replace(verdict="not run", gap=None)
    low, high = part.gap.further
    is_of_games = regimes()[part.regime].kind == "games"
    method = part.gap.method if is_of_games else BY_STUDENT
    return with_verdict(part._replace(gap=part.gap._replace(low=low, high=high, method=method)))


def verdict_of(test: Test, gap: Figure) -> Verdict:
    """Return the verdict with a p-value of at most 5 %; "open" without such a verdict."""
    if gap.low is None or gap.high is None:
        return "open"
    near: tuple[Verdict, ...] = ("confirmed", "contradicted")
    verdicts = near if test.direction == "near" else ("confirmed", "no difference", "contradicted")
    return next((v for v in verdicts if p_value_of(test, gap, v) <= ERROR), "open")


def p_value_of(test: Test, gap: Figure, verdict: Verdict) -> float:
    """Return the p-value of a verdict on a difference with limits.

    A contradiction has a two-sided p-value. The claimed direction has a one-sided one, to which the
    error of a contradiction at the same critical value is added: both are wrong if the true
    difference lies between 0 and the margin. "Within the margin" has that of two one-sided tests.
    """
    return p_value_if_repeated(test, gap, verdict, 1.0)


def p_value_if_repeated(test: Test, gap: Figure, verdict: Verdict, times: float) -> float:
    """Return the p-value of a verdict if there were a multiple of the runs or samples."""
    distance = beyond(test, gap, verdict) * math.sqrt(times)
    if verdict == "contradicted" or not has_normal_limits(test, gap):
        return min(1.0, 2 * _tail(gap, distance))
    if verdict == "no difference" or test.direction == "near":
        return _tail(gap, distance)
    assert gap.low is not None
    assert gap.high is not None
    width = max(gap.value - gap.low, gap.high - gap.value)
    margin = _widths(test.margin, width) * math.sqrt(times) if test.margin else 0.0
    return _tail(gap, distance) + _tail(gap, distance + margin)


def has_normal_limits(test: Test, gap: Figure) -> bool:
    """Return whether limits of another confidence follow from the 95 % limits.

    Limits of rates combine several tests. Limits of shares of few samples are asymmetric.
    """
    if (test.one.figure or test.figure).startswith("tpr@"):
        return False
    assert gap.low is not None
    assert gap.high is not None
    narrow, wide = sorted((gap.value - gap.low, gap.high - gap.value))
    return narrow >= SYMMETRIC * wide


def smallest_margin(test: Test, gap: Figure) -> float | None:
    """Return the smallest margin that a difference lies within; None if it has no limits."""
    if gap.low is None or gap.high is None:
        return None
    ratio = 1.0
    if has_normal_limits(test, gap):
        ratio = float(ndtri(ERROR) / ndtri(ERROR / 2))
        if gap.method == BY_STUDENT and gap.seeds > 1:
            degrees = gap.seeds - 1
            ratio = float(stdtrit(degrees, 1 - ERROR) / stdtrit(degrees, 1 - ERROR / 2))
    down, up = gap.value - gap.low, gap.high - gap.value
    return max(ratio * down - gap.value, gap.value + ratio * up)


def beyond(test: Test, gap: Figure, verdict: Verdict) -> float:
    """Return the distance of a figure from the values that contradict a verdict.

    The unit is the width between figure and limit. Negative if the figure contradicts the verdict.
    """
    assert gap.low is not None
    assert gap.high is not None
    value, margin = gap.value, test.margin
    down, up = value - gap.low, gap.high - value
    if test.direction == "below":
        value, down, up = -value, up, down
    near = test.direction == "near"
    if verdict == ("confirmed" if near else "no difference"):
        return min(_widths(margin + value, down), _widths(margin - value, up))
    if near:
        if verdict == "no difference":
            return -math.inf
        return max(_widths(value - margin, down), _widths(-margin - value, up))
    return _widths(value - margin, down) if verdict == "confirmed" else _widths(-value, up)


def _widths(distance: float, width: float) -> float:
    return distance / width if width > 1e-9 else math.copysign(math.inf, distance)


def _tail(gap: Figure, widths: float) -> float:
    """Return the one-sided p-value of a distance in widths."""
    if gap.method == BY_STUDENT and gap.seeds > 1:
        degrees = gap.seeds - 1
        return float(stdtr(degrees, -stdtrit(degrees, 1 - ERROR / 2) * widths))
    return float(ndtr(-LIMIT * widths))


# One claim in one regime.


def judge_regime(claim: Claim, name: str, reading: Reading = "these runs") -> RegimeResult:
    parts = [compare(name, test, other) for test in claim.tests for other in test.others]
    if reading == "further runs":
        parts = [over_further_runs(part) for part in parts]
    return combine_parts(parts, leaking=not claim.leaks or leaks(name))


def combine_parts(parts: Sequence[PartResult], *, leaking: bool) -> RegimeResult:
    """Combine the comparisons of a regime: all must hold, and one opposite result refutes.

    The refuting comparison is chosen among several, so its p-value is corrected.
    """
    name = parts[0].regime
    run = [part for part in parts if part.verdict != "not run"]
    if not run:
        return RegimeResult(name, "not run", parts, counts=False)
    if not leaking:
        return RegimeResult(name, "open", parts, counts=False, wanting="leak")
    if regimes()[name].kind != "games" and min(map(seeds_of, run)) < FEWEST_SEEDS:
        return RegimeResult(name, "open", parts, counts=False, wanting="seeds")
    against = [part.p_value for part in run if part.verdict == "contradicted"]
    if against and (least := min(against) * len(run)) <= ERROR:
        return RegimeResult(name, "contradicted", parts, True, least)
    if len(run) < len(parts):
        return RegimeResult(name, "not run", parts, counts=False)
    verdicts = {part.verdict for part in parts}
    largest = max(part.p_value for part in parts)
    if verdicts == {"confirmed"}:
        return RegimeResult(name, "confirmed", parts, True, largest)
    if verdicts <= {"confirmed", "no difference"}:
        return RegimeResult(name, "no difference", parts, True, largest)
    return RegimeResult(name, "open", parts, counts=True)


def deciding_part(result: RegimeResult) -> PartResult | None:
    """Return the comparison that decides the verdict in a regime, or is furthest from holding.

    None if no comparison was run.
    """
    compared = [part for part in result.parts if part.gap is not None]
    if result.verdict == "contradicted":
        against = [part for part in compared if part.verdict == "contradicted"]
        return min(against, key=lambda part: part.p_value)
    if result.verdict in ("confirmed", "no difference"):
        alike = [part for part in compared if part.verdict == result.verdict]
        return max(alike, key=lambda part: part.p_value)
    return min(compared, key=_ease, default=None)


def _ease(part: PartResult) -> float:
    """Return how clearly a comparison holds; lowest if it has no limits."""
    assert part.gap is not None
    if part.gap.low is None or part.gap.high is None:
        return -math.inf
    return beyond(part.test, part.gap, "confirmed")


def seeds_of(part: PartResult) -> int:
    """Return the number of seeds of a comparison; sufficient for comparisons of constants."""
    seeds = part.gap.seeds if part.gap else 0
    return seeds or FEWEST_SEEDS


# All claims of a paper.


def judge_paper(paper: Paper) -> list[ClaimResult]:
    """Judge all claims of a paper, with one error for all tested claims of a family."""
    these = _read(paper, "these runs")
    further = _read(paper, "further runs")
    return [
        claim_result._replace(
            verdict=at_scale(claim_result, paper.scale),
            further=wider._replace(verdict=at_scale(wider, paper.scale)),
        )
        for claim_result, wider in zip(these, further, strict=True)
    ]


def _read(paper: Paper, reading: Reading) -> list[ClaimResult]:
    return correct_claims(
        [
            judge_claim(claim, [judge_regime(claim, name, reading) for name in claim.regimes])
            for claim in paper.claim
        ]
    )


def family_of(claim: Claim) -> str:
    """Return the claims with which a claim shares the error of 5 %."""
    if claim.ours:
        return "our questions"
    return "main claims" if claim.tier == 1 else "details"


def family_in(results: Sequence[ClaimResult], claim: Claim) -> list[ClaimResult]:
    """Return the results of a paper that belong to the family of a claim."""
    return [result for result in results if family_of(result.claim) == family_of(claim)]


def tested_in(results: Sequence[ClaimResult], claim: Claim) -> int:
    """Return the number of tested claims in the family of a claim."""
    return sum(result.p_value is not None for result in family_in(results, claim))


def needed_regimes(claim: Claim) -> int:
    return 2 if claim.tier == 1 else 1


def judge_claim(claim: Claim, regime_results: Sequence[RegimeResult]) -> ClaimResult:
    """Return the verdict of a claim, by the rules of the page, before correction over its paper."""
    if claim.not_run:
        return ClaimResult(claim, "not run", ())
    counted = [result for result in regime_results if result.counts]
    if not counted:
        verdict: Verdict = (
            "not run" if all(result.verdict == "not run" for result in regime_results) else "open"
        )
        return ClaimResult(claim, verdict, regime_results)
    needed, among = needed_regimes(claim), len(counted)
    by_verdict: dict[str, list[float]] = {}
    for result in counted:
        by_verdict.setdefault(result.verdict, []).append(result.p_value)
    holds, level, against = (
        by_verdict.get(v, []) for v in ("confirmed", "no difference", "contradicted")
    )
    if holds and (level or against):
        p_value = max(partial(side, among, 1) for side in (holds, level + against))
        return ClaimResult(claim, "depends on the regime", regime_results, p_value)
    for verdict, p_values in (
        ("contradicted", against),
        ("confirmed", holds),
        ("no difference", level),
    ):
        if len(p_values) >= needed and (verdict == "contradicted" or not against):
            return ClaimResult(claim, verdict, regime_results, partial(p_values, among, needed))
    return ClaimResult(claim, "open", regime_results, 1.0)


def partial(p_values: Sequence[float], among: int, least: int) -> float:
    """Return the p-value of "the verdict holds in at least ``least`` of ``among`` regimes".

    ``p_values`` are those of the regimes with the verdict; the other regimes have 1.

    Source: Benjamini and Heller, Screening for partial conjunction hypotheses, 2008, with Simes'
        test of the largest p-values (regimes independent or positively dependent).
    """
    ordered, tested = sorted(p_values)[least - 1 :], among - least + 1
    return min(1.0, *(tested / place * p_value for place, p_value in enumerate(ordered, 1)))


def correct_claims(claims: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Correct verdicts by Holm's procedure over all tested claims of each family.

    Open claims are included.
    """
    corrected = list(claims)
    for family in dict.fromkeys(family_of(result.claim) for result in claims):
        places = [i for i, result in enumerate(claims) if family_of(result.claim) == family]
        adjusted = holm([claims[place].p_value for place in places], alpha=ERROR).adjusted
        for place, p_value in zip(places, adjusted, strict=True):
            result = claims[place]
            is_open = p_value is not None and p_value > ERROR
            corrected[place] = result._replace(
                verdict="open" if is_open else result.verdict, by_itself=result.verdict
            )
    return corrected


# The scale.


def at_scale(result: ClaimResult, paper: Scale) -> Verdict:
    """Return the verdict, or "not found at this scale" if all refuting regimes are too small."""
    if result.verdict != "contradicted":
        return result.verdict
    theirs = result.claim.scale if result.claim.scale is not None else paper
    smaller = all(scale_of(name).smaller_than(theirs) for name in against_in(result))
    return "not found at this scale" if smaller else result.verdict


def against_in(result: ClaimResult) -> list[str]:
    return [
        regime_result.regime
        for regime_result in result.counted
        if regime_result.verdict == "contradicted"
    ]
