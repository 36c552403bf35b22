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
"""Number of coins that are tossed for every bit. After eight coins, one bit in 256 is undecided and
needs a separate draw. Drawing is slightly slower with 6 or 10 coins."""

_UNIT = 2.0**-53
"""Spacing of torch's uniform random numbers in double precision."""


@dataclass(frozen=True, eq=False)
class BitFlips:
    """Probability that each bit of a record is flipped, independently of the other bits.

    Attributes:
        drops: Probability that a 1 becomes 0, for each bit of each feature.
        sets: Probability that a 0 becomes 1.
    """

    drops: Float64[Tensor, "features bits"]
    sets: Float64[Tensor, "features bits"]

    def __post_init__(self) -> None:
        for chances in (self.drops, self.sets):
            if not bool(((chances >= 0) & (chances <= 1)).all()):
                raise BadInput(
                    f"bits are flipped with probabilities in [0, 1], got {chances.min():g} to "
                    f"{chances.max():g}; correct the mechanism's settings"
                )

    @cached_property
    def epsilons(self) -> Float64[Tensor, "features bits"]:
        """Epsilon of each bit: the largest absolute log ratio of an outcome's two probabilities.

        The probabilities include the rounding of the actual draws. Epsilon is infinite if an
        outcome is possible for only one value of the bit.
        """
        drops, sets = drawn_probabilities(self.drops), drawn_probabilities(self.sets)
        ones = _log_ratio(torch.log1p(-drops), sets.log())
        zeros = _log_ratio(drops.log(), torch.log1p(-sets))
        return torch.maximum(ones, zeros)

    @property
    def actual_epsilon(self) -> float:
        """Epsilon of a record: the largest log ratio over all pairs of inputs and all outputs.

        It is the sum over bits, since bits are flipped independently. Every bit pattern is a valid
        feature value, so the worst pair of inputs exists.
        """
        return fsum(self.epsilons.flatten().tolist())

    @cached_property
    def bits(self) -> int:
        """Number of bits of one feature."""
        return self.drops.shape[1]

    @cached_property
    def symmetric(self) -> bool:
        """True if the probability of a flip does not depend on the bit's value."""
        return torch.equal(self.drops, self.sets)

    @cached_property
    def _expansions(self) -> tuple["_Expansion", "_Expansion"]:
        return _expanded(self.drops), _expanded(self.sets)

    def digit(
        self, place: int, words: Int16[Tensor, "records features"]
    ) -> Int16[Tensor, "_ features"]:
        """Return one binary digit of each bit's flip probability.

        Args:
            place: Position of the digit; 0 is the digit of 1/2.
            words: Values of the bits, packed into words. They select the probability: ``drops`` for
                a 1, ``sets`` for a 0.
        """
        drops, sets = (expansion.digits[place : place + 1] for expansion in self._expansions)
        return sets if self.symmetric else sets ^ (words & (drops ^ sets))

    def remainder(
        self, feature: Tensor, bit: Tensor, is_one: Bool[Tensor, " undecided"]
    ) -> Float64[Tensor, " undecided"]:
        """Return the conditional flip probability of bits that are undecided after all coins."""
        drops, sets = (expansion.remainder[feature, bit] for expansion in self._expansions)
        return torch.where(is_one, drops, sets)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """The first binary digits of probabilities, packed into words, and the remainders."""

    digits: Int16[Tensor, "places features"]
    remainder: Float64[Tensor, "features bits"]


def _expanded(chances: Float64[Tensor, "features bits"]) -> _Expansion:
    # Doubling and subtracting 1 are exact in floating point, and so is the remainder. A probability
    # of 1 is exact too: it becomes 0.111... with a remainder of 1.
    digits = []
    for _ in range(COINS):
        chances = chances * 2
        digit = chances >= 1
        chances = chances - digit.double()
        digits.append(packed(digit))
    return _Expansion(torch.stack(digits), chances)


