"""Lower bounds on epsilon from canaries: of one client's update, and of one canary record."""

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
    count_guesses,
    gaussian_budget,
    one_run_epsilon,
    one_run_gaussian_bound,
    one_sided_coins,
    require_error,
)
from fedaudit.metrics.roc import SplitScores, sides
from fedaudit.metrics.truth import as_array, as_truth

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


FEWEST_CANARIES = 20
"""Of fewer canary clients nothing is said: guesses about ten coins bound nothing at all."""


class CanaryBounds(NamedTuple):
    """Bounds on the epsilon of one client's update in what was released.

    Adjacency: the update or zero in its place, while the client's weight and noise stay.

    Attributes:
        one_run: From guesses about the coins; rests on nothing but these.
        mean_only: From the mean statistic of the canaries that sent theirs, if the release is that
            of a Gaussian mechanism in which all clients take part; None where that was not asked.
    """

    one_run: EpsilonBound
    mean_only: EpsilonBound | None


def canary_bounds(
    statistics: npt.ArrayLike,
    sent: npt.ArrayLike,
    *,
    delta: float,
    alpha: float = 0.05,
    every_round: bool = True,
) -> CanaryBounds:
    """Two lower bounds on epsilon from how far a release moved along each canary's direction.

    Args:
        statistics: For each canary client sqrt(d) times the cosine of its direction, drawn at
            random in d dimensions, and the movement of the released model. Of one that sent
            zeros it is a standard normal number, whatever the release is.
        sent: Whether each sent its direction, as a fair coin decided; else it sent zeros.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, each for itself.
        every_round: Whether they were asked in every round that the release is of. Where rounds
            draw their clients, no mean-only bound is made: what is in some rounds has no normal
            statistic.

    Raises:
        BadInput: Fewer than twenty canaries, numbers that are not finite, coins that look unfair,
            or delta or alpha out of range.

    Source: Steinke, Nasr and Jagielski 2023 (one run); Andrew et al. 2024, One-shot empirical
        privacy estimation for federated learning (canary clients and their statistic).
    Differs: Andrew et al. fit a normal distribution to the canaries and print the epsilon of its
        mean and variance, which is an estimate and exceeds the truth about every second time. The
        mean-only bound is of the mean's lower confidence limit, at the variance 1 that it has.
    """
    z = as_array(statistics).astype(float)
    inside = as_truth(sent, z.size)
    require_error(delta, alpha, least=1e-300)
    if z.ndim != 1 or not np.isfinite(z).all():
        raise BadInput(
            f"each canary has one finite statistic and one coin, got shapes {z.shape} and "
            f"{inside.shape}"
        )
    if len(z) < FEWEST_CANARIES:
        raise BadInput(
            f"bounds on a client's update take {FEWEST_CANARIES} canary clients, got {len(z)}; "
            "raise canaries.count"
        )
    one_run = one_run_epsilon(z, inside, guesses=_guesses(len(z)), delta=delta, alpha=alpha)
    if not every_round:
        return CanaryBounds(one_run, None)
    members = int(inside.sum())
    slack = float(sp.special.ndtri(1 - alpha)) / math.sqrt(members)
    shift = float(z[inside].mean()) - slack
    # No mean can be above the largest statistic that there was.
    most = float(np.abs(z[inside]).max()) - slack
    return CanaryBounds(
        one_run,
        EpsilonBound(
            gaussian_budget(shift, delta),
            max(gaussian_budget(most, delta), gaussian_budget(shift, delta)),
            bound_method("mean-only Gaussian", delta, alpha),
        ),
    )


class RecordBounds(NamedTuple):
    """Bounds on the epsilon of one canary record that rest on more than fair coins.

    Attributes:
        if_gaussian: From guesses about the coins, if the training is at least as private as a
            Gaussian mechanism; None if all coins fell alike.
        if_normal: From the mean scores of the two sides, if scores are normal and equally spread;
            None where they are not, or if all coins fell alike.
        refusal: Why a bound is missing; empty where both are there.
    """

    if_gaussian: EpsilonBound | None
    if_normal: EpsilonBound | None
    refusal: str = ""


