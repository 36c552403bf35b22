"""Statistical tests of a filter's noise.

The tests use the difference between two calls with the same input, in which everything but the
noise cancels. Each p-value is exact or conservative. A Bonferroni correction bounds the probability
that any test fails although the noise is as declared.
"""

from collections.abc import Iterator
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.limits import EstimateWithLimits
from fedaudit.filters.claim import (
    CHANGE_CHECK,
    TOLERANCE,
    Arrays,
    Claim,
    FilterCheck,
    Result,
    format_length,
)
from fedaudit.filters.neighbours import AuditInputs
from fedaudit.filters.replay import Replay

ERROR = 0.01
"""Probability that any test of one set of draws fails although the noise is as declared.

A check fails only if it fails for two sets of draws.
"""
_REPETITION_CALLS = 16
"""Number of calls in which repeated values are counted."""
_MIN_DISTINCT = 0.5
"""Mean fraction of distinct values per entry, below which rounding or sparsification is assumed."""
_MAX_FREQUENCY = 0.02
"""Frequency of one value above which an array counts as rounded."""
_MAX_ARRAY_PAIRS = 300
"""Maximum number of pairs of arrays that are tested for shared noise."""


class NoiseTest(NamedTuple):
    """P-value of one test.

    Attributes:
        check: Group of the test: "scale", "entries", "shape" or "calls".
        location: Description of the entries that were tested.
        p_value: Probability of a result at least as extreme if the noise is as declared.
    """

    check: str
    location: str
    p_value: float


