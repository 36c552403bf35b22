"""Exact confidence intervals of proportions, and intervals of a mean over several runs.

A mean over runs can answer two questions. *These runs*: how much did these trained models leak?
Limits for these runs are conditional on the trained models: only the samples in each run are
random. *Further runs*: what is the mean over all possible seeds? For this question, the runs are a
random sample too, so few runs give wide limits. All limits are for a mean; they do not predict the
result of another run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput
from fedaudit.core.limits import EstimateWithLimits as EstimateWithLimits
from fedaudit.core.limits import IntervalEstimate as IntervalEstimate
from fedaudit.core.limits import Limits as Limits

FEWEST_RUNS = 5
"""Fewest runs for limits of the mean over all possible seeds. Fewer runs would give limits that are
too wide to show any leak."""

_LARGEST_ROUNDING_ERROR = 1e-12
"""Values whose range is at most this large are treated as equal."""
_GRID_POINTS = 48
"""Number of grid points for -log p-values in :func:`mean_limits_by_p_values`."""
_LEAST_ERROR = 1e-12
"""Smallest one-sided error probability at which a run's limits are computed."""


class ConfidenceLimits(NamedTuple):
    """Lower and upper confidence limit.

    Examples:
        >>> import fedaudit as fa
        >>> [round(limit, 3) for limit in fa.metrics.clopper_pearson(9, 10)]
        [0.555, 0.997]
    """

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LimitsByError(Limits[Float[np.ndarray, " errors"]]):
    """One-sided limits of an estimate, one for each of several error probabilities."""


LimitsAt = Callable[[Float[np.ndarray, " errors"]], LimitsByError]
"""Function that returns an estimate's limits at each of several one-sided error probabilities.

The error probabilities are in (0, 1)."""


@dataclass(frozen=True)
class SeedMean(IntervalEstimate[float | None]):
    """Mean of a metric over independent runs, with its interval.

    The limits are None if all runs have the same value, since no variance can be estimated.

    Attributes:
        seeds: Number of runs.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.student_t_over_seeds([0.61, 0.63, 0.60, 0.64, 0.62]).value, 3)
        0.62
    """

    seeds: int


def format_percent(proportion: float) -> str:
    """Format a proportion as a percentage without trailing zeros: 0.95 gives "95%"."""
    return f"{100 * proportion:.6g}%"


