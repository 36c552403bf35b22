"""Features as words of a few bits: a sign, an integer part and a fraction."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int16
from torch import Tensor

from fedaudit.core.errors import BadInput

FEWEST_BITS, MOST_BITS = 2, 16


@dataclass(frozen=True)
class FixedPoint:
    """A binary fixed-point number for every feature, most significant bit first.

    The first bit is the sign (1 is negative), then come the integer bits, then the fraction.

    Attributes:
        bits: Of one feature, 2 to 16.
        integer_bits: Of those, how many are before the point; 0 to ``bits - 1``.

    Source: AMI, appendix C, and its published code (10 bits, 5 of them before the point).
    Differs: Features beyond the largest number that fits are clipped to it, where the published
        code writes more bits than a feature has and moves all that follow.
    """

    bits: int = 10
    integer_bits: int = 5

    def __post_init__(self) -> None:
        if not FEWEST_BITS <= self.bits <= MOST_BITS:
            raise BadInput(
                f"a feature has {FEWEST_BITS} to {MOST_BITS} bits, got bits = {self.bits}"
            )
        if not 0 <= self.integer_bits < self.bits:
            raise BadInput(
                f"of {self.bits} bits one is the sign, so that integer_bits lies in 0 to "
                f"{self.bits - 1}, got {self.integer_bits}"
            )

    @property
    def steps(self) -> int:
        """Number of steps from one integer to the next."""
        return 1 << (self.bits - 1 - self.integer_bits)

    @property
    def largest(self) -> float:
        """The largest number that fits."""
        return self._magnitudes / self.steps

    @property
    def _magnitudes(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def words(self, features: Float[Tensor, "*shape"]) -> Int16[Tensor, "*shape"]:
        """Each feature's bits in the low end of an integer.

        Args:
            features: Finite; rounded to the nearest number, ties to the even one.
        """
        # In half precision not every word would be a number.
        wide = features if features.element_size() >= 4 else features.float()
        size = (wide.abs() * self.steps).round_().clamp_(max=self._magnitudes)
        return size.to(torch.int16) | ((wide < 0).to(torch.int16) << (self.bits - 1))

    def numbers(
        self, words: Int16[Tensor, "*shape"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*shape"]:
        """Inverse of :meth:`words`, up to rounding and clipping.

        Args:
            words: Bits beyond a feature's are ignored.
            dtype: Of the result.
        """
        sign = 1 - ((words >> (self.bits - 1)) & 1) * 2
        # The sign goes on while these are integers, so that there is no zero below zero.
        return ((words & self._magnitudes) * sign).to(dtype) / self.steps

    def encode(self, features: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape bits"]:
        """Each feature's bits, the sign first.

        Args:
            features: As for :meth:`words`.
        """
        return unpacked(self.words(features), self.bits)

    def decode(
        self, ones: Bool[Tensor, "*shape bits"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*shape"]:
        """Inverse of :meth:`encode`, up to rounding and clipping.

        Args:
            ones: A feature's bits, the sign first.
            dtype: Of the result.
        """
        return self.numbers(packed(ones), dtype)


def packed(ones: Bool[Tensor, "*shape bits"]) -> Int16[Tensor, "*shape"]:
    """Rows of at most 16 bits as integers, the last bit lowest."""
    shifts = torch.arange(ones.shape[-1] - 1, -1, -1)
    return (ones.long() << shifts).sum(-1).to(torch.int16)


def unpacked(words: Int16[Tensor, "*shape"], bits: int) -> Bool[Tensor, "*shape bits"]:
    """The lowest bits of integers: the inverse of :func:`packed`.

    Args:
        words: Any integers.
        bits: How many of their bits, at most 16.
    """
    shifts = torch.arange(bits - 1, -1, -1, dtype=torch.int16)
    return ((words[..., None] >> shifts) & 1).bool()
