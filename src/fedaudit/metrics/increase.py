"""Increase of an estimate between two audits: limits, test and smallest detectable increase.

Records have intervals but no scores, so the two estimates are treated as independent. If both
audits share samples, their errors are positively correlated, and the limits are too wide.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import scipy as sp

from fedaudit.metrics.intervals import ConfidenceLimits, EstimateWithLimits, require_confidence

_LARGEST_QUANTILE = 38.0
"""Largest normal quantile whose tail probability is above 0 in floating point."""
_STEPS = 60
"""Number of bisections; each halves the error of a quantile."""


@dataclass(frozen=True)
class Increase:
    """Difference of two independent estimates with asymmetric limits.

    The distance between an estimate in (0, 1) and its limit grows with the normal quantile on the
    logit scale, as for DeLong's limits of an AUC, and otherwise on the estimate's own scale.

    Attributes:
        new: The new estimate, with two-sided limits.
        old: The old estimate, with two-sided limits.
        confidences: Confidence of the limits of the new and of the old estimate, in (0, 1).

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures, Eq. (4),
        for the combination of the limits; Newcombe 1998 for proportions.
    Differs: The limits at other confidence levels are computed from the given ones.
    """

    new: EstimateWithLimits[float]
    old: EstimateWithLimits[float]
    confidences: tuple[float, float] = (0.95, 0.95)

    def __post_init__(self) -> None:
        for confidence in self.confidences:
            require_confidence(confidence)

    @property
    def value(self) -> float:
        """The new estimate minus the old one."""
        return self.new.value - self.old.value

    def limits(self, confidence: float = 0.95) -> ConfidenceLimits:
        """Return the two-sided limits of the increase."""
        require_confidence(confidence)
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        return ConfidenceLimits(
            self.value - self._distance(quantile), self.value + self._distance(quantile, above=True)
        )

    def p_value(self, allowed: float = 0.0) -> float:
        """Return the one-sided p-value of the hypothesis that the increase is at most ``allowed``.

        It is 1 if the estimated increase is not larger.
        """
        margin = self.value - allowed
        if margin <= 0:
            return 1.0
        quantile = _bisect(lambda z: self._distance(z) >= margin)
        return float(sp.special.ndtr(-quantile))

    def smallest_detectable(self, *, tests: int, alpha: float = 0.05, power: float = 0.8) -> float:
        """Return the smallest true increase above the allowed one that the test detects.

        Args:
            tests: Number of tests of the family; the level is that of the first step of Holm's
                correction.
            alpha: Family-wise error rate, in (0, 1).
            power: Probability of detecting the increase, in (0, 1).
        """
        critical_value = -NormalDist().inv_cdf(alpha / tests)
        return self._distance(critical_value) + self._distance(NormalDist().inv_cdf(power))

    def _distance(self, quantile: float, *, above: bool = False) -> float:
        """Return the distance between the increase and its lower, or upper, limit."""
        new, old = self.confidences
        return math.hypot(
            _limit_distance(self.new, new, quantile, above=above),
            _limit_distance(self.old, old, quantile, above=not above),
        )


def _limit_distance(
    estimate: EstimateWithLimits[float], confidence: float, quantile: float, *, above: bool
) -> float:
    """Return the distance between an estimate and its limit at a normal quantile."""
    limit = estimate.high if above else estimate.low
    scale = quantile / NormalDist().inv_cdf((1 + confidence) / 2)
    if 0 < estimate.value < 1 and 0 < limit < 1:
        center = sp.special.logit(estimate.value)
        moved = center + scale * (sp.special.logit(limit) - center)
        return abs(float(sp.special.expit(moved)) - estimate.value)
    return abs(scale * (limit - estimate.value))


def _bisect(is_reached: Callable[[float], bool]) -> float:
    """Return the smallest quantile at which a condition holds; the largest one if it never does."""
    low, high = 0.0, _LARGEST_QUANTILE
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high
