"""The smallest leak that an audit of a given size finds."""

from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import numpy as np
import scipy as sp
from jaxtyping import Float

from fedaudit.core.errors import BadInput

_DRAWS = 10_000
_PRECISION = 2e-4


def smallest_auc(
    strata: Sequence[tuple[int, int]],
    *,
    tests: int,
    rng: np.random.Generator,
    runs: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float | None:
    """Compute the smallest AUC that the corrected test of an attack finds with some probability.

    The test is the one-sided Mann-Whitney test within strata, combined over runs as Fisher does,
    at the error that Holm's correction leaves to the first of so many tests. That is the strictest
    one: once another test of the family is significant, smaller leaks are found too.

    Args:
        strata: Members and non-members of each stratum, such as a client.
        tests: Size of the family of tests, at least 1.
        rng: Simulates several runs.
        runs: Independent runs of these sizes, at least 1.
        alpha: Family-wise error, in (0, 1).
        power: Probability of finding the leak, in (0, 1).

    Returns:
        An AUC in (0.5, 1]; None if not even perfectly separated members would be found.

    Raises:
        BadInput: A number out of range, or no stratum with members and non-members.

    Source: Hanley and McNeil 1982, The meaning and use of the area under a receiver operating
        characteristic (ROC) curve, for the variance; Fisher 1925, section 21.1; Holm 1979.
    Differs: The test statistic is taken as normal, on the scale of its exact variance by chance.
        Over several runs the probability is simulated.
    """
    pairs = sum(members * others for members, others in strata)
    if not (pairs and tests >= 1 and runs >= 1 and 0 < alpha < 1 and 0 < power < 1):
        raise BadInput(
            "a leak is found by at least one test of members against non-members, with an error "
            f"and a power between 0 and 1; got {list(strata)[:3]}, {tests} tests, {runs} runs, "
            f"alpha={alpha}, power={power}"
        )
    drawn = rng.standard_normal((_DRAWS, runs)) if runs > 1 else None
    finds = partial(_power, strata, alpha / tests, drawn)
    if finds(1.0) < power:
        return None
    low, high = 0.5, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if finds(middle) < power else (low, middle)
    return high


def _power(
    strata: Sequence[tuple[int, int]],
    error: float,
    drawn: Float[np.ndarray, "draws runs"] | None,
    auc: float,
) -> float:
    """The probability that an AUC is found at an error."""
    scale = _variance_by_chance(strata) ** 0.5
    mean, spread = (auc - 0.5) / scale, _variance(strata, auc) ** 0.5 / scale
    if drawn is None:
        least = -NormalDist().inv_cdf(error)
        return NormalDist().cdf((mean - least) / spread) if spread else float(mean > least)
    statistic = -2 * sp.special.log_ndtr(-(mean + spread * drawn)).sum(1)
    return float((statistic > sp.special.chdtri(2 * drawn.shape[1], error)).mean())


def _variance_by_chance(strata: Sequence[tuple[int, int]]) -> float:
    """The variance of the AUC over pairs within strata if membership is shuffled within them."""
    pairs = sum(m * n for m, n in strata)
    return sum(m * n * (m + n + 1) / 12 for m, n in strata) / pairs**2


def _variance(strata: Sequence[tuple[int, int]], auc: float) -> float:
    """The same variance at an AUC, of scores with exponential distributions."""
    pairs = sum(m * n for m, n in strata)
    of_members = auc / (2 - auc) - auc**2
    of_others = 2 * auc**2 / (1 + auc) - auc**2
    each = (
        m * n * (auc * (1 - auc) + (m - 1) * of_members + (n - 1) * of_others) for m, n in strata
    )
    return max(sum(each), 0.0) / pairs**2
