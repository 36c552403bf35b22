"""How much normal noise one release needs, exactly."""

from math import exp, inf

from scipy.special import log_ndtr, ndtr

from fedaudit.errors import BadInput

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
    return float(ndtr(half - late)) - exp(epsilon + float(log_ndtr(-half - late)))


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
