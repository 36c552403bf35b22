"""Lower bounds on the epsilon of a client's update or of a canary sample."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Float
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.metrics.epsilon import (
    ConfusionCounts,
    EpsilonBound,
    bound_method,
    clopper_pearson_epsilon,
    count_guesses,
    describe_equal_coins,
    gaussian_budget,
    one_run_epsilon_from_scores,
    one_run_gaussian_bound,
    require_error,
)
from fedaudit.metrics.roc import SplitScores, as_array, as_membership, split_scores

FEWEST_DRAWS = 80
"""Fewest simulated sums. The test is fitted on half of them, and its errors are counted on the
other half."""

_SHRINKAGES = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Candidates for the shrinkage of the covariance, relative to the mean variance of a parameter."""
_THRESHOLDS = 41
"""Number of candidate thresholds of the test."""


class SumBounds(NamedTuple):
    """Lower bounds on the epsilon of one client's update in a sum of updates.

    Attributes:
        counted: Bound from the error rates of a linear test. It only assumes independent draws.
        if_gaussian: Bound from the standard deviation of the test statistic. It assumes that the
            statistic is normally distributed; its ceiling is infinite.
    """

    counted: EpsilonBound
    if_gaussian: EpsilonBound


class _UpdatePair(NamedTuple):
    """The two updates of a client that the test distinguishes."""

    update: Float[ndarray, " parameters"]
    alternative: Float[ndarray, " parameters"]


class _LinearTest(NamedTuple):
    """Test that answers "first update" if the sum's projection on a direction is large enough."""

    direction: Float[ndarray, " parameters"]
    threshold: float

    def counts(
        self, others: Float[ndarray, "draws parameters"], pair: _UpdatePair
    ) -> ConfusionCounts:
        """Count the answers "first update" when the sum contains the first or the second update."""
        projected = others @ self.direction
        true_positives, false_positives = (
            int((projected + update @ self.direction > self.threshold).sum()) for update in pair
        )
        return ConfusionCounts(true_positives, len(others), false_positives, len(others))


def secure_sum_bounds(
    others: npt.ArrayLike,
    update: npt.ArrayLike,
    alternative: npt.ArrayLike,
    *,
    delta: float,
    alpha: float = 0.05,
) -> SumBounds:
    """Compute lower bounds on epsilon from a test between two updates of a client in a sum.

    Secure aggregation reveals only the sum of all updates, in which the updates of other clients
    act as noise. The adversary knows both updates of the client and the distribution of the other
    clients' sum. A linear test decides which of the two updates a sum contains. Its direction is
    fitted to the first quarter of the draws with a shrunken covariance. The shrinkage and the
    threshold are selected on the second quarter. Errors are counted once, on the remaining half.

    The counted bound is valid for any distribution if the draws are independent and distributed as
    the other clients' sum. The number of draws limits its size. The Gaussian bound uses the upper
    confidence limit of the standard deviation in the remaining half. Another test may distinguish
    the updates better than this one, so a low bound guarantees nothing.

    Args:
        others: Independent draws of the sum of all other clients' updates, one per row. If noise is
            added to the sum, the draws contain it.
        update: An update of the client, as it enters the sum.
        alternative: The update that replaces ``update``. Pass zeros to bound the epsilon of the
            client's update, or the update without one sample to bound the epsilon of this sample.
            The bound on epsilon covers both directions of this pair.
        delta: The delta at which epsilon is stated, in (0, 1).
        alpha: Probability that each bound is wrong, in (0, 1).

    Raises:
        BadInput: There are fewer than eighty draws, all draws are equal, shapes differ, a number is
            not finite, or delta or alpha is out of range.

    Source: Ngo, Östman, Durisi and Graell i Amat 2024, Secure aggregation is not private against
        membership inference attacks (only abstract and introduction were read); Jagielski, Ullman
        and Oprea 2020 for the bound.
    Differs: Only the Gaussian bound assumes that the other clients' sum is normal, and only along
        one direction. The errors of the linear test are counted on other draws than it was fitted
        on.
    """
    require_error(delta, alpha, min_delta=1e-300)
    draws = np.asarray(others, dtype=float)
    pair = _UpdatePair(
        np.asarray(update, dtype=float).ravel(), np.asarray(alternative, dtype=float).ravel()
    )
    if draws.ndim != 2 or any(vector.shape != draws.shape[1:] for vector in pair):
        raise BadInput(
            "sums need one row per draw and one column per parameter, and both updates need the "
            f"same parameters; got {draws.shape}, {pair.update.shape} and {pair.alternative.shape}"
        )
    if len(draws) < FEWEST_DRAWS:
        raise BadInput(
            f"a bound needs at least {FEWEST_DRAWS} independent draws of the other clients' sum, "
            f"got {len(draws)}; draw more"
        )
    if not all(np.isfinite(array).all() for array in (draws, *pair)):
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
            "the sum of the other clients' updates is equal in every draw; simulate these clients "
            "with new data in every draw"
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
) -> _LinearTest:
    """Fit directions on the first draws; select one and its threshold on the second draws."""
    gap = pair.update - pair.alternative
    best, largest = np.zeros_like(gap), -1.0
    for direction in _directions(first, gap):
        std = float((second @ direction).std())
        projected_gap = float(gap @ direction)
        # Without variance, the test is perfect or cannot distinguish the updates.
        without_variance = np.inf if projected_gap > 0 else 0.0
        distance = projected_gap / std if std > 0 else without_variance
        if distance > largest:
            best, largest = direction, distance
    mean = (second @ best).mean()
    low, high = float(mean + pair.alternative @ best), float(mean + pair.update @ best)
    middle, width = (low + high) / 2, max(high - low, float((second @ best).std()))
    # Sorted from the middle outwards, because argmax takes the first of equally good thresholds.
    steps = sorted(np.linspace(-1.5, 1.5, _THRESHOLDS), key=abs)
    tests = [_LinearTest(best, middle + width * step) for step in steps]
    values = [
        clopper_pearson_epsilon(test.counts(second, pair), delta=delta, alpha=alpha).value
        for test in tests
    ]
    return tests[int(np.argmax(values))]


