"""Verdicts: of a comparison, of a claim in a regime, and of all claims of a paper together.

`docs/decisions/0015-two-regimes-and-one-error.md` says why the rules are as they are.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy.special import ndtr, ndtri

from docs.claims.comparing import BY_STUDENT, Found, found_of, gap_of, leak_of, leaks
from docs.claims.data import Claim, Paper, Term, Test, named, regimes, variant_of
from docs.claims.figures import rows
from fedaudit.metrics.family import holm
from fedaudit.metrics.intervals import FEWEST_RUNS

ERROR = 0.05
LIMIT = -float(ndtri(ERROR / 2))
MANY = 1000
"""From so many seeds on, or so many times the samples, a difference counts as level with its
margin."""

Verdict = Literal["confirmed", "contradicted", "no difference", "open", "not run"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "contradicted", "no difference", "open", "not run")
SAID: dict[str, str] = {
    "confirmed": "holds in",
    "contradicted": "does not hold in",
    "no difference": "no difference in",
}


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
        """Two-sided, of the verdict; 1 for what is open."""
        return 1.0 if self.gap is None else float(2 * ndtr(-LIMIT * _distance(self)))


class Held(NamedTuple):
    """A claim in one regime: all its comparisons together.

    Attributes:
        counts: Whether the regime was run, and leaks where the claim needs that.
        p_value: Of its verdict; 1 for what is open.
    """

    regime: str
    verdict: Verdict
    parts: Sequence[Judged]
    counts: bool
    p_value: float = 1.0


class Decided(NamedTuple):
    """A claim with its verdict and everything behind it."""

    claim: Claim
    verdict: Verdict
    held: Sequence[Held]
    why: str
    p_value: float | None = None


# One comparison.


def compared(name: str, test: Test, other: Term) -> Judged:
    """A comparison in a regime, by its interval alone."""
    regime = regimes()[name]
    one, against = found_of(regime, test, test.one), found_of(regime, test, other)
    for term, found in ((test.one, one), (other, against)):
        if found is None:
            record = (term.study or regime.study, variant_of(regime, term))
            there = rows(*record) is not None
            wants = f"has no {term.figure or test.figure}" if there else "was not run"
            lacking = f"`{named(*record)}` {wants}"
            return Judged(name, test, other, "not run", one, against, None, lacking)
    gap = gap_of(regime, test, other)
    if gap is None or gap.low is None or gap.high is None:
        return Judged(name, test, other, "open", one, against, gap)
    return Judged(name, test, other, verdict_of(test, gap.low, gap.high), one, against, gap)


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


def _distance(part: Judged) -> float:
    """How far the figure lies beyond what its verdict excludes, in limits' widths; 0 if open."""
    assert part.gap is not None
    if part.verdict in ("open", "not run") or part.gap.low is None or part.gap.high is None:
        return 0.0
    value, margin = part.gap.value, part.test.margin
    down, up = value - part.gap.low, part.gap.high - value
    if part.test.direction == "below":
        value, down, up = -value, up, down
    near = part.test.direction == "near"
    if part.verdict == ("confirmed" if near else "no difference"):
        return min(_widths(margin + value, down), _widths(margin - value, up))
    if near:
        return max(_widths(value - margin, down), _widths(-margin - value, up))
    beyond = _widths(value - margin, down), _widths(-value, up)
    return beyond[0] if part.verdict == "confirmed" else beyond[1]


def _widths(distance: float, width: float) -> float:
    """How often a width goes into a distance; without end into any if there is none."""
    return distance / width if width > 1e-9 else math.inf


# One claim in one regime.


def held(claim: Claim, name: str) -> Held:
    """A claim in a regime."""
    parts = [compared(name, test, other) for test in claim.tests for other in test.others]
    return together(parts, leaking=not claim.leaks or leaks(name))


def together(parts: Sequence[Judged], *, leaking: bool) -> Held:
    """Comparisons in one regime as one: all must hold, and one on the other side is enough against.

    Whoever looks for the one among several finds it by chance, so that its error is shared.
    """
    name = parts[0].regime
    run = [part for part in parts if part.verdict != "not run"]
    if not run or not leaking:
        return Held(name, "open" if run else "not run", parts, counts=False)
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


# All claims of a paper.


def decided(paper: Paper) -> list[Decided]:
    """All claims of a paper; those that were tested share one error."""
    return corrected(
        [alone(claim, [held(claim, name) for name in claim.regimes]) for claim in paper.claim]
    )


