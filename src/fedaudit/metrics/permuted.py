"""The AUC when membership means nothing: a check on the intervals of figures."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from fedaudit.errors import BadInput
from fedaudit.metrics.delong import interval_of_ranks
from fedaudit.metrics.intervals import percent, require_confidence
from fedaudit.metrics.ranks import ranked
from fedaudit.metrics.sides import Sides, sides

_INTERVAL = 0.95
# A study has hundreds of these controls, and there are many studies. Of 200 shuffles 27 may alarm;
# intervals a third too narrow alarm in 38.
_FALSE_ALARM = 1e-6


class PermutationNull(NamedTuple):
    """What an attack's AUC is when membership has nothing to do with it.

    Attributes:
        auc: The AUC with the true membership.
        mean: Mean AUC over permutations.
        low: Lower end of the central range of AUCs over permutations.
        high: Upper end.
        p_value: One-sided: how often a permutation reaches the true AUC, never 0.
        permutations: Number of permutations.
        alarms: Permutations whose 95 % interval left 0.5 out; a twentieth is expected.
        method: How the range was made.
    """

    auc: float
    mean: float
    low: float
    high: float
    p_value: float
    permutations: int
    alarms: int
    method: str

    @property
    def passed(self) -> bool:
        """Whether intervals of these scores raise no more false alarms than they promise."""
        from scipy.stats import binomtest

        promised = 1 - _INTERVAL
        test = binomtest(self.alarms, self.permutations, promised, alternative="greater")
        return bool(test.pvalue > _FALSE_ALARM)


def permuted_membership(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    permutations: int = 1_000,
    confidence: float = 0.95,
) -> PermutationNull:
    """The AUC when membership is shuffled among the same scores.

    Shuffled membership has an AUC of 0.5 by construction. What can fail is the interval: on
    scores with many ties, or few members, it may leave 0.5 out more often than it promises, and
    then would call noise a leak.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        rng: Draws the permutations.
        permutations: Number of permutations, at least 20.
        confidence: Share of permutations within the range, in (0, 1).

    Raises:
        BadInput: Too few permutations, or bad scores.
    """
    require_confidence(confidence)
    if permutations < 20:
        raise BadInput(f"a null distribution needs at least 20 permutations, got {permutations}")
    members, nonmembers = ranked(sides(scores, is_member))
    n = len(members)
    ranks = np.concatenate([members, nonmembers])

    def from_ranks(of_members: Float[np.ndarray, " members"]) -> float:
        return float((of_members.sum() - n * (n + 1) / 2) / (n * len(nonmembers)))

    true = from_ranks(ranks[:n])
    shuffled = [rng.permutation(ranks) for _ in range(permutations)]
    null = np.array([from_ranks(each[:n]) for each in shuffled])
    intervals = [interval_of_ranks(Sides(each[:n], each[n:]), _INTERVAL) for each in shuffled]
    low, high = np.quantile(null, [(1 - confidence) / 2, 1 - (1 - confidence) / 2])
    # Sums of the same ranks in another order differ in the last bits.
    reached = int((null >= true - 1e-12).sum())
    return PermutationNull(
        auc=true,
        mean=float(null.mean()),
        low=float(low),
        high=float(high),
        p_value=(1 + reached) / (1 + permutations),
        permutations=permutations,
        alarms=sum(not interval.low <= 0.5 <= interval.high for interval in intervals),
        method=f"{permutations} permutations, central {percent(confidence)}",
    )
