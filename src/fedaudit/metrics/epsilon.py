"""Lower bounds on the differential-privacy budget that an attack's success implies.

All are natural-log budgets. A lower bound refutes a claimed budget, it never certifies one;
each comes with its ceiling, the bound that a perfect attack would have reached on as many
samples.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri

from fedaudit.errors import BadInput
from fedaudit.metrics.intervals import upper_limit


class EpsilonBound(NamedTuple):
    """A lower bound on epsilon.

    Attributes:
        value: With the stated error probability, the true epsilon is at least this.
        ceiling: What a perfect attack on as many samples would have given.
        method: How it was made, with delta and confidence.
    """

    value: float
    ceiling: float
    method: str


class Counts(NamedTuple):
    """What a rule fixed in advance did, over independent runs or games.

    Attributes:
        true_positives: Members flagged.
        members: All members.
        false_positives: Non-members flagged.
        nonmembers: All non-members.
    """

    true_positives: int
    members: int
    false_positives: int
    nonmembers: int


def clopper_pearson_epsilon(
    counts: Counts, *, delta: float = 0.0, alpha: float = 0.05
) -> EpsilonBound:
    """Epsilon bound from the error rates of one rule with a threshold fixed in advance.

    Valid for independent runs (or games) with one sample each. Samples of one training run
    are not independent: there the figure is indicative only; see ``one_run_epsilon``.

    Args:
        counts: Outcomes of the rule.
        delta: The delta of the claim, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1); divide it by the number of
            thresholds tried.

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Source: Jagielski, Ullman and Oprea 2020, after Kairouz, Oh and Viswanath 2015.
    """
    require_error(delta, alpha)
    perfect = Counts(counts.members, counts.members, 0, counts.nonmembers)
    value, ceiling = (_from_errors(each, delta, alpha) for each in (counts, perfect))
    return EpsilonBound(value, ceiling, bound_method("Clopper-Pearson", delta, alpha))


def gaussian_epsilon(counts: Counts, *, delta: float, alpha: float = 0.05) -> EpsilonBound:
    """Epsilon bound for a mechanism whose trade-off is that of two shifted normals.

    Much higher than ``clopper_pearson_epsilon`` at the same counts, but only as true as the
    assumption that the mechanism is Gaussian (DP-SGD over many rounds nearly is).

    Args:
        counts: Outcomes of a rule fixed in advance, over independent runs or games.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Source: Dong, Roth and Su 2022, Corollary 2.13; Nasr et al. 2023.
    """
    require_error(delta, alpha, least=1e-300)
    perfect = Counts(counts.members, counts.members, 0, counts.nonmembers)
    value, ceiling = (
        gaussian_budget(_shift_from_errors(each, alpha), delta) for each in (counts, perfect)
    )
    return EpsilonBound(value, ceiling, bound_method("Gaussian", delta, alpha))


def gaussian_budget(shift: float, delta: float) -> float:
    """The epsilon at ``delta`` of telling N(0, 1) from N(shift, 1); 0 for no shift.

    Source: Dong, Roth and Su 2022, Corollary 2.13.
    """
    from scipy.optimize import brentq

    if shift <= 0 or _gaussian_delta(0.0, shift) <= delta:
        return 0.0
    high = 1.0
    while _gaussian_delta(high, shift) > delta:
        high *= 2
    return float(brentq(lambda eps: _gaussian_delta(eps, shift) - delta, 0.0, high))


def gaussian_shift(epsilon: float, delta: float) -> float:
    """The shift between two unit normals that is exactly (epsilon, delta)-DP."""
    from scipy.optimize import brentq

    high = 1.0
    while _gaussian_delta(epsilon, high) < delta:
        high *= 2
    return float(brentq(lambda mu: _gaussian_delta(epsilon, mu) - delta, 1e-12, high))


def _from_errors(counts: Counts, delta: float, alpha: float) -> float:
    fnr, fpr = _error_limits(counts, alpha)
    ratios = ((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
    return max(0.0, *(math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios))


def _shift_from_errors(counts: Counts, alpha: float) -> float:
    fnr, fpr = _error_limits(counts, alpha)
    return float(-ndtri(fpr) - ndtri(fnr))


def _error_limits(counts: Counts, alpha: float) -> tuple[float, float]:
    one_side = 1 - alpha / 2
    missed = counts.members - counts.true_positives
    return (
        upper_limit(missed, counts.members, confidence=one_side),
        upper_limit(counts.false_positives, counts.nonmembers, confidence=one_side),
    )


def _gaussian_delta(epsilon: float, shift: float) -> float:
    # In logarithms: e^epsilon overflows long before the product does.
    near = log_ndtr(-epsilon / shift + shift / 2)
    far = epsilon + log_ndtr(-epsilon / shift - shift / 2)
    return float(-math.exp(near) * np.expm1(min(0.0, far - near)))


def bound_method(name: str, delta: float, alpha: float) -> str:
    """How a bound was made, in words: "one run 95%, delta 1e-05"."""
    return f"{name} {100 * (1 - alpha):.6g}%, delta {delta:g}"


def require_error(delta: float, alpha: float, *, least: float = 0.0) -> None:
    """Refuses a delta outside of [least, 1) or an error probability outside of (0, 1)."""
    if not least <= delta < 1:
        allowed = "[0, 1)" if least == 0 else "(0, 1)"
        raise BadInput(f"delta is a probability in {allowed}, got {delta}")
    if not 0 < alpha < 1:
        raise BadInput(f"alpha, the error probability, is between 0 and 1, got {alpha}")
