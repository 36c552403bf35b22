"""Local differential privacy of samples: a client perturbs its features once, before training.

A mechanism has a claimed epsilon, from its settings or paper, and an actual epsilon, which is
computed from the probabilities of its random draws.
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
from fedaudit.fl.hooks import ClientContext, ConfiguredDefense, DataUse, Guarantee, Plan

FEATURES_PER_CHUNK = 1 << 17
"""Number of features per chunk. Changing it changes the random numbers of a seed."""

UNIT = "one sample's features against any other features; labels are not protected"


@runtime_checkable
class Mechanism(Protocol):
    """Mechanism that perturbs the features of each sample independently."""

    def __call__(
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        """Perturb finite features, with one row per sample; return them in the same precision."""

    def actual_epsilon(self, features: int) -> float:
        """Return the actual epsilon against an observer of one perturbed sample.

        Returns:
            Epsilon for any two values of a sample's features; infinite without a guarantee.
        """


class LocalDP(ConfiguredDefense):
    """Base class of defenses that perturb features once, before training.

    Labels and ids are not changed. Training on perturbed samples is post-processing, so the privacy
    loss does not grow with the number of rounds.
    """

    @property
    def nominal(self) -> float:
        """The claimed epsilon of the settings."""
        raise NotImplementedError

    @property
    def claimed_delta(self) -> float:
        """Delta of the claimed guarantee; 0 for pure differential privacy."""
        return 0.0

    @property
    def off(self) -> bool:
        """True if the settings leave features unchanged."""
        return self.nominal == float("inf")

    @property
    def method(self) -> str:
        """Short description of how the actual epsilon is computed."""
        raise NotImplementedError

    @property
    def prepares_samples_independently(self) -> bool:
        """True, since each sample is perturbed independently and no original sample is stored."""
        return True

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and not (hook == "prepare" and self.off)

    def perturbed(
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        """Perturb finite features."""
        raise NotImplementedError

    def actual_epsilon(self, features: int) -> float:
        """Return the actual epsilon of one perturbed sample."""
        raise NotImplementedError

    def __call__(
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        """Perturb features; the precision does not change.

        Raises:
            BadInput: A feature is not finite.
        """
        if self.off or x.numel() == 0:
            return x
        # If a feature is NaN, the minimum and the maximum are NaN, too.
        if not all(bool(extreme.isfinite()) for extreme in x.aminmax()):
            raise BadInput(
                f"{type(self).__name__} needs finite features, but some are infinite or NaN; "
                "remove those samples or replace the values"
            )
        return self.perturbed(x, rng)

    def raise_if_misfit(self, plan: Plan) -> None:
        if not self.off:
            self._require_features(prod(plan.shape))
            self._raise_if_integers(plan.has_integer_features)

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        if self.off or len(data) == 0:
            return data
        self._raise_if_integers(data.has_whole_numbers)
        features = data.features
        noisy = self(
            features.reshape(len(data), -1), client_context.rng("local differential privacy")
        )
        return replace(data, features=noisy.reshape(features.shape))

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee:
        self._require_features(data_use.features)
        epsilon = self.actual_epsilon(data_use.features)
        return Guarantee(epsilon, UNIT, f"claimed epsilon {self.nominal:g}; {self.method}")

    def _raise_if_integers(self, are_integers: bool) -> None:
        if are_integers:
            raise BadInput(
                f"{type(self).__name__} needs real-valued features, but the features are whole "
                "numbers, such as tokens or classes; convert them to floating point, or remove "
                "this defense"
            )

    def _require_features(self, features: int) -> None:
        if features < 1:
            raise BadInput(
                f"the guarantee of {type(self).__name__} depends on the number of features per "
                f"sample, which must be at least 1; got {features}"
            )


def perturb_in_chunks(
    x: Float[Tensor, "samples features"],
    perturb: Callable[[Float[Tensor, "chunk features"]], Tensor],
) -> Float[Tensor, "samples features"]:
    """Apply a function to chunks of samples, and return the results in the samples' precision."""
    out = torch.empty_like(x)
    for rows in chunks(len(x), max(1, FEATURES_PER_CHUNK // x.shape[1])):
        out[rows] = perturb(x[rows]).to(x.dtype)
    return out


Bits = Annotated[int, Range(ge=2, le=16)]
IntegerBits = Annotated[int, Range(ge=0, le=15)]


@arguments.dataclass(frozen=True)
class FixedPoint:
    """Binary fixed-point encoding of features, with the most significant bit first.

    The first bit is the sign (1 is negative), followed by the integer bits and the fraction.

    Attributes:
        bits: Number of bits per feature, 2 to 16.
        integer_bits: Number of bits before the binary point, 0 to ``bits - 1``.

    Source: Nguyen et al. 2023 (AMI), appendix C, and its published code (10 bits, 5 of them before
        the binary point).
    Differs: Features above the largest representable number are clipped to it. For such a feature,
        the published code writes too many bits, which shifts all following bits.
    """

    bits: Bits = 10
    integer_bits: IntegerBits = 5

    def __post_init__(self) -> None:
        if not self.integer_bits < self.bits:
            raise BadInput(
                f"one of {self.bits} bits is the sign, so integer_bits must be from 0 to "
                f"{self.bits - 1}, got {self.integer_bits}"
            )

    @property
    def steps(self) -> int:
        """Number of representable steps from one integer to the next."""
        return 1 << (self.bits - 1 - self.integer_bits)

    @property
    def largest(self) -> float:
        """The largest representable number."""
        return self._magnitudes / self.steps

    @property
    def _magnitudes(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def words(self, features: Float[Tensor, "*shape"]) -> Int16[Tensor, "*shape"]:
        """Encode each feature in the low bits of an integer, rounded to the nearest value."""
        # Half precision cannot represent every encoded number.
        wide = features if features.element_size() >= 4 else features.float()
        size = (wide.abs() * self.steps).round_().clamp_(max=self._magnitudes)
        return size.to(torch.int16) | ((wide < 0).to(torch.int16) << (self.bits - 1))

    def numbers(
        self, words: Int16[Tensor, "*shape"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*shape"]:
        """Decode integers, the inverse of :meth:`words` up to rounding and clipping."""
        sign = 1 - ((words >> (self.bits - 1)) & 1) * 2
        # Apply the sign to integers, since a float could become a negative zero.
        return ((words & self._magnitudes) * sign).to(dtype) / self.steps

    def encode(self, features: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape bits"]:
        """Return the bits of each feature, starting with the sign."""
        return unpack_bits(self.words(features), self.bits)

    def decode(
        self, bits_set: Bool[Tensor, "*shape bits"], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "*shape"]:
        """Decode bits, the inverse of :meth:`encode` up to rounding and clipping."""
        return self.numbers(pack_bits(bits_set), dtype)


def pack_bits(bits_set: Bool[Tensor, "*shape bits"]) -> Int16[Tensor, "*shape"]:
    """Pack rows of at most 16 bits into integers; the last bit becomes the lowest."""
    shifts = torch.arange(bits_set.shape[-1] - 1, -1, -1)
    return (bits_set.long() << shifts).sum(-1).to(torch.int16)


def unpack_bits(words: Int16[Tensor, "*shape"], bits: int) -> Bool[Tensor, "*shape bits"]:
    """Return the lowest bits of integers, the inverse of :func:`pack_bits`."""
    shifts = torch.arange(bits - 1, -1, -1, dtype=torch.int16)
    return ((words[..., None] >> shifts) & 1).bool()