def require_confidence(confidence: float) -> None:
    """Raise if the confidence is not strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise BadInput(f"confidence is between 0 and 1, such as 0.95, got {confidence}")


def clopper_pearson_lower(
    count: float | int, total: float | int, *, confidence: float = 0.95
) -> float:
    """Compute the one-sided lower confidence limit of a proportion.

    The true proportion is below the limit with probability at most 1 - confidence.

    Args:
        count: Number of successes in ``total`` trials; may be fractional, since ties count half.
        total: Number of independent trials, above 0.
        confidence: One-sided confidence, in (0, 1).

    Raises:
        BadInput: No trials, or more successes than trials.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.clopper_pearson_lower(9, 10), 3)
        0.606

    Source: Clopper and Pearson, The use of confidence or fiducial limits, 1934.
    """
    require_confidence(confidence)
    _raise_if_invalid_count(count, total)
    if count == 0:
        return 0.0
    return float(sp.special.betaincinv(count, total - count + 1, 1 - confidence))


def clopper_pearson_function(count: float | int, total: float | int) -> LimitsAt:
    """Return a function that computes Clopper-Pearson limits at any error probabilities.

    Args:
        count: Number of successes in ``total`` trials.
        total: Number of independent trials, above 0.

    Raises:
        BadInput: No trials, or more successes than trials.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> limits = fa.metrics.clopper_pearson_function(9, 10)(np.array([0.025]))
        >>> limits.low.round(3).tolist(), limits.high.round(3).tolist()
        ([0.555], [0.997])
    """
    _raise_if_invalid_count(count, total)

    def limits_at(errors: Float[np.ndarray, " errors"]) -> LimitsByError:
        low, high = np.zeros(len(errors)), np.ones(len(errors))
        if count:
            low = np.asarray(sp.special.betaincinv(count, total - count + 1, errors))
        if count < total:
            high = np.asarray(sp.special.betaincinv(count + 1, total - count, 1 - errors))
        return LimitsByError(low=low, high=high)

    return limits_at


def clopper_pearson_upper(
    count: float | int, total: float | int, *, confidence: float = 0.95
) -> float:
    """Compute the one-sided upper confidence limit of a proportion.

    The true proportion is above the limit with probability at most 1 - confidence. Arguments,
    errors and source are those of :func:`clopper_pearson_lower`.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.clopper_pearson_upper(1, 10), 3)
        0.394
    """
    require_confidence(confidence)
    _raise_if_invalid_count(count, total)
    if count == total:
        return 1.0
    return float(sp.special.betaincinv(count + 1, total - count, confidence))


def clopper_pearson(
    count: float | int, total: float | int, *, confidence: float = 0.95
) -> ConfidenceLimits:
    """Compute the exact two-sided interval of a proportion.

    Each limit has half of the error probability.

    Args:
        count: Number of successes in ``total`` trials.
        total: Number of independent trials, above 0.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: No trials, or more successes than trials.

    Examples:
        >>> import fedaudit as fa
        >>> low, high = fa.metrics.clopper_pearson(9, 10)
        >>> round(low, 3), round(high, 3)
        (0.555, 0.997)

    Source: Clopper and Pearson, The use of confidence or fiducial limits, 1934.
    """
    require_confidence(confidence)
    one_sided = 1 - (1 - confidence) / 2
    low = clopper_pearson_lower(count, total, confidence=one_sided)
    return ConfidenceLimits(low, clopper_pearson_upper(count, total, confidence=one_sided))


def mean_limits_if_independent(runs: Sequence[EstimateWithLimits[float]]) -> ConfidenceLimits:
    """Compute limits of the mean over independent runs from summed squared distances to limits.

    The distance of each run's estimate from its limit is treated as a multiple of the standard
    error, separately for lower and upper limits. This is valid for unbiased estimates, whose errors
    cancel between runs. For other estimates, use :func:`mean_limits_by_p_values`. The limits of a
    single run are returned unchanged.

    Args:
        runs: The estimate of each run, all with limits at the same confidence; at least one.

    Raises:
        BadInput: No runs.

    Examples:
        >>> from fedaudit.metrics import EstimateWithLimits, mean_limits_if_independent
        >>> runs = [EstimateWithLimits(0.6, 0.5, 0.7), EstimateWithLimits(0.7, 0.6, 0.8)]
        >>> low, high = mean_limits_if_independent(runs)
        >>> round(low, 3), round(high, 3)
        (0.579, 0.721)

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4),
        for a mean instead of a difference.
    """
    _raise_if_no_runs(len(runs))
    value = fmean(run.value for run in runs)
    lower_distance = math.hypot(*(run.value - run.low for run in runs)) / len(runs)
    upper_distance = math.hypot(*(run.high - run.value for run in runs)) / len(runs)
    return ConfidenceLimits(value - lower_distance, value + upper_distance)


def mean_limits_if_dependent(estimates: Sequence[EstimateWithLimits[float]]) -> ConfidenceLimits:
    """Compute limits of the mean of estimates that may depend on each other in any way.

    The standard error of a mean is at most the mean of the standard errors. The means of the lower
    and of the upper limits are therefore valid limits if errors are nearly normal. Use this
    function for clients or attacks of one run, or for accuracies on one set of test samples.

    Args:
        estimates: The estimates, all with limits at the same confidence; at least one.

    Raises:
        BadInput: No estimates.

    Examples:
        >>> from fedaudit.metrics import EstimateWithLimits, mean_limits_if_dependent
        >>> estimates = [EstimateWithLimits(0.6, 0.5, 0.7), EstimateWithLimits(0.7, 0.6, 0.8)]
        >>> low, high = mean_limits_if_dependent(estimates)
        >>> round(low, 3), round(high, 3)
        (0.55, 0.75)
    """
    _raise_if_no_runs(len(estimates))
    return ConfidenceLimits(
        fmean(estimate.low for estimate in estimates),
        fmean(estimate.high for estimate in estimates),
    )


def mean_limits_by_p_values(
    runs: Sequence[LimitsAt],
    *,
    confidence: float = 0.95,
    within: tuple[float, float] = (0.0, 1.0),
) -> ConfidenceLimits:
    """Combine limits of independent runs into limits of the mean over these runs.

    A run's limits at all error probabilities define a p-value for each candidate value: the error
    probability at which the limit equals this value. Two tests combine the runs' p-values. One uses
    their product, as in Fisher's method; the other uses their minimum. The lower (upper) limit is
    the smallest (largest) mean of candidate values that neither test rejects. It is valid if the
    limits of each run are valid, even if these are skewed or conservative. The limits of a single
    run are returned unchanged.

    Args:
        runs: For each run, a function that returns its limits at any error probabilities; at least
            one run.
        confidence: Two-sided confidence, in (0, 1).
        within: Range of possible values.

    Raises:
        BadInput: No runs, or a confidence out of range.

    Examples:
        >>> from fedaudit.metrics import clopper_pearson_function, mean_limits_by_p_values
        >>> runs = [clopper_pearson_function(30, 100), clopper_pearson_function(40, 100)]
        >>> low, high = mean_limits_by_p_values(runs)
        >>> round(low, 3), round(high, 3)
        (0.274, 0.433)

    Source: Fisher, Statistical Methods for Research Workers, 1925, section 21.1, inverted.
    """
    require_confidence(confidence)
    _raise_if_no_runs(len(runs))
    one_sided_error = (1 - confidence) / 2
    if len(runs) == 1:
        limits = runs[0](np.array([one_sided_error]))
        return ConfidenceLimits(float(limits.low[0]), float(limits.high[0]))
    critical = _critical_values(len(runs), one_sided_error)
    # Each run's -log p-value is rounded up to the next grid point, which can only widen the limits.
    grid = critical.total / _GRID_POINTS * np.arange(1, _GRID_POINTS + 1)
    errors = np.exp(-np.minimum(grid, critical.single))
    large_errors = errors[errors >= _LEAST_ERROR]
    by_run = [limits_at(large_errors) for limits_at in runs]
    # At smaller error probabilities, the limit is the end of the range of possible values.
    padding = np.ones(len(errors) - len(large_errors))
    lows = [np.concatenate([limits.low, within[0] * padding]) for limits in by_run]
    highs = [-np.concatenate([limits.high, within[1] * padding]) for limits in by_run]
    return ConfidenceLimits(_least_sum(lows) / len(runs), -_least_sum(highs) / len(runs))


class _CriticalValues(NamedTuple):
    """Critical values of the runs' -log p-values.

    Attributes:
        total: Critical value of their sum over runs.
        single: Critical value of each run's -log p-value.
    """

    total: float
    single: float


@lru_cache
def _critical_values(runs: int, error: float) -> _CriticalValues:
    """Return critical values that -log p-values of independent runs exceed with this probability.

    Under the null hypothesis, each -log p-value is at most exponentially distributed. Half of the
    error probability is spent on single values. Without a critical value for these, one run with an
    uninformative limit could determine the sum alone. An example is a run with few samples.
    """
    single = -math.log(error / 2 / runs)

    def excess_error(total: float) -> float:
        # Distribution of a sum of exponential variables that are all below ``single``, by the
        # inclusion-exclusion principle over the variables above ``single``.
        terms = (
            (-1) ** k
            * math.comb(runs, k)
            * math.exp(-k * single)
            * float(sp.special.gammainc(runs, max(total - k * single, 0.0)))
            for k in range(runs + 1)
        )
        return 1 - math.fsum(terms) - error

    # Bisection: importing scipy.optimize takes longer than these 60 steps.
    low, high = single, runs * single
    for _ in range(60):
        middle = (low + high) / 2
        if excess_error(middle) > 0:
            low = middle
        else:
            high = middle
    return _CriticalValues(high, single)


def _least_sum(limits_by_run: Sequence[np.ndarray]) -> float:
    """Return the least sum of one limit per run whose indices add up to at most the last index.

    The index of a limit is the -log p-value of the run in grid steps, rounded down. The limits of a
    run descend: a later index means a smaller error probability and thus a wider limit. The sum is
    minimised by dynamic programming, one run at a time.
    """
    best = limits_by_run[0]
    for limits in limits_by_run[1:]:
        best = np.array([(best[: k + 1] + limits[k::-1]).min() for k in range(len(best))])
    return float(best[-1])


def student_t_over_seeds(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> SeedMean:
    """Compute the mean over runs, with Student's t interval of the mean over all possible seeds.

    The independent units are runs, because all samples of one run are scored with the same model.

    Args:
        values: The metric's value in each run, at least five values.
        confidence: Two-sided confidence, in (0, 1).
        within: Range of possible values, to which the interval is cut; (0, 1) for a proportion.

    Raises:
        BadInput: Fewer than five runs, or a value that is not finite.

    Examples:
        >>> import fedaudit as fa
        >>> mean = fa.metrics.student_t_over_seeds([0.61, 0.63, 0.60, 0.64, 0.62])
        >>> round(mean.value, 3), round(mean.low, 3), round(mean.high, 3)
        (0.62, 0.6, 0.64)
    """
    if len(values) < FEWEST_RUNS:
        raise BadInput(
            f"{too_few_runs(len(values))}; run more seeds, or use limits for these runs "
            "(mean_limits_if_independent or mean_limits_by_p_values)"
        )
    return mean_of_units(values, units="seeds", confidence=confidence, within=within)


def too_few_runs(runs: int) -> str:
    """Return the reason why an interval over further runs is not computed."""
    return f"an interval over further runs needs {FEWEST_RUNS} seeds, got {runs}"


def mean_of_units(
    values: Sequence[float],
    *,
    units: str,
    confidence: float = 0.95,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> SeedMean:
    """Compute the mean of independent units, such as runs or games, with Student's t interval.

    Args:
        values: One value per unit, at least two.
        units: Plural noun for the units, used in the method's name.
        confidence: Two-sided confidence, in (0, 1).
        within: Range of possible values, to which the interval is cut; (0, 1) for proportions.

    Raises:
        BadInput: Fewer than two units, or a value that is not finite.
    """
    require_confidence(confidence)
    array = _as_units(
        values, min_units=2, units=units, remedy="report the interval of the single one"
    )
    mean = float(array.mean())
    if np.ptp(array) <= _LARGEST_ROUNDING_ERROR:
        return SeedMean(mean, None, None, f"no spread over {len(array)} {units}", len(array))
    standard_error = float(array.std(ddof=1) / np.sqrt(len(array)))
    quantile = float(sp.special.stdtrit(len(array) - 1, 1 - (1 - confidence) / 2))
    half_width = quantile * standard_error
    method = f"Student t over {len(array)} {units} {format_percent(confidence)}"
    low, high = max(within[0], mean - half_width), min(within[1], mean + half_width)
    return SeedMean(mean, low, high, method, len(array))


def bootstrap_over_seeds(
    values: Sequence[float],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> SeedMean:
    """Compute the mean over runs with a percentile bootstrap that resamples runs.

    Use this function for metrics that are too skewed for Student's t, such as a rate near 0. It
    requires at least ten runs, because percentiles over fewer runs are far too narrow. With fewer
    runs, use :func:`student_t_over_seeds`.

    Args:
        values: The metric's value in each run, at least ten values.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        resamples: Number of resamples.

    Raises:
        BadInput: Fewer than ten runs, or a value that is not finite.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> values = [0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.02, 0.03, 0.04, 0.10]
        >>> mean = fa.metrics.bootstrap_over_seeds(values, rng=np.random.default_rng(0))
        >>> round(mean.value, 3), mean.low < 0.02 < mean.high
        (0.02, True)
    """
    require_confidence(confidence)
    runs = _as_units(values, min_units=10, units="seeds", remedy="use student_t_over_seeds")
    mean = float(runs.mean())
    if np.ptp(runs) == 0:
        return SeedMean(mean, None, None, f"no spread over {len(runs)} seeds", len(runs))
    means = rng.choice(runs, size=(resamples, len(runs))).mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, 1 - (1 - confidence) / 2])
    method = f"bootstrap over {len(runs)} seeds {format_percent(confidence)}"
    return SeedMean(mean, float(low), float(high), method, len(runs))


def _as_units(values: Sequence[float], *, min_units: int, units: str, remedy: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < min_units:
        raise BadInput(
            f"an interval over {units} needs at least {min_units} {units}, got {array.size}; "
            f"take more {units} or {remedy}"
        )
    if not np.isfinite(array).all():
        raise BadInput(
            f"values over {units} must be finite; leave out {units} whose value is missing or "
            "infinite"
        )
    return array


def _raise_if_no_runs(runs: int) -> None:
    if runs < 1:
        raise BadInput("limits of a mean need the estimate of at least one run, got none")


def _raise_if_invalid_count(count: float | int, total: float | int) -> None:
    if total <= 0 or not 0 <= count <= total:
        raise BadInput(
            f"a proportion needs 0 <= count <= total and total > 0, got {count} of {total}"
        )
