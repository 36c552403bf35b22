"""Possible outcomes of a comparison with a ceiling, and rules that combine them."""

import re
from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of an estimate, a check or the gate; NOT_REFUTED is only for lower bounds."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_REFUTED = "not refuted"


_BY_SEVERITY = (Outcome.NOT_REFUTED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL)

EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}
"""Exit codes of the command. Exit code 2 is for errors, such as an invalid file."""


def severity(outcome: Outcome) -> int:
    """Return a sort key, which is higher for worse outcomes."""
    return _BY_SEVERITY.index(outcome)


def compare_limits(low: float | None, high: float | None, ceiling: float) -> Outcome:
    """Return PASS if the upper limit is at or below the ceiling, FAIL if the lower is above it."""
    if high is not None and high <= ceiling:
        return Outcome.PASS
    if low is not None and low > ceiling:
        return Outcome.FAIL
    return Outcome.INCONCLUSIVE


def compare_bound(bound: float, ceiling: float) -> Outcome:
    """Return FAIL if a lower bound is above the ceiling, and NOT_REFUTED otherwise."""
    return Outcome.FAIL if bound > ceiling else Outcome.NOT_REFUTED


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of several outcomes; INCONCLUSIVE for an empty list."""
    return max(outcomes, key=severity, default=Outcome.INCONCLUSIVE)


def confidence_level(method: str) -> float | None:
    """Return the confidence level in a method's description, in [0, 1]; None without a level."""
    match = re.search(r"(\d{1,3}(?:\.\d{1,12})?)\s?%", method)
    return float(match[1]) / 100 if match else None
