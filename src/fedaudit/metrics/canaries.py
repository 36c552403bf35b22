"""Lower bounds on the epsilon of a client's update or a canary record, from canaries."""

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
from fedaudit.metrics.roc import SplitScores, as_array, as_truth, sides

FEWEST_DRAWS = 80
"""Fewest simulated sums. Half of them fit the test, and errors are counted on the other half."""

_SHRINKAGES = (0.001, 0.01, 0.1, 1.0, 10.0)
_THRESHOLDS = 41


class SumBounds(NamedTuple):
    """Lower bounds on the epsilon of one client's update in a sum of updates.

    Attributes:
        counted: Bound from the error rates of a linear test; assumes independent draws only.
        if_gaussian: Bound from the standard deviation of the test statistic, if that is normal; its
            ceiling is infinite.
    """

    counted: EpsilonBound
    if_gaussian: EpsilonBound


class _Test(NamedTuple):
    """Linear test for the first update: is the sum's projection above a threshold?"""

    direction: Float[ndarray, " parameters"]
    threshold: float

    def counts(self, others: Float[ndarray, "draws parameters"], pair: "_UpdatePair") -> Counts:
        """Count the positive answers when each of the two updates is in the sum."""
        projected = others @ self.direction
        true_positives, false_positives = (
            int((projected + update @ self.direction > self.threshold).sum()) for update in pair
        )
        return Counts(true_positives, len(others), false_positives, len(others))


class _UpdatePair(NamedTuple):
    """The two updates that the test distinguishes."""

    update: Float[ndarray, " parameters"]
    alternative: Float[ndarray, " parameters"]


def secure_sum_bounds(
    others: npt.ArrayLike,
    update: npt.ArrayLike,
    alternative: npt.ArrayLike,
    *,
    delta: float,
    alpha: float = 0.05,
) -> SumBounds:
    """Compute lower bounds on epsilon from how well a sum reveals one of two updates of a client.

    Secure aggregation reveals only the sum of all updates, in which the updates of other clients
    act as noise. The adversary knows both updates and the distribution of the others' sum. A
    direction is fitted to the first quarter of the draws with a shrunken covariance. The second
    quarter selects the shrinkage and a threshold. Errors are counted once, on the other half.

    The counted bound is valid for any distribution if the draws are independent and distributed as
    the others' sum. It cannot exceed what this number of draws can show. The Gaussian bound uses
    the upper confidence limit of the standard deviation in the other half. Another test may
    distinguish better than this one, so a low bound guarantees nothing.

    Args:
        others: Sums of all other updates, with any noise that is added to the sum; one
            independent draw per row.
        update: An update of the client, as it enters the sum.
        alternative: The update in its place: zeros for the whole update, or the update without one
            sample. Epsilon is that of this pair, in both directions.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, for each bound, in (0, 1).

    Raises:
        BadInput: Fewer than eighty draws, draws that are all the same, shapes that do not fit,
            numbers that are not finite, or delta or alpha out of range.

    Source: Ngo, Östman, Durisi and Graell i Amat 2024, Secure aggregation is not private against
        membership inference attacks (seen in abstract and introduction); Jagielski, Ullman and
        Oprea 2020 for the bound.
    Differs: Only one of the two bounds takes the others' sum as normal, and only along one
        direction. A linear test is counted on draws that it was not fitted on.
    """
    require_error(delta, alpha, least=1e-300)
    draws = np.asarray(others, dtype=float)
    pair = _UpdatePair(*(np.asarray(part, dtype=float).ravel() for part in (update, alternative)))
    if draws.ndim != 2 or any(part.shape != draws.shape[1:] for part in pair):
        raise BadInput(
            "sums need one row per draw and one column per parameter, and both updates the same "
            f"parameters; got {draws.shape}, {pair.update.shape} and {pair.alternative.shape}"
        )
    if len(draws) < FEWEST_DRAWS:
        raise BadInput(
            f"a bound takes {FEWEST_DRAWS} independent draws of the others' sum, got {len(draws)}; "
            "draw more"
        )
    if not all(np.isfinite(part).all() for part in (draws, *pair)):
        raise BadInput("sums or updates are not finite; check the training")
    quarter = len(draws) // 4
    test = _fit_test(draws[:quarter], draws[quarter : 2 * quarter], pair, delta, alpha)
    evaluation = draws[2 * quarter :]
    counted = clopper_pearson_epsilon(test.counts(evaluation, pair), delta=delta, alpha=alpha)
    distance = abs(float((pair.update - pair.alternative) @ test.direction))
    statistic = evaluation @ test.direction
    freedom = len(statistic) - 1
    quantile = 2 * float(sp.special.gammaincinv(freedom / 2, alpha))
    # The upper confidence limit of the standard deviation of normal values.
    std = float(statistic.std(ddof=1)) * math.sqrt(freedom / quantile)
    if distance > 0 and not std > 0:
        raise BadInput(
            "the others' sum is the same in every draw and hides nothing; draw new data for them"
        )
    return SumBounds(
        counted._replace(method=bound_method("linear test, Clopper-Pearson", delta, alpha)),
        EpsilonBound(
            gaussian_budget(distance / std, delta) if distance > 0 else 0.0,
            math.inf,
            bound_method("linear test, Gaussian", delta, alpha),
        ),
    )


