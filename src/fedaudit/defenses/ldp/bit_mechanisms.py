"""Mechanisms on the bits of encoded features: bitwise randomised response, BitRand, OME."""

from dataclasses import dataclass
from functools import lru_cache
from math import log

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.defenses.ldp.bits import BitFlips, flipped, flipped_alike
from fedaudit.defenses.ldp.encoding import FixedPoint
from fedaudit.defenses.ldp.mechanism import LocalDP, by_parts, refuse_no_budget


@dataclass(frozen=True, kw_only=True)
class BitMechanism(LocalDP):
    """Encodes features as bits, turns some of them at random, and decodes what results.

    Attributes:
        bits: Of one feature, 2 to 16: a sign, the integer bits, and the fraction.
        integer_bits: Of those, how many are before the point; larger features are clipped.
        shared_mask: Whether one draw serves all records of a client, as in the published code
            of the attack AMI. Then nothing is proven: who knows one record knows the mask.
        sign_lost: Whether decoding drops the sign, as in that code, which compares a character
            with the number 1: -3.5 comes out as 3.5, for the clients and for the server.
    """

    bits: int = 10
    integer_bits: int = 5
    shared_mask: bool = False
    sign_lost: bool = False

    def __post_init__(self) -> None:
        FixedPoint(self.bits, self.integer_bits)

    def flips(self, features: int) -> BitFlips:
        """Probability that each bit of a record is turned.

        Args:
            features: How many a record has.
        """
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


SPLITS = ("even", "linear")

_UPWARDS = 1 + 2.0**-45
"""More than the rounding of a probability and of a budget of up to 43, beyond which `_LEAST` acts:
no bit gives away more than its budget, nor all of them together more than a record's."""


_LEAST = 2.0**-61
"""Nothing is turned less often, however large its budget; 0 would have no finite epsilon."""


@dataclass(frozen=True)
class BitwiseRR(BitMechanism):
    """Turns every bit with a probability that its share of a record's budget allows.

    A bit with budget b is turned with probability 1 / (1 + e^b), and all budgets add up to
    epsilon: what it says is what it gives.

    Attributes:
        epsilon: Of a whole record, any features against any other, above 0; infinity perturbs
            nothing.
        split: "even" gives every bit the same budget, epsilon / (features x bits). "linear"
            gives the first of l bits of a feature, its sign, l times the budget of the last one:
            the i-th has epsilon / features x 2 (l + 1 - i) / (l (l + 1)).

    Examples:
        >>> BitwiseRR(epsilon=20.0).nominal
        20.0

    Source: Warner 1965 (randomised response); Kairouz, Oh and Viswanath 2014 (optimal for one
        bit).
    """

    epsilon: float
    split: str = "even"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("epsilon", self.epsilon)
        if self.split not in SPLITS:
            raise unknown_name("split of the defense 'bitwise-rr'", self.split, SPLITS)

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.epsilon

    def budgets(self, features: int) -> Float64[Tensor, "features bits"]:
        """The epsilon of every bit.

        Args:
            features: How many a record has.
        """
        falling = torch.arange(self.bits, 0, -1).double()
        weights = falling if self.split == "linear" else torch.ones_like(falling)
        return (self.epsilon / features * weights / weights.sum()).expand(features, -1)

    def flips(self, features: int) -> BitFlips:
        """Of each bit, as its budget allows."""
        chances = (torch.sigmoid(-self.budgets(features)) * _UPWARDS).clamp(_LEAST, 0.5)
        return BitFlips(chances, chances)


@dataclass(frozen=True)
class BitRandPublished(BitMechanism):
    """Turns every bit of a feature at random, the sign least often and the last bit most often.

    The published bound holds one direction of the likelihood ratio down and leaves the other one
    free, so that the actual epsilon of a record is hundreds to thousands of times the claimed one:
    for 512 features of 10 bits 2,207 at 1, 5,350 at 3, 9,239 at 5 and 20,038 at 10.

    Attributes:
        nominal_epsilon: What the paper calls the privacy budget, above 0; infinity perturbs
            nothing. It is not what is guaranteed: see the formal epsilon of a record.

    Examples:
        >>> BitRandPublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lai et al. 2021 (BitRand); AMI, appendix C, Eq. (23), alpha at its upper bound.
    Differs: The actual epsilon is worked out and stated. Records are perturbed independently
        unless ``shared_mask`` is set.
    """

    nominal_epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("nominal_epsilon", self.nominal_epsilon)

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        return self.nominal_epsilon

    def log_alpha(self, features: int) -> float:
        """The logarithm of the temperature: its published upper bound.

        Args:
            features: How many a record has.
        """
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        total = float((2 * weight).logsumexp(0))
        return (log(self.nominal_epsilon + features * self.bits) - log(2 * features) - total) / 2

    def flips(self, features: int) -> BitFlips:
        """Of the i-th of l bits: alpha e^(i epsilon / l), over one more than that."""
        weight = self.nominal_epsilon / self.bits * torch.arange(self.bits).double()
        chances = torch.sigmoid(self.log_alpha(features) + weight).expand(features, -1)
        return BitFlips(chances, chances)


@dataclass(frozen=True)
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
        >>> OmePublished(nominal_epsilon=5.0).nominal
        5.0

    Source: Lyu et al. 2020 (OME); AMI, appendix C, Eq. (22), and its published code (alpha 100).
    Differs: The actual epsilon is worked out and stated. Places are counted through the whole
        record, as printed, which is the same for every feature where it has an even number of
        bits.
    """

    nominal_epsilon: float
    alpha: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_no_budget("nominal_epsilon", self.nominal_epsilon)
        if not 0 < self.alpha < float("inf"):
            raise BadInput(f"alpha is a ratio of chances, above 0 and finite, got {self.alpha}")

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
