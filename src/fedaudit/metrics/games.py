"""Success in security games: is a record in a batch, by a rule that looks at each record.

A rule fires for the target with probability p, for any other record with probability f, and says
"in" if it fires at all; a batch has n records. Then, with records drawn independently,
TPR = 1 - (1 - p) (1 - f)^(n - 1), TNR = (1 - f)^n, and Adv = (TPR + TNR) / 2. Between two normal
distributions of one spread, mu spreads apart, balanced accuracy is at most Phi(mu / 2), which the
test reaches whose threshold lies half way.
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
    """The largest (TPR + TNR) / 2 of telling apart what lies mu spreads apart: Phi(mu / 2).

    Args:
        mu: Distance in standard deviations, at least 0; infinite without noise.

    Raises:
        BadInput: It is negative or not a number.

    Source: Dong, Roth and Su 2022: the trade-off function of mu-Gaussian DP.
    """
    if not mu >= 0:
        raise BadInput(f"a distance is at least 0, got {mu}")
    return float(sp.special.ndtr(mu / 2))


def clipped_distance(
    noise_multiplier: float, *, rounds: int = 1, summed: int = 1, replaced: bool = True
) -> float:
    """Distance by which one record moves noisy sums of clipped gradients, in deviations.

    Args:
        noise_multiplier: Standard deviation of each client's noise on its sum, in clips.
        rounds: How many such sums are given out, each with fresh noise.
        summed: Of how many clients' noise each is the sum.
        replaced: Whether a record stands in another one's place, as in the games: two clips at
            most. Otherwise it is there or not: one clip.

    Returns:
        The mu of Gaussian DP; infinite without noise.

    Raises:
        BadInput: Noise is negative, or there are no rounds or clients.

    Source: Dong, Roth and Su 2022: the Gaussian mechanism and its composition, sqrt(P) / sigma
        for one clip.
    """
    if not (noise_multiplier >= 0 and rounds >= 1 and summed >= 1):
        raise BadInput(
            "noise is at least 0, of at least one round and one client, got "
            f"{noise_multiplier}, {rounds} and {summed}"
        )
    if noise_multiplier == 0:
        return math.inf
    return (2 if replaced else 1) * math.sqrt(rounds / summed) / noise_multiplier


def rounds_needed(success: float, mu: float) -> int:
    """Rounds after which averaging reaches a success, where one alone tells mu spreads apart.

    Args:
        success: Wanted (TPR + TNR) / 2, in (0.5, 1).
        mu: Of one round, above 0.

    Raises:
        BadInput: Either is out of range.
    """
    if not (0.5 < success < 1 and mu > 0):
        raise BadInput(
            f"a success above 0.5 and below 1 and a distance above 0 are needed, got {success} "
            f"and {mu}"
        )
    return max(1, math.ceil((2 * float(sp.special.ndtri(success)) / mu) ** 2 - 1e-9))


def gaussian_mechanism(epsilon: float, delta: float) -> float:
    """Noise of the classic Gaussian mechanism, in sensitivities: sqrt(2 ln(1.25 / delta)) / eps.

    Args:
        epsilon: In nats, above 0; the proof holds below 1.
        delta: Failure probability, in (0, 1).

    Raises:
        BadInput: Either is out of range.

    Source: AMI, appendix E; Dwork and Roth 2014, Theorem A.1.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise BadInput(f"epsilon is above 0 and delta in (0, 1), got {epsilon} and {delta}")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def rounds_as_published(epsilon: float, delta: float, *, neurons: int, success: float) -> int:
    """Rounds if every neuron's row had a length of 1 and noise of the classic mechanism.

    Copies are then as good as rounds, since each brings a whole row of its own: the appendix's
    "K-fold". No clip of whole gradients lets it be so; see :func:`rounds_under_a_clip`.

    Args:
        epsilon: Of one round, as the paper names it; the noise is sqrt(2 ln(1.25 / delta)) / eps.
        delta: Failure probability.
        neurons: Copies of the neuron (K).
        success: Wanted Adv, in (0.5, 1), of a server that knows what the row looks like.

    Raises:
        BadInput: A number is out of range.

    Source: AMI, appendix E, Fig. 13.
    Differs: the paper does not say when noise counts as eliminated.
    """
    _refuse_none(neurons)
    return rounds_needed(success, math.sqrt(neurons) / gaussian_mechanism(epsilon, delta))