def alone(claim: Claim, found: Sequence[Held]) -> Decided:
    """A claim's verdict before correction over its paper's other claims, and its p-value.

    Tier 1 asks for two regimes that count, tier 2 for one. A claim is confirmed if it is so in
    all that count, and contradicted if it is so in as many as its tier asks for and holds in none.

    Source: Benjamini and Heller, Screening for partial conjunction hypotheses, 2008, Eq. (2), for
        the p-value of so many regimes out of all.
    """
    if claim.not_run:
        return Decided(claim, "not run", (), claim.not_run)
    counted = [one for one in found if one.counts]
    if not counted:
        if all(one.verdict == "not run" for one in found):
            return Decided(claim, "not run", found, "; ".join(_not_run(one) for one in found))
        return Decided(claim, "open", found, _wanting(claim, found))
    needed = 2 if claim.tier == 1 else 1
    said = {one.verdict for one in counted}
    against = sorted(one.p_value for one in counted if one.verdict == "contradicted")
    if len(against) >= needed and "confirmed" not in said:
        p_value = against[needed - 1] * (len(counted) - needed + 1)
        return Decided(claim, "contradicted", found, _where(counted), min(p_value, 1.0))
    if len(counted) >= needed and said in ({"confirmed"}, {"no difference"}):
        p_value = max(one.p_value for one in counted)
        return Decided(claim, counted[0].verdict, found, _where(counted), p_value)
    return Decided(claim, "open", found, _wanting(claim, found), 1.0)


def corrected(claims: Sequence[Decided]) -> list[Decided]:
    """With Holm's procedure over all that were tested, those that are open too."""
    tested = [one.p_value for one in claims if one.p_value is not None]
    adjusted = holm([one.p_value for one in claims], alpha=ERROR).adjusted
    return [
        one._replace(verdict="open", why=_not_after(one, p_value, len(tested)))
        if one.verdict not in ("open", "not run") and p_value is not None and p_value > ERROR
        else one
        for one, p_value in zip(claims, adjusted, strict=True)
    ]


# In words.


def _where(counted: Sequence[Held]) -> str:
    return "in one regime" if len(counted) == 1 else ""


def _not_run(one: Held) -> str:
    lacking = list(dict.fromkeys(part.lacking for part in one.parts if part.lacking))
    regime = regimes()[one.regime]
    if rows(regime.study, regime.base) is None:
        hours = f" ({regime.hours:.1f} h planned)" if regime.hours else ""
        return f"`{one.regime}` was not run{hours}"
    more = f", nor {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"{lacking[0]}{more}"


def _wanting(claim: Claim, found: Sequence[Held]) -> str:
    """Where an open claim holds as yet, and what would settle it."""
    here, wanted = [], []
    counted = [one for one in found if one.counts]
    for one in found:
        if one.verdict in SAID:
            here.append(f"{SAID[one.verdict]} `{one.regime}`")
        elif one.verdict == "not run":
            wanted.append(_not_run(one))
        elif one.counts:
            wanted.append(_hardest(one))
        else:
            here.append(_no_leak(one.regime))
    decided_in = {one.verdict for one in counted} - {"open"}
    if len(decided_in) > 1 and "confirmed" in decided_in:
        return f"{'; '.join(here)}; to settle it: a narrower sentence, as it depends on the regime"
    if not wanted:
        another = "a second regime" if counted else "a regime"
        wanted.append(f"{another} {_that_counts(claim)}")
    return "; ".join([*here, f"to settle it: {'; '.join(wanted)}"])


def _that_counts(claim: Claim) -> str:
    if not claim.leaks:
        return "with another data set or network"
    asked = {
        "membership": "an undefended attack with an AUC of 0.7",
        "sources": "an undefended attack that names the owner ten points more often than the label "
        "distribution allows",
        "clusters": "a model whose real risk is 60 %",
        "games": "a server that is right in 70 % of games where nothing is randomised",
    }[regimes()[claim.regimes[0]].kind]
    return f"that leaks ({asked})"


def _no_leak(name: str) -> str:
    found = leak_of(name)
    if found is None:
        return f"whether `{name}` leaks is not known, its base was not run"
    return f"nothing leaks in `{name}`"


