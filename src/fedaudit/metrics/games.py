"""Success in security games in which an adversary decides whether a record is in a batch.

The adversary has a rule, such as a planted neuron, that fires for some records. It fires for the
target with probability p and for any other record with probability f. The adversary answers "in"
if the rule fires for any of the n records of the batch. With records drawn independently,
TPR = 1 - (1 - p) (1 - f)^(n - 1), TNR = (1 - f)^n, and the success is Adv = (TPR + TNR) / 2.

With Gaussian noise, the adversary distinguishes two normal distributions with equal standard
deviations, whose means are mu standard deviations apart. The balanced accuracy is then at most
Phi(mu / 2), which a threshold half-way between the means attains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.epsilon import Counts, EpsilonBound, clopper_pearson_epsilon
from fedaudit.metrics.intervals import IntervalEstimate, Limits, percent, require_confidence
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
        raise BadInput(f"a distance is at least 0, got {mu}")
    return float(sp.special.ndtr(mu / 2))


def clipped_distance(
    noise_multiplier: float, *, rounds: int = 1, summed: int = 1, replaced: bool = True
) -> float:
    """Return the shift of sums of clipped gradients by one record, in standard deviations of noise.

    Args:
        noise_multiplier: Standard deviation of each client's noise, in units of the clip norm.
        rounds: Number of sums that are released, each with fresh noise.
        summed: Number of clients whose noise is added up in each sum.
        replaced: True if neighbouring data sets differ by replacing a record, as in the games (a
            shift of two clip norms). False if they differ by adding a record (one clip norm).

    Returns:
        The mu of Gaussian DP; infinite without noise.

    Raises:
        BadInput: The noise is negative, or there are no rounds or clients.

    Source: Dong, Roth and Su 2022: the Gaussian mechanism and its composition, which gives
        sqrt(rounds) / noise_multiplier for a shift of one clip norm.
    """
    if not (noise_multiplier >= 0 and rounds >= 1 and summed >= 1):
        raise BadInput(
            "the noise must be at least 0, and the numbers of rounds and clients at least 1, got "
            f"{noise_multiplier}, {rounds} and {summed}"
        )
    if noise_multiplier == 0:
        return math.inf
    return (2 if replaced else 1) * math.sqrt(rounds / summed) / noise_multiplier


def rounds_needed(success: float, mu: float) -> int:
    """Return the number of rounds that the adversary must average to reach a success.

    Args:
        success: Required (TPR + TNR) / 2, in (0.5, 1).
        mu: Distance between the two distributions after one round, in standard deviations of the
            noise, above 0.

    Raises:
        BadInput: An argument is out of range.
    """
    if not (0.5 < success < 1 and mu > 0):
        raise BadInput(
            f"the success must be above 0.5 and below 1, and the distance above 0, got {success} "
            f"and {mu}"
        )
    return max(1, math.ceil((2 * float(sp.special.ndtri(success)) / mu) ** 2 - 1e-9))


def gaussian_mechanism(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of the classic Gaussian mechanism: sqrt(2 ln(1.25/delta)) / eps.

    Args:
        epsilon: Privacy budget, above 0. The privacy proof is valid only below 1.
        delta: Failure probability, in (0, 1).

    Raises:
        BadInput: An argument is out of range.

    Source: AMI, appendix E; Dwork and Roth 2014, Theorem A.1.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise BadInput(f"epsilon is above 0 and delta in (0, 1), got {epsilon} and {delta}")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def rounds_as_published(epsilon: float, delta: float, *, neurons: int, success: float) -> int:
    """Return the number of rounds that the paper predicts, with Gaussian noise on every neuron.

    Every neuron's row of the gradient has norm 1, so K copies of the neuron are as good as K rounds
    (the appendix's "K-fold"). If gradients are clipped to a common norm, copies do not help; see
    :func:`rounds_under_a_clip`.

    Args:
        epsilon: Privacy budget of one round; the noise is sqrt(2 ln(1.25 / delta)) / eps.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        success: Required Adv, in (0.5, 1), of a server that knows the row without noise.

    Raises:
        BadInput: An argument is out of range.

    Source: AMI, appendix E, Fig. 13.
    Differs: The paper does not define when noise counts as eliminated; here, it is eliminated once
        the server reaches ``success``.
    """
    if neurons < 1:
        raise BadInput(f"averaging needs at least one neuron, got {neurons}")
    return rounds_needed(success, math.sqrt(neurons) / gaussian_mechanism(epsilon, delta))


def rounds_under_a_clip(epsilon: float, delta: float, *, share: float = 1.0, success: float) -> int:
    """Return the number of rounds that the adversary needs under DP-SGD.

    The noise of the classic Gaussian mechanism is added to a sum of clipped gradients. The number
    of copies of the neuron does not matter: the rows of all copies together have at most ``share``
    of one clip norm.

    Args:
        epsilon: Privacy budget of one round, for adding or removing a record.
        delta: Failure probability.
        share: Fraction of the norm of the target's gradient that lies in the planted rows.
        success: Required Adv of a server whose neurons do not fire for other records.

    Raises:
        BadInput: An argument is out of range.
    """
    if not 0 < share <= 1:
        raise BadInput(f"share, a fraction of a gradient's norm, is in (0, 1], got {share}")
    return rounds_needed(success, share / gaussian_mechanism(epsilon, delta))


class BoundedMean(NamedTuple):
    """Mean of independent values within a known range.

    Attributes:
        mean: Sample mean.
        values: Number of values.
        width: Width of the range that every possible value lies in.
    """

    mean: float
    values: int
    width: float


class SignsOfMeans(NamedTuple):
    """Certificate that one mean is positive and that another mean is not.

    Attributes:
        delta: Smallest failure probability of each claim at which both claims can be made. It is 1
            if a sample mean has the wrong sign; nothing is then certified.
        failure: Bound on the probability that at least one claim is wrong: twice delta, at most 1.
    """

    delta: float
    failure: float


def hoeffding_margin(sample: BoundedMean, delta: float) -> float:
    """Return a one-sided bound on the distance between the true mean and the sample mean.

    The true mean is further away with a probability of at most ``delta``.

    Raises:
        BadInput: Delta is not in (0, 1), there are no values, or their range is invalid.

    Source: Hoeffding 1963, Theorem 2; AMI, Eqs. (9) and (10).
    """
    if not 0 < delta < 1:
        raise BadInput(f"a failure probability is between 0 and 1, got {delta}")
    _raise_if_invalid(sample)
    return sample.width * math.sqrt(-math.log(delta) / (2 * sample.values))


def signs_of_means(of_target: BoundedMean, of_others: BoundedMean) -> SignsOfMeans:
    """Return the smallest delta at which AMI's condition on the neuron's means holds.

    The condition is that the neuron's mean is positive for the randomised target and not positive
    for other randomised records. The condition does not bound the success on a single record or a
    batch. With a large variance, a neuron that satisfies the condition loses most of its games. Use
    :func:`fedaudit.metrics.games.certify` for limits of the success in games.

    Args:
        of_target: Values on independent randomised copies of the target.
        of_others: Values on independent randomised other records.

    Raises:
        BadInput: There are no values, or their range is invalid.

    Source: AMI, Theorem 1, and Corollary 1 in closed form: the true mean has the sign of the sample
        mean as long as the Hoeffding margin is no wider than the sample mean's distance from 0.
    Differs: The paper uses one delta for two events, and the range of the observed values. Here,
        each event may fail with probability delta, and the range contains all possible values.
    """
    delta = max(
        _smallest_delta(of_target, of_target.mean),
        _smallest_delta(of_others, -of_others.mean),
    )
    return SignsOfMeans(delta, 1.0 if delta >= 1 else min(1.0, 2 * delta))


def _smallest_delta(sample: BoundedMean, distance: float) -> float:
    """Return the delta at which the Hoeffding margin equals a distance; 1 if it is 0 or less."""
    _raise_if_invalid(sample)
    if distance <= 0:
        return 1.0
    if sample.width == 0:
        return 0.0
    return math.exp(-2 * sample.values * (distance / sample.width) ** 2)


def _raise_if_invalid(sample: BoundedMean) -> None:
    if sample.values < 1 or not 0 <= sample.width < math.inf or not math.isfinite(sample.mean):
        raise BadInput(
            "bounding a mean takes at least one value, a finite mean and a finite range, got "
            f"{sample.values} values of mean {sample.mean} in a range of width {sample.width}"
        )


class GameSuccess(NamedTuple):
    """Success of an adversary in games.

    Attributes:
        tpr: Fraction of the games with the target in which the answer was "in".
        tnr: Fraction of the games without the target in which the answer was "out".
        adv: Mean of ``tpr`` and ``tnr``, which AMI calls Adv; 0.5 is chance level.
        epsilon: Lower bound on epsilon that the success implies; the unit of privacy is one record.
    """

    tpr: Proportion
    tnr: Proportion
    adv: IntervalEstimate[float]
    epsilon: EpsilonBound


@dataclass(frozen=True, kw_only=True)
class Certificate(Limits[float]):
    """Limits of the success in games, computed from the rule's rates for single records.

    Attributes:
        of_target: Rate at which the rule fires for the target, with its limits.
        of_others: Rate at which the rule fires for another record, with its limits.
        batch: Number of records in a batch.
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
    """Compute the success of an adversary from its answers in independent games.

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

    Source: AMI, Eq. (3).
    """
    require_confidence(confidence)
    counts = Counts(true_positives, with_target, without_target - true_negatives, without_target)
    return GameSuccess(
        tpr=proportion(true_positives, with_target, confidence=confidence),
        tnr=proportion(true_negatives, without_target, confidence=confidence),
        adv=counted_balanced_accuracy(
            true_positives, with_target, true_negatives, without_target, confidence=confidence
        ),
        epsilon=clopper_pearson_epsilon(counts, delta=delta, alpha=1 - confidence),
    )


def expected_success(of_target: float, of_others: float, batch: int) -> float:
    """Return the Adv of a rule that fires for single records with the given probabilities.

    Args:
        of_target: Probability p of firing for the target.
        of_others: Probability f of firing for any other record.
        batch: Number of records in a batch, n.
    """
    silent = 1 - of_others
    tpr = 1 - (1 - of_target) * silent ** (batch - 1)
    return (tpr + silent**batch) / 2


def most_success(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest Adv under (epsilon, delta)-DP: (e^eps + delta) / (1 + e^eps).

    Args:
        epsilon: Privacy budget of one record; infinite without privacy.
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


def predict_tnr(fired: Sequence[int], records: Sequence[int], *, batch: int) -> float | None:
    """Predict the TNR in games, the mean over targets of (1 - f)^batch, from single records.

    For each target, the estimate is the fraction of all possible batches of other records in which
    the neuron never fires. Unlike the formula with the observed rate f, this estimate is unbiased.

    Args:
        fired: For each target, the number of other records for which the neuron fired.
        records: For each target, the number of other records.
        batch: Number of records in a batch.

    Returns:
        The mean over the targets with enough other records for two batches; None if there are no
        such targets. From a single batch, the prediction would repeat the observation.
    """
    estimates = [
        math.comb(n - k, batch) / math.comb(n, batch)
        for k, n in zip(fired, records, strict=True)
        if n >= 2 * batch
    ]
    return math.fsum(estimates) / len(estimates) if estimates else None


def certify(
    fired_for_target: int,
    copies: int,
    fired_for_others: int,
    records: int,
    *,
    batch: int,
    confidence: float = 0.95,
) -> Certificate:
    """Compute limits of the success in games from the rule's rates for single records.

    Both limits are valid together with the stated confidence, since the exact limits of each rate
    use half of the error. They apply to games with batches of independent records from the same
    distribution as the counted records. The rule must have been chosen without these records.

    Args:
        fired_for_target: Number of randomised copies of the target for which the rule fired.
        copies: Number of randomised copies, which must be independent.
        fired_for_others: Number of other records for which the rule fired.
        records: Number of other records, which must be independent.
        batch: Number of records in a batch.
        confidence: Confidence of the limits, in (0, 1).

    Raises:
        BadInput: Counts out of range, or an empty batch.

    Source: Clopper and Pearson 1934, and the formula of Adv in this module's introduction.
    Differs: AMI's Theorem 1 bounds means of the neuron's values, which do not imply any success.
    """
    require_confidence(confidence)
    if batch < 1:
        raise BadInput(f"a batch has at least one record, got {batch}")
    each_confidence = 1 - (1 - confidence) / 2
    target = proportion(fired_for_target, copies, confidence=each_confidence)
    others = proportion(fired_for_others, records, confidence=each_confidence)
    # As a function of f, success falls to a minimum and rises again, because false alarms in a
    # batch with the target are correct answers.
    minimum = 1 - (1 - target.low) * (batch - 1) / batch
    worst = min(max(minimum, others.low), others.high)
    return Certificate(
        low=expected_success(target.low, worst, batch),
        high=max(expected_success(target.high, f, batch) for f in (others.low, others.high)),
        of_target=target,
        of_others=others,
        batch=batch,
        method=f"Clopper-Pearson of both rates together, {percent(confidence)}",
    )
