"""Lower bounds on epsilon from a single training run, in which coins decided who was in it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, ndtr, ndtri

from fedaudit.errors import BadInput
from fedaudit.metrics.epsilon import EpsilonBound, bound_method, gaussian_shift, require_error
from fedaudit.metrics.sides import sides

IMPLAUSIBLE_COIN = 1e-6
"""Membership less likely than this under fair coins was not drawn by fair coins."""

_LARGEST = 100.0


class Guesses(NamedTuple):
    """What an attack guessed about samples that were each included by a fair coin.

    Attributes:
        made: Guesses made; the attack may abstain on the others.
        correct: How many were right.
        samples: All samples that a coin was tossed for.
    """

    made: int
    correct: int
    samples: int


def one_run_epsilon(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    guesses: int,
    delta: float = 0.0,
    alpha: float = 0.05,
) -> EpsilonBound:
    """Epsilon bound from a single training run, when each sample was included by a fair coin.

    The ``guesses / 2`` highest scores are guessed members, the ``guesses / 2`` lowest
    non-members, and the attack abstains on the rest. Ties at the edges count against it.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: How the coins fell: member, or unseen by everybody.
        guesses: Number of guesses, even, fixed before looking at the scores.
        delta: The delta of the claim, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: An odd number of guesses, more guesses than samples, membership that fair
            coins would hardly give, or bad scores.

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    from scipy.stats import binomtest

    split = sides(scores, is_member)
    members, nonmembers = map(len, split)
    if guesses < 2 or guesses % 2 or guesses > members + nonmembers:
        raise BadInput(
            f"guesses must be an even number from 2 to the {members + nonmembers} samples, "
            f"got {guesses}"
        )
    if binomtest(members, members + nonmembers).pvalue < IMPLAUSIBLE_COIN:
        raise BadInput(
            f"{members} members and {nonmembers} non-members do not look drawn by fair coins, "
            "which this bound rests on; draw each audited sample's membership independently "
            "with probability one half"
        )
    values = np.concatenate(split)
    truth = np.arange(len(values)) < members
    # Highest score first and non-members before members on ties, which read backwards puts
    # members first: at either edge a tie costs the attack a right guess.
    order = np.lexsort((truth, -values))
    right = int(truth[order[: guesses // 2]].sum() + (~truth[order[-guesses // 2 :]]).sum())
    made = Guesses(guesses, right, len(values))
    return one_run_bound(made, delta=delta, alpha=alpha)


def one_run_bound(guesses: Guesses, *, delta: float = 0.0, alpha: float = 0.05) -> EpsilonBound:
    """Epsilon bound from counts of guesses made in a single training run.

    Args:
        guesses: Guesses, by a rule fixed in advance, about samples included by fair coins.
        delta: The delta of the claim, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    _require_guesses(guesses)
    require_error(delta, alpha)
    perfect = guesses._replace(correct=guesses.made)
    value, ceiling = (
        _largest_refuted(partial(_refuted, each, delta=delta, alpha=alpha))
        for each in (guesses, perfect)
    )
    return EpsilonBound(value, ceiling, bound_method("one run", delta, alpha))


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Largest chance of so many right guesses if the training were (epsilon, delta)-DP.

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    from scipy.stats import binom

    made, correct, samples = guesses
    rate = expit(epsilon)
    tail = binom.sf(correct - 1, made, rate)
    if delta == 0 or correct == 0:
        return float(tail)
    fewer = np.arange(1, correct + 1)
    slack = (binom.sf(correct - 1 - fewer, made, rate) - tail) / fewer
    return float(min(1.0, tail + 2 * samples * delta * slack.max()))


def one_run_gaussian_bound(guesses: Guesses, *, delta: float, alpha: float = 0.05) -> EpsilonBound:
    """Epsilon bound from a single run for a mechanism at least as private as a Gaussian one.

    Closer to the truth than ``one_run_bound``, but only as true as that assumption.

    Args:
        guesses: Guesses, by a rule fixed in advance, about samples included by fair coins.
        delta: The delta to state epsilon at, in (0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run,
        the recursion for guesses with abstention.
    """
    _require_guesses(guesses)
    require_error(delta, alpha, least=1e-300)
    perfect = guesses._replace(correct=guesses.made)
    value, ceiling = (
        _largest_refuted(partial(_gaussian_refuted, each, delta=delta, alpha=alpha))
        for each in (guesses, perfect)
    )
    return EpsilonBound(value, ceiling, bound_method("one run, Gaussian", delta, alpha))


def _refuted(guesses: Guesses, epsilon: float, *, delta: float, alpha: float) -> bool:
    return one_run_p_value(guesses, epsilon, delta) <= alpha


def _gaussian_refuted(guesses: Guesses, epsilon: float, *, delta: float, alpha: float) -> bool:
    made, correct, samples = guesses
    shift = gaussian_shift(epsilon, delta)
    right = alpha * correct / samples
    wrong = alpha * (made - correct) / samples
    for i in range(correct - 1, -1, -1):
        least_wrong = float(ndtr(ndtri(right) - shift))
        if least_wrong <= wrong:
            break
        right = min(1.0, right + i / (made - i) * (least_wrong - wrong))
        wrong = least_wrong
    return right + wrong > made / samples


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    # Refuting one epsilon refutes all smaller ones, so any crossing is a valid bound.
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        if high >= _LARGEST:
            return high
        low, high = high, 2 * high
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _require_guesses(guesses: Guesses) -> None:
    made, correct, samples = guesses
    if not 0 <= correct <= made <= samples or made < 1:
        raise BadInput(
            f"guesses must satisfy 0 <= correct <= made <= samples with at least one made, got "
            f"{correct} correct of {made} about {samples} samples"
        )
