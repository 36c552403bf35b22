"""Additive noise on features: each sample is clipped to a norm, and calibrated noise is added.

In this module, ``noise`` is a noise multiplier: the standard deviation divided by the sensitivity,
which is the largest distance between two inputs.
"""

from collections.abc import Callable
from math import exp, inf
from typing import Annotated

import scipy as sp
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedaudit.core.arguments import AboveZeroOrInfinite, Range, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.defenses.ldp import UNIT, LocalDP, perturb_in_chunks
from fedaudit.fl.hooks import DataUse, Guarantee

MIN_DELTA = 1e-12
"""Smallest allowed delta: below it, the computation in double precision is inaccurate."""


def delta_of_gaussian(noise: float, epsilon: float) -> float:
    """Compute the smallest delta for which the Gaussian mechanism is (epsilon, delta)-DP.

    Source: Balle and Wang 2018, Theorem 8.
    """
    half, shift = 1 / (2 * noise), epsilon * noise
    # Compute the product e^epsilon * ndtr(-half - shift) from logarithms, since for a large epsilon
    # the factors are infinity and 0.
    return float(sp.special.ndtr(half - shift)) - exp(
        epsilon + float(sp.special.log_ndtr(-half - shift))
    )


def epsilon_of_gaussian(noise: float, delta: float) -> float:
    """Compute the smallest epsilon for which the Gaussian mechanism is (epsilon, delta)-DP."""
    require_delta(delta)
    if delta_of_gaussian(noise, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of_gaussian(noise, high) > delta:
        high *= 2
    return _smallest_sufficient(
        lambda epsilon: delta_of_gaussian(noise, epsilon) <= delta, 0.0, high
    )


def noise_of_gaussian(epsilon: float, delta: float) -> float:
    """Compute the smallest noise for which the Gaussian mechanism is (epsilon, delta)-DP.

    Source: Balle and Wang 2018, Algorithm 1.
    """
    require_delta(delta)
    if not 0 < epsilon < inf:
        raise BadInput(f"epsilon must be above 0 and finite, got {epsilon}")
    low = high = 1.0
    while delta_of_gaussian(high, epsilon) > delta:
        high *= 2
    while delta_of_gaussian(low, epsilon) <= delta:
        low /= 2
    return _smallest_sufficient(lambda noise: delta_of_gaussian(noise, epsilon) <= delta, low, high)


def _smallest_sufficient(is_enough: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest sufficient value, which is above ``low`` and at most ``high``."""
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def require_delta(delta: float) -> None:
    """Raise if delta is not a probability, or too small for double precision."""
    if not MIN_DELTA <= delta < 1:
        raise BadInput(f"delta must be a probability from {MIN_DELTA:g} to below 1, got {delta}")


@dataclass(frozen=True)
class _ClippedNoise(LocalDP):
    epsilon: AboveZeroOrInfinite
    clip: AboveZeroOrInfinite

    def __post_init__(self) -> None:
        if self.clip == inf and self.epsilon < inf:
            raise BadInput(
                "clip is infinite, but the noise for a finite epsilon is proportional to clip; "
                "give a finite clip"
            )

    @property
    def nominal(self) -> float:
        return self.epsilon

    @property
    def off(self) -> bool:
        return self.epsilon == self.clip == inf

    def actual_epsilon(self, features: int) -> float:
        """Return the claimed epsilon, which is valid for any number of features."""
        return self.epsilon


@dataclass(frozen=True)
class LdpLaplace(_ClippedNoise):
    """Clipping of each sample in the L1 norm, with Laplace noise.

    Attributes:
        epsilon: Claimed epsilon of a whole sample, above 0; with infinity, there is no noise.
        clip: Largest L1 norm of a sample, above 0; infinity turns clipping off.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.LdpLaplace(epsilon=5.0, clip=2.0).scale
        0.8

    Source: Dwork et al. 2006 (Laplace mechanism). The sensitivity is 2 x clip, the largest distance
        between two samples.
    Differs: The proof assumes real numbers; random numbers are rounded to double precision.
    """

    @property
    def method(self) -> str:
        return "Laplace noise"

    @property
    def scale(self) -> float:
        """Mean absolute value of the noise."""
        return 2 * self.clip / self.epsilon if self.epsilon < inf else 0.0

    def perturbed(
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        return perturb_in_chunks(x, lambda chunk: self._perturb_chunk(chunk, rng))

    def _perturb_chunk(self, x: Tensor, rng: torch.Generator) -> Tensor:
        clipped = clip_samples(x, self.clip, order=1)
        if self.scale == 0:
            return clipped
        # The difference of two exponential variables has a Laplace distribution.
        draws = torch.empty(2, *x.shape, dtype=torch.float64).exponential_(generator=rng)
        return clipped + self.scale * (draws[0] - draws[1])


@dataclass(frozen=True)
class LdpGaussian(_ClippedNoise):
    """Clipping of each sample in the Euclidean norm, with Gaussian noise.

    Attributes:
        epsilon: Claimed epsilon of a whole sample, above 0; with infinity, there is no noise.
        clip: Largest Euclidean norm of a sample, above 0; infinity turns clipping off.
        delta: Delta of the guarantee, from 1e-12 to below 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.LdpGaussian(epsilon=5.0, clip=2.0).delta
        1e-05

    Source: Balle and Wang 2018, Theorem 8 and Algorithm 1 (smallest sufficient noise). The
        sensitivity is 2 x clip, the largest distance between two samples.
    Differs: The proof assumes real numbers; random numbers are rounded to double precision.
    """

    delta: Annotated[float, Range(ge=MIN_DELTA, lt=1)] = 1e-5

    @property
    def claimed_delta(self) -> float:
        return self.delta

    @property
    def method(self) -> str:
        return "normal noise"

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise."""
        if self.epsilon == inf:
            return 0.0
        return 2 * self.clip * noise_of_gaussian(self.epsilon, self.delta)

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee:
        if self.epsilon == inf:
            return Guarantee(inf, UNIT)
        epsilon = epsilon_of_gaussian(self.sigma / (2 * self.clip), delta)
        claim = f"claimed epsilon {self.epsilon:g} at delta {self.delta:g}"
        return Guarantee(epsilon, UNIT, f"{claim}; {self.method}, delta {delta:g}")

    def perturbed(
        self, x: Float[Tensor, "samples features"], rng: torch.Generator
    ) -> Float[Tensor, "samples features"]:
        sigma = self.sigma

        def perturb_chunk(chunk: Tensor) -> Tensor:
            clipped = clip_samples(chunk, self.clip)
            if sigma == 0:
                return clipped
            return clipped + sigma * torch.randn(chunk.shape, dtype=torch.float64, generator=rng)

        return perturb_in_chunks(x, perturb_chunk)


def clip_samples(
    x: Float[Tensor, "samples features"], radius: float, *, order: int = 2
) -> Float64[Tensor, "samples features"]:
    """Clip the norm of each sample, Euclidean or L1 (``order`` 1), to ``radius``."""
    exact = x.double()
    if radius == inf:
        return exact
    norms = torch.linalg.vector_norm(exact, ord=order, dim=1, keepdim=True)
    # The factor 1 - 2^-40 keeps norms below the radius despite rounding. The clamp avoids a
    # division by 0.
    factor = radius * (1 - 2.0**-40) / norms.clamp_min(radius * 2.0**-40)
    clipped: Tensor = exact * factor.clamp_max(1)
    return clipped
