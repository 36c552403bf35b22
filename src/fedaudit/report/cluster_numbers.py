"""Figures of clustered learning as text: shares in per cent, clients as numbers."""

from functools import partial

from fedaudit.report.reading import (
    AGREEMENT,
    CHANCE_VIOLATIONS,
    EXPECTED_VIOLATIONS,
    MOVED,
    MOVED_AT_THE_END,
    OWN_MODEL,
    SURE_VIOLATIONS,
    VIOLATIONS,
    ClusterMean,
)
from fedaudit.report.words import count, further_text, interval, percent

COUNTS = (
    VIOLATIONS,
    SURE_VIOLATIONS,
    EXPECTED_VIOLATIONS,
    CHANCE_VIOLATIONS,
    OWN_MODEL,
    MOVED,
    MOVED_AT_THE_END,
)
"""Figures that are numbers of clients; all others are shares, but for the agreement."""

PLAIN_INDEX = (AGREEMENT,)
"""Figures that are neither shares nor counts."""


def figure_text(mean: ClusterMean) -> str:
    """A figure's value as it stands in tables."""
    if mean.figure in COUNTS:
        return amount(mean.value)
    return (
        f"{mean.value:.2f}".replace("-", "−") if mean.figure in PLAIN_INDEX else percent(mean.value)
    )


def limits_text(mean: ClusterMean) -> str:
    """Its interval; empty without one."""
    if mean.low is None or mean.high is None:
        return ""
    return _limits(mean, mean.low, mean.high)


def further_limits(mean: ClusterMean) -> str:
    """What further runs would give; empty without it."""
    return further_text(mean.further, partial(_limits, mean))


def _limits(mean: ClusterMean, low: float, high: float) -> str:
    if mean.figure in COUNTS:
        return f"{amount(low)}–{amount(high)}"
    if mean.figure in PLAIN_INDEX:
        return f"{low:.2f} to {high:.2f}".replace("-", "−")
    return interval(low, high, "accuracy")


def amount(value: float) -> str:
    """A number of clients that may be a mean: whole numbers without decimals."""
    return count(round(value)) if abs(value - round(value)) < 1e-6 else f"{value:.1f}"


def in_words(mean: ClusterMean) -> str:
    """ "12.4 (95% interval 9.1–15.7)"."""
    limits = limits_text(mean)
    return figure_text(mean) + (f" (95% interval {limits})" if limits else "")
