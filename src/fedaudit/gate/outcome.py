"""Outcomes of holding limits against a ceiling."""

import re
from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """Of a figure, of a check, or of the gate; NOT_REFUTED is of lower bounds alone."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_REFUTED = "not refuted"


_GRAVITY = (Outcome.NOT_REFUTED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL)

EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}
"""Of the command; 2 is left to refusals, such as a file that is no record."""


def gravity(outcome: Outcome) -> int:
    """Sort key: what holds a release back comes last."""
    return _GRAVITY.index(outcome)


def against(low: float | None, high: float | None, ceiling: float) -> Outcome:
    """Limits held against a ceiling.

    Args:
        low: Lower limit; None where there is none.
        high: Upper limit; None where there is none, and nothing can pass.
        ceiling: The most that is allowed, itself included.

    Returns:
        PASS where the upper limit is at or below the ceiling, FAIL where the lower limit is above
        it. To raise a ceiling never makes a fail of a pass.
    """
    if high is not None and high <= ceiling:
        return Outcome.PASS
    if low is not None and low > ceiling:
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE


def bound_against(bound: float, ceiling: float) -> Outcome:
    """A lower bound held against a ceiling: it can fail, and never pass."""
    return Outcome.FAIL if bound > ceiling else Outcome.NOT_REFUTED


def gravest(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several: all must pass, and something must.

    Of nothing, or of lower bounds alone, nothing is concluded at the level of a gate; a check of
    lower bounds alone is NOT_REFUTED.
    """
    return max(outcomes, key=gravity, default=Outcome.INCONCLUSIVE)


def level(method: str) -> float | None:
    """The confidence that a method states, as a share; None where it states none."""
    found = re.search(r"(\d{1,3}(?:\.\d{1,12})?)\s?%", method)
    return float(found[1]) / 100 if found else None
