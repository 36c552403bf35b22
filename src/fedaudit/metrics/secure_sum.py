"""Lower bounds on the epsilon of one client's update in the sum of all."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.epsilon import (
    Counts,
    EpsilonBound,
    bound_method,
    clopper_pearson_epsilon,
    gaussian_budget,
    require_error,
)

FEWEST_DRAWS = 80
"""Of fewer sums nothing is said: half of them are left to be counted."""

_SHRINKAGES = (0.001, 0.01, 0.1, 1.0, 10.0)
_THRESHOLDS = 41


class SumBounds(NamedTuple):
    """Lower bounds on how well a sum tells which of two updates is in it.

    Attributes:
        counted: From how often a linear test is wrong; rests on the draws being independent.
        if_gaussian: From the spread of what the test reads, if that is normal; its ceiling is
            infinite.
    """

    counted: EpsilonBound
    if_gaussian: EpsilonBound


class _Test(NamedTuple):
    """A number that is read from a sum, and from where on it speaks for the first update."""

    direction: Float[ndarray, " parameters"]
    threshold: float

    def counts(self, others: Float[ndarray, "draws parameters"], shifts: "_Shifts") -> Counts:
        """Counts of right and wrong answers where each of the two updates was sent."""
        read, (one, other) = others @ self.direction, shifts
        right = int((read + one @ self.direction > self.threshold).sum())
        wrong = int((read + other @ self.direction > self.threshold).sum())
        return Counts(right, len(others), wrong, len(others))


class _Shifts(NamedTuple):
    """The two updates, one of which is in the sum."""

    one: Float[ndarray, " parameters"]
    other: Float[ndarray, " parameters"]


def secure_sum_bounds(
    others: npt.ArrayLike,
    one: npt.ArrayLike,
    other: npt.ArrayLike,
    *,
    delta: float,
    alpha: float = 0.05,
) -> SumBounds:
    """Lower bounds on how well a sum tells which of two updates one client has put into it.

    Secure aggregation shows the sum of all updates alone; those of the others hide one like noise
    would. The adversary knows both updates and how the others' sum is distributed. The first
    quarter of the draws fits a direction, with shrunken covariance; the second chooses the
    shrinkage and a threshold; the other half is counted, once. The counted bound holds if draws are
    independent and distributed as the others' sum is, whatever that distribution is; it cannot
    exceed what so many draws can show. The other takes the upper limit of the other half's spread
    for that of a normal number. Both are of this one test: no bound on what another could tell,
    and so no guarantee.

    Args:
        others: Sums of all other updates, a row a draw, drawn independently; whatever noise goes
            into the sum is in them.
        one: An update of the client, as it goes into the sum.
        other: That in its place: zeros for the whole update, or what it would be without one
            sample. Epsilon is of this pair, told apart either way.
        delta: The delta of the statement, in (0, 1).
        alpha: Probability that a bound is wrong, each for itself.

    Raises:
        BadInput: Fewer than eighty draws, or draws that are all the same, shapes that do not fit,
            numbers that are not finite, or delta or alpha out of range.

    Source: Ngo, Östman, Durisi and Graell i Amat 2024, Secure aggregation is not private against
        membership inference attacks (seen in abstract and introduction); Jagielski, Ullman and
        Oprea 2020 for the bound.
    Differs: The others' sum is taken to be normal for one of two bounds only, and there along one
        direction: a linear test is counted on draws that it was not fitted on.
    """
    require_error(delta, alpha, least=1e-300)
    draws = np.asarray(others, dtype=float)
    shifts = _Shifts(np.asarray(one, dtype=float).ravel(), np.asarray(other, dtype=float).ravel())
    if draws.ndim != 2 or any(shift.shape != draws.shape[1:] for shift in shifts):
        raise BadInput(
            "sums have a row a draw and a column a parameter, and both updates as many parameters; "
            f"got {draws.shape}, {shifts.one.shape} and {shifts.other.shape}"
        )
    if len(draws) < FEWEST_DRAWS:
        raise BadInput(
            f"a bound takes {FEWEST_DRAWS} independent draws of the others' sum, got {len(draws)}; "
            "draw more"
        )
    if not all(np.isfinite(part).all() for part in (draws, *shifts)):
        raise BadInput("sums or updates are not finite; check the training")
    quarter = len(draws) // 4
    test = _fitted(draws[:quarter], draws[quarter : 2 * quarter], shifts, delta, alpha)
    rest = draws[2 * quarter :]
    counted = clopper_pearson_epsilon(test.counts(rest, shifts), delta=delta, alpha=alpha)
    apart = abs(float((shifts.one - shifts.other) @ test.direction))
    widest = _spread_limit(rest @ test.direction, alpha)
    if apart > 0 and not widest > 0:
        raise BadInput(
            "the others' sum is the same in every draw, and hides nothing; draw their data anew"
        )
    return SumBounds(
        counted._replace(method=bound_method("linear test, Clopper-Pearson", delta, alpha)),
        EpsilonBound(
            gaussian_budget(apart / widest, delta) if apart > 0 else 0.0,
            math.inf,
            bound_method("linear test, Gaussian", delta, alpha),
        ),
    )


def _spread_limit(read: Float[ndarray, " draws"], alpha: float) -> float:
    """Upper confidence limit of a normal number's standard deviation."""
    freedom = len(read) - 1
    least = 2 * float(sp.special.gammaincinv(freedom / 2, alpha))
    return float(read.std(ddof=1)) * math.sqrt(freedom / least)


def _fitted(
    first: Float[ndarray, "draws parameters"],
    second: Float[ndarray, "more parameters"],
    shifts: _Shifts,
    delta: float,
    alpha: float,
) -> _Test:
    """The direction that tells most of the second part, and its best threshold there."""
    gap = shifts.one - shifts.other
    best, distance = np.zeros_like(gap), -1.0
    for direction in _directions(first, gap):
        spread = float((second @ direction).std())
        reach = float(gap @ direction)
        apart = reach / spread if spread > 0 else np.inf if reach > 0 else 0.0
        if apart > distance:
            best, distance = direction, apart
    low, high = (
        float((second @ best).mean() + shift @ best) for shift in (shifts.other, shifts.one)
    )
    middle, wide = (low + high) / 2, max(high - low, float((second @ best).std()))
    # From the middle outwards: of equally good thresholds the first is taken.
    steps = sorted(np.linspace(-1.5, 1.5, _THRESHOLDS), key=abs)
    tests = [_Test(best, middle + wide * step) for step in steps]
    values = [
        clopper_pearson_epsilon(test.counts(second, shifts), delta=delta, alpha=alpha).value
        for test in tests
    ]
    return tests[int(np.argmax(values))]


def _directions(
    draws: Float[ndarray, "draws parameters"], gap: Float[ndarray, " parameters"]
) -> list[Float[ndarray, " parameters"]]:
    """Linear discriminants of a gap in shrunken noise, one for each shrinkage.

    (C + s I)^-1 gap by the draws' own products: there are fewer draws than parameters.
    """
    centred = draws - draws.mean(0)
    products = centred @ centred.T
    average = float(np.trace(products)) / (centred.size or 1)
    if not average > 0:
        return [gap]
    along = centred @ gap
    found = []
    for shrinkage in _SHRINKAGES:
        ridge = shrinkage * average
        weights = np.linalg.solve(products + len(draws) * ridge * np.eye(len(draws)), along)
        direction = gap - centred.T @ weights
        length = float(np.linalg.norm(direction))
        found.append(direction / length if length > 0 else direction)
    return found
