"""Limits of a mean from Hoeffding's inequality, and what AMI's certificate makes of them."""

import math
from typing import NamedTuple

from fedaudit.errors import BadInput


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
    """How far the true mean may lie beyond the sample's, on one side, but for delta.

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
