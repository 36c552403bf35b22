"""One figure with limits, held against a ceiling."""

import re
from collections.abc import Callable
from typing import NamedTuple

from fedaudit.gate.outcome import Outcome, against
from fedaudit.gate.sample_size import RequiredSamples
from fedaudit.gate.verdict import Held

EXACT = "Clopper-Pearson 95%"
"""How limits were made that a record states no method of."""
_SLACK = 1e-9


class Limits(NamedTuple):
    """A figure as a record has it.

    Attributes:
        value: The figure; None where it was refused.
        low: Lower limit; None without one.
        high: Upper limit; None without one.
        method: How they were made, with their level.
    """

    value: float | None
    low: float | None
    high: float | None
    method: str = EXACT


def check_limit(
    what: str,
    limits: Limits,
    ceiling: float,
    *,
    confidence: float,
    doubt: str = "",
    more: Callable[[], RequiredSamples | None] = lambda: None,
    note: str = "",
) -> Held:
    """A figure held against a ceiling; a refused or absent one never passes.

    Args:
        what: Which figure, in words.
        limits: The figure with its limits.
        ceiling: The most that is allowed.
        confidence: That the limits must have.
        doubt: Why a figure above the ceiling cannot be believed; empty where it can.
        more: Says what would settle the figure; asked only where it is not settled.
        note: What the record says of a figure that it refused.
    """
    outcome, reason = _outcome(limits, ceiling, confidence, doubt, note)
    # Where the limits decide and something else stands against it, no sample would settle it.
    open_still = outcome is Outcome.INCONCLUSIVE and _undecided(limits, ceiling, confidence)
    return Held(
        what=what,
        value=limits.value,
        low=limits.low,
        high=limits.high,
        method=limits.method if limits.value is not None else "",
        outcome=outcome,
        reason=reason,
        more=more() if open_still else None,
    )


def absent(what: str, reason: str) -> Held:
    """A figure that the policy asks for and the record does not have."""
    return Held(what=what, value=None, outcome=Outcome.INCONCLUSIVE, reason=reason)


def level(method: str) -> float | None:
    """The confidence that a method states, as a share; None where it states none."""
    found = re.search(r"(\d{1,3}(?:\.\d{1,12})?)\s?%", method)
    return float(found[1]) / 100 if found else None


def _outcome(
    limits: Limits, ceiling: float, confidence: float, doubt: str, note: str
) -> tuple[Outcome, str]:
    if limits.value is None:
        return Outcome.INCONCLUSIVE, note or "the record refuses this figure"
    if limits.low is None and limits.high is None:
        return Outcome.INCONCLUSIVE, f"no interval: {limits.method or note or 'none was made'}"
    stated = level(limits.method)
    if stated is None or stated < confidence - _SLACK:
        said = "no confidence" if stated is None else f"{stated:.6g}"
        return Outcome.INCONCLUSIVE, (
            f"its limits state {said}, and the policy asks for {confidence:g}"
        )
    outcome = against(limits.low, limits.high, ceiling)
    if outcome is Outcome.FAIL and doubt:
        return Outcome.INCONCLUSIVE, f"above the ceiling, but {doubt}"
    return outcome, ""


def _undecided(limits: Limits, ceiling: float, confidence: float) -> bool:
    if limits.value is None:
        return True  # a sample that is too small may be why
    stated = level(limits.method)
    enough = stated is not None and stated >= confidence - _SLACK
    return enough and against(limits.low, limits.high, ceiling) is Outcome.INCONCLUSIVE
