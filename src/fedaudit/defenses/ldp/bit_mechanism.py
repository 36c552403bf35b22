"""What mechanisms that turn the bits of encoded features have in common."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.defenses.ldp.bits import BitFlips, flipped, flipped_alike
from fedaudit.defenses.ldp.encoding import FixedPoint
from fedaudit.defenses.ldp.mechanism import LocalDP, by_parts


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
        """How likely each bit of a record is turned.

        Args:
            features: How many a record has.
        """
        raise NotImplementedError

    @property
    def method(self) -> str:
        """How the true epsilon is worked out."""
        if self.shared_mask:
            return "one mask for all records"
        return "log ratios summed over bits" + " but the sign" * self.sign_lost

    def true_epsilon(self, features: int) -> float:
        """The sum over all bits that come out of their largest log ratios.

        Infinite with a shared mask.
        """
        if self.off or self.shared_mask:
            return float("inf")
        flips = _flips(self, features)
        if self.sign_lost:
            flips = BitFlips(flips.drops[:, 1:], flips.sets[:, 1:])
        return flips.true_epsilon

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
