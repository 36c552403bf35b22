"""What is declared of a filter, and what a check of it says."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from fedaudit.core.errors import BadInput, option

Arrays: TypeAlias = dict[str, np.ndarray]
"""What goes into a filter or comes out of it, by name, whatever form the filter has it in."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a filter is said to guarantee for one release.

    Attributes:
        sensitivity: The farthest that one contribution moves the output without its noise: in
            Euclidean length, and for Laplace noise in the sum of absolute values.
        sigma: Standard deviation of the noise on every entry, in units of the sensitivity; 0 says
            that noise is added elsewhere, as by a server.
        adjacency: What one contribution is: "remove", there or not, so that an update is held
            against zeros; "replace", any update against any other, which is twice as far.
        noise: Its distribution.
        stateful: Whether what was seen in earlier rounds may change a release, as in adaptive
            clipping.
        elsewhere: Names of what is sent beside the arrays and made private by somebody else.
    """

    sensitivity: float
    sigma: float
    adjacency: str = "remove"
    noise: str = "gaussian"
    stateful: bool = False
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sensitivity < math.inf:
            raise BadInput(
                f"{option('sensitivity')} is the farthest that one contribution moves the output, "
                f"above 0 and finite, got {self.sensitivity}; for a filter that clips to a length, "
                "give that length (and its double with adjacency replace)"
            )
        if not 0 <= self.sigma < math.inf:
            raise BadInput(
                f"{option('sigma')} is the noise's standard deviation in units of the sensitivity, "
                f"finite and at least 0, got {self.sigma}; give 0 where the noise is added "
                "elsewhere"
            )
        for name, given, known in (
            ("adjacency", self.adjacency, ("remove", "replace")),
            ("noise", self.noise, ("gaussian", "laplace")),
        ):
            if given not in known:
                raise BadInput(f"{option(name)} is {' or '.join(known)}, got {given!r}")

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every entry, in the output's own units."""
        return self.sigma * self.sensitivity

    def length(self, change: Float[np.ndarray, " entries"]) -> float:
        """How far a change goes, in the length that the sensitivity is declared in."""
        return float(np.abs(change).sum() if self.noise == "laplace" else np.linalg.norm(change))


def in_words(length: float) -> str:
    """A length with four digits, and without a power of ten where it is readable."""
    return f"{length:,.0f}" if 999.5 <= length < 1e7 else f"{length:.4g}"


class Result(StrEnum):
    """What became of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOTED = "noted"
    """Worth knowing, and nothing that was declared."""
    UNTESTED = "not tested"


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What it is.
        measured: What was found, in few words.
        declared: What was declared of it, in few words.
        result: Whether they agree.
        why: A sentence for where they do not; empty if they do.
        advice: What to do then.
    """

    name: str
    measured: str
    declared: str
    result: Result
    why: str = ""
    advice: str = ""


class Verdict(StrEnum):
    """What a filter was found to be."""

    SOUND = "sound"
    BROKEN = "broken"
    UNCHECKED = "not checked"


EXIT_CODES = {Verdict.SOUND: 0, Verdict.BROKEN: 1, Verdict.UNCHECKED: 3}
"""As the gate's: 0 pass, 1 fail, 3 inconclusive."""


@dataclass(frozen=True)
class FilterAudit:
    """What a check of a filter found.

    Attributes:
        filter: Its name.
        kind: What it was taken for.
        claim: What was declared.
        checks: All that was looked at, the gravest first.
        effort: What it was tried on, and with what error.
    """

    filter: str
    kind: str
    claim: Claim
    checks: tuple[Check, ...]
    effort: str

    @property
    def verdict(self) -> Verdict:
        """Broken if a check failed, and not checked if one could not be made."""
        results = {check.result for check in self.checks}
        if Result.FAILED in results:
            return Verdict.BROKEN
        return Verdict.UNCHECKED if Result.UNTESTED in results else Verdict.SOUND

    def of(self, result: Result) -> list[Check]:
        """The checks with this result."""
        return [check for check in self.checks if check.result is result]

    def __str__(self) -> str:
        from fedaudit.filters.words import told

        return "\n".join(told(self))