def rounds_under_a_clip(epsilon: float, delta: float, *, share: float = 1.0, success: float) -> int:
    """Rounds behind DP-SGD with the same noise on a sum of clipped gradients.

    How many copies of the neuron there are is not asked: all their rows together have ``share``
    of one clip.

    Args:
        epsilon: As above; of a record that is there or not.
        delta: Failure probability.
        share: How much of the target's gradient, by length, lies in the planted rows.
        success: Wanted Adv of a server whose neurons are silent for all other records.

    Raises:
        BadInput: A number is out of range.
    """
    if not 0 < share <= 1:
        raise BadInput(f"a share of a gradient lies in (0, 1], got {share}")
    return rounds_needed(success, share / gaussian_mechanism(epsilon, delta))


def _refuse_none(neurons: int) -> None:
    if neurons < 1:
        raise BadInput(f"averaging needs at least one neuron, got {neurons}")


class BoundedMean(NamedTuple):
    """Independent values within a known range.

    Attributes:
        mean: Of them.
        values: How many.
        width: Of the range that each must lie in, whatever is drawn: largest less smallest.
    """

    mean: float
    values: int
    width: float


class SignsOfMeans(NamedTuple):
    """That one mean is positive and the other is not, and how surely.

    Attributes:
        delta: The least failure probability of either claim at which both hold; 1 where a sample
            mean has the wrong sign, so that nothing is certified.
        failure: Probability that one of the two is wrong after all: at most twice delta.
    """

    delta: float
    failure: float


def hoeffding_margin(sample: BoundedMean, delta: float) -> float:
    """Margin of the true mean beyond the sample's, on one side, but for delta.

    Raises:
        BadInput: Delta is not in (0, 1), or there is no sample, or its range is not one.

    Source: Hoeffding 1963, Theorem 2; AMI, Eqs. (9) and (10).
    """
    if not 0 < delta < 1:
        raise BadInput(f"a failure probability lies between 0 and 1, got {delta}")
    _require(sample)
    return sample.width * math.sqrt(-math.log(delta) / (2 * sample.values))


def signs_of_means(of_target: BoundedMean, of_others: BoundedMean) -> SignsOfMeans:
    """The smallest delta at which AMI's condition holds: the neuron's mean is positive for the
    randomised target, and is not for other randomised records.

    It says nothing of a single record or of a batch: where values scatter, a neuron with means of
    the right signs loses most of its games. :func:`fedaudit.metrics.games.certify` is about games.

    Args:
        of_target: Values on independent randomised copies of the target.
        of_others: Values on independent randomised other records.

    Raises:
        BadInput: There is no sample, or its range is not one.

    Source: AMI, Theorem 1, and Corollary 1 in closed form: a mean of the right sign stays on its
        side of zero as long as the margin is no wider than its distance.
    Differs: the paper takes one delta for two events and the sample's own range; both events may
        fail, and the range must hold for every value that could have been drawn.
    """
    deltas = (_least(of_target, of_target.mean), _least(of_others, -of_others.mean))
    delta = max(deltas)
    return SignsOfMeans(delta, 1.0 if delta >= 1 else min(1.0, 2 * delta))


def _least(sample: BoundedMean, distance: float) -> float:
    """Delta at which the margin is as wide as the distance from the wrong side of zero."""
    _require(sample)
    if distance <= 0:
        return 1.0
    if sample.width == 0:
        return 0.0
    return math.exp(-2 * sample.values * (distance / sample.width) ** 2)


def _require(sample: BoundedMean) -> None:
    if sample.values < 1 or not 0 <= sample.width < math.inf or not math.isfinite(sample.mean):
        raise BadInput(
            "a mean is bounded from at least one value, a finite mean and a finite range, got "
            f"{sample.values} values of mean {sample.mean} in a range of width {sample.width}"
        )


class GameSuccess(NamedTuple):
    """Success of games.

    Attributes:
        tpr: Games with the target in which "in" was said.
        tnr: Games without it in which "out" was said.
        adv: Their mean, the paper's Adv: 0.5 is guessing, 1 never wrong.
        epsilon: What the success proves of the privacy budget of a record: at least this.
    """

    tpr: Share
    tnr: Share
    adv: IntervalEstimate[float]
    epsilon: EpsilonBound


