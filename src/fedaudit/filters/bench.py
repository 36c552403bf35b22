"""A filter on the bench: called with the same draws and the same past as often as asked."""

import math
from collections.abc import Sequence

import numpy as np

from fedaudit.core.errors import BadInput
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
        found: list[Arrays] = []
        with drawing(self.seed + _APART * draw):
            for _ in range(calls):
                sent = self.call(filter, values).arrays
                # A copy, since a view would keep the whole.
                found.append({name: kept(value).copy() for name, value in sent.items()})
        names = dict.fromkeys(name for one in found for name in one)
        return {name: _stacked([one.get(name) for one in found]) for name in names}

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
    return {
        name: np.asarray(
            np.diff(_stacked([right.arrays.get(name), left.arrays.get(name)]), axis=0)[0]
        )
        for name in left.arrays | right.arrays
    }


def _stacked(values: list[np.ndarray | None]) -> np.ndarray:
    """An array of several calls; where one was not sent, zeros.

    Raises:
        BadInput: They are of several shapes.
    """
    shapes = {value.shape for value in values if value is not None}
    if len(shapes) > 1:
        raise BadInput(
            f"the filter sends arrays of one name in shapes {shapes}, which cannot be compared; "
            "check what it does before it changes their shapes"
        )
    nothing = np.zeros(shapes.pop())
    return np.stack([nothing if value is None else value for value in values])


def length_between(claim: Claim, left: Sent, right: Sent) -> float:
    """How far two outputs lie apart, in the length that the sensitivity is declared in."""
    return claim.length(np.concatenate([change.ravel() for change in moves(left, right).values()]))


def is_finite(sent: Sent) -> bool:
    """True if every entry is a number."""
    return all(bool(np.isfinite(value).all()) for value in sent.arrays.values())
