"""Ledger of the open claims: why each is open, and the cheapest way to decide it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from docs.claims.data import Paper
from docs.claims.judging import ERROR, ClaimResult, PartResult, judge_paper, needed_regimes
from docs.claims.routes import cheapest, is_level, share_of_error, what_decides

REASONS = (
    "decided without correction",
    "regimes differ, but not significantly",
    "no regime leaks",
    "one seed",
    "too few regimes that count",
    "no interval",
    "at most 3 times the runs or samples",
    "at most 10 times",
    "at most 50 times",
    "more than 50 times",
    "on the margin",
)
"""Reasons why a claim is open, in the order in which they are tested."""
_FACTORS = {3: REASONS[6], 10: REASONS[7], 50: REASONS[8]}


class OpenClaim(NamedTuple):
    """Open claim with its reason and its cheapest route to a verdict."""

    paper: str
    claim: str
    reason: str
    # Core hours; None if no route is known.
    hours: float | None
    settles: str


def open_claims(judged: Sequence[tuple[Paper, Sequence[ClaimResult]]]) -> Iterator[OpenClaim]:
    """Yield the open claims of all papers."""
    for paper, results in judged:
        for result in results:
            if result.verdict == "open":
                share = share_of_error(results, result.claim)
                route = cheapest(result, share)
                yield OpenClaim(
                    paper.name,
                    result.claim.id,
                    reason_of(result, share),
                    None if route is None else route.hours,
                    what_decides(result, share),
                )


def reason_of(result: ClaimResult, share: float) -> str:
    """Return why a claim is open."""
    if result.by_itself != "open" and result.p_value is not None:
        return REASONS[1] if result.p_value > ERROR else REASONS[0]
    counted = result.counted
    if not counted:
        return REASONS[3] if any(r.wanting == "seeds" for r in result.held) else REASONS[2]
    route = cheapest(result, share)
    if route is None:
        lacks_limits = any(_has_no_limits(part) for regime in counted for part in regime.parts)
        return REASONS[5] if lacks_limits else REASONS[4]
    needs = [(step.part, step.times) for step in route.steps if step.part is not None]
    if any(is_level(part, times) for part, times in needs):
        return REASONS[10]
    if len(counted) < needed_regimes(result.claim):
        return REASONS[4]
    return next((text for most, text in _FACTORS.items() if route.times <= most), REASONS[9])


def price_words(result: ClaimResult, share: float) -> str:
    """Return the cost of deciding an open claim in a few words; empty if it is decided."""
    if result.verdict == "not run":
        return "not run"
    if result.verdict == "not found at this scale":
        return "runs at the paper's scale"
    if result.verdict != "open":
        return ""
    route = cheapest(result, share)
    if route is None:
        return reason_of(result, share)
    needs = [(step.part, step.times) for step in route.steps if step.part is not None]
    if any(is_level(part, times) for part, times in needs):
        return "on the margin"
    return f"{route.hours:.1f} core hours" if route.hours >= 0.05 else "under 0.1 core hours"


def _has_no_limits(part: PartResult) -> bool:
    return part.gap is not None and part.gap.low is None


NOTE = (
    "Core hours are those of training; attacks and evaluation take two to three times as long. "
    "Runs that are added for a claim use seeds that no earlier result contains, and form a regime "
    "of their own (decision 42, rule 4). A claim that is shown not to hold in a federation that is "
    "smaller than the paper's becomes *not found at this scale*.\n"
)


def ledger(papers: Sequence[Paper]) -> str:
    """Return the open claims as a Markdown table, after a table with their number by reason."""
    claims = list(open_claims([(paper, judge_paper(paper)) for paper in papers]))
    numbers = Counter(claim.reason for claim in claims)
    lines = ["| why open | claims |", "| --- | --- |"]
    lines += [f"| {reason} | {numbers[reason]} |" for reason in REASONS if numbers[reason]]
    lines += [f"| all | {len(claims)} |", "", NOTE]
    lines += ["| claim | why open | core hours | what would decide it |", "| --- " * 4 + "|"]
    by_price = sorted(
        claims, key=lambda claim: float("inf") if claim.hours is None else claim.hours
    )
    for claim in by_price:
        hours = "–" if claim.hours is None else f"{claim.hours:.2f}"
        lines.append(f"| `{claim.claim}` | {claim.reason} | {hours} | {claim.settles} |")
    return "\n".join(lines)
