"""Declared guarantee of a filter, and the verdict on it."""

import math
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fedaudit.core.errors import BadInput, option

Arrays: TypeAlias = dict[str, np.ndarray]
"""Input or output of a filter, by name, whatever form the filter has it in."""

EXACT = 1e-3
"""Relative error up to which a length or a standard deviation is as declared: rounding."""


MOVE, UNNOISED = "largest change of the output", "outputs without noise"
"""Names of checks that are looked up."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Declared guarantee of one release, in the arguments of :func:`fedaudit.check_dp`."""

    sensitivity: float
    sigma: float
    adjacency: str = "remove"
    noise: str = "gaussian"
    stateful: bool = False
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        limits = {
            "sensitivity": (
                0 < self.sensitivity < math.inf,
                "the length that a filter clips to (its double with adjacency replace), above 0 "
                "and finite",
            ),
            "sigma": (
                0 <= self.sigma < math.inf,
                "the noise multiplier (0 where noise is added elsewhere), finite and at least 0",
            ),
            "adjacency": (self.adjacency in ("remove", "replace"), "remove or replace"),
            "noise": (self.noise in ("gaussian", "laplace"), "gaussian or laplace"),
        }
        for name, (fits, allowed) in limits.items():
            if not fits:
                raise BadInput(f"{option(name)} is {allowed}, got {getattr(self, name)!r}")

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every entry, in units of the output."""
        return self.sigma * self.sensitivity

    def length(self, change: Arrays) -> float:
        """Return the length of a change over all arrays: L2, or L1 for Laplace noise."""
        return float(np.linalg.norm(flat(change), 1 if self.noise == "laplace" else 2))


def flat(arrays: Arrays) -> Float[np.ndarray, " entries"]:
    """Concatenate all entries of all arrays."""
    return np.concatenate([value.ravel() for value in arrays.values()])


class Result(StrEnum):
    """Outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    """Worth knowing, but no part of the declaration."""
    UNTESTED = "not tested"

    @classmethod
    def judged(cls, *, failed: bool) -> "Result":
        """Return failed or passed."""
        return cls.FAILED if failed else cls.PASSED


class FilterCheck(NamedTuple):
    """One property of a filter, measured and declared.

    Attributes:
        name: The property.
        result: Whether measurement and declaration agree.
        measured: The measurement.
        declared: The declaration.
        why: A sentence on the disagreement.
        advice: A remedy.
    """

    name: str
    result: Result
    measured: str
    declared: str = ""
    why: str = ""
    advice: str = ""


class FilterVerdict(StrEnum):
    """Verdict on a filter."""

    SOUND = "sound"
    BROKEN = "broken"
    UNCHECKED = "not checked"


EXIT_CODES = {FilterVerdict.SOUND: 0, FilterVerdict.BROKEN: 1, FilterVerdict.UNCHECKED: 3}
"""As the gate's: 0 pass, 1 fail, 3 inconclusive."""

_SENTENCES = {
    FilterVerdict.SOUND: "does what is declared, as far as was checked",
    FilterVerdict.BROKEN: "does not do what is declared",
    FilterVerdict.UNCHECKED: "could not be checked",
}
_MARKS = {Result.PASSED: "✓", Result.FAILED: "✗", Result.NOTED: "!", Result.UNTESTED: "?"}
_MOST_LINES, _WIDTH = 40, 80


@dataclass(frozen=True)
class FilterAudit:
    """Checks of a filter; printed as verdict, table and advice on one screen.

    Attributes:
        filter: Name of the filter.
        kind: Kind of the filter.
        claim: The declared guarantee.
        checks: All checks, the most serious first.
        effort: Inputs and draws of the audit, and its error.
    """

    filter: str
    kind: str
    claim: Claim
    checks: tuple[FilterCheck, ...]
    effort: str

    @property
    def verdict(self) -> FilterVerdict:
        """Broken if a check failed, and not checked if one could not be made."""
        results = {check.result for check in self.checks}
        if Result.FAILED in results:
            return FilterVerdict.BROKEN
        return FilterVerdict.UNCHECKED if Result.UNTESTED in results else FilterVerdict.SOUND

    def of(self, result: Result) -> list[FilterCheck]:
        """Return the checks with this result."""
        return [check for check in self.checks if check.result is result]

    def __str__(self) -> str:
        claim, graver = self.claim, self.of(Result.FAILED) or self.of(Result.UNTESTED)
        lines = _wrapped(f"{self.verdict.upper()}: {self.filter} {_SENTENCES[self.verdict]}.")
        for check in graver[:3]:
            lines += _wrapped(f"{check.why[:1].upper()}{check.why[1:]}.", "  ")
        lines += ["", _row(" ", "check", "measured", "declared")]
        lines += [_row(_MARKS[c.result], c.name, c.measured, c.declared) for c in self.checks]
        noise = f"{claim.noise} noise" if claim.sigma else "so no noise here"
        tail = _wrapped(
            f"Declared: sensitivity {claim.sensitivity:g} ({claim.adjacency}), "
            f"sigma {claim.sigma:g}, {noise}."
        )
        tail += _wrapped(f"Tried on {self.effort}.")
        advice = [*dict.fromkeys(f"To do: {check.advice}" for check in graver)]
        advice += [f"Note: {c.why}. {c.advice}".strip() for c in self.of(Result.NOTED)]
        remarks = [line for paragraph in advice for line in _wrapped(paragraph)]
        room = _MOST_LINES - len(lines) - len(tail) - 2
        if len(remarks) > room:
            remarks[room - 1 :] = ["and more, in the checks of the result of fedaudit.check_dp"]
        return "\n".join([*lines, *[""] * bool(remarks), *remarks, "", *tail])


def _row(mark: str, *cells: str) -> str:
    sized = zip(cells, (29, 29, 16), strict=True)
    cut = (c if len(c) <= size else f"{c[: size - 1]}…" for c, size in sized)
    return "{} {:29} {:29} {}".format(mark, *cut).rstrip()


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def in_words(length: float) -> str:
    """Format a length with four digits, without a power of ten if it is readable."""
    return f"{length:,.0f}" if 999.5 <= length < 1e7 else f"{length:.4g}"


def listed(names: list[str], between: str = ", ") -> str:
    """Quote the first three names, and count the others."""
    text = between.join(map(repr, names[:3]))
    return f"{text} and {len(names) - 3} more" if len(names) > 3 else text
