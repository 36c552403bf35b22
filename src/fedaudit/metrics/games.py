"""Success rate in security games in which an adversary decides whether a sample is in a batch.

AMI is the active membership inference attack of Nguyen, Lai, Tran, Phan and Thai 2023.

The adversary has a rule, such as a planted neuron, that fires for some samples. It fires for the
target with probability p and for any other sample with probability f. The adversary answers "in"
if the rule fires for any of the n samples of the batch. With samples drawn independently,
TPR = 1 - (1 - p) (1 - f)^(n - 1), TNR = (1 - f)^n, and the success rate is Adv = (TPR + TNR) / 2.

If the client adds Gaussian noise to its gradient, the adversary distinguishes two normal
distributions with equal standard deviations, whose means are mu standard deviations apart. The
balanced accuracy is then at most Phi(mu / 2), which a threshold half-way between the means attains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.epsilon import ConfusionCounts, EpsilonBound, clopper_pearson_epsilon
from fedaudit.metrics.intervals import IntervalEstimate, Limits, format_percent, require_confidence
from fedaudit.metrics.rate_limits import Proportion, proportion


def gaussian_success(mu: float) -> float:
    """Return the largest balanced accuracy between N(0, 1) and N(mu, 1): Phi(mu / 2).

    Args:
        mu: Distance in standard deviations, at least 0; infinite without noise.

    Raises:
        BadInput: ``mu`` is negative or NaN.

    Source: Dong, Roth and Su 2022: the trade-off function of mu-Gaussian DP.
    """
    if not mu >= 0:
        raise BadInput(f"mu must be at least 0, got {mu}")
    return float(sp.special.ndtr(mu / 2))


def clipped_distance(
    noise_multiplier: float, *, rounds: int = 1, clients: int = 1, replaced: bool = True
) -> float:
    """Return how far one sample can move noisy sums of clipped gradients, in standard deviations.

    Args:
        noise_multiplier: Standard deviation of each client's noise, in units of the clip norm.
        rounds: Number of sums that are released, each with fresh noise.
        clients: Number of clients whose noise is added up in each sum.
        replaced: True if neighbouring data sets differ by replacing a sample, as in the games (a
            shift of two clip norms). False if they differ by adding a sample (one clip norm).

    Returns:
        The distance in standard deviations of the noise: the mu of Gaussian DP. It is infinite
        without noise.

    Raises:
        BadInput: The noise is negative, or there are no rounds or clients.

    Source: Dong, Roth and Su 2022: the Gaussian mechanism and its composition, which gives
        sqrt(rounds) / noise_multiplier for a shift of one clip norm.
    """
    if not (noise_multiplier >= 0 and rounds >= 1 and clients >= 1):
        raise BadInput(
            "the noise must be at least 0, and the numbers of rounds and clients at least 1, got "
            f"{noise_multiplier}, {rounds} and {clients}"
        )
    if noise_multiplier == 0:
        return math.inf
    return (2 if replaced else 1) * math.sqrt(rounds / clients) / noise_multiplier


def rounds_needed(success: float, mu: float) -> int:
    """Return the number of rounds that the adversary must average to reach a success rate.

    Args:
        success: Required success rate, (TPR + TNR) / 2, in (0.5, 1).
        mu: Distance between the two distributions after one round, in standard deviations of the
            noise, above 0.

    Raises:
        BadInput: An argument is out of range.
    """
    if not (0.5 < success < 1 and mu > 0):
        raise BadInput(
            f"the success rate must be above 0.5 and below 1, and mu above 0; got {success}, {mu}"
        )
    return max(1, math.ceil((2 * float(sp.special.ndtri(success)) / mu) ** 2 - 1e-9))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of the classic Gaussian mechanism: sqrt(2 ln(1.25/delta)) / eps.

    Args:
        epsilon: Privacy budget, above 0. The privacy proof is valid only below 1.
        delta: Failure probability, in (0, 1).

    Raises:
        BadInput: An argument is out of range.

    Source: Nguyen et al. 2023 (AMI), appendix E; Dwork and Roth 2014, Theorem A.1.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise BadInput(f"epsilon is above 0 and delta in (0, 1), got {epsilon} and {delta}")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def rounds_as_published(epsilon: float, delta: float, *, neurons: int, success: float) -> int:
    """Return the number of rounds after which, according to AMI, noise is averaged out.

    Gaussian noise is added to every neuron's row of the gradient. Each row has norm 1, so K copies
    of the neuron are as good as K rounds (the appendix's "K-fold"). If gradients are clipped to a
    common norm, copies do not help; see :func:`rounds_under_a_clip`.

    Args:
        epsilon: Privacy budget of one round; the noise is sqrt(2 ln(1.25 / delta)) / eps.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        success: Required Adv, in (0.5, 1), of a server that knows the neuron's row of the gradient
            before noise is added.

    Raises:
        BadInput: An argument is out of range.

    Source: Nguyen et al. 2023 (AMI), appendix E, Fig. 13.
    Differs: The paper does not define when noise counts as eliminated; here, it is eliminated once
        the server reaches ``success``.
    """
    if neurons < 1:
        raise BadInput(f"the number of neurons must be at least 1, got {neurons}")
    return rounds_needed(success, math.sqrt(neurons) / gaussian_noise_multiplier(epsilon, delta))


def rounds_under_a_clip(epsilon: float, delta: float, *, share: float = 1.0, success: float) -> int:
    """Return the number of rounds that the adversary needs under DP-SGD.

    The noise of the classic Gaussian mechanism is added to a sum of clipped gradients. The number
    of copies of the neuron does not matter: the rows of all copies together have at most ``share``
    of one clip norm.

    Args:
        epsilon: Privacy budget of one round, for adding or removing a sample.
        delta: Failure probability.
        share: Fraction of the norm of the target's gradient that lies in the planted rows.
        success: Required Adv of a server whose neurons do not fire for other samples.

    Raises:
        BadInput: An argument is out of range.
    """
    if not 0 < share <= 1:
        raise BadInput(f"share, a fraction of a gradient's norm, is in (0, 1], got {share}")
    return rounds_needed(success, share / gaussian_noise_multiplier(epsilon, delta))


class BoundedMean(NamedTuple):
    """Mean of independent values within a known range.

    Attributes:
        mean: Mean of the observed values.
        n_values: Number of observed values.
        width: Width of the range that every possible value lies in.
    """

    mean: float
    n_values: int
    width: float


class SignsOfMeans(NamedTuple):
    """Certificate that one mean is positive and that another mean is not.

    Attributes:
        delta: Smallest failure probability of each claim at which both claims can be made. It is 1
            if an observed mean has the wrong sign; nothing is then certified.
        failure: Bound on the probability that at least one claim is wrong: twice delta, at most 1.
    """

    delta: float
    failure: float


def hoeffding_margin(observed: BoundedMean, delta: float) -> float:
    """Return a one-sided bound on the distance between the true and the observed mean.

    The true mean is further away with a probability of at most ``delta``.

    Raises:
        BadInput: Delta is not in (0, 1), there are no values, or their range is invalid.

    Source: Hoeffding 1963, Theorem 2; Nguyen et al. 2023 (AMI), Eqs. (9) and (10).
    """
    if not 0 < delta < 1:
        raise BadInput(f"a failure probability is between 0 and 1, got {delta}")
    _raise_if_invalid(observed)
    return observed.width * math.sqrt(-math.log(delta) / (2 * observed.n_values))


def signs_of_means(of_target: BoundedMean, of_others: BoundedMean) -> SignsOfMeans:
    """Return the smallest delta at which AMI's condition on the neuron's means holds.

    The condition is that the neuron's mean output is positive for the target after local DP noise,
    and not positive for other samples after the same noise. The condition does not bound the
    success rate on a single sample or a batch. With a large variance, a neuron that satisfies the
    condition loses most of its games. Use :func:`fedaudit.metrics.games.certify` for confidence
    limits of the success rate in games.

    Args:
        of_target: Values on independent randomised copies of the target.
        of_others: Values on independent randomised other samples.

    Raises:
        BadInput: There are no values, or their range is invalid.

    Source: Nguyen et al. 2023 (AMI), Theorem 1, and Corollary 1 in closed form: the true mean has
        the sign of the observed mean if the Hoeffding margin is at most the observed mean's
        distance from 0.
    Differs: The paper uses one delta for two events, and the range of the observed values. Here,
        each event may fail with probability delta, and the range contains all possible values.
    """
    delta = max(
        _smallest_delta(of_target, of_target.mean),
        _smallest_delta(of_others, -of_others.mean),
    )
    return SignsOfMeans(delta, 1.0 if delta >= 1 else min(1.0, 2 * delta))


def _smallest_delta(observed: BoundedMean, distance: float) -> float:
    """Return the delta at which the Hoeffding margin equals a distance; 1 if it is 0 or less."""
    _raise_if_invalid(observed)
    if distance <= 0:
        return 1.0
    if observed.width == 0:
        return 0.0
    return math.exp(-2 * observed.n_values * (distance / observed.width) ** 2)


def _raise_if_invalid(observed: BoundedMean) -> None:
    mean, n_values, width = observed
    if n_values < 1 or not 0 <= width < math.inf or not math.isfinite(mean):
        raise BadInput(
            "bounding a mean takes at least one value, a finite mean and a finite range, got "
            f"{n_values} values of mean {mean} in a range of width {width}"
        )


class GameSuccess(NamedTuple):
    """Success rates of an adversary in games.

    Attributes:
        tpr: Fraction of the games with the target in which the answer was "in".
        tnr: Fraction of the games without the target in which the answer was "out".
        adv: Mean of ``tpr`` and ``tnr``, which AMI calls Adv; 0.5 is chance level.
        epsilon: Lower bound on epsilon that the success implies; the unit of privacy is one sample.
    """

    tpr: Proportion
    tnr: Proportion
    adv: IntervalEstimate[float]
    epsilon: EpsilonBound


@dataclass(frozen=True, kw_only=True)
class Certificate(Limits[float]):
    """Confidence limits of the success rate in games, from the rule's rates for single samples.

    Attributes:
        of_target: Rate at which the rule fires for the target, with its limits.
        of_others: Rate at which the rule fires for another sample, with its limits.
        batch: Number of samples in a batch.
    """

    of_target: Proportion
    of_others: Proportion
    batch: int


def game_success(
    true_positives: int,
    with_target: int,
    true_negatives: int,
    without_target: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> GameSuccess:
    """Compute the success rates of an adversary from its answers in independent games.

    Args:
        true_positives: Number of games with the target in which the answer was "in".
        with_target: Number of games with the target.
        true_negatives: Number of games without the target in which the answer was "out".
        without_target: Number of games without the target.
        delta: The delta at which epsilon is bounded.
        confidence: Confidence of each rate's interval, and of the bound on epsilon.

    Raises:
        BadInput: There are no games with the target or none without it, or there are more correct
            answers than games.

    Source: Nguyen et al. 2023 (AMI), Eq. (3).
    """
    require_confidence(confidence)
    counts = ConfusionCounts(
        true_positives, with_target, without_target - true_negatives, without_target
    )
    return GameSuccess(
        tpr=proportion(true_positives, with_target, confidence=confidence),
        tnr=proportion(true_negatives, without_target, confidence=confidence),
        adv=counted_balanced_accuracy(
            true_positives, with_target, true_negatives, without_target, confidence=confidence
        ),
        epsilon=clopper_pearson_epsilon(counts, delta=delta, alpha=1 - confidence),
    )


def expected_success(of_target: float, of_others: float, batch: int) -> float:
    """Return the Adv of a rule that fires for single samples with the given probabilities.

    Args:
        of_target: Probability p of firing for the target.
        of_others: Probability f of firing for any other sample.
        batch: Number of samples in a batch, n.
    """
    silent = 1 - of_others
    tpr = 1 - (1 - of_target) * silent ** (batch - 1)
    return (tpr + silent**batch) / 2


def max_success_rate(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest Adv under (epsilon, delta)-DP: (e^eps + delta) / (1 + e^eps).

    Args:
        epsilon: Privacy budget of one sample; infinite without privacy.
        delta: Failure probability, in [0, 1].

    Raises:
        BadInput: Epsilon is negative or NaN, or delta is out of range.

    Source: Kairouz, Oh and Viswanath 2015: under (epsilon, delta)-DP
        TPR <= e^eps FPR + delta and 1 - FPR <= e^eps (1 - TPR) + delta.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise BadInput(f"epsilon must be at least 0 and delta in [0, 1], got {epsilon} and {delta}")
    odds = math.exp(-epsilon)
    return (1 + delta * odds) / (1 + odds)


def predict_tnr(fired: Sequence[int], samples: Sequence[int], *, batch: int) -> float | None:
    """Predict the TNR in games, the mean over targets of (1 - f)^batch, from single samples.

    For each target, the estimate is the fraction of all possible batches of other samples in which
    the neuron never fires. Unlike the formula with the observed rate f, this estimate is unbiased.

    Args:
        fired: For each target, the number of other samples for which the neuron fired.
        samples: For each target, the number of other samples.
        batch: Number of samples in a batch.

    Returns:
        The mean over the targets with enough other samples for two batches; None if there are no
        such targets. From a single batch, the prediction would repeat the observation.
    """
    estimates = [
        math.comb(n - k, batch) / math.comb(n, batch)
        for k, n in zip(fired, samples, strict=True)
        if n >= 2 * batch
    ]
    return math.fsum(estimates) / len(estimates) if estimates else None


def certify(
    fired_for_target: int,
    copies: int,
    fired_for_others: int,
    samples: int,
    *,
    batch: int,
    confidence: float = 0.95,
) -> Certificate:
    """Compute confidence limits of the success rate in games from rates for single samples.

    Both limits are valid together with the stated confidence, since the exact limits of each rate
    use half of the error. They apply to games with batches of independent samples from the same
    distribution as the counted samples. The rule must have been chosen without these samples.

    Args:
        fired_for_target: Number of randomised copies of the target for which the rule fired.
        copies: Number of randomised copies, which must be independent.
        fired_for_others: Number of other samples for which the rule fired.
        samples: Number of other samples, which must be independent.
        batch: Number of samples in a batch.
        confidence: Confidence of the limits, in (0, 1).

    Raises:
        BadInput: Counts out of range, or an empty batch.

    Source: Clopper and Pearson 1934, and the formula of Adv in this module's introduction.
    Differs: AMI's Theorem 1 bounds means of the neuron's values, which do not imply any success.
    """
    require_confidence(confidence)
    if batch < 1:
        raise BadInput(f"a batch has at least one sample, got {batch}")
    each_confidence = 1 - (1 - confidence) / 2
    target = proportion(fired_for_target, copies, confidence=each_confidence)
    fires_for_others = proportion(fired_for_others, samples, confidence=each_confidence)
    # As a function of f, success falls to a minimum and rises again, because false alarms in a
    # batch with the target are correct answers.
    minimum = 1 - (1 - target.low) * (batch - 1) / batch
    worst = min(max(minimum, fires_for_others.low), fires_for_others.high)
    return Certificate(
        low=expected_success(target.low, worst, batch),
        high=max(
            expected_success(target.high, f, batch)
            for f in (fires_for_others.low, fires_for_others.high)
        ),
        of_target=target,
        of_others=fires_for_others,
        batch=batch,
        method=f"Clopper-Pearson of both rates together, {format_percent(confidence)}",
    )
