"""Mechanisms that flip bits of encoded features: bitwise randomised response, BitRand and OME."""

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
    pack_bits,
    perturb_in_chunks,
    unpack_bits,
)

COINS = 8
"""Number of coins that are tossed for every bit.

After eight coins, one bit in 256 is undecided and needs another random number. Six or ten coins are
slightly slower.
"""

_UNIT = 2.0**-53
"""Spacing of torch's uniform random numbers in double precision."""


@dataclass(frozen=True, eq=False)
class BitFlips:
    """Flip probability of each bit of a sample; bits are flipped independently.

    Attributes:
        drops: Probability that a 1 becomes a 0, for each bit of each feature.
        sets: Probability that a 0 becomes a 1, for each bit of each feature.
    """

    drops: Float64[Tensor, "features bits"]
    sets: Float64[Tensor, "features bits"]

    def __post_init__(self) -> None:
        for probabilities in (self.drops, self.sets):
            if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
                raise BadInput(
                    "bits are flipped with probabilities in [0, 1], got "
                    f"{probabilities.min():g} to {probabilities.max():g}; correct the mechanism's "
                    "settings"
                )

    @cached_property
    def epsilons(self) -> Float64[Tensor, "features bits"]:
        """Epsilon of each bit: the largest absolute log ratio of an outcome's probabilities.

        The ratio compares an outcome's probability for a 0 bit and for a 1 bit. The probabilities
        include the rounding of the actual random numbers. Epsilon is infinite if an outcome is
        possible for only one value of the bit.
        """
        drops, sets = exact_probabilities(self.drops), exact_probabilities(self.sets)
        ones = _log_ratio(torch.log1p(-drops), sets.log())
        zeros = _log_ratio(drops.log(), torch.log1p(-sets))
        return torch.maximum(ones, zeros)

    @property
    def actual_epsilon(self) -> float:
        """Epsilon of a sample: the largest log ratio over all pairs of inputs and all outputs.

        It is the sum over bits, since bits are flipped independently. Some pair of samples reaches
        this sum, since every bit pattern is a valid feature value.
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
        return _expand(self.drops), _expand(self.sets)

    def digit(
        self, position: int, words: Int16[Tensor, "samples features"]
    ) -> Int16[Tensor, "_ features"]:
        """Return one binary digit of each bit's flip probability.

        Args:
            position: Position of the digit after the binary point; 0 is the digit of 1/2.
            words: Values of the bits, packed into integers. They select the probability: ``drops``
                for a 1, ``sets`` for a 0.
        """
        drops, sets = (expansion.digits[position : position + 1] for expansion in self._expansions)
        return sets if self.symmetric else sets ^ (words & (drops ^ sets))

    def remainder(
        self, feature: Tensor, bit: Tensor, is_one: Bool[Tensor, " undecided"]
    ) -> Float64[Tensor, " undecided"]:
        """Return the conditional flip probability of bits that are undecided after all coins."""
        drops, sets = (expansion.remainder[feature, bit] for expansion in self._expansions)
        return torch.where(is_one, drops, sets)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """First binary digits of probabilities, packed into integers, and the remainders."""

    digits: Int16[Tensor, "positions features"]
    remainder: Float64[Tensor, "features bits"]


def _expand(probabilities: Float64[Tensor, "features bits"]) -> _Expansion:
    # Doubling and subtracting 1 are exact in floating point. The expansion of a probability of 1,
    # 0.11111111 with a remainder of 1, is also exact.
    digits = []
    for _ in range(COINS):
        probabilities = probabilities * 2
        digit = probabilities >= 1
        probabilities = probabilities - digit.double()
        digits.append(pack_bits(digit))
    return _Expansion(torch.stack(digits), probabilities)


def exact_probabilities(probabilities: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return the exact probabilities with which :func:`flip_bits` flips bits.

    Probabilities of at least 2^-8 are not rounded. Smaller probabilities are rounded up to a
    multiple of 2^-61.
    """
    scale = 2.0**COINS
    floor = (probabilities * scale).floor()
    return (floor + ((probabilities * scale - floor) / _UNIT).ceil() * _UNIT) / scale


