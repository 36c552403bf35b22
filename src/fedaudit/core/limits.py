"""Base classes of all estimates with confidence limits. This module does not import numpy."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Limit = TypeVar("Limit")
"""Type of a limit: a float, ``float | None`` if a limit may be missing, or an array of limits."""


@dataclass(frozen=True, kw_only=True)
class Limits(Generic[Limit]):
    """Base class of results with confidence limits.

    Attributes:
        low: Lower confidence limit.
        high: Upper confidence limit.
        method: How the limits were computed, with their confidence level.
    """

    low: Limit
    high: Limit
    method: str = ""


@dataclass(frozen=True)
class EstimateWithLimits(Generic[Limit]):
    """Estimate with its confidence limits.

    Attributes:
        value: The estimate.
        low: Its lower confidence limit.
        high: Its upper confidence limit.

    Examples:
        >>> from fedaudit.metrics import EstimateWithLimits, mean_limits_if_dependent
        >>> estimates = [EstimateWithLimits(0.6, 0.5, 0.7), EstimateWithLimits(0.7, 0.6, 0.8)]
        >>> mean_limits_if_dependent(estimates)
        ConfidenceLimits(low=0.55, high=0.75)
    """

    value: float
    low: Limit
    high: Limit


@dataclass(frozen=True)
class IntervalEstimate(EstimateWithLimits[Limit]):
    """Estimate with its confidence limits and their method.

    Attributes:
        method: How the limits were computed, with their confidence level.
    """

    method: str