def _fit_test(
    first: Float[ndarray, "draws parameters"],
    second: Float[ndarray, "more parameters"],
    pair: _UpdatePair,
    delta: float,
    alpha: float,
) -> _Test:
    """Fit directions on the first part; choose the best one and its threshold on the second."""
    gap = pair.update - pair.alternative
    best, largest = np.zeros_like(gap), -1.0
    for direction in _directions(first, gap):
        std = float((second @ direction).std())
        reach = float(gap @ direction)
        distance = reach / std if std > 0 else np.inf if reach > 0 else 0.0
        if distance > largest:
            best, largest = direction, distance
    low, high = (
        float((second @ best).mean() + part @ best) for part in (pair.alternative, pair.update)
    )
    middle, wide = (low + high) / 2, max(high - low, float((second @ best).std()))
    # Sorted from the middle outwards, because argmax takes the first of equally good thresholds.
    steps = sorted(np.linspace(-1.5, 1.5, _THRESHOLDS), key=abs)
    tests = [_Test(best, middle + wide * step) for step in steps]
    values = [
        clopper_pearson_epsilon(test.counts(second, pair), delta=delta, alpha=alpha).value
        for test in tests
    ]
    return tests[int(np.argmax(values))]


def _directions(
    draws: Float[ndarray, "draws parameters"], gap: Float[ndarray, " parameters"]
) -> list[Float[ndarray, " parameters"]]:
    """Return linear discriminants (C + s I)^-1 gap, one for each shrinkage s."""
    # Woodbury's identity: a system of the size of the draws, which are far fewer than parameters.
    centred = draws - draws.mean(0)
    products = centred @ centred.T
    average = float(np.trace(products)) / (centred.size or 1)
    if not average > 0:
        return [gap]
    projected = centred @ gap
    directions = []
    for shrinkage in _SHRINKAGES:
        ridge = shrinkage * average
        weights = np.linalg.solve(products + len(draws) * ridge * np.eye(len(draws)), projected)
        direction = gap - centred.T @ weights
        length = float(np.linalg.norm(direction))
        directions.append(direction / length if length > 0 else direction)
    return directions


FEWEST_CANARIES = 20
"""Fewest canary clients for bounds. Guesses about ten coins give no bound above 0."""