def flip_bits(
    words: Int16[Tensor, "samples features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "samples features"]:
    """Flip bits, independently for every sample and bit.

    For each bit, coins are tossed until one shows heads. If this is coin k, the bit is flipped if
    the k-th binary digit of its flip probability is 1. This gives exactly the flip probability. A
    random integer contains one coin for each bit of a feature.
    """
    words = words.contiguous()
    undecided = torch.full_like(words, -1 if flips.bits == 16 else (1 << flips.bits) - 1)
    mask = torch.zeros_like(words)
    for position in range(COINS):
        heads = random_words(words.numel(), rng).view_as(words)
        heads &= undecided
        undecided ^= heads
        mask |= heads.bitwise_and_(flips.digit(position, words))
    undecided_words = undecided.flatten().nonzero().squeeze(1)
    mask.view(-1)[undecided_words] |= _flips_after_coins(
        words, undecided, undecided_words, flips, rng
    )
    return mask.bitwise_xor_(words)


def flip_bits_with_shared_mask(
    words: Int16[Tensor, "samples features"], flips: BitFlips, rng: torch.Generator
) -> Int16[Tensor, "samples features"]:
    """Flip bits with the same mask for all samples.

    This mechanism gives no privacy: an adversary that knows one sample can compute the mask.

    Source: Nguyen et al. 2023 (AMI), published code (one mask, broadcast over the batch).
    """
    draws = torch.rand(flips.drops.shape, dtype=torch.float64, generator=rng)
    drops, sets = pack_bits(draws < flips.drops), pack_bits(draws < flips.sets)
    return words ^ ((words & drops) | (~words & sets))


def random_words(count: int, rng: torch.Generator) -> Int16[Tensor, " count"]:
    """Draw 16-bit integers with independent uniform bits."""
    longs = torch.empty(-(-count // 4), dtype=torch.int64)
    # The range must include negative numbers, since otherwise the highest bit of every fourth
    # integer would always be 0.
    return longs.random_(-(2**63), None, generator=rng).view(torch.int16)[:count]


def _flips_after_coins(
    words: Int16[Tensor, "samples features"],
    undecided: Int16[Tensor, "samples features"],
    undecided_words: Tensor,
    flips: BitFlips,
    rng: torch.Generator,
) -> Int16[Tensor, " undecided_words"]:
    """Return masks of flipped bits for the integers that have undecided bits after all coins."""
    word, bit = unpack_bits(undecided.view(-1)[undecided_words], flips.bits).nonzero(as_tuple=True)
    index, shift = undecided_words[word], flips.bits - 1 - bit
    is_one = ((words.reshape(-1)[index] >> shift) & 1).bool()
    draws = torch.rand(len(word), dtype=torch.float64, generator=rng)
    is_flipped = draws < flips.remainder(index % words.shape[1], bit, is_one)
    sums = torch.zeros(len(undecided_words), dtype=torch.int64)
    return sums.index_add_(0, word, is_flipped.long() << shift).to(torch.int16)


def _log_ratio(first: Tensor, second: Tensor) -> Tensor:
    # If an outcome is impossible for both values, the difference of the logarithms would be NaN.
    return torch.where(first == second, 0.0, (first - second).abs())


@arguments.dataclass(frozen=True, kw_only=True)
class BitMechanism(LocalDP):
    """Base class of mechanisms that encode features as bits, flip some at random, and decode them.

    Attributes:
        bits: Number of bits per feature, 2 to 16: a sign, the integer bits, and the fraction.
        integer_bits: Number of bits before the binary point, 0 to ``bits - 1``. Features that are
            too large are clipped.
        shared_mask: Whether the same bits are flipped in all samples of a client, as in the
            published code of the attack AMI. There is no guarantee in this case, since one known
            sample reveals the mask.
        sign_lost: Whether the sign is lost when perturbed bits are decoded: -3.5 becomes 3.5. The
            published code of AMI has this error, since it compares a character with the number 1.
            In a security game, the server uses the same decoding.
    """

    bits: Bits = 10
    integer_bits: IntegerBits = 5
    shared_mask: bool = False
    sign_lost: bool = False

    def __post_init__(self) -> None:
        FixedPoint(self.bits, self.integer_bits)

    def flips(self, features: int) -> BitFlips:
        """Return the probability that each bit of a sample is flipped."""
        raise NotImplementedError

    @property
    def method(self) -> str:
        if self.shared_mask:
            return "one mask for all samples"
        # Do not change this text, since it is part of the content hash of records.
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
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        flips, point = _flips(self, x.shape[1]), FixedPoint(self.bits, self.integer_bits)
        if self.shared_mask:
            noisy = point.numbers(flip_bits_with_shared_mask(point.words(x), flips, rng), x.dtype)
        else:
            noisy = perturb_in_chunks(
                x, lambda chunk: point.numbers(flip_bits(point.words(chunk), flips, rng))
            )
        return noisy.abs() if self.sign_lost else noisy


@lru_cache(maxsize=16)
def _flips(mechanism: BitMechanism, features: int) -> BitFlips:
    # Cached, since security games call this thousands of times with the same arguments.
    return mechanism.flips(features)


_ROUNDING_FACTOR = 1 + 2.0**-45
"""Factor on flip probabilities that exceeds their rounding error.

So the actual epsilon of a bit or sample never exceeds its budget. If the budget of a bit is above
about 43, its flip probability is ``_MIN_PROBABILITY``.
"""

_MIN_PROBABILITY = 2.0**-61
"""Smallest flip probability, since epsilon would be infinite for a probability of 0."""


@arguments.dataclass(frozen=True)
class BitwiseRR(BitMechanism):
    """Randomised response on every bit, where each bit gets a part of the sample's privacy budget.

    A bit with budget b is flipped with probability 1 / (1 + e^b). The budgets sum to epsilon, so
    the actual epsilon equals the claimed epsilon.

    Attributes:
        epsilon: Epsilon of a whole sample, for any two values of its features, above 0; with
            infinity, the defense is off.
        split: Division of the budget. "even" gives every bit the same budget,
            epsilon / (features x bits). With "linear", the budget decreases linearly from the first
            bit of a feature (the sign) to the last bit: bit i of l bits has the budget
            epsilon / features x 2 (l + 1 - i) / (l (l + 1)).

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
        decreasing = torch.arange(self.bits, 0, -1).double()
        weights = decreasing if self.split == "linear" else torch.ones_like(decreasing)
        return (self.epsilon / features * weights / weights.sum()).expand(features, -1)

    def flips(self, features: int) -> BitFlips:
        probabilities = (torch.sigmoid(-self.budgets(features)) * _ROUNDING_FACTOR).clamp(
            _MIN_PROBABILITY, 0.5
        )
        return BitFlips(probabilities, probabilities)


@arguments.dataclass(frozen=True)
class BitRandPublished(BitMechanism):
    """BitRand as published, which flips the sign bit least often and the last bit most often.

    The published proof bounds the likelihood ratio in only one direction. The actual epsilon of a
    sample is hundreds to thousands of times the claimed epsilon. For 512 features of 10 bits, it is
    2,207 for a claimed epsilon of 1, 5,350 for 3, 9,239 for 5 and 20,038 for 10.

    Attributes:
        nominal_epsilon: The claimed epsilon (the paper's privacy budget), above 0; with infinity,
            the defense is off. It is not a guarantee; reports also contain the actual epsilon of a
            sample.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.BitRandPublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lai et al. 2021 (BitRand); Nguyen et al. 2023 (AMI), appendix C, Eq. (23), alpha at its
        upper bound.
    Differs: The actual epsilon is computed and reported. Samples are perturbed independently unless
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
        probabilities = torch.sigmoid(self.log_alpha(features) + weight).expand(features, -1)
        return BitFlips(probabilities, probabilities)


@arguments.dataclass(frozen=True)
class OmePublished(BitMechanism):
    """OME as published, which keeps most 1 bits at even positions and clears most other 1 bits.

    The claimed epsilon is divided among all bits of a sample, so it changes each flip probability
    by less than one per cent. For 512 features of 10 bits, the actual epsilon is 35,342 for every
    claimed epsilon. In the published proof, the ratios of even and odd bits cancel. They do not
    cancel for two samples that differ only in even bits.

    Attributes:
        nominal_epsilon: The claimed epsilon (the paper's privacy budget), above 0; with infinity,
            the defense is off. It is not a guarantee; reports also contain the actual epsilon of a
            sample.
        alpha: Odds that a 1 at an even position is kept, above 0.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.OmePublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lyu et al. 2020 (OME); Nguyen et al. 2023 (AMI), appendix C, Eq. (22), and its published
        code (alpha 100).
    Differs: The actual epsilon is computed and reported. Positions are counted over the whole
        sample, as in the paper. With an even number of bits, this equals counting in each feature.
    """

    nominal_epsilon: AboveZeroOrInfinite
    alpha: AboveZero = 100.0

    @property
    def nominal(self) -> float:
        return self.nominal_epsilon

    def flips(self, features: int) -> BitFlips:
        positions = torch.arange(features * self.bits).view(features, self.bits)
        log_odds = torch.tensor(log(self.alpha), dtype=torch.float64)
        drops = torch.sigmoid(torch.where(positions % 2 == 0, -log_odds, 3 * log_odds))
        sets = torch.sigmoid(-log_odds - self.nominal_epsilon / positions.numel())
        return BitFlips(drops, sets.expand_as(drops))
