"""Success in security games in which an adversary decides whether a record is in a batch.

The adversary's rule looks at each record. It fires for the target with probability p and for any
other record with probability f. The adversary answers "in" if the rule fires for any of the n
records of the batch. With records drawn independently, TPR = 1 - (1 - p) (1 - f)^(n - 1),
TNR = (1 - f)^n, and Adv = (TPR + TNR) / 2. Between two normal distributions with equal standard
deviations and a distance of mu standard deviations, the balanced accuracy is at most Phi(mu / 2).
A threshold half-way between the means reaches it.
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
from fedaudit.metrics.rate_limits import Share, share

_MOST_ROUNDS = 10**9


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
    """Return by how many standard deviations one record shifts noisy sums of clipped gradients.

    Args:
        noise_multiplier: Standard deviation of each client's noise, in units of the clip norm.
        rounds: Number of sums that are released, each with fresh noise.
        summed: Number of clients whose noise is added up in each sum.
        replaced: Whether neighbouring data sets differ by replacing a record, as in the games (a
            shift of two clip norms), or by adding one (a shift of one).

    Returns:
        The mu of Gaussian DP; infinite without noise.

    Raises:
        BadInput: The noise is negative, or there are no rounds or clients.

    Source: Dong, Roth and Su 2022: the Gaussian mechanism and its composition, sqrt(P) / sigma
        for one clip.
    """
    if not (noise_multiplier >= 0 and rounds >= 1 and summed >= 1):
        raise BadInput(
            "the noise must be at least 0 and there must be a round and a client, got "
            f"{noise_multiplier}, {rounds} and {summed}"
        )
    if noise_multiplier == 0:
        return math.inf
    return (2 if replaced else 1) * math.sqrt(rounds / summed) / noise_multiplier


def rounds_needed(success: float, mu: float) -> int:
    """Return the number of rounds to average for a success, given the distance of one round.

    Args:
        success: Required (TPR + TNR) / 2, in (0.5, 1).
        mu: Distance of one round in standard deviations, above 0.

    Raises:
        BadInput: An argument is out of range.
    """
    if not (0.5 < success < 1 and mu > 0):
        raise BadInput(
            f"a success above 0.5 and below 1 and a distance above 0 are needed, got {success} "
            f"and {mu}"
        )
    return max(1, math.ceil((2 * float(sp.special.ndtri(success)) / mu) ** 2 - 1e-9))


def gaussian_mechanism(epsilon: float, delta: float) -> float:
    """Return the noise multiplier of the classic Gaussian mechanism: sqrt(2 ln(1.25/delta)) / eps.

    Args:
        epsilon: Privacy budget, above 0; the proof holds below 1.
        delta: Failure probability, in (0, 1).

    Raises:
        BadInput: An argument is out of range.

    Source: AMI, appendix E; Dwork and Roth 2014, Theorem A.1.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise BadInput(f"epsilon is above 0 and delta in (0, 1), got {epsilon} and {delta}")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def rounds_as_published(epsilon: float, delta: float, *, neurons: int, success: float) -> int:
    """Return the rounds that the paper predicts, with classic Gaussian noise on every neuron's row.

    Every row has norm 1, so K copies of the neuron are as good as K rounds (the appendix's
    "K-fold"). A clip of whole gradients does not allow that; see :func:`rounds_under_a_clip`.

    Args:
        epsilon: Privacy budget of one round; the noise is sqrt(2 ln(1.25 / delta)) / eps.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        success: Required Adv, in (0.5, 1), of a server that knows the row.

    Raises:
        BadInput: An argument is out of range.

    Source: AMI, appendix E, Fig. 13.
    Differs: the paper does not say when noise counts as eliminated.
    """
    if neurons < 1:
        raise BadInput(f"averaging needs at least one neuron, got {neurons}")
    return rounds_needed(success, math.sqrt(neurons) / gaussian_mechanism(epsilon, delta))