def record_bounds(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    guesses: int,
    delta: float,
    alpha: float = 0.05,
) -> RecordBounds:
    """Compute two lower bounds on epsilon that are nearer to the truth than that from coins alone.

    Args:
        scores: One a canary record, larger for likelier members.
        is_member: Whether a fair coin gave the record to the client.
        guesses: Number of guesses, even, fixed before looking at the scores.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, each for itself, in (0, 1).

    Raises:
        BadInput: As :func:`fedaudit.metrics.one_run_epsilon`, but for coins that all fell alike,
            for which the refusal says so.

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run
        (if_gaussian); Andrew et al. 2024, One-shot empirical privacy estimation for federated
        learning (if_normal).
    Differs: Andrew et al. print the epsilon of two fitted normal distributions, which is an
        estimate. The bound here is that of the lower confidence limit of the distance between the
        two means in standard deviations (noncentral t); normality and equal spread are tested, and
        the bound is refused where a test at one per cent fails.
    """
    alike = one_sided_coins(is_member)
    if alike:
        return RecordBounds(None, None, alike)
    split = sides(scores, is_member)
    counted = count_guesses(scores, is_member, guesses)
    if_gaussian = one_run_gaussian_bound(counted, delta=delta, alpha=alpha)
    refusal = _not_normal(split)
    if refusal:
        return RecordBounds(if_gaussian, None, refusal)
    members, others = map(len, split)
    freedom = members + others - 2
    spread = math.sqrt(sum(len(side) * float(side.var()) for side in split) / freedom)
    root = math.sqrt(members * others / (members + others))
    distance = float(split.members.mean() - split.nonmembers.mean()) / spread
    shift = float(sp.special.nctdtrinc(freedom, 1 - alpha, distance * root)) / root
    # No mean can be above the largest score that there was, or below the smallest.
    most = float(split.members.max() - split.nonmembers.min()) / spread
    value = gaussian_budget(shift, delta)
    ceiling = max(value, gaussian_budget(most, delta))
    method = bound_method("mean-only normal", delta, alpha)
    return RecordBounds(if_gaussian, EpsilonBound(value, ceiling, method))


_NORMALITY_ERROR = 0.01
"""Error of either test of the scores: of their shape about their side's mean, and their spreads."""
_FEWEST_FOR_SHAPE = 200
"""Canaries, below which the test of shape would let Laplace noise pass in one of four runs."""


def _not_normal(split: SplitScores) -> str:
    """Return why scores are not taken for normal and equally spread; empty where they are.

    Source: D'Agostino and Pearson, Tests for departure from normality, 1973.
    """
    canaries = sum(map(len, split))
    if canaries < _FEWEST_FOR_SHAPE:
        return f"it takes {_FEWEST_FOR_SHAPE} canaries to test if scores are normal, got {canaries}"
    if not all(np.isfinite(side).all() and np.ptp(side) > 0 for side in split):
        return "scores that are infinite or all equal are not normal"
    about_means = np.concatenate([side - side.mean() for side in split])
    p_value = float(sp.stats.normaltest(about_means).pvalue)
    if p_value < _NORMALITY_ERROR:
        return f"scores are not normal about the mean of their side (p = {p_value:.2g})"
    spreads = [float(side.var(ddof=1)) for side in split]
    freedom = [len(side) - 1 for side in split]
    below = float(sp.special.fdtr(*freedom, spreads[0] / spreads[1]))
    p_value = 2 * min(below, 1 - below)
    if p_value < _NORMALITY_ERROR:
        return f"scores of members and non-members are not equally spread (p = {p_value:.2g})"
    return ""


def _guesses(canaries: int) -> int:
    """Number of guesses about so many coins: an even third, fixed before anything is seen."""
    return max(2, 2 * (canaries // 6))
