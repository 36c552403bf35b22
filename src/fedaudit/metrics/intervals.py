"""Intervals for shares (exact) and for figures repeated over seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, stdtrit

from fedaudit.errors import BadInput

_ROUNDING = 1e-12
"""Equal gaps between shares differ by so much at most, which is no spread."""


class Interval(NamedTuple):
    """Lower and upper limit."""

    low: float
    high: float


class SeedMean(NamedTuple):
    """A figure's mean over independent runs.

    Attributes:
        value: The mean.
        low: Lower limit; None where the runs show no spread to build an interval from.
        high: Upper limit; None likewise.
        method: How the interval was made.
        seeds: Number of runs.
    """

    value: float
    low: float | None
    high: float | None
    method: str
    seeds: int


def percent(share: float) -> str:
    """A share as per cent, without needless zeros: 0.95 gives "95%"."""
    return f"{100 * share:.6g}%"


def require_confidence(confidence: float) -> None:
    """Refuses a confidence that is not strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise BadInput(f"confidence is a share between 0 and 1, such as 0.95, got {confidence}")


def lower_limit(count: float | int, total: float | int, *, confidence: float = 0.95) -> float:
    """Lower limit that the true share lies below with probability at most 1 - confidence.

    Args:
        count: Successes among ``total``; fractional where half-successes are counted.
        total: Independent trials, above 0.
        confidence: One-sided confidence, in (0, 1).

    Raises:
        BadInput: No trials, or more successes than trials.

    Source: Clopper and Pearson, The use of confidence or fiducial limits, 1934.
    """
    require_confidence(confidence)
    _require_count(count, total)
    if count == 0:
        return 0.0
    return float(betaincinv(count, total - count + 1, 1 - confidence))


def upper_limit(count: float | int, total: float | int, *, confidence: float = 0.95) -> float:
    """Upper limit that the true share lies above with probability at most 1 - confidence.

    Args:
        count: Successes among ``total``; fractional where half-successes are counted.
        total: Independent trials, above 0.
        confidence: One-sided confidence, in (0, 1).

    Raises:
        BadInput: No trials, or more successes than trials.

    Source: Clopper and Pearson, The use of confidence or fiducial limits, 1934.
    """
    require_confidence(confidence)
    _require_count(count, total)
    if count == total:
        return 1.0
    return float(betaincinv(count + 1, total - count, confidence))


def clopper_pearson(
    count: float | int, total: float | int, *, confidence: float = 0.95
) -> Interval:
    """Exact two-sided interval for a share, each side with half of the error.

    Args:
        count: Successes among ``total``.
        total: Independent trials, above 0.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: No trials, or more successes than trials.

    Source: Clopper and Pearson, The use of confidence or fiducial limits, 1934.
    """
    require_confidence(confidence)
    side = 1 - (1 - confidence) / 2
    return Interval(
        lower_limit(count, total, confidence=side), upper_limit(count, total, confidence=side)
    )


def mean_over_seeds(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> SeedMean:
    """Mean over runs with Student's t interval: what another run of the procedure would give.

    Samples of one run share one model, so the runs, not the samples, are the units here.

    Args:
        values: The figure in each run, at least two.
        confidence: Two-sided confidence, in (0, 1).
        within: Range of the figure, which the interval is cut to; (0, 1) for a share.

    Raises:
        BadInput: Fewer than two runs, or a value that is not finite.
    """
    require_confidence(confidence)
    runs = _runs(values, least=2, way_out="report the run's own interval")
    center, error = float(runs.mean()), float(runs.std(ddof=1) / np.sqrt(len(runs)))
    if np.ptp(runs) <= _ROUNDING:
        return SeedMean(center, None, None, f"no spread over {len(runs)} seeds", len(runs))
    reach = float(stdtrit(len(runs) - 1, 1 - (1 - confidence) / 2)) * error
    method = f"Student t over {len(runs)} seeds {percent(confidence)}"
    low, high = max(within[0], center - reach), min(within[1], center + reach)
    return SeedMean(center, low, high, method, len(runs))


def bootstrap_over_seeds(
    values: Sequence[float],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> SeedMean:
    """Mean over runs with a percentile bootstrap that draws whole runs.

    For figures too skewed for Student's t (a rate near 0). With few runs the percentiles are
    far too narrow, so ten are required; below that use ``mean_over_seeds``.

    Args:
        values: The figure in each run, at least ten.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        resamples: Number of resamples.

    Raises:
        BadInput: Fewer than ten runs, or a value that is not finite.
    """
    require_confidence(confidence)
    runs = _runs(values, least=10, way_out="use mean_over_seeds")
    center = float(runs.mean())
    if np.ptp(runs) == 0:
        return SeedMean(center, None, None, f"no spread over {len(runs)} seeds", len(runs))
    means = rng.choice(runs, size=(resamples, len(runs))).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, 1 - (1 - confidence) / 2])
    method = f"bootstrap over {len(runs)} seeds {percent(confidence)}"
    return SeedMean(center, float(low), float(high), method, len(runs))


def _runs(values: Sequence[float], *, least: int, way_out: str) -> np.ndarray:
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim != 1 or len(runs) < least:
        raise BadInput(
            f"an interval over seeds needs at least {least} runs, got {runs.size}; "
            f"run more seeds or {way_out}"
        )
    if not np.isfinite(runs).all():
        raise BadInput("a figure over seeds must be finite in every run; leave refused ones out")
    return runs


def _require_count(count: float | int, total: float | int) -> None:
    if total <= 0 or not 0 <= count <= total:
        raise BadInput(f"a share needs 0 <= count <= total and total > 0, got {count} of {total}")
