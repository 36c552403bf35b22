"""The verdict in plain words: one paragraph, and what its limits are corrected for."""

from collections.abc import Sequence

from fedaudit.gate.ceilings import judged_attacks
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import Policy
from fedaudit.gate.verdict import Check, Held
from fedaudit.report.grid import shortened
from fedaudit.report.words import capital, interval, plural, sentence, shown
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import Record

MOST_TOLD = 3
_BOUNDS = (
    "Lower bounds on epsilon refute nothing here; they can show that a budget is exceeded and "
    "never that it is kept."
)


def paragraph(record: str, policy: str, outcome: Outcome, checks: Sequence[Check]) -> str:
    """Reason why the verdict is what it is, for somebody who has not read the record.

    Args:
        record: Name of the record.
        policy: Name of the policy.
        outcome: Of the gate.
        checks: All of them.
    """
    names = f"“{shortened(record, 80)}” under the policy “{shortened(policy, 80)}”"
    ceilings = [check for check in checks if check.ceiling is not None]
    parts = [f"{outcome.upper()}: {names}."]
    if outcome is Outcome.PASS:
        parts += _passed(ceilings)
    else:
        parts += _told(checks, Outcome.FAIL, "Failed")
        parts += _told(checks, Outcome.INCONCLUSIVE, "Not settled")
        parts += [] if any(_holds(c) for c in checks) else ["No ceiling was kept by any limit."]
    if any(check.outcome is Outcome.NOT_REFUTED for check in checks):
        parts.append(_BOUNDS)
    return " ".join(parts)


def figure_text(held: Held, metric: str) -> str:
    """A figure with its limits: "0.612 (0.58–0.64)"."""
    limits = interval(held.low, held.high, metric)
    value = shown(held.value, metric) if held.value is not None else "no figure"
    return f"{value} ({limits})" if limits and held.low != held.high else value


def correction(record: Record, policy: Policy, checks: Sequence[Check]) -> str:
    """The corrections that the limits of a study's figures have, and those that they lack."""
    figures = sum(check.figures for check in checks)
    sure = f"{100 * policy.evidence.confidence:.6g}%"
    said = (
        f"Limits are the record's own, at {sure} or more each, and are not corrected for the "
        f"{plural(figures, 'figure')} looked at. A pass needs no correction: every figure must "
        "pass by itself, so that one that is truly above its ceiling gets by no more often than "
        "its own limits are wrong. That one of many fails by chance is more likely than for one "
        "alone."
    )
    if judged_attacks(record, policy.membership) or policy.sources is not None:
        said += (
            " A figure above its ceiling fails only if the record's own test, corrected over the "
            f"study (Holm, {100 * alpha_of(record):g}%), does not leave open that it is guessing."
        )
    if policy.membership is not None and policy.membership.epsilon is not None:
        said += (
            " Attacks' lower bounds on epsilon share one error over all attacks, clients and seeds."
        )
    return said


def of_games() -> str:
    """The corrections that the limits of games have."""
    return (
        "Limits of games won are the record's own, 95% at each point, not corrected for the number "
        "of points; a pass needs all of them. Bounds on epsilon are made anew from the record's "
        "counts, with an error of 5% shared by all points that are judged."
    )


def _passed(ceilings: Sequence[Check]) -> list[str]:
    kept = [check for check in ceilings if check.outcome is Outcome.PASS]
    figures = sum(check.figures for check in kept)
    nearest = max(kept, key=_used)
    return [
        f"All {plural(figures, 'figure')} under {plural(len(kept), 'ceiling')} have upper limits "
        "at or below them, and all else that the policy asks for is there. Nearest to its ceiling: "
        f"{_worst(nearest)}, where {_most(nearest)} is allowed."
    ]


def _used(check: Check) -> float:
    """Share of its ceiling that the worst figure's upper limit uses."""
    high = check.worst.high if check.worst and check.worst.high is not None else 0.0
    return high / check.ceiling if check.ceiling else float(high > 0)


def _told(checks: Sequence[Check], outcome: Outcome, title: str) -> list[str]:
    """The checks with an outcome, the first few by name."""
    found = [check for check in checks if check.outcome is outcome]
    if not found:
        return []
    more = len(found) - MOST_TOLD
    return [
        f"{title} ({len(found)} of {plural(len(checks), 'check')}).",
        *(sentence(capital(_why(check))) for check in found[:MOST_TOLD]),
        *([f"And {plural(more, 'more check')}, named in the table."] if more > 0 else []),
    ]


def _why(check: Check) -> str:
    """A check in a sentence: the worst figure, how many others, and what would settle it."""
    worst = check.worst
    if worst is None or check.ceiling is None:
        return f"{check.name}: {check.reason}"
    number = check.outcomes.get(str(check.outcome), 0)
    counted = f" ({number} of {check.figures} figures {check.outcome})" if check.figures > 1 else ""
    said = f"{_worst(check)}, where {_most(check)} is allowed{counted}"
    # What settles all of them settles the worst one too.
    settles = worst.more.text if worst.more and not (check.needs and worst.more.count) else ""
    return "; ".join(filter(None, [said, check.reason, settles, check.needs]))


def _worst(check: Check) -> str:
    if check.worst is None:
        return check.name
    return f"{check.name}: {figure_text(check.worst, check.metric)} for {check.worst.what}"


def _most(check: Check) -> str:
    return shown(check.ceiling, check.metric)


def _holds(check: Check) -> bool:
    return check.outcome in (Outcome.PASS, Outcome.FAIL) and check.ceiling is not None