def _directions(
    draws: Float[ndarray, "draws parameters"], gap: Float[ndarray, " parameters"]
) -> list[Float[ndarray, " parameters"]]:
    """Return linear discriminants (C + s I)^-1 gap, one for each shrinkage s."""
    # With Woodbury's identity, the linear system has one equation per draw instead of one per
    # parameter. There are far fewer draws than parameters.
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
"""Fewest canary clients for bounds. Guesses about only ten coins cannot give a bound above 0."""


class CanaryBounds(NamedTuple):
    """Lower bounds on the epsilon of one client's update in a released model.

    In neighbouring runs, one client's update is replaced by zeros. The client's weight in the mean
    and its noise do not change.

    Attributes:
        one_run: Bound from guesses about the coins. It only assumes fair coins.
        mean_only: Bound from the mean statistic of the canaries that sent their direction. It
            assumes a Gaussian mechanism in which all clients take part. None if each round selects
            clients at random.
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
            statistic is almost standard normal in high dimensions, whatever the released model.
        sent: Whether a fair coin made each canary send its direction. Otherwise it sent zeros.
        delta: The delta at which epsilon is stated, in (0, 1).
        alpha: Probability that each bound is wrong, in (0, 1).
        every_round: Whether the canaries took part in every round. If not, there is no mean-only
            bound, because the statistic is not normal if a canary took part only in some rounds.

    Raises:
        BadInput: There are fewer than twenty canaries, a number is not finite, membership is
            implausible for fair coins, or delta or alpha is out of range.

    Source: Steinke, Nasr and Jagielski 2023 (one run); Andrew et al. 2024, One-shot empirical
        privacy estimation for federated learning (canary clients and their statistic).
    Differs: Andrew et al. fit a normal distribution to the canaries and report the epsilon of its
        mean and variance. This estimate exceeds the true epsilon about half of the time. The
        mean-only bound uses the mean's lower confidence limit, at the known variance 1.
    """
    z = as_array(statistics).astype(float)
    was_sent = as_membership(sent, z.size)
    require_error(delta, alpha, min_delta=1e-300)
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
    # An even number near a third of the canaries. It must not depend on the statistics.
    guesses = max(2, 2 * (len(z) // 6))
    one_run = one_run_epsilon_from_scores(z, was_sent, guesses=guesses, delta=delta, alpha=alpha)
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


class SampleBounds(NamedTuple):
    """Lower bounds on the epsilon of one canary sample that assume more than fair coins.

    Attributes:
        if_gaussian: Bound from guesses about the coins. It assumes that the training is at least as
            private as a Gaussian mechanism. None if all coins had the same outcome.
        if_normal: Bound from the mean scores of members and of non-members. It assumes that scores
            are normally distributed with equal variances. None if a test rejects this assumption,
            or if all coins had the same outcome.
        refusal: Why a bound is missing; empty if both bounds are present.
    """

    if_gaussian: EpsilonBound | None
    if_normal: EpsilonBound | None
    refusal: str = ""


def sample_bounds(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    guesses: int,
    delta: float,
    alpha: float = 0.05,
) -> SampleBounds:
    """Compute two lower bounds on epsilon that are tighter but assume more than fair coins.

    Args:
        scores: One score per canary sample, larger for likelier members.
        is_member: Whether a fair coin added the sample to the client's training data.
        guesses: Number of guesses, even, fixed before looking at the scores.
        delta: The delta at which epsilon is stated, in (0, 1).
        alpha: Probability that each bound is wrong, in (0, 1).

    Raises:
        BadInput: As in :func:`fedaudit.metrics.one_run_epsilon_from_scores`. However, if all coins
            had the same outcome, the result has a ``refusal`` instead.

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run
        (if_gaussian); Andrew et al. 2024, One-shot empirical privacy estimation for federated
        learning (if_normal).
    Differs: Andrew et al. report the epsilon of two fitted normal distributions, which is an
        estimate. The bound here uses the lower confidence limit of the distance between the two
        means in standard deviations (noncentral t). Normality and equal variances are each tested
        at a significance level of 1 %. If a test rejects, there is no such bound.
    """
    one_sided = describe_equal_coins(is_member)
    if one_sided:
        return SampleBounds(None, None, one_sided)
    split = split_scores(scores, is_member)
    guess_counts = count_guesses(scores, is_member, guesses)
    if_gaussian = one_run_gaussian_bound(guess_counts, delta=delta, alpha=alpha)
    refusal = _reason_not_normal(split)
    if refusal:
        return SampleBounds(if_gaussian, None, refusal)
    members, nonmembers = map(len, split)
    freedom = members + nonmembers - 2
    std = math.sqrt(sum(len(group) * float(group.var()) for group in split) / freedom)
    root = math.sqrt(members * nonmembers / (members + nonmembers))
    distance = float(split.members.mean() - split.nonmembers.mean()) / std
    shift = float(sp.special.nctdtrinc(freedom, 1 - alpha, distance * root)) / root
    # The means lie between the smallest and the largest score.
    largest = float(split.members.max() - split.nonmembers.min()) / std
    value = gaussian_budget(shift, delta)
    ceiling = max(value, gaussian_budget(largest, delta))
    method = bound_method("mean-only normal", delta, alpha)
    return SampleBounds(if_gaussian, EpsilonBound(value, ceiling, method))


_NORMALITY_ERROR = 0.01
"""Significance level of the tests of normality and of equal variances."""
_FEWEST_FOR_SHAPE = 200
"""Fewest canaries for the normality test. With fewer, it does not reject Laplace noise in one of
four runs."""


def _reason_not_normal(split: SplitScores) -> str:
    """Return why scores are not normal with equal variances; empty if they may be.

    Source: D'Agostino and Pearson, Tests for departure from normality, 1973.
    """
    canaries = sum(map(len, split))
    if canaries < _FEWEST_FOR_SHAPE:
        return f"the test of normality needs {_FEWEST_FOR_SHAPE} canaries, got {canaries}"
    if not all(np.isfinite(group).all() and np.ptp(group) > 0 for group in split):
        return "scores are infinite or all equal, so they are not normally distributed"
    about_means = np.concatenate([group - group.mean() for group in split])
    p_value = float(sp.stats.normaltest(about_means).pvalue)
    if p_value < _NORMALITY_ERROR:
        return (
            "scores of members and of non-members are not normal about their means "
            f"(p = {p_value:.2g})"
        )
    variances = [float(group.var(ddof=1)) for group in split]
    freedom = [len(group) - 1 for group in split]
    cumulative = float(sp.special.fdtr(*freedom, variances[0] / variances[1]))
    p_value = 2 * min(cumulative, 1 - cumulative)
    if p_value < _NORMALITY_ERROR:
        return f"scores of members and non-members have different variances (p = {p_value:.2g})"
    return ""
