"""The noise alone: its scale, its shape, and whether its draws are independent.

Calls are taken in pairs, whose difference has no trace of what the filter was given: two draws of
noise, one taken from the other. Every test has an error that holds exactly, or errs on the side of
blaming nobody, and together they have one.
"""

from collections.abc import Iterator
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtr, chdtri, kolmogorov, ndtr

ERROR = 0.01
"""Probability that something fails though the noise is as declared, all tests of a set of draws
together. Blame takes two sets."""
EXACT = 1e-3
"""Share by which a standard deviation or a length may miss without a word: rounding."""
_MOST_PAIRS = 300
_MOST_KEPT = 4096
_REPEATING = 0.5
_STEP = 0.02

Draws = dict[str, np.ndarray]
"""Outputs by name, one call a row."""


class Finding(NamedTuple):
    """What one test found.

    Attributes:
        check: What it belongs to.
        where: What it looked at.
        p: Probability of such a finding, or a graver one, if all is as declared.
    """

    check: str
    where: str
    p: float


class Spread(NamedTuple):
    """A standard deviation with its limits.

    Attributes:
        value: The estimate.
        low: Lower limit.
        high: Upper limit.
    """

    value: float
    low: float
    high: float


def kept(value: np.ndarray) -> np.ndarray:
    """A part of an array that is kept of every call: a corner of it, at most some 4,096 entries."""
    sides = list(value.shape)
    while np.prod(sides) > _MOST_KEPT:
        longest = int(np.argmax(sides))
        sides[longest] = (sides[longest] + 1) // 2
    return np.asarray(value[tuple(slice(side) for side in sides)])


