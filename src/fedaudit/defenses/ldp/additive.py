"""Noise on features: each record is brought into a ball, and calibrated noise hides where."""

from math import exp, inf
from typing import Annotated

import scipy as sp
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedaudit.core.arguments import AboveZeroOrInfinite, Range, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.defenses.ldp import UNIT, LocalDP, by_parts
from fedaudit.fl.hooks import Guarantee, Workload

LEAST_DELTA = 1e-12
"""Below, the difference of two numbers in double precision does not show it any more."""


def delta_of_gaussian(noise: float, epsilon: float) -> float:
    """The least delta with which one release with normal noise has an epsilon.

    Args:
        noise: Standard deviation in units of the largest distance of two inputs, above 0.
        epsilon: In nats, at least 0.

    Source: Balle and Wang 2018, Theorem 8.
    """
    half, late = 1 / (2 * noise), epsilon * noise
    # The two terms are close where epsilon is small; the exponent is kept with the tail, which
    # alone would be 0 times infinity.
    return float(sp.special.ndtr(half - late)) - exp(
        epsilon + float(sp.special.log_ndtr(-half - late))
    )


def epsilon_of_gaussian(noise: float, delta: float) -> float:
    """The least epsilon of one release with normal noise at a delta.

    Args:
        noise: Standard deviation in units of the largest distance of two inputs, above 0.
        delta: Failure probability, from 1e-12 to below 1.
    """
    refuse_no_probability(delta)
    if delta_of_gaussian(noise, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of_gaussian(noise, high) > delta:
        high *= 2
    low = 0.0
    while _apart(low, high):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_gaussian(noise, middle) > delta else (low, middle)
    return high


def noise_of_gaussian(epsilon: float, delta: float) -> float:
    """The least normal noise with which one release has an epsilon at a delta.

    Args:
        epsilon: In nats, above 0 and finite.
        delta: Failure probability, from 1e-12 to below 1.

    Returns:
        Standard deviation in units of the largest distance of two inputs.

    Source: Balle and Wang 2018, Algorithm 1.
    """
    refuse_no_probability(delta)
    if not 0 < epsilon < inf:
        raise BadInput(f"epsilon must be above 0 and finite, got {epsilon}")
    low = high = 1.0
    while delta_of_gaussian(high, epsilon) > delta:
        high *= 2
    while delta_of_gaussian(low, epsilon) <= delta:
        low /= 2
    while _apart(low, high):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of_gaussian(middle, epsilon) > delta else (low, middle)
    return high


def _apart(low: float, high: float) -> bool:
    return high - low > 1e-12 * high


def refuse_no_probability(delta: float) -> None:
    """Refuses what is no failure probability, or one too small to be worked with."""
    if not LEAST_DELTA <= delta < 1:
        raise BadInput(f"delta is a probability from {LEAST_DELTA:g} to below 1, got {delta}")


@dataclass(frozen=True)
class _InBall(LocalDP):
    """Base of noise on records in a ball; ``clip`` is the ball's radius."""

    epsilon: AboveZeroOrInfinite
    clip: AboveZeroOrInfinite

    def __post_init__(self) -> None:
        _refuse_no_ball(self.clip, self.epsilon)

    @property
    def nominal(self) -> float:
        return self.epsilon

    @property
    def off(self) -> bool:
        return self.epsilon == self.clip == inf

    def actual_epsilon(self, features: int) -> float:
        """As asked for, however many features; but for a probability of ``exceeded``."""
        return self.epsilon


@dataclass(frozen=True)
class LdpLaplace(_InBall):
    """Shortens each record to a length in the sum of absolute values and adds Laplace noise.

    Attributes:
        epsilon: Claimed epsilon of a whole record in nats, above 0; infinity adds no noise.
        clip: Largest sum of a record's absolute values, above 0; infinity shortens nothing.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.LdpLaplace(epsilon=5.0, clip=2.0).scale
        0.8

    Source: Dwork et al. 2006 (the Laplace mechanism); sensitivity is the ball's diameter, since
        any two records may have to be told apart.
    Differs: Proven for real numbers; what is drawn are the nearest numbers in double precision.
    """

    @property
    def method(self) -> str:
        """Derivation of the actual epsilon, in words."""
        return "Laplace noise"

    @property
    def scale(self) -> float:
        """Mean absolute value of the noise."""
        return 2 * self.clip / self.epsilon if self.epsilon < inf else 0.0

    def perturbed(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """Shortened, with noise."""
        return by_parts(x, lambda part: self._noisy(part, rng))

    def _noisy(self, x: Tensor, rng: torch.Generator) -> Tensor:
        short = within_ball(x, self.clip, order=1)
        if self.scale == 0:
            return short
        # The difference of two waiting times has a Laplace distribution.
        waits = torch.empty(2, *x.shape, dtype=torch.float64).exponential_(generator=rng)
        here, there = waits.unbind()
        return short + self.scale * (here - there)


@dataclass(frozen=True)
class LdpGaussian(_InBall):
    """Shortens each record to a Euclidean length and adds normal noise.

    Attributes:
        epsilon: Claimed epsilon of a whole record in nats, above 0; infinity adds no noise.
        clip: Largest Euclidean length of a record, above 0; infinity shortens nothing.
        delta: Probability with which epsilon may be exceeded, from 1e-12 to below 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.LdpGaussian(epsilon=5.0, clip=2.0).delta
        1e-05

    Source: Balle and Wang 2018, Theorem 8 and Algorithm 1 (the least noise that suffices);
        sensitivity is the ball's diameter, since any two records may have to be told apart.
    Differs: Proven for real numbers; what is drawn are the nearest numbers in double precision.
    """

    delta: Annotated[float, Range(ge=LEAST_DELTA, lt=1)] = 1e-5

    @property
    def exceeded(self) -> float:
        """Probability with which its epsilon may be exceeded."""
        return self.delta

    @property
    def method(self) -> str:
        """Derivation of the actual epsilon, in words."""
        return "normal noise"

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise."""
        if self.epsilon == inf:
            return 0.0
        return 2 * self.clip * noise_of_gaussian(self.epsilon, self.delta)

    def guarantee(self, work: Workload, *, delta: float) -> Guarantee:
        """Proven guarantee for each record's features at another delta than the settings'."""
        if self.epsilon == inf:
            return Guarantee(inf, UNIT)
        epsilon = epsilon_of_gaussian(self.sigma / (2 * self.clip), delta)
        said = f"claimed epsilon {self.epsilon:g} at delta {self.delta:g}"
        return Guarantee(epsilon, UNIT, f"{said}; {self.method}, delta {delta:g}")

    def perturbed(
        self, x: Float[Tensor, "records features"], rng: torch.Generator
    ) -> Float[Tensor, "records features"]:
        """Shortened, with noise."""
        sigma = self.sigma
        return by_parts(x, lambda part: _with_normal(within_ball(part, self.clip), sigma, rng))


def within_ball(
    x: Float[Tensor, "records features"], radius: float, *, order: int = 2
) -> Float64[Tensor, "records features"]:
    """Records shortened to at most a length; what is shorter stays as it is.

    Args:
        x: One row a record.
        radius: Of the ball; infinity shortens nothing.
        order: 1 for the sum of absolute values, 2 for the Euclidean length.
    """
    exact = x.double()
    if radius == inf:
        return exact
    length = torch.linalg.vector_norm(exact, ord=order, dim=1, keepdim=True)
    # A record of zeros has no length to divide by; rounding must not leave one outside.
    share = radius * (1 - 2.0**-40) / length.clamp_min(radius * 2.0**-40)
    short: Tensor = exact * share.clamp_max(1)
    return short


def _with_normal(exact: Tensor, sigma: float, rng: torch.Generator) -> Tensor:
    if sigma == 0:
        return exact
    return exact + sigma * torch.randn(exact.shape, dtype=torch.float64, generator=rng)


def _refuse_no_ball(clip: float, epsilon: float) -> None:
    if not clip > 0:
        raise BadInput(f"clip is the largest length of a record, above 0, got {clip}")
    if clip == inf and epsilon < inf:
        raise BadInput(
            "noise is fitted to the largest length of a record: with a finite epsilon, clip must "
            "be finite"
        )
