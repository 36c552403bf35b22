"""Turning bits at random, each with a probability of its own, and what that hides."""

from dataclasses import dataclass
from functools import cached_property
from math import fsum

import torch
from jaxtyping import Bool, Float64, Int16
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.defenses.ldp.encoding import packed, unpacked

COINS = 8
"""Tossed for every bit; the one bit in 256 that is still open then gets a draw of its own.

With 6 or 10 of them drawing is slower, by little.
"""

_UNIT = 2.0**-53
"""Step of torch's draws in double precision."""


@dataclass(frozen=True, eq=False)
class BitFlips:
    """Probability that each bit of a record is turned, whatever the other bits are.

    Attributes:
        drops: Probability that a 1 becomes 0, for each bit of each feature.
        sets: Probability that a 0 becomes 1.
    """

    drops: Float64[Tensor, "features bits"]
    sets: Float64[Tensor, "features bits"]

    def __post_init__(self) -> None:
        for chances in (self.drops, self.sets):
            if not bool(((chances >= 0) & (chances <= 1)).all()):
                raise BadInput("bits are turned with probabilities in [0, 1]; got others")

    @cached_property
    def epsilons(self) -> Float64[Tensor, "features bits"]:
        """Epsilon of each bit: the largest log ratio of an outcome's two probabilities.

        Of the probabilities that are really drawn with, over both outcomes and both directions;
        infinite where an outcome is possible for one value of the bit alone.
        """
        drops, sets = really_drawn(self.drops), really_drawn(self.sets)
        ones = _log_ratio(torch.log1p(-drops), sets.log())
        zeros = _log_ratio(drops.log(), torch.log1p(-sets))
        return torch.maximum(ones, zeros)

    @property
    def actual_epsilon(self) -> float:
        """Of a whole record: the largest log ratio over all pairs of inputs and all outputs.

        Bits are turned independently and every word is some feature's, so that it is the sum.
        """
        return fsum(self.epsilons.flatten().tolist())

    @cached_property
    def bits(self) -> int:
        """Of one feature."""
        return self.drops.shape[1]

    @cached_property
    def symmetric(self) -> bool:
        """True if a bit is turned with one probability, whatever its value."""
        return torch.equal(self.drops, self.sets)

    @cached_property
    def _expansions(self) -> tuple["_Expansion", "_Expansion"]:
        return _expanded(self.drops), _expanded(self.sets)

    def digit(
        self, place: int, words: Int16[Tensor, "records features"]
    ) -> Int16[Tensor, "_ features"]:
        """One binary digit of every bit's probability of being turned.

        Args:
            place: 0 for the halves.
            words: The bits' values.
        """
        drops, sets = (expansion.digits[place : place + 1] for expansion in self._expansions)
        return sets if self.symmetric else sets ^ (words & (drops ^ sets))

    def rest(
        self, feature: Tensor, bit: Tensor, one: Bool[Tensor, " open"]
    ) -> Float64[Tensor, " open"]:
        """The probability with which bits are turned that all coins have left open.

        Args:
            feature: Of each such bit.
            bit: Its place in the feature.
            one: Its value.
        """
        drops, sets = (expansion.rest[feature, bit] for expansion in self._expansions)
        return torch.where(one, drops, sets)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """Probabilities as binary digits, a word a feature and place, and what is left after them."""

    digits: Int16[Tensor, "places features"]
    rest: Float64[Tensor, "features bits"]


def _expanded(chances: Float64[Tensor, "features bits"]) -> _Expansion:
    """The first digits; doubling and taking away 1 are exact, and so is what is left.

    1 is 0.111... with 1 left over, so that what is certain happens for certain.
    """
    digits = []
    for _ in range(COINS):
        chances = chances * 2
        digit = chances >= 1
        chances = chances - digit.double()
        digits.append(packed(digit))
    return _Expansion(torch.stack(digits), chances)


def really_drawn(chances: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """The probabilities that :func:`flipped` turns bits with when asked for these.

    The same from 2^-8 on; below, rounded up to a multiple of 2^-61.
    """
    places = 2.0**COINS
    whole = (chances * places).floor()
    return (whole + ((chances * places - whole) / _UNIT).ceil() * _UNIT) / places


def flipped(
    words: Int16[Tensor, "records features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "records features"]:
    """Turns bits, independently for every record and bit.

    A coin is tossed for every binary digit of a probability: the first heads says which digit
    decides, so that a bit is turned with exactly that probability and a few coins mostly do.
    The coins of a feature's bits are one random word.

    Args:
        words: Features as :meth:`~fedaudit.defenses.ldp.encoding.FixedPoint.words` has them.
        flips: Of as many features.
        rng: Of the draws.
    """
    words = words.contiguous()
    open = torch.full_like(words, -1 if flips.bits == 16 else (1 << flips.bits) - 1)
    turned = torch.zeros_like(words)
    for place in range(COINS):
        heads = random_words(words.numel(), rng).view_as(words)
        heads &= open
        open ^= heads
        turned |= heads.bitwise_and_(flips.digit(place, words))
    late = open.flatten().nonzero().squeeze(1)
    turned.view(-1)[late] |= _turned_late(words, open, late, flips, rng)
    return turned.bitwise_xor_(words)


def flipped_alike(
    words: Int16[Tensor, "records features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "records features"]:
    """Turns bits by one draw for each bit of a feature, the same for all records.

    Whoever knows one of the records knows the mask of all others: nothing is hidden.

    Args:
        words: As for :func:`flipped`.
        flips: Of as many features.
        rng: Of the draws.

    Source: AMI, published code (one mask, broadcast over the batch).
    """
    draws = torch.rand(flips.drops.shape, dtype=torch.float64, generator=rng)
    drops, sets = packed(draws < flips.drops), packed(draws < flips.sets)
    return words ^ ((words & drops) | (~words & sets))


def random_words(count: int, rng: torch.Generator) -> Int16[Tensor, " count"]:
    """Independent fair bits, sixteen a word."""
    longs = torch.empty(-(-count // 4), dtype=torch.int64)
    # From the least number on: without it the highest bit of every fourth word would be 0.
    return longs.random_(-(2**63), None, generator=rng).view(torch.int16)[:count]


def _turned_late(
    words: Int16[Tensor, "records features"],
    open: Int16[Tensor, "records features"],
    late: Tensor,
    flips: BitFlips,
    rng: torch.Generator,
) -> Int16[Tensor, " late"]:
    """Which of the open bits are turned, in the words where there are some."""
    word, bit = unpacked(open.view(-1)[late], flips.bits).nonzero(as_tuple=True)
    at, shift = late[word], flips.bits - 1 - bit
    one = ((words.reshape(-1)[at] >> shift) & 1).bool()
    draws = torch.rand(len(word), dtype=torch.float64, generator=rng)
    turned = draws < flips.rest(at % words.shape[1], bit, one)
    sums = torch.zeros(len(late), dtype=torch.int64)
    return sums.index_add_(0, word, turned.long() << shift).to(torch.int16)


def _log_ratio(left: Tensor, right: Tensor) -> Tensor:
    """Distance of two logarithms; outcomes that neither value can have give nothing away."""
    return torch.where(left == right, 0.0, (left - right).abs())