def repeats(draws: Draws) -> bool:
    """True if most entries show values again that they had before: rounded, or mostly zeros."""
    flat = [value.reshape(len(value), -1) for value in draws.values()]
    entries = np.concatenate([part[:, :: max(1, part.shape[1] // 200)] for part in flat], axis=1)
    distinct = [len(np.unique(entry)) / len(entry) for entry in entries.T]
    return bool(np.mean(distinct) < _REPEATING)


def is_rounded(draws: Draws) -> bool:
    """True if one value makes up so much of an array that its distribution has a step there."""
    for value in draws.values():
        _, counts = np.unique(value, return_counts=True)
        if counts.max() > max(_STEP * value.size, 2):
            return True
    return False


def scale_tests(draws: Draws, std: float, noise: str, *, told: str) -> Iterator[Finding]:
    """Whether all entries, those of each array, and the quietest entry have the declared noise."""
    differences = {name: _differences(value) for name, value in draws.items()}
    declared = std * (1 - EXACT)
    squares = {name: float((value**2).sum()) / 2 for name, value in differences.items()}
    counts = {name: value.size for name, value in differences.items()}
    everything = {"all entries": (sum(squares.values()), sum(counts.values()))}
    for where, (square, count) in (
        everything | {name: (squares[name], counts[name]) for name in draws}
    ).items():
        yield Finding("scale", f"{where}{told}", _below(square / declared**2, count, noise))
    lowest, place = 1.0, ""
    for name, value in differences.items():
        entry = (value.reshape(len(value), -1) ** 2).sum(0) / 2 / declared**2
        p = _below(float(entry.min()), len(value), noise)
        if p < lowest:
            lowest, place = p, name
    count = sum(value[0].size for value in differences.values())
    yield Finding("scale", f"an entry of {place}{told}", min(1.0, lowest * count))


def shape_tests(draws: Draws, noise: str) -> Iterator[Finding]:
    """Whether each array's noise has the declared distribution, whatever its scale."""
    for name, value in draws.items():
        difference = np.sort(_differences(value).ravel())
        spread = float(np.sqrt((difference**2).mean()))
        if not spread:
            continue
        expected = _cdf(difference / spread, noise)
        steps = np.arange(len(difference) + 1) / len(difference)
        gap = max(float((steps[1:] - expected).max()), float((expected - steps[:-1]).max()))
        # The scale is the draws' own, with which they agree better than with the true one.
        yield Finding("shape", name, float(kolmogorov(gap * len(difference) ** 0.5)))


def entry_tests(draws: Draws) -> Iterator[Finding]:
    """Whether neighbours along every axis, and arrays among each other, share draws."""
    differences = {name: _differences(value) for name, value in draws.items()}
    for name, value in differences.items():
        for axis in range(1, value.ndim):
            pairs = value.shape[axis] // 2
            if pairs:
                left, right = (
                    np.take(value, np.arange(start, 2 * pairs, 2), axis) for start in (0, 1)
                )
                yield Finding("entries", f"{name}, along axis {axis - 1}", _related(left, right))
    for one, two in islice(combinations(differences, 2), _MOST_PAIRS):
        left, right = (differences[each].reshape(len(differences[each]), -1) for each in (one, two))
        size = min(left.shape[1], right.shape[1])
        if size:
            related = _related(left[:, :size], right[:, :size])
            yield Finding("entries", f"{one} and {two}", related)


def call_tests(draws: Draws) -> Iterator[Finding]:
    """Whether a call's noise is like the one's before it, or that of any other."""
    whole = np.concatenate([value.reshape(len(value), -1) for value in draws.values()], axis=1)
    first, second, third, fourth = (whole[start::4] for start in range(4))
    yield Finding("calls", "one call and the next", _related(first - third, second - fourth))
    differences = _differences(whole)
    pairs = list(combinations(range(len(differences)), 2))
    likest = min(_related(differences[one], differences[two]) for one, two in pairs)
    yield Finding("calls", "two of the calls", min(1.0, likest * len(pairs)))


def spread_of(draws: Draws, noise: str, error: float) -> Spread:
    """The standard deviation of all entries' noise, with limits of that error."""
    differences = [_differences(value) for value in draws.values()]
    square = sum(float((value**2).sum()) for value in differences) / 2
    count = sum(value.size for value in differences)
    freedom = count * _freedom(noise)
    low, high = (square / count * freedom / chdtri(freedom, p) for p in (error / 2, 1 - error / 2))
    return Spread(*(float(value) ** 0.5 for value in (square / count, low, high)))


def _differences(draws: np.ndarray) -> np.ndarray:
    pairs = len(draws) // 2
    found: np.ndarray = draws[0 : 2 * pairs : 2] - draws[1 : 2 * pairs : 2]
    return found


def _below(square: float, count: int, noise: str) -> float:
    """The probability of so small a sum of squares, of which each is 1 on average."""
    freedom = _freedom(noise)
    return float(chdtr(count * freedom, square * freedom))


def _freedom(noise: str) -> float:
    """Degrees of freedom that one squared difference is worth.

    The square of a normal variable has variance 2. That of the difference of two Laplace variables,
    whose kurtosis is 4.5, has variance 3.5.
    """
    return 1.0 if noise == "gaussian" else 2 / 3.5


def _cdf(value: Float[np.ndarray, " draws"], noise: str) -> Float[np.ndarray, " draws"]:
    """The distribution of a difference of two draws that has variance 1."""
    if noise == "gaussian":
        return np.asarray(ndtr(value))
    # Each has variance 1/2 and so the scale 1/2.
    far = 2 * np.abs(value)
    tail = np.exp(-far) * (0.5 + far / 4)
    return np.asarray(np.where(value < 0, tail, 1 - tail))


def _related(left: np.ndarray, right: np.ndarray) -> float:
    """The probability of so large a sum of products, if each product's sign is a fair coin.

    Differences of draws are symmetric about zero, so that it is one where draws are independent,
    whatever their distribution: Hoeffding's inequality for signs, given the products' sizes.
    """
    products = left * right
    size = float((products**2).sum())
    if not size:
        return 1.0
    return min(1.0, 2 * float(np.exp(-(float(products.sum()) ** 2) / size / 2)))
