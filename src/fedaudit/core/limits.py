"""Figures with limits: base classes of all estimates, without numpy."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Limit = TypeVar("Limit")
"""Type of a limit: a float, or None too if there may be no limit, or an array of limits."""


@dataclass(frozen=True, kw_only=True)
class Limits(Generic[Limit]):
    """Base of results that have limits.

    Attributes:
        low: Lower limit.
        high: Upper limit.
        method: How the limits were computed, with their level.
    """

    low: Limit
    high: Limit
    method: str = ""


@dataclass(frozen=True)
class Limited(Generic[Limit]):
    """Figure with its limits.

    Attributes:
        value: The figure.
        low: Its lower limit.
        high: Its upper limit.

    Examples:
        >>> from fedaudit.metrics import Limited
        >>> from fedaudit.metrics import averaged
        >>> averaged([Limited(0.6, low=0.5, high=0.7), Limited(0.7, low=0.6, high=0.8)])
        ConfidenceLimits(low=0.55, high=0.75)
    """

    value: float
    low: Limit
    high: Limit


@dataclass(frozen=True)
class IntervalEstimate(Limited[Limit]):
    """Figure with its limits and their method.

    Attributes:
        method: How the limits were computed, with their level.
    """

    method: str