class CanaryBounds(NamedTuple):
    """Lower bounds on the epsilon of one client's update in a released model.

    Adjacency: the update is replaced by zeros, while the client's weight and noise stay.

    Attributes:
        one_run: Bound from guesses about the coins; assumes fair coins only.
        mean_only: Bound from the mean statistic of the canaries that sent their direction. It
            assumes a Gaussian mechanism with all clients; None if rounds draw clients.
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
    """Compute two lower bounds on epsilon from the model's change along each canary's direction.

    Args:
        statistics: For each canary client, sqrt(d) times the cosine between its random direction
            in d dimensions and the change of the released model. If the canary sent zeros, the
            statistic is almost standard normal in high dimensions, whatever the release.
        sent: Whether each canary sent its direction, as a fair coin decided; otherwise it sent
            zeros.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, for each bound, in (0, 1).
        every_round: Whether the canaries took part in every round. If rounds draw their clients,
            there is no mean-only bound, because the statistic of a canary in some rounds is not
            normal.

    Raises:
        BadInput: Fewer than twenty canaries, numbers that are not finite, coins that look unfair,
            or delta or alpha out of range.

    Source: Steinke, Nasr and Jagielski 2023 (one run); Andrew et al. 2024, One-shot empirical
        privacy estimation for federated learning (canary clients and their statistic).
    Differs: Andrew et al. fit a normal distribution to the canaries and report the epsilon of its
        mean and variance. That is an estimate, which exceeds the true epsilon about half of the
        time. The mean-only bound uses the mean's lower confidence limit, at the known variance 1.
    """
    z = as_array(statistics).astype(float)
    was_sent = as_truth(sent, z.size)
    require_error(delta, alpha, least=1e-300)
    if z.ndim != 1 or not np.isfinite(z).all():
        raise BadInput(
            f"each canary needs one finite statistic and one coin, got shapes {z.shape} and "
            f"{was_sent.shape}"
        )
    if len(z) < FEWEST_CANARIES:
        raise BadInput(
            f"bounds on a client's update need {FEWEST_CANARIES} canary clients, got {len(z)}; "
            "raise canaries.count"
        )
    # An even number near a third of the canaries, which does not depend on the statistics.
    guesses = max(2, 2 * (len(z) // 6))
    one_run = one_run_epsilon(z, was_sent, guesses=guesses, delta=delta, alpha=alpha)
    if not every_round:
        return CanaryBounds(one_run, None)
    members = int(was_sent.sum())
    slack = float(sp.special.ndtri(1 - alpha)) / math.sqrt(members)
    shift = float(z[was_sent].mean()) - slack
    # The mean cannot exceed the largest statistic.
    largest = float(np.abs(z[was_sent]).max()) - slack
    value = gaussian_budget(shift, delta)
    ceiling = max(value, gaussian_budget(largest, delta))
    method = bound_method("mean-only Gaussian", delta, alpha)
    return CanaryBounds(one_run, EpsilonBound(value, ceiling, method))


class RecordBounds(NamedTuple):
    """Lower bounds on the epsilon of one canary record that assume more than fair coins.

    Attributes:
        if_gaussian: Bound from guesses about the coins, if the training is at least as private as
            a Gaussian mechanism; None if all coins have the same outcome.
        if_normal: Bound from the mean scores of the two sides, if scores are normal with equal
            variances; None if they are not, or if all coins have the same outcome.
        refusal: Why a bound is missing; empty if both are present.
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
    """Compute two lower bounds on epsilon that are tighter than the bound from coins alone.

    Args:
        scores: One score per canary record, larger for likelier members.
        is_member: Whether a fair coin gave the record to the client.
        guesses: Number of guesses, even, fixed before looking at the scores.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that a bound is wrong, for each bound, in (0, 1).

    Raises:
        BadInput: As :func:`fedaudit.metrics.one_run_epsilon`, except that equal outcomes of all
            coins give a ``refusal``.

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run
        (if_gaussian); Andrew et al. 2024, One-shot empirical privacy estimation for federated
        learning (if_normal).
    Differs: Andrew et al. report the epsilon of two fitted normal distributions, which is an
        estimate. The bound here uses the lower confidence limit of the distance between the two
        means in standard deviations (noncentral t). Normality and equal variances are tested,
        and the bound is refused if a test at one per cent fails.
    """
    one_sided = one_sided_coins(is_member)
    if one_sided:
        return RecordBounds(None, None, one_sided)
    split = sides(scores, is_member)
    counted = count_guesses(scores, is_member, guesses)
    if_gaussian = one_run_gaussian_bound(counted, delta=delta, alpha=alpha)
    refusal = _not_normal(split)
    if refusal:
        return RecordBounds(if_gaussian, None, refusal)
    members, others = map(len, split)
    freedom = members + others - 2
    std = math.sqrt(sum(len(side) * float(side.var()) for side in split) / freedom)
    root = math.sqrt(members * others / (members + others))
    distance = float(split.members.mean() - split.nonmembers.mean()) / std
    shift = float(sp.special.nctdtrinc(freedom, 1 - alpha, distance * root)) / root
    # The means lie between the smallest and the largest score.
    largest = float(split.members.max() - split.nonmembers.min()) / std
    value = gaussian_budget(shift, delta)
    ceiling = max(value, gaussian_budget(largest, delta))
    method = bound_method("mean-only normal", delta, alpha)
    return RecordBounds(if_gaussian, EpsilonBound(value, ceiling, method))


_NORMALITY_ERROR = 0.01
"""Significance level of the tests of normality and of equal variances."""
_FEWEST_FOR_SHAPE = 200
"""Fewest canaries for the normality test. With fewer, it accepts Laplace noise in 1 of 4 runs."""


def _not_normal(split: SplitScores) -> str:
    """Return why scores are not normal with equal variances, or an empty string if they are.

    Source: D'Agostino and Pearson, Tests for departure from normality, 1973.
    """
    canaries = sum(map(len, split))
    if canaries < _FEWEST_FOR_SHAPE:
        return f"testing if scores are normal needs {_FEWEST_FOR_SHAPE} canaries, got {canaries}"
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
        return f"scores of members and non-members differ in their variance (p = {p_value:.2g})"
    return ""