def _hardest(one: Held) -> str:
    """What the comparison would take that is furthest from a verdict."""
    undecided = [part for part in one.parts if part.verdict in ("open", "contradicted")]
    without = [part for part in undecided if part.gap is None or part.gap.low is None]
    if without:
        return _limits_for(without[0])
    part = max(undecided, key=times_needed)
    return more_of(part, times_needed(part))


def times_asked_for(claim: Decided) -> float:
    """How many times its runs, or samples, would settle a claim where it is tested and open."""
    return max(
        (
            times_needed(part)
            for one in claim.held
            if one.counts and one.verdict not in SAID
            for part in one.parts
            if part.verdict in ("open", "contradicted") and part.gap and part.gap.low is not None
        ),
        default=0.0,
    )


def _limits_for(part: Judged) -> str:
    seeds = part.gap.seeds if part.gap else 1
    figure = part.test.one.figure or part.test.figure
    if regimes()[part.regime].kind == "games" or seeds >= FEWEST_RUNS:
        return f"a record of `{part.regime}` with limits of {figure}"
    return (
        f"{FEWEST_RUNS} seeds of `{part.regime}` ({seeds} so far), from which on there are limits"
    )


def times_needed(part: Judged) -> float:
    """How many times the runs, or samples, would settle it, were the difference what it seems.

    Limits shrink by the root of what they rest on.
    """
    gap, margin = part.gap, part.test.margin
    assert gap is not None
    assert gap.low is not None
    assert gap.high is not None
    value, down, up = gap.value, gap.value - gap.low, gap.high - gap.value
    if part.test.direction == "below":
        value, down, up = -value, up, down
    within = max(_widths(down, margin + value), _widths(up, margin - value))
    above, below = _widths(down, value - margin), _widths(up, -value)
    if part.test.direction == "near":
        below = _widths(up, -value - margin)
    return min(within, above, below) ** 2


def more_of(part: Judged, times: float) -> str:
    """So many times of what an interval rests on, in words."""
    assert part.gap is not None
    name, seeds = f"`{part.regime}`", max(part.gap.seeds, 1)
    if times > MANY**2:
        return f"another margin: the figure of {name} is the margin itself, for any number of runs"
    rests = _rests_on(part)
    if rests == "seeds":
        count = max(math.ceil(times * seeds), seeds + 1)
        said, level = f"some {count:,} seeds of {name} ({seeds} so far)", count > MANY
    else:
        said, level = f"some {_round_up(times)} times the {rests} of {name}", times > MANY
        if rests == "test samples":
            said += ", or accuracies paired by sample"
    if not level:
        return said
    return f"another margin: {part.gap.value:.4f} in {name} is all but {part.test.margin}"


def _round_up(times: float) -> str:
    return f"{math.ceil(times):,}" if times > 10 else f"{math.ceil(10 * times) / 10:g}"


def _rests_on(part: Judged) -> str:
    """What there must be more of for a narrower interval."""
    figure = part.test.one.figure or part.test.figure
    if regimes()[part.regime].kind == "games":
        games = {"epochs": "targets", "uncertified": "targets", "spread_auc": "copies"}
        return games.get(figure, "detector's runs" if figure == "detector_auc" else "games")
    assert part.gap is not None
    if part.gap.method == BY_STUDENT:
        return "seeds"
    # Their errors do not cancel over runs (fedaudit.results.aggregate).
    if figure == "test_accuracy":
        return "test samples"
    return "members and non-members" if "@" in figure else "seeds"


def _not_after(one: Decided, adjusted: float, tested: int) -> str:
    assert one.p_value is not None
    share, wanted = ERROR * one.p_value / adjusted, []
    alike = [here for here in one.held if here.counts and here.verdict == one.verdict]
    weak = [here for here in alike if here.p_value > share]
    if not weak:
        # Each would do alone: the weakest must make up for how many there were to choose from.
        weak = [max(alike, key=lambda here: here.p_value)]
        share *= weak[0].p_value / one.p_value
    for here in weak:
        runs = [part for part in here.parts if part.gap is not None and part.p_value < 1]
        hardest = (max if one.verdict != "contradicted" else min)(
            runs, key=lambda part: part.p_value
        )
        times = (ndtri(share / 2) / ndtri(here.p_value / 2)) ** 2
        wanted.append(more_of(hardest, float(times)))
    return (
        f"{one.verdict} by itself (p = {one.p_value:.2g}), but not after correction over "
        f"{tested} claims; to settle it: {'; '.join(wanted)}"
    )
