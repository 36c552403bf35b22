"""A filter on the bench: called with the same draws and the same past as often as asked."""

import math
from collections.abc import Sequence

import numpy as np

from fedaudit.filters.calling import Call, Sent, adapted
from fedaudit.filters.claim import Arrays, Claim
from fedaudit.filters.freezing import Copies, drawing
from fedaudit.filters.noise import Draws, kept

_APART = 1_000_003
"""Between the seeds of one draw and the next, so that two checks of other seeds share none."""


class Bench:
    """One filter with its claim.

    Attributes:
        call: How it is called.
        claim: What is declared of it.
        seed: Of all draws.
    """

    def __init__(self, call: Call, copies: Copies, claim: Claim, *, seed: int) -> None:
        self.call, self.claim, self.seed = call, claim, seed
        self._copies = copies

    def sent(self, values: Arrays, *, draw: int = 1, before: Sequence[Arrays] = ()) -> Sent:
        """What a new filter sends for something, its noise frozen.

        Args:
            values: What it is given.
            draw: Which draws it makes: equal for equal numbers.
            before: What it has been given in earlier rounds.
        """
        filter = self._new()
        with drawing(self.seed + _APART * draw):
            for earlier in before:
                self.call(filter, earlier)
        with drawing(self.seed + _APART * (draw + 1)):
            return self.call(filter, values)

    def drawn(self, values: Arrays, calls: int, *, draw: int) -> Draws:
        """What one filter sends for the same thing in call after call, corners of large arrays."""
        filter = self._new()
        with drawing(self.seed + _APART * draw):
            sent = [self.call(filter, values) for _ in range(calls)]
        return {name: np.stack([kept(s.arrays[name]) for s in sent]) for name in sent[0].arrays}

    def rounding(self, *sent: Sent) -> float:
        """How far outputs may lie apart because they are rounded."""
        return 4 * self.call.form.rounding * sum(length_of(one) for one in sent)

    def _new(self) -> object:
        return adapted(self._copies.fresh(), self.call.kind, self.claim)


def length_of(sent: Sent) -> float:
    """Euclidean length of what was sent."""
    return math.sqrt(sum(float((value**2).sum()) for value in sent.arrays.values()))


def moves(left: Sent, right: Sent) -> Arrays:
    """How each array that was sent differs; one that only one of them has, from nothing."""
    names = left.arrays | right.arrays
    none = np.zeros(())
    return {n: np.asarray(left.arrays.get(n, none) - right.arrays.get(n, none)) for n in names}


def length_between(claim: Claim, left: Sent, right: Sent) -> float:
    """How far two outputs lie apart, in the length that the sensitivity is declared in."""
    return claim.length(np.concatenate([change.ravel() for change in moves(left, right).values()]))


def is_finite(sent: Sent) -> bool:
    """True if every entry is a number."""
    return all(bool(np.isfinite(value).all()) for value in sent.arrays.values())