def is_noise_hidden(replay: Replay, inputs: AuditInputs) -> bool:
    """Return True if most values repeat, as after rounding or sparsification of the noise."""
    outputs = replay.call_repeatedly(inputs.small, _REPETITION_CALLS, seed_index=11)
    noisy = _noisy_entries(outputs)
    if not (replay.claim.sigma and noisy):
        return False
    arrays = [_matrix(value) for value in noisy.values()]
    entries = _matrix(*(array[:, :: max(1, array.shape[1] // 200)] for array in arrays))
    distinct = [len(np.unique(entry)) / len(entry) for entry in entries.T]
    return bool(np.mean(distinct) < _MIN_DISTINCT)


def noise_checks(
    replay: Replay, inputs: AuditInputs, calls: int, *, is_replayable: bool, is_hidden: bool
) -> list[FilterCheck]:
    """Check scale and distribution of the noise, and its independence between entries and calls.

    A check fails only if it fails for two sets of draws.

    Args:
        replay: The filter.
        inputs: The inputs.
        calls: Number of calls in each set of draws, a multiple of four.
        is_replayable: Whether random draws can be repeated. If not, this function also tests the
            sensitivity.
        is_hidden: Whether the output is rounded or made sparse after the noise. If so, only
            independence between calls is tested.
    """
    for seed_index in (13, 17):
        small = replay.call_repeatedly(inputs.small, calls, seed_index=seed_index)
        large = replay.call_repeatedly(inputs.large, calls, seed_index=seed_index + 2)
        checks = [
            *_checks_of_outputs(
                small, large, replay.claim, is_replayable=is_replayable, is_hidden=is_hidden
            )
        ]
        if all(check.result is not Result.FAILED for check in checks):
            break
    return checks


def _checks_of_outputs(
    small: Arrays, large: Arrays, claim: Claim, *, is_replayable: bool, is_hidden: bool
) -> Iterator[FilterCheck]:
    noise = _noisy_entries(small)
    is_rounded = is_hidden or _is_rounded(noise)
    tests: list[NoiseTest] = []
    if claim.sigma and noise:
        if not is_hidden:
            tests += scale_tests(noise, claim.std, claim.noise)
            large_noise = _noisy_entries(large)
            tests += scale_tests(large_noise, claim.std, claim.noise, label=", large update")
            tests += entry_tests(noise)
        if not is_rounded:
            tests += shape_tests(noise, claim.noise)
        tests += call_tests(noise)
    # Bonferroni correction; the test of the mean change counts as one of the tests.
    error = ERROR / max(1, len(tests) + (not is_replayable))
    if not is_replayable:
        yield _mean_change_check(small, large, claim, error)
    smallest: dict[str, NoiseTest] = {}
    for test in sorted(tests, key=lambda test: test.p_value):
        smallest.setdefault(test.check, test)
    if not claim.sigma:
        if noise:
            std = estimate_std(noise, claim.noise, error)
            why = "the output has noise, and none is declared"
            yield FilterCheck("noise", Result.NOTED, f"{std.value:.3g}", why=why)
        return
    if not is_hidden:
        yield from _std_checks(noise, claim, smallest.get("scale"), error)
    yield from _distribution_checks(
        smallest, claim, error, is_rounded=is_rounded, is_hidden=is_hidden
    )


def _std_checks(
    noise: Arrays, claim: Claim, test: NoiseTest | None, error: float
) -> Iterator[FilterCheck]:
    """Compare the standard deviation of the noise with the declared one."""
    failed, location = True, "the output is the same in every call"
    measured, has_more = "0", False
    if test is not None:
        failed, location = test.p_value < error, test.location
        std = estimate_std(noise, claim.noise, error)
        measured = f"{std.value:.4g} ({std.low:.4g} to {std.high:.4g})"
        has_more = not failed and std.low > claim.std * (1 + TOLERANCE)
    yield FilterCheck(
        "standard deviation of noise",
        Result.failed_if(failed),
        measured,
        f"{claim.std:.4g}",
        f"there is less noise than declared ({location})",
        "Look for entries without noise, and for a scale factor that is missing or applied twice.",
    )
    if has_more:
        why = "there is more noise than declared"
        yield FilterCheck("more noise", Result.NOTED, f"{std.value:.4g}", why=why)


_DISTRIBUTION_CHECKS = (
    (
        "entries",
        "noise between entries",
        "entries share their noise",
        "Draw a number for every entry of every array, from one generator that is not reset.",
    ),
    (
        "shape",
        "shape of noise",
        "noise has another distribution than declared",
        "Draw from the accountant's distribution, and change nothing afterwards.",
    ),
    (
        "calls",
        "noise between calls",
        "calls share their noise",
        "Seed no generator in a call: repeated noise can be subtracted.",
    ),
)
"""For each group of tests: its key, and name, ``why`` and ``advice`` of its check."""


def _distribution_checks(
    smallest: dict[str, NoiseTest],
    claim: Claim,
    error: float,
    *,
    is_rounded: bool,
    is_hidden: bool,
) -> Iterator[FilterCheck]:
    """Check independence and shape of the noise with the smallest p-value of each group."""
    for key, name, why, advice in _DISTRIBUTION_CHECKS:
        if key in smallest:
            _, location, p_value = smallest[key]
            failed = p_value < error
            declared = claim.noise if key == "shape" else "independent"
            measured = f"not {declared}" if failed else f"not rejected (p {p_value:.2g})"
            yield FilterCheck(
                name, Result.failed_if(failed), measured, declared, f"{why} ({location})", advice
            )
            if key == "entries" and failed:
                return  # The other tests assume independent entries.
        elif key == "shape" and is_rounded:
            yield FilterCheck(
                "visible noise" if is_hidden else name,
                Result.UNTESTED,
                "values repeat",
                why="the output is rounded or made sparse after the noise, so the noise cannot be "
                "tested",
                advice="Check the part of the filter that ends with the noise: later steps cannot "
                "weaken privacy.",
            )


def _mean_change_check(small: Arrays, large: Arrays, claim: Claim, error: float) -> FilterCheck:
    """Test whether the mean change that a large contribution causes exceeds the sensitivity.

    The first half of the calls estimates the direction of the change. The second half estimates its
    size along this direction, so that the test does not use the same draws for both.
    """
    changes = _matrix(*(large[name] - small[name] for name in small))
    half = len(changes) // 2
    direction = changes[:half].mean(0)
    length = claim.length({"": direction})
    measured, p_value = "0", 1.0
    if length:
        # The product with these weights is at most the L1 or L2 norm of a change.
        weights = np.sign(direction) if claim.noise == "laplace" else direction / length
        projections = changes[half:] @ weights
        mean, std_error = float(projections.mean()), float(projections.std(ddof=1)) / half**0.5
        excess = mean - claim.sensitivity * (1 + TOLERANCE)
        p_value = float(excess <= 0)
        if std_error:
            p_value = float(sp.special.stdtr(half - 1, -excess / std_error))
        measured = f"{format_length(mean)} ± {std_error:.2g}"
    declared = f"at most {claim.sensitivity:.4g}"
    advice = (
        "Draw from torch's, NumPy's or Python's generators. If the filter keeps a state, give a "
        "function that creates the filter."
    )
    if p_value < error:
        why = f"a large contribution changes the output by {measured} on average"
        return FilterCheck(CHANGE_CHECK, Result.FAILED, measured, declared, why, advice)
    why = "random draws cannot be repeated, so the change of the output can only be estimated"
    return FilterCheck(CHANGE_CHECK, Result.UNTESTED, measured, declared, why, advice)


def _noisy_entries(outputs: Arrays) -> Arrays:
    """Return the entries of each array that differ between calls."""
    noisy = {}
    for name, value in outputs.items():
        changing = (value != value[0]).any(0)
        if np.isfinite(value).all() and changing.any():
            noisy[name] = value if changing.all() else value[:, changing]
    return noisy


def _is_rounded(outputs: Arrays) -> bool:
    """Return True if one value is more frequent than a continuous distribution allows."""
    return any(
        np.unique(value, return_counts=True)[1].max() > max(_MAX_FREQUENCY * value.size, 2)
        for value in outputs.values()
    )


def scale_tests(noise: Arrays, std: float, kind: str, *, label: str = "") -> Iterator[NoiseTest]:
    """Yield tests for too little noise in all entries, in each array and in the least noisy entry.

    Args:
        noise: Outputs of repeated calls.
        std: Declared standard deviation.
        kind: Declared distribution, "gaussian" or "laplace".
        label: Suffix of each test's location.
    """
    if not noise:
        return
    unit = std * (1 - TOLERANCE)
    squares = {name: _matrix(_differences(v)) ** 2 / 2 / unit**2 for name, v in noise.items()}
    all_squares = _matrix(*squares.values())
    for location, square in ({"all entries": all_squares} | squares).items():
        p_value = _p_of_small_sum(float(square.sum()), square.size, kind)
        yield NoiseTest("scale", f"{location}{label}", p_value)
    entry_sums = all_squares.sum(0)
    array_of_entry = np.repeat([*squares], [square.shape[1] for square in squares.values()])
    location = f"an entry of {array_of_entry[entry_sums.argmin()]}{label}"
    p_value = _p_of_small_sum(float(entry_sums.min()), len(all_squares), kind) * len(entry_sums)
    yield NoiseTest("scale", location, min(1.0, p_value))


def shape_tests(noise: Arrays, kind: str) -> Iterator[NoiseTest]:
    """Yield tests of whether each array's noise has the declared distribution, at any scale."""
    for name, value in noise.items():
        difference = _differences(value).ravel()
        # The test is conservative, since the scale is estimated from the same draws.
        if scale := float(np.sqrt((difference**2).mean())):
            test = sp.stats.ks_1samp(difference / scale, _cdf, args=(kind,), method="asymp")
            yield NoiseTest("shape", name, float(test.pvalue))


def entry_tests(noise: Arrays) -> Iterator[NoiseTest]:
    """Yield tests for noise that adjacent entries along an axis, or two arrays, share."""
    differences = {name: _differences(value) for name, value in noise.items()}
    for name, value in differences.items():
        for axis in range(1, value.ndim):
            entries = np.moveaxis(value, axis, 0)
            odd = entries[1::2]
            if len(odd):
                even = entries[::2][: len(odd)]
                yield NoiseTest(
                    "entries", f"{name}, along axis {axis - 1}", _dependence_p(even, odd)
                )
    for first, second in islice(combinations(differences, 2), _MAX_ARRAY_PAIRS):
        left, right = _matrix(differences[first]), _matrix(differences[second])
        size = min(left.shape[1], right.shape[1])
        p_value = _dependence_p(left[:, :size], right[:, :size])
        yield NoiseTest("entries", f"{first} and {second}", p_value)


def call_tests(noise: Arrays) -> Iterator[NoiseTest]:
    """Yield tests for noise that repeats in the next call, or in any other call."""
    calls = _matrix(*noise.values())
    first, second, third, fourth = (calls[start::4] for start in range(4))
    p_value = _dependence_p(first - third, second - fourth)
    yield NoiseTest("calls", "one call and the next", p_value)
    p_values = [_dependence_p(*pair) for pair in combinations(_differences(calls), 2)]
    yield NoiseTest("calls", "two of the calls", min(1.0, min(p_values) * len(p_values)))


def estimate_std(noise: Arrays, kind: str, error: float) -> EstimateWithLimits[float]:
    """Estimate the standard deviation of the noise, with confidence limits."""
    differences = _differences(_matrix(*noise.values()))
    variance = float((differences**2).mean()) / 2
    freedom = differences.size * _degrees_of_freedom(kind)
    low = variance * freedom / float(sp.special.chdtri(freedom, error / 2))
    high = variance * freedom / float(sp.special.chdtri(freedom, 1 - error / 2))
    return EstimateWithLimits(variance**0.5, low**0.5, high**0.5)


def _differences(calls: np.ndarray) -> np.ndarray:
    """Return the difference of calls 0 and 1, of calls 2 and 3, and so on."""
    return np.asarray(calls[:-1:2] - calls[1::2])


def _matrix(*arrays: np.ndarray) -> np.ndarray:
    """Return one row per call, with the entries of all arrays."""
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def _p_of_small_sum(square_sum: float, count: int, kind: str) -> float:
    """Return the probability that a sum of squares, each with mean 1, is at most this small."""
    freedom = _degrees_of_freedom(kind)
    return float(sp.special.chdtr(count * freedom, square_sum * freedom))


def _degrees_of_freedom(kind: str) -> float:
    """Return the degrees of freedom of one squared difference.

    The square of a normal variable has variance 2. The square of a difference of two Laplace
    variables, whose kurtosis is 4.5, has variance 3.5.
    """
    return 1.0 if kind == "gaussian" else 2 / 3.5


def _cdf(value: Float[np.ndarray, " draws"], kind: str) -> Float[np.ndarray, " draws"]:
    """Return the distribution function of a difference of two draws, scaled to variance 1."""
    if kind == "gaussian":
        return np.asarray(sp.special.ndtr(value))
    # Each draw has variance 1/2, and therefore scale 1/2.
    scaled = 2 * np.abs(value)
    tail = np.exp(-scaled) * (0.5 + scaled / 4)
    return np.asarray(np.where(value < 0, tail, 1 - tail))


def _dependence_p(first: np.ndarray, second: np.ndarray) -> float:
    """Return a p-value for the hypothesis that two arrays of differences are independent.

    Differences of draws are symmetric about zero. If they are independent, the sign of each product
    is therefore positive with probability one half, for any distribution. The p-value follows from
    Hoeffding's inequality for the signs, given the absolute values of the products.
    """
    products = first * second
    square_sum = float((products**2).sum())
    if not square_sum:
        return 1.0
    return min(1.0, 2 * float(np.exp(-(float(products.sum()) ** 2) / square_sum / 2)))