def drawn_probabilities(chances: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return the exact probabilities of the draws in :func:`flipped`.

    Probabilities of at least 2^-8 are exact. Smaller ones are rounded up to a multiple of 2^-61.
    """
    places = 2.0**COINS
    floor = (chances * places).floor()
    return (floor + ((chances * places - floor) / _UNIT).ceil() * _UNIT) / places


def flipped(
    words: Int16[Tensor, "records features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "records features"]:
    """Flip bits, independently for every record and bit.

    Coins are tossed, one per binary digit of the probability, until one shows heads. The digit at
    this position decides whether the bit is flipped, so the probability is exact. One random word
    holds the coins of all bits of a feature.
    """
    words = words.contiguous()
    undecided = torch.full_like(words, -1 if flips.bits == 16 else (1 << flips.bits) - 1)
    mask = torch.zeros_like(words)
    for place in range(COINS):
        heads = random_words(words.numel(), rng).view_as(words)
        heads &= undecided
        undecided ^= heads
        mask |= heads.bitwise_and_(flips.digit(place, words))
    undecided_words = undecided.flatten().nonzero().squeeze(1)
    mask.view(-1)[undecided_words] |= _flips_after_coins(
        words, undecided, undecided_words, flips, rng
    )
    return mask.bitwise_xor_(words)


def flipped_alike(
    words: Int16[Tensor, "records features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "records features"]:
    """Flip bits with one mask that is the same for all records.

    This protects no record: an adversary who knows one record can compute the mask.

    Source: AMI, published code (one mask, broadcast over the batch).
    """
    draws = torch.rand(flips.drops.shape, dtype=torch.float64, generator=rng)
    drops, sets = packed(draws < flips.drops), packed(draws < flips.sets)
    return words ^ ((words & drops) | (~words & sets))


def random_words(count: int, rng: torch.Generator) -> Int16[Tensor, " count"]:
    """Draw independent fair bits, sixteen per word."""
    longs = torch.empty(-(-count // 4), dtype=torch.int64)
    # Without negative numbers, the highest bit of every fourth word would always be 0.
    return longs.random_(-(2**63), None, generator=rng).view(torch.int16)[:count]


def _flips_after_coins(
    words: Int16[Tensor, "records features"],
    undecided: Int16[Tensor, "records features"],
    undecided_words: Tensor,
    flips: BitFlips,
    rng: torch.Generator,
) -> Int16[Tensor, " undecided_words"]:
    """Return the masks of flipped bits in the words that have undecided bits after all coins."""
    word, bit = unpacked(undecided.view(-1)[undecided_words], flips.bits).nonzero(as_tuple=True)
    index, shift = undecided_words[word], flips.bits - 1 - bit
    is_one = ((words.reshape(-1)[index] >> shift) & 1).bool()
    draws = torch.rand(len(word), dtype=torch.float64, generator=rng)
    is_flipped = draws < flips.remainder(index % words.shape[1], bit, is_one)
    sums = torch.zeros(len(undecided_words), dtype=torch.int64)
    return sums.index_add_(0, word, is_flipped.long() << shift).to(torch.int16)


def _log_ratio(first: Tensor, second: Tensor) -> Tensor:
    # Equal logarithms include two impossible outcomes, whose difference would be NaN.
    return torch.where(first == second, 0.0, (first - second).abs())


@arguments.dataclass(frozen=True, kw_only=True)
class BitMechanism(LocalDP):
    """Base class of mechanisms that encode features as bits, flip some at random, and decode them.

    Attributes:
        bits: Bits of one feature, 2 to 16: a sign, the integer bits, and the fraction.
        integer_bits: Number of these bits before the point, 0 to ``bits - 1``; larger features are
            clipped.
        shared_mask: Whether all records of a client share one mask, as in the published code of
            the attack AMI. There is no guarantee then, since one known record reveals the mask.
        sign_lost: Whether each client's decoding of its flipped bits drops the sign: -3.5 becomes
            3.5 in the features that it trains on. The server of a security game uses the same
            decoding. The published code of AMI does this by comparing a character with the number
            1.
    """

    bits: Bits = 10
    integer_bits: IntegerBits = 5
    shared_mask: bool = False
    sign_lost: bool = False

    def __post_init__(self) -> None:
        FixedPoint(self.bits, self.integer_bits)

    def flips(self, features: int) -> BitFlips:
        """Return the probability that each bit of a record is flipped."""
        raise NotImplementedError

    @property
    def method(self) -> str:
        if self.shared_mask:
            return "one mask for all records"
        # The text is part of a record's content hash, so it must not be reworded.
        return "log ratios summed over bits" + " but the sign" * self.sign_lost

    def actual_epsilon(self, features: int) -> float:
        """Return the sum of the epsilons of all decoded bits; infinite with a shared mask."""
        if self.off or self.shared_mask:
            return float("inf")
        flips = _flips(self, features)
        if self.sign_lost:
            flips = BitFlips(flips.drops[:, 1:], flips.sets[:, 1:])
        return flips.actual_epsilon

    def perturbed(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        flips, point = _flips(self, x.shape[1]), FixedPoint(self.bits, self.integer_bits)
        if self.shared_mask:
            noisy = point.numbers(flipped_alike(point.words(x), flips, rng), x.dtype)
        else:
            noisy = by_parts(x, lambda part: point.numbers(flipped(point.words(part), flips, rng)))
        return noisy.abs() if self.sign_lost else noisy


@lru_cache(maxsize=16)
def _flips(mechanism: BitMechanism, features: int) -> BitFlips:
    # Cached, since security games call this thousands of times with the same arguments.
    return mechanism.flips(features)


_UPWARDS = 1 + 2.0**-45
"""Factor that raises flip probabilities by more than their rounding error, so that the actual
epsilon of a bit or a record never exceeds its budget. Above a budget b of about 43 per bit,
1 / (1 + e^b) is below 2^-61, so `_LEAST` applies."""

_LEAST = 2.0**-61
"""Smallest flip probability. A probability of 0 would make epsilon infinite."""


@arguments.dataclass(frozen=True)
class BitwiseRR(BitMechanism):
    """Randomised response on every bit, with a share of the record's budget for each bit.

    A bit with budget b is flipped with probability 1 / (1 + e^b). The budgets sum to epsilon, so
    the actual epsilon equals the claimed epsilon.

    Attributes:
        epsilon: Epsilon of a whole record, for any two values of its features, above 0; infinity
            perturbs nothing.
        split: "even" gives every bit the same budget, epsilon / (features x bits). "linear"
            decreases the budget linearly from the first bit of a feature (the sign) to the last
            bit. Of l bits, bit i has the budget epsilon / features x 2 (l + 1 - i) / (l (l + 1)).

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.BitwiseRR(epsilon=20.0).nominal
        20.0

    Source: Warner 1965 (randomised response); Kairouz, Oh and Viswanath 2014 (optimality for one
        bit).
    """

    epsilon: AboveZeroOrInfinite
    split: Literal["even", "linear"] = "even"

    @property
    def nominal(self) -> float:
        return self.epsilon

    def budgets(self, features: int) -> Float64[Tensor, "features bits"]:
        """Return the epsilon of every bit."""
        falling = torch.arange(self.bits, 0, -1).double()
        weights = falling if self.split == "linear" else torch.ones_like(falling)
        return (self.epsilon / features * weights / weights.sum()).expand(features, -1)

    def flips(self, features: int) -> BitFlips:
        chances = (torch.sigmoid(-self.budgets(features)) * _UPWARDS).clamp(_LEAST, 0.5)
        return BitFlips(chances, chances)


@arguments.dataclass(frozen=True)
class BitRandPublished(BitMechanism):
    """BitRand as published; it flips the sign bit least often and the last bit most often.

    The published proof bounds only one direction of the likelihood ratio. The actual epsilon of a
    record is hundreds to thousands of times the claimed one. For 512 features of 10 bits, it is
    2,207 for a claim of 1, 5,350 for 3, 9,239 for 5 and 20,038 for 10.

    Attributes:
        nominal_epsilon: The claimed epsilon, which is the privacy budget of the paper, above 0;
            infinity perturbs nothing. It is no guarantee; reports also contain the actual epsilon
            of a record.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.BitRandPublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lai et al. 2021 (BitRand); AMI, appendix C, Eq. (23), alpha at its upper bound.
    Differs: The actual epsilon is computed and reported. Records are perturbed independently unless
        ``shared_mask`` is set.
    """

    nominal_epsilon: AboveZeroOrInfinite

    @property
    def nominal(self) -> float:
        return self.nominal_epsilon

    def log_alpha(self, features: int) -> float:
        """Return the logarithm of alpha, at its published upper bound."""
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        total = float((2 * weight).logsumexp(0))
        return (log(self.nominal_epsilon + features * self.bits) - log(2 * features) - total) / 2

    def flips(self, features: int) -> BitFlips:
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        chances = torch.sigmoid(self.log_alpha(features) + weight).expand(features, -1)
        return BitFlips(chances, chances)


@arguments.dataclass(frozen=True)
class OmePublished(BitMechanism):
    """OME as published; it preserves most 1 bits at even positions and clears most other 1 bits.

    The claimed epsilon is divided among all bits of a record and changes one probability by a
    fraction of a per cent. For 512 features of 10 bits, the actual epsilon is 35,342 whatever the
    claim. In the published proof, the ratios of even and odd bits cancel. They do not cancel for
    two records that differ only in even bits.

    Attributes:
        nominal_epsilon: The claimed epsilon, which is the privacy budget of the paper, above 0;
            infinity perturbs nothing. It is no guarantee; reports also contain the actual epsilon
            of a record.
        alpha: Odds that a 1 at an even position is preserved, above 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.OmePublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lyu et al. 2020 (OME); AMI, appendix C, Eq. (22), and its published code (alpha 100).
    Differs: The actual epsilon is computed and reported. Positions are counted over the whole
        record, as in the paper. With an even number of bits, this equals counting in each feature.
    """

    nominal_epsilon: AboveZeroOrInfinite
    alpha: AboveZero = 100.0

    @property
    def nominal(self) -> float:
        return self.nominal_epsilon

    def flips(self, features: int) -> BitFlips:
        places = torch.arange(features * self.bits).view(features, self.bits)
        log_odds = torch.tensor(log(self.alpha), dtype=torch.float64)
        drops = torch.sigmoid(torch.where(places % 2 == 0, -log_odds, 3 * log_odds))
        sets = torch.sigmoid(-log_odds - self.nominal_epsilon / places.numel())
        return BitFlips(drops, sets.expand_as(drops))
