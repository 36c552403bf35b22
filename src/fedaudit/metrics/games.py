"""Success in security games: is a record in a batch, by a rule that looks at each record.

A rule fires for the target with probability p, for any other record with probability f, and says
"in" if it fires at all; a batch has n records. Then, with records drawn independently,
TPR = 1 - (1 - p) (1 - f)^(n - 1), TNR = (1 - f)^n, and Adv = (TPR + TNR) / 2.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.errors import BadInput
from fedaudit.metrics.balanced import CountedAccuracy, counted_balanced_accuracy
from fedaudit.metrics.epsilon import Counts, EpsilonBound, clopper_pearson_epsilon
from fedaudit.metrics.intervals import percent, require_confidence
from fedaudit.metrics.rates import Share, share


class GameSuccess(NamedTuple):
    """How games ended.

    Attributes:
        tpr: Games with the target in which "in" was said.
        tnr: Games without it in which "out" was said.
        adv: Their mean, the paper's Adv: 0.5 is guessing, 1 never wrong.
        epsilon: What the success proves of the privacy budget of a record: at least this.
    """

    tpr: Share
    tnr: Share
    adv: CountedAccuracy
    epsilon: EpsilonBound


class Certificate(NamedTuple):
    """Limits of the success in games, from how often the rule fires for single records.

    Attributes:
        low: With the stated confidence, the success is at least this.
        high: And at most this.
        of_target: How often the rule fires for the target, with its limits.
        of_others: How often for another record, with its limits.
        batch: Records in a batch.
        method: How the limits were made.
    """

    low: float
    high: float
    of_target: Share
    of_others: Share
    batch: int
    method: str


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
    """What success in games the firing for single records proves.

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