@dataclass(frozen=True, kw_only=True)
class Certificate(Limits[float]):
    """Limits of the success in games, from how often the rule fires for single records.

    Attributes:
        of_target: How often the rule fires for the target, with its limits.
        of_others: How often for another record, with its limits.
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
    """Success in games that are independent of each other.

    Args:
        said_in: Games with the target in which "in" was said.
        with_target: All of them.
        said_out: Games without the target in which "out" was said.
        without: All of them.
        delta: At which epsilon is bounded.
        confidence: Of each figure, and of epsilon's bound.

    Raises:
        BadInput: There are no games of a kind, or more right ones than there are.

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
    """Adv of a rule that fires for single records with these probabilities.

    Args:
        of_target: Probability of firing for the target, p.
        of_others: For any other record, f.
        batch: Records in a batch, n.
    """
    silent = 1 - of_others
    tpr = 1 - (1 - of_target) * silent ** (batch - 1)
    return (tpr + silent**batch) / 2


def most_success(epsilon: float, delta: float = 0.0) -> float:
    """The largest Adv against records with that privacy budget: (e^eps + delta) / (1 + e^eps).

    Args:
        epsilon: Of one record, in nats; infinite for none.
        delta: Probability with which epsilon may be exceeded.

    Raises:
        BadInput: The budget is negative or not a number, or delta no probability.

    Source: Kairouz, Oh and Viswanath 2015: under (epsilon, delta)-DP
        TPR <= e^eps FPR + delta and 1 - FPR <= e^eps (1 - TPR) + delta.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise BadInput(
            f"a privacy budget is a number of at least 0 with a delta from 0 to 1, got {epsilon} "
            f"and {delta}"
        )
    odds = math.exp(-epsilon)
    return (1 + delta * odds) / (1 + odds)


def predicted_silence(fired: Sequence[int], records: Sequence[int], *, batch: int) -> float | None:
    """TNR as the rates of single records predict it: the mean over targets of (1 - f)^batch.

    For each target the share of all batches of the records looked at in which none fires, which
    is an unbiased estimate where the rate f put into the formula is not.

    Args:
        fired: Other records for which the neuron fired, target by target.
        records: Other records looked at.
        batch: Records in a batch.

    Returns:
        The mean over the targets with at least two batches of records, since one batch would
        predict nothing but itself; None without such a target.
    """
    known = [(k, n) for k, n in zip(fired, records, strict=True) if n >= 2 * batch]
    if not known:
        return None
    shares = [math.comb(n - k, batch) / math.comb(n, batch) for k, n in known]
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
    """Success in games that the firing for single records proves.

    Both limits hold at once with the stated confidence: each rate's exact limits are wrong with
    half of the rest. They certify games with batches of independent records of the distribution
    that the records counted here are from; the rule must not have been made with these.

    Args:
        fired_for_target: Randomised copies of the target for which the rule fired.
        copies: All of them, independent.
        fired_for_others: Other records for which it fired.
        records: All of them, independent.
        batch: Records in a batch.
        confidence: That the limits hold.

    Raises:
        BadInput: Counts that cannot be, or an empty batch.

    Source: Clopper and Pearson 1934, and the formula above.
    Differs: AMI's Theorem 1 bounds means of the neuron's values, from which no success follows.
    """
    require_confidence(confidence)
    if batch < 1:
        raise BadInput(f"a batch has at least one record, got {batch}")
    each = 1 - (1 - confidence) / 2
    target = share(fired_for_target, copies, confidence=each)
    others = share(fired_for_others, records, confidence=each)
    # In f, success falls to a minimum and rises again: false alarms also find the target.
    turn = 1 - (1 - target.low) * (batch - 1) / batch
    least = min(max(turn, others.low), others.high)
    return Certificate(
        low=expected_success(target.low, least, batch),
        high=max(expected_success(target.high, f, batch) for f in (others.low, others.high)),
        of_target=target,
        of_others=others,
        batch=batch,
        method=f"Clopper-Pearson of both rates together, {percent(confidence)}",
    )
