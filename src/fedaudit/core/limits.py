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
class Limited(Generic[Limit]):
    """Estimate with its confidence limits.

    Attributes:
        value: The estimate.
        low: Its lower confidence limit.
        high: Its upper confidence limit.

    Examples:
        >>> from fedaudit.metrics import Limited
        >>> from fedaudit.metrics import limits_if_dependent
        >>> limits_if_dependent([Limited(0.6, low=0.5, high=0.7), Limited(0.7, low=0.6, high=0.8)])
        ConfidenceLimits(low=0.55, high=0.75)
    """

    value: float
    low: Limit
    high: Limit


@dataclass(frozen=True)
class IntervalEstimate(Limited[Limit]):
    """Estimate with its confidence limits and their method.

    Attributes:
        method: How the limits were computed, with their confidence level.
    """

    method: str
