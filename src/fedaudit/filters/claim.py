"""Declared guarantee of a filter, and the verdict on it."""

import math
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, format_option

Arrays: TypeAlias = dict[str, np.ndarray]
"""Input or output of a filter: arrays by name, for every kind of filter."""

TOLERANCE = 1e-3
"""Relative excess over a declared value that a check still accepts, to allow for rounding."""

CHANGE_CHECK, NOISELESS_CHECK = "largest change of the output", "outputs without noise"
"""Names of two checks that several modules need."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Declared guarantee of one call of a filter: arguments of :func:`fedaudit.check_dp`."""

    sensitivity: float
    sigma: float
    adjacency: str = "remove"
    noise: str = "gaussian"
    stateful: bool = False
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # For each setting: whether its value is allowed, and what is allowed.
        limits = {
            "sensitivity": (
                0 < self.sensitivity < math.inf,
                "the norm that the filter clips to (twice that with adjacency replace), above 0 "
                "and finite",
            ),
            "sigma": (
                0 <= self.sigma < math.inf,
                "the noise multiplier (0 where noise is added elsewhere), finite and at least 0",
            ),
            "adjacency": (self.adjacency in ("remove", "replace"), "remove or replace"),
            "noise": (self.noise in ("gaussian", "laplace"), "gaussian or laplace"),
        }
        for name, (is_allowed, allowed) in limits.items():
            if not is_allowed:
                raise BadInput(
                    f"{format_option(name)} must be {allowed}, got {getattr(self, name)!r}"
                )

    @property
    def std(self) -> float:
        """Declared standard deviation of the noise on every entry of the output."""
        return self.sigma * self.sensitivity

    @property
    def sentence(self) -> str:
        """The declaration as a sentence without its subject."""
        noise = f"{self.noise} noise" if self.sigma else "no noise added by this filter"
        return (
            f"sensitivity {self.sensitivity:g} ({self.adjacency}), sigma {self.sigma:g}, {noise}."
        )

    def length(self, change: Arrays) -> float:
        """Return the norm of a change over all arrays: L2, or L1 for Laplace noise."""
        return float(np.linalg.norm(flatten(change), 1 if self.noise == "laplace" else 2))


def flatten(arrays: Arrays) -> Float[np.ndarray, " entries"]:
    """Concatenate all entries of all arrays."""
    return np.concatenate([value.ravel() for value in arrays.values()])


class Result(StrEnum):
    """Outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    """The check measured a property that the declaration does not cover."""
    UNTESTED = "not tested"

    @classmethod
    def failed_if(cls, failed: bool) -> "Result":
        """Return ``FAILED`` or ``PASSED``."""
        return cls.FAILED if failed else cls.PASSED


class FilterCheck(NamedTuple):
    """Check of one property of a filter.

    Attributes:
        name: Name of the property.
        result: Outcome of the check.
        measured: Measured value.
        declared: Declared value.
        why: What is wrong if the check fails, as a sentence without a full stop.
        advice: How to correct it.
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
"""Exit codes of the command, with the same meaning as those of the gate."""

_SENTENCES = {
    FilterVerdict.SOUND: "does what is declared, as far as was checked",
    FilterVerdict.BROKEN: "does not do what is declared",
    FilterVerdict.UNCHECKED: "could not be checked",
}
_MARKS = {Result.PASSED: "✓", Result.FAILED: "✗", Result.NOTED: "!", Result.UNTESTED: "?"}
_MAX_LINES, _WIDTH = 40, 80
"""Size of the screen for which an audit is printed."""


@dataclass(frozen=True, repr=False)
class FilterAudit:
    """Result of the audit of a filter; ``print`` shows verdict, table and advice on one screen.

    Attributes:
        filter: Name of the filter.
        kind: Kind of the filter.
        claim: The declared guarantee.
        checks: All checks, the most serious first.
        effort: Size of the inputs, number of draws and probability of a false alarm, as text.
    """

    filter: str
    kind: str
    claim: Claim
    checks: tuple[FilterCheck, ...]
    effort: str

    @property
    def verdict(self) -> FilterVerdict:
        """Broken if a check failed; otherwise not checked if a property could not be tested."""
        results = {check.result for check in self.checks}
        if Result.FAILED in results:
            return FilterVerdict.BROKEN
        return FilterVerdict.UNCHECKED if Result.UNTESTED in results else FilterVerdict.SOUND

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    @property
    def sentence(self) -> str:
        """What the checks show, as the rest of a sentence that begins with the filter's name."""
        return _SENTENCES[self.verdict]

    @property
    def serious(self) -> list[FilterCheck]:
        """The failed checks, or without failed checks those that could not be made."""
        return self.of(Result.FAILED) or self.of(Result.UNTESTED)

    def of(self, result: Result) -> list[FilterCheck]:
        """Return the checks with this result."""
        return [check for check in self.checks if check.result is result]

    def __str__(self) -> str:
        serious = self.serious
        lines = _wrap(f"{self.verdict.upper()}: {self.filter} {self.sentence}.")
        for check in serious[:3]:
            lines += _wrap(f"{check.why[:1].upper()}{check.why[1:]}.", "  ")
        lines += ["", _row(" ", "check", "measured", "declared")]
        lines += [_row(_MARKS[c.result], c.name, c.measured, c.declared) for c in self.checks]
        footer = _wrap(f"Declared: {self.claim.sentence}")
        footer += _wrap(f"Tested with {self.effort}.")
        advice = [*dict.fromkeys(f"To do: {check.advice}" for check in serious)]
        advice += [f"Note: {c.why}. {c.advice}".strip() for c in self.of(Result.NOTED)]
        remarks = [line for paragraph in advice for line in _wrap(paragraph)]
        max_remarks = _MAX_LINES - len(lines) - len(footer) - 2
        if len(remarks) > max_remarks:
            remarks[max_remarks - 1 :] = [
                "(more in the attribute checks of the result of fedaudit.check_dp)"
            ]
        return "\n".join([*lines, *[""] * bool(remarks), *remarks, "", *footer])


def _row(mark: str, *cells: str) -> str:
    widths = (29, 29, 16)
    shortened = (
        cell if len(cell) <= width else f"{cell[: width - 1]}…"
        for cell, width in zip(cells, widths, strict=True)
    )
    return "{} {:29} {:29} {}".format(mark, *shortened).rstrip()


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def format_length(length: float) -> str:
    """Format a norm with four digits, but as a whole number from 1,000 to ten million."""
    return f"{length:,.0f}" if 999.5 <= length < 1e7 else f"{length:.4g}"


def quote_names(names: list[str], separator: str = ", ") -> str:
    """Quote the first three names, and count the others."""
    text = separator.join(map(repr, names[:3]))
    return f"{text} and {len(names) - 3} more" if len(names) > 3 else text