def rounds_under_a_clip(epsilon: float, delta: float, *, share: float = 1.0, success: float) -> int:
    """Return the rounds that DP-SGD requires, with the same noise on a sum of clipped gradients.

    The number of copies of the neuron does not matter: all their rows together have at most
    ``share`` of one clip norm.

    Args:
        epsilon: Privacy budget of one round, for adding or removing a record.
        delta: Failure probability.
        share: Share of the norm of the target's gradient that lies in the planted rows.
        success: Required Adv of a server whose neurons do not fire for other records.

    Raises:
        BadInput: An argument is out of range.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a share of a gradient lies in (0, 1], got {share}")
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
    """Certificate that one mean is positive and the other is not.

    Attributes:
        delta: Smallest failure probability of each claim at which both can be made; 1 if a sample
            mean has the wrong sign, so nothing is certified.
        failure: Bound on the probability that either claim is wrong: twice delta, at most 1.
    """

    delta: float
    failure: float


def hoeffding_margin(sample: BoundedMean, delta: float) -> float:
    """Return how far the true mean lies from the sample mean on one side at most.

    The bound fails with a probability of at most ``delta``.

    Raises:
        BadInput: Delta is not in (0, 1), there are no values, or their range is invalid.

    Source: Hoeffding 1963, Theorem 2; AMI, Eqs. (9) and (10).
    """
    if not 0 < delta < 1:
        raise BadInput(f"a failure probability lies between 0 and 1, got {delta}")
    _require(sample)
    return sample.width * math.sqrt(-math.log(delta) / (2 * sample.values))


def signs_of_means(of_target: BoundedMean, of_others: BoundedMean) -> SignsOfMeans:
    """Return the smallest delta at which AMI's condition on the neuron's means holds.

    The condition: the neuron's mean is positive for the randomised target, and is not for other
    randomised records. It does not bound the success on a single record or a batch. If values
    scatter, a neuron whose means have the right signs loses most of its games. See
    :func:`fedaudit.metrics.games.certify` for limits of the success in games.

    Args:
        of_target: Values on independent randomised copies of the target.
        of_others: Values on independent randomised other records.

    Raises:
        BadInput: There are no values, or their range is invalid.

    Source: AMI, Theorem 1, and Corollary 1 in closed form: a mean of the right sign stays on its
        side of zero as long as the margin is no wider than its distance.
    Differs: the paper takes one delta for two events, and the range of the sample. Here both events
        may fail, and the range must hold for every value that could have been drawn.
    """
    delta = max(
        _smallest_delta(of_target, of_target.mean),
        _smallest_delta(of_others, -of_others.mean),
    )
    return SignsOfMeans(delta, 1.0 if delta >= 1 else min(1.0, 2 * delta))


def _smallest_delta(sample: BoundedMean, distance: float) -> float:
    """Return the delta at which the margin equals the distance from the wrong side of zero."""
    _require(sample)
    if distance <= 0:
        return 1.0
    if sample.width == 0:
        return 0.0
    return math.exp(-2 * sample.values * (distance / sample.width) ** 2)


def _require(sample: BoundedMean) -> None:
    if sample.values < 1 or not 0 <= sample.width < math.inf or not math.isfinite(sample.mean):
        raise BadInput(
            "bounding a mean takes at least one value, a finite mean and a finite range, got "
            f"{sample.values} values of mean {sample.mean} in a range of width {sample.width}"
        )


class GameSuccess(NamedTuple):
    """Success of an adversary in games.

    Attributes:
        tpr: Share of the games with the target in which the answer was "in".
        tnr: Share of the games without it in which the answer was "out".
        adv: Their mean, the paper's Adv; 0.5 is chance level.
        epsilon: Lower bound on the epsilon of a record that the success implies.
    """

    tpr: Share
    tnr: Share
    adv: IntervalEstimate[float]
    epsilon: EpsilonBound


@dataclass(frozen=True, kw_only=True)
class Certificate(Limits[float]):
    """Limits of the success in games, computed from the rule's rates for single records.

    Attributes:
        of_target: Rate at which the rule fires for the target, with its limits.
        of_others: Rate at which it fires for another record, with its limits.
        batch: Records in a batch.
    """

    of_target: Share
    of_others: Share
    batch: int


def game_success(
    said_in: int,
    with_target: int,
    said_out: int,
    without: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> GameSuccess:
    """Compute the success in independent games.

    Args:
        said_in: Games with the target in which the answer was "in".
        with_target: Games with the target.
        said_out: Games without the target in which the answer was "out".
        without: Games without the target.
        delta: The delta to bound epsilon at.
        confidence: Confidence of each figure, and of the bound on epsilon.

    Raises:
        BadInput: There are no games of a kind, or more correct answers than games.

    Source: AMI, Eq. (3).
    """
    require_confidence(confidence)
    counts = Counts(said_in, with_target, without - said_out, without)
    return GameSuccess(
        tpr=share(said_in, with_target, confidence=confidence),
        tnr=share(said_out, without, confidence=confidence),
        adv=counted_balanced_accuracy(
            said_in, with_target, said_out, without, confidence=confidence
        ),
        epsilon=clopper_pearson_epsilon(counts, delta=delta, alpha=1 - confidence),
    )


def expected_success(of_target: float, of_others: float, batch: int) -> float:
    """Return the Adv of a rule that fires for single records with the given probabilities.

    Args:
        of_target: Probability p of firing for the target.
        of_others: Probability f of firing for any other record.
        batch: Records in a batch, n.
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


def predicted_silence(fired: Sequence[int], records: Sequence[int], *, batch: int) -> float | None:
    """Predict the TNR from the rates of single records: the mean over targets of (1 - f)^batch.

    For each target, the estimate is the share of all possible batches of its records in which the
    neuron never fires. This is unbiased, unlike the formula with the observed rate f.

    Args:
        fired: For each target, the number of other records for which the neuron fired.
        records: For each target, the number of other records.
        batch: Records in a batch.

    Returns:
        The mean over the targets with at least two batches of records, since a single batch would
        only predict itself; None without such a target.
    """
    usable = [(k, n) for k, n in zip(fired, records, strict=True) if n >= 2 * batch]
    if not usable:
        return None
    shares = [math.comb(n - k, batch) / math.comb(n, batch) for k, n in usable]
    return math.fsum(shares) / len(shares)


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

    Both limits hold together with the stated confidence, since each rate's exact limits have half
    of the error. They are valid for games with batches of independent records from the same
    distribution as the counted records. The rule must be independent of the counted records.

    Args:
        fired_for_target: Randomised copies of the target for which the rule fired.
        copies: Number of randomised copies, which are independent.
        fired_for_others: Other records for which it fired.
        records: Number of other records, which are independent.
        batch: Records in a batch.
        confidence: Confidence of the limits, in (0, 1).

    Raises:
        BadInput: Counts out of range, or an empty batch.

    Source: Clopper and Pearson 1934, and the formula above.
    Differs: AMI's Theorem 1 bounds means of the neuron's values, from which no success follows.
    """
    require_confidence(confidence)
    if batch < 1:
        raise BadInput(f"a batch has at least one record, got {batch}")
    each = 1 - (1 - confidence) / 2
    target = share(fired_for_target, copies, confidence=each)
    others = share(fired_for_others, records, confidence=each)
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
