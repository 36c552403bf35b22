"""Outcomes of comparing limits with a ceiling."""

import re
from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of a figure, a check or the gate; NOT_REFUTED is for lower bounds only."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_REFUTED = "not refuted"


_GRAVITY = (Outcome.NOT_REFUTED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL)

EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}
"""Exit codes of the command. 2 is for errors, such as a file that is not a record."""


def gravity(outcome: Outcome) -> int:
    """Sort key: outcomes that stop a release come last."""
    return _GRAVITY.index(outcome)


def compare_limits(low: float | None, high: float | None, ceiling: float) -> Outcome:
    """Return PASS if the upper limit is at or below the ceiling, FAIL if the lower is above it."""
    if high is not None and high <= ceiling:
        return Outcome.PASS
    if low is not None and low > ceiling:
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE


def compare_bound(bound: float, ceiling: float) -> Outcome:
    """Compare a lower bound with a ceiling: it can fail, and never pass."""
    return Outcome.FAIL if bound > ceiling else Outcome.NOT_REFUTED


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of several outcomes; INCONCLUSIVE for an empty list.

    A check of lower bounds alone is NOT_REFUTED.
    """
    return max(outcomes, key=gravity, default=Outcome.INCONCLUSIVE)


def level(method: str) -> float | None:
    """Return the confidence that a method states, as a share; None without one."""
    match = re.search(r"(\d{1,3}(?:\.\d{1,12})?)\s?%", method)
    return float(match[1]) / 100 if match else None
