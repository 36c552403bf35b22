"""Outcome of a policy in the words of a summary (:mod:`fedaudit.report.summary`)."""

from pathlib import Path

from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.outcome import Outcome, gravity
from fedaudit.gate.policy import read_policy
from fedaudit.gate.reasons import figure_text
from fedaudit.gate.verdict import Check, Verdict
from fedaudit.report.grid import shortened
from fedaudit.report.summary import PolicyOutcome, Rule
from fedaudit.report.words import capital, plural, shown
from fedaudit.results.record import Record

_WORDS = {
    Outcome.PASS: "✓ kept",
    Outcome.FAIL: "✗ broken",
    Outcome.INCONCLUSIVE: "? undecided",
    Outcome.NOT_REFUTED: "– not refuted",
}
_LONG = 240


def judged(record: Record, policy: Path) -> PolicyOutcome:
    """Return the outcome of a policy for a record as a summary prints it.

    Args:
        record: The record that is summarised.
        policy: File of the policy.

    Raises:
        BadInput: The file is no policy.
    """
    return policy_outcome(evaluate_policy(record, read_policy(policy)))


def policy_outcome(verdict: Verdict) -> PolicyOutcome:
    """Return the outcome of a policy as a summary prints it, the gravest rule first.

    Args:
        verdict: Of the policy on the record that is summarised.
    """
    ranked = sorted(verdict.checks, key=lambda check: gravity(check.outcome), reverse=True)
    met = [item for item in ranked if item.ceiling is None and item.outcome is Outcome.PASS]
    return PolicyOutcome(
        verdict.policy,
        verdict.policy_hash,
        str(verdict.outcome),
        tuple(_rule(check) for check in ranked if check not in met),
        tuple(shortened(check.name, 80) for check in met),
        tuple(shortened(item, _LONG) for item in verdict.unjudged),
    )


def _rule(check: Check) -> Rule:
    name, outcome = shortened(capital(check.name), 120), _WORDS[check.outcome]
    if check.ceiling is None or check.worst is None:
        allowed = "" if check.ceiling is None else shown(check.ceiling, check.metric)
        return Rule(outcome, name, allowed, "", shortened(check.reason, _LONG))
    worst = check.worst
    number = check.outcomes.get(str(check.outcome), 0)
    of = f"{number} of {plural(check.figures, 'figure')}" if check.figures > 1 else ""
    why = "; ".join(filter(None, (worst.what, of, worst.reason, _settling(check))))
    return Rule(
        outcome,
        name,
        shown(check.ceiling, check.metric),
        figure_text(worst, check.metric),
        shortened(why, _LONG),
    )


def _settling(check: Check) -> str:
    """Return what would settle an undecided rule; empty for a decided one."""
    if check.outcome is not Outcome.INCONCLUSIVE:
        return ""
    more = check.worst.more if check.worst else None
    return check.needs or (more.text if more else "")
