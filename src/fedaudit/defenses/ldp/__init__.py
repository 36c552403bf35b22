"""Local differential privacy of records: a client perturbs its features once, before it trains.

What a mechanism claims and what it gives are two things here: each works out its actual epsilon
from the probabilities that it really draws with.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Annotated, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int16
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import Range
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Samples, chunks
from fedaudit.fl.hooks import ConfiguredDefense, Guarantee, Plan, Visit, Workload

NUMBERS_AT_ONCE = 1 << 17
"""Features that are drawn for together; part of what a seed means, so it never changes."""

UNIT = "one record's features against any other features; labels are not protected"


@runtime_checkable
class Mechanism(Protocol):
    """Anything that perturbs the features of each record by itself."""

    def __call__(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """Perturbed features, in the precision of those given.

        Args:
            x: Finite features, one row a record.
            rng: Of the draws.
        """

    def actual_epsilon(self, features: int) -> float:
        """Actual epsilon against anybody who sees one perturbed record, whatever is known before.

        Returns:
            Epsilon in nats, of any features of a record against any other; infinite where
            nothing is proven.
        """


class LocalDP(ConfiguredDefense):
    """A mechanism as a defense: features are perturbed once and for all, before training.

    Labels and ids stay as they are. What a client does with perturbed records afterwards, in
    however many rounds, gives nothing more away about their features.
    """

    @property
    def nominal(self) -> float:
        """The epsilon that the settings name."""
        raise NotImplementedError

    @property
    def exceeded(self) -> float:
        """Probability with which its epsilon may be exceeded: delta; 0 for a pure one."""
        return 0.0

    @property
    def off(self) -> bool:
        """True if features are left as they are."""
        return self.nominal == float("inf")

    @property
    def method(self) -> str:
        """Derivation of the actual epsilon, in words."""
        raise NotImplementedError

    @property
    def prepares_apart(self) -> bool:
        """Each record is perturbed by itself, and nothing of it is kept as it was."""
        return True

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one."""
        return super().acts_in(hook) and not (hook == "prepare" and self.off)

    def perturbed(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """Finite features perturbed, for :meth:`__call__`."""
        raise NotImplementedError

    def actual_epsilon(self, features: int) -> float:
        """See :meth:`Mechanism.actual_epsilon`."""
        raise NotImplementedError

    def __call__(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """See :meth:`Mechanism.__call__`.

        Raises:
            BadInput: A feature is not finite.
        """
        if self.off or x.numel() == 0:
            return x
        # Both extremes are not a number where any feature is.
        if not all(bool(extreme.isfinite()) for extreme in x.aminmax()):
            raise BadInput(
                f"{type(self).__name__} perturbs finite features, got some that are infinite or "
                "not a number; leave those samples out or replace the values"
            )
        return self.perturbed(x, rng)

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: samples without features, or of whole numbers.

        Raises:
            BadInput: A sample has none, or holds whole numbers.
        """
        if not self.off:
            self._refuse_none(prod(plan.shape))
            self._refuse_whole(plan.whole)

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once: all features perturbed.

        Raises:
            BadInput: Features are whole numbers, or not finite.
        """
        if self.off or len(data) == 0:
            return data
        self._refuse_whole(data.has_whole_numbers)
        features = data.features
        noisy = self(features.reshape(len(data), -1), visit.rng("local differential privacy"))
        return replace(data, features=noisy.reshape(features.shape))

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee:
        """Proven guarantee for each record's features, after all rounds: the actual epsilon."""
        self._refuse_none(work.features)
        epsilon = self.actual_epsilon(work.features)
        return Guarantee(epsilon, UNIT, f"claimed epsilon {self.nominal:g}; {self.method}")

    def _refuse_whole(self, whole: bool) -> None:
        if whole:
            raise BadInput(
                f"{type(self).__name__} perturbs real numbers, and samples hold whole ones, such "
                "as tokens or classes; give features as floating point, or leave it out"
            )

    def _refuse_none(self, features: int) -> None:
        if features < 1:
            raise BadInput(
                f"what {type(self).__name__} gives depends on how many features a sample has, at "
                f"least 1, got {features}; give their number"
            )


def by_parts(
    x: Float[Tensor, "records features"],
    noisy: Callable[[Float[Tensor, "part features"]], Tensor],
) -> Float[Tensor, "records features"]:
    """A function applied to so many records at a time, in the precision of those given.

    Args:
        x: At least one feature a record.
        noisy: Gives as many rows as it is given.
    """
    out = torch.empty_like(x)
    for part in chunks(len(x), max(1, NUMBERS_AT_ONCE // x.shape[1])):
        out[part] = noisy(x[part]).to(x.dtype)
    return out


Bits = Annotated[int, Range(ge=2, le=16)]
IntegerBits = Annotated[int, Range(ge=0, le=15)]


@arguments.dataclass(frozen=True)
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

    bits: Bits = 10
    integer_bits: IntegerBits = 5

    def __post_init__(self) -> None:
        if not self.integer_bits < self.bits:
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
        """Each feature's bits, the sign first."""
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
