"""Mechanisms on the bits of encoded features: bitwise randomised response, BitRand, OME."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum, log
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int16
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AboveZeroOrInfinite
from fedaudit.core.errors import BadInput
from fedaudit.defenses.ldp import (
    Bits,
    FixedPoint,
    IntegerBits,
    LocalDP,
    by_parts,
    packed,
    unpacked,
)

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


@arguments.dataclass(frozen=True, kw_only=True)
class BitMechanism(LocalDP):
    """Encodes features as bits, turns some of them at random, and decodes what results.

    Attributes:
        bits: Bits of one feature, 2 to 16: a sign, the integer bits, and the fraction.
        integer_bits: Number of these bits before the point, 0 to ``bits - 1``; larger features are
            clipped.
        shared_mask: Whether one draw serves all records of a client, as in the published code
            of the attack AMI. Then nothing is proven: who knows one record knows the mask.
        sign_lost: Whether decoding drops the sign, as in that code, which compares a character
            with the number 1: -3.5 comes out as 3.5, for the clients and for the server.
    """

    bits: Bits = 10
    integer_bits: IntegerBits = 5
    shared_mask: bool = False
    sign_lost: bool = False

    def __post_init__(self) -> None:
        FixedPoint(self.bits, self.integer_bits)

    def flips(self, features: int) -> BitFlips:
        """Probability that each bit of a record is turned."""
        raise NotImplementedError

    @property
    def method(self) -> str:
        """Derivation of the actual epsilon, in words."""
        if self.shared_mask:
            return "one mask for all records"
        return "log ratios summed over bits" + " but the sign" * self.sign_lost

    def actual_epsilon(self, features: int) -> float:
        """The sum over all bits that come out of their largest log ratios.

        Infinite with a shared mask.
        """
        if self.off or self.shared_mask:
            return float("inf")
        flips = _flips(self, features)
        if self.sign_lost:
            flips = BitFlips(flips.drops[:, 1:], flips.sets[:, 1:])
        return flips.actual_epsilon

    def perturbed(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """Encoded, bits turned, decoded."""
        flips, point = _flips(self, x.shape[1]), FixedPoint(self.bits, self.integer_bits)
        if self.shared_mask:
            found = point.numbers(flipped_alike(point.words(x), flips, rng), x.dtype)
        else:
            found = by_parts(x, lambda part: point.numbers(flipped(point.words(part), flips, rng)))
        return found.abs() if self.sign_lost else found


@lru_cache(maxsize=16)
def _flips(mechanism: BitMechanism, features: int) -> BitFlips:
    # Games ask for the same ones thousands of times.
    return mechanism.flips(features)


_UPWARDS = 1 + 2.0**-45
"""More than the rounding of a probability and of a budget of up to 43, beyond which `_LEAST` acts:
no bit gives away more than its budget, nor all of them together more than a record's."""


_LEAST = 2.0**-61
"""Nothing is turned less often, however large its budget; 0 would have no finite epsilon."""


@arguments.dataclass(frozen=True)
class BitwiseRR(BitMechanism):
    """Turns every bit with a probability that its share of a record's budget allows.

    A bit with budget b is turned with probability 1 / (1 + e^b), and all budgets add up to
    epsilon: what it says is what it gives.

    Attributes:
        epsilon: Epsilon of a whole record in nats, any features against any other, above 0;
            infinity perturbs nothing.
        split: "even" gives every bit the same budget, epsilon / (features x bits). "linear"
            gives the first of l bits of a feature, its sign, l times the budget of the last one:
            the i-th has epsilon / features x 2 (l + 1 - i) / (l (l + 1)).

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.BitwiseRR(epsilon=20.0).nominal
        20.0

    Source: Warner 1965 (randomised response); Kairouz, Oh and Viswanath 2014 (optimal for one
        bit).
    """

    epsilon: AboveZeroOrInfinite
    split: Literal["even", "linear"] = "even"

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.epsilon

    def budgets(self, features: int) -> Float64[Tensor, "features bits"]:
        """The epsilon of every bit."""
        falling = torch.arange(self.bits, 0, -1).double()
        weights = falling if self.split == "linear" else torch.ones_like(falling)
        return (self.epsilon / features * weights / weights.sum()).expand(features, -1)

    def flips(self, features: int) -> BitFlips:
        """Of each bit, as its budget allows."""
        chances = (torch.sigmoid(-self.budgets(features)) * _UPWARDS).clamp(_LEAST, 0.5)
        return BitFlips(chances, chances)


@arguments.dataclass(frozen=True)
class BitRandPublished(BitMechanism):
    """Turns every bit of a feature at random, the sign least often and the last bit most often.

    The published bound holds one direction of the likelihood ratio down and leaves the other one
    free, so that the actual epsilon of a record is hundreds to thousands of times the claimed one:
    for 512 features of 10 bits 2,207 at 1, 5,350 at 3, 9,239 at 5 and 20,038 at 10.

    Attributes:
        nominal_epsilon: What the paper calls the privacy budget, above 0; infinity perturbs
            nothing. It is not what is guaranteed: see the formal epsilon of a record.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.BitRandPublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lai et al. 2021 (BitRand); AMI, appendix C, Eq. (23), alpha at its upper bound.
    Differs: The actual epsilon is worked out and stated. Records are perturbed independently
        unless ``shared_mask`` is set.
    """

    nominal_epsilon: AboveZeroOrInfinite

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.nominal_epsilon

    def log_alpha(self, features: int) -> float:
        """The logarithm of the temperature: its published upper bound."""
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        total = float((2 * weight).logsumexp(0))
        return (log(self.nominal_epsilon + features * self.bits) - log(2 * features) - total) / 2

    def flips(self, features: int) -> BitFlips:
        """Of the i-th of l bits: alpha e^(i epsilon / l), over one more than that."""
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        chances = torch.sigmoid(self.log_alpha(features) + weight).expand(features, -1)
        return BitFlips(chances, chances)


@arguments.dataclass(frozen=True)
class OmePublished(BitMechanism):
    """Keeps nearly every bit at an even place of a record and erases nearly every other one.

    The claimed epsilon is spread over all bits of a record and moves one probability by a
    fraction of a per cent; the actual epsilon of 512 features of 10 bits is 35,342 whatever it is.
    The published proof multiplies ratios of even and odd bits, which cancel; two records that
    differ in even bits alone do not.

    Attributes:
        nominal_epsilon: What the paper calls the privacy budget, above 0; infinity perturbs
            nothing. It is not what is guaranteed: see the formal epsilon of a record.
        alpha: Odds with which a 1 at an even place is kept, above 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.OmePublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lyu et al. 2020 (OME); AMI, appendix C, Eq. (22), and its published code (alpha 100).
    Differs: The actual epsilon is worked out and stated. Places are counted through the whole
        record, as printed, which is the same for every feature where it has an even number of
        bits.
    """

    nominal_epsilon: AboveZeroOrInfinite
    alpha: AboveZero = 100.0

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.nominal_epsilon

    def flips(self, features: int) -> BitFlips:
        """Of a 1, by whether its place is even; of a 0, everywhere the same."""
        places = torch.arange(features * self.bits).view(features, self.bits)
        log_odds = torch.tensor(log(self.alpha), dtype=torch.float64)
        drops = torch.sigmoid(torch.where(places % 2 == 0, -log_odds, 3 * log_odds))
        sets = torch.sigmoid(-log_odds - self.nominal_epsilon / places.numel())
        return BitFlips(drops, sets.expand_as(drops))
