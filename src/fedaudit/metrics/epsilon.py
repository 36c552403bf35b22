"""Lower bounds on epsilon from an attack's success, over independent games or in one training run.

Epsilons use the natural logarithm. A lower bound can refute a claimed epsilon but never certify it.
Each bound has a ceiling, which is the bound that a perfect attack on the same number of samples
would give.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import clopper_pearson_upper
from fedaudit.metrics.roc import split_scores


class EpsilonBound(NamedTuple):
    """Lower bound on epsilon.

    Attributes:
        value: The true epsilon is at least this, with the stated confidence.
        ceiling: The bound that a perfect attack on the same number of samples would give.
        method: How the bound was computed, with delta and confidence.

    Examples:
        >>> from fedaudit.metrics import Guesses, one_run_epsilon_from_counts
        >>> guesses = Guesses(made=100, correct=90, samples=200)
        >>> round(one_run_epsilon_from_counts(guesses).ceiling, 3)
        3.493
    """

    value: float
    ceiling: float
    method: str


class ConfusionCounts(NamedTuple):
    """Outcomes of a decision rule that was fixed in advance, over independent runs or games.

    Attributes:
        true_positives: Number of members flagged.
        members: Number of members.
        false_positives: Number of non-members flagged.
        nonmembers: Number of non-members.

    Examples:
        >>> from fedaudit.metrics import ConfusionCounts, clopper_pearson_epsilon
        >>> counts = ConfusionCounts(90, members=100, false_positives=5, nonmembers=100)
        >>> round(clopper_pearson_epsilon(counts).value, 3)
        1.988
    """

    true_positives: int
    members: int
    false_positives: int
    nonmembers: int


def clopper_pearson_epsilon(
    counts: ConfusionCounts, *, delta: float = 0.0, alpha: float = 0.05
) -> EpsilonBound:
    """Compute a lower bound on epsilon from the error rates of one decision rule.

    The rule's threshold must be fixed in advance. The bound is valid for independent runs (or
    games) with one sample each. For many samples of one training run, which are not independent,
    use :func:`one_run_epsilon_from_scores`.

    Args:
        counts: Outcomes of the rule.
        delta: The delta at which epsilon is claimed, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1); divide it by the number of
            thresholds tried.

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Examples:
        >>> from fedaudit.metrics import ConfusionCounts, clopper_pearson_epsilon
        >>> counts = ConfusionCounts(90, members=100, false_positives=5, nonmembers=100)
        >>> bound = clopper_pearson_epsilon(counts)
        >>> round(bound.value, 3), round(bound.ceiling, 3)
        (1.988, 3.281)

    Source: Jagielski, Ullman and Oprea 2020, after Kairouz, Oh and Viswanath 2015.
    """
    require_error(delta, alpha)

    def epsilon(fnr: float, fpr: float) -> float:
        ratios = ((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)
        return max(0.0, *(math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios))

    return _from_counts(counts, alpha, epsilon, bound_method("Clopper-Pearson", delta, alpha))


def gaussian_epsilon(counts: ConfusionCounts, *, delta: float, alpha: float = 0.05) -> EpsilonBound:
    """Compute a lower bound on epsilon for a mechanism with a Gaussian trade-off function.

    A Gaussian trade-off function is that of two shifted normal distributions. DP-SGD over many
    rounds nearly has one. For the same counts, the bound is much higher than that of
    :func:`clopper_pearson_epsilon`. It is not valid for other mechanisms.

    Args:
        counts: Outcomes of a rule fixed in advance, over independent runs or games.
        delta: The delta at which epsilon is stated, in (0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Examples:
        >>> from fedaudit.metrics import ConfusionCounts, gaussian_epsilon
        >>> counts = ConfusionCounts(90, members=100, false_positives=5, nonmembers=100)
        >>> bound = gaussian_epsilon(counts, delta=1e-5)
        >>> round(bound.value, 3), round(bound.ceiling, 3)
        (10.879, 21.12)

    Source: Dong, Roth and Su 2022, Corollary 2.13; Nasr et al. 2023.
    """
    require_error(delta, alpha, min_delta=1e-300)

    def epsilon(fnr: float, fpr: float) -> float:
        return gaussian_budget(float(-sp.special.ndtri(fpr) - sp.special.ndtri(fnr)), delta)

    return _from_counts(counts, alpha, epsilon, bound_method("Gaussian", delta, alpha))


def _from_counts(
    counts: ConfusionCounts, alpha: float, epsilon: Callable[[float, float], float], method: str
) -> EpsilonBound:
    """Compute a bound and its ceiling from upper confidence limits of the two error rates."""
    one_sided = 1 - alpha / 2

    def bound(true_positives: int, false_positives: int) -> float:
        false_negatives = counts.members - true_positives
        return epsilon(
            clopper_pearson_upper(false_negatives, counts.members, confidence=one_sided),
            clopper_pearson_upper(false_positives, counts.nonmembers, confidence=one_sided),
        )

    value = bound(counts.true_positives, counts.false_positives)
    return EpsilonBound(value, ceiling=bound(counts.members, 0), method=method)


def gaussian_budget(shift: float, delta: float) -> float:
    """Return the epsilon at ``delta`` between N(0, 1) and N(shift, 1); 0 for a shift of 0 or less.

    Source: Dong, Roth and Su 2022, Corollary 2.13.
    """
    if shift <= 0 or _gaussian_delta(0.0, shift) <= delta:
        return 0.0
    high = 1.0
    while _gaussian_delta(high, shift) > delta:
        high *= 2
    return float(sp.optimize.brentq(lambda eps: _gaussian_delta(eps, shift) - delta, 0.0, high))


def gaussian_shift(epsilon: float, delta: float) -> float:
    """Return the shift for which N(0, 1) and N(shift, 1) are exactly (epsilon, delta)-close."""
    high = 1.0
    while _gaussian_delta(epsilon, high) < delta:
        high *= 2
    return float(sp.optimize.brentq(lambda mu: _gaussian_delta(epsilon, mu) - delta, 1e-12, high))


def _gaussian_delta(epsilon: float, shift: float) -> float:
    # The difference of two products, in logarithms: e^epsilon overflows although its product with a
    # probability is small.
    log_first = sp.special.log_ndtr(-epsilon / shift + shift / 2)
    log_second = epsilon + sp.special.log_ndtr(-epsilon / shift - shift / 2)
    return float(-math.exp(log_first) * np.expm1(min(0.0, log_second - log_first)))


def bound_method(name: str, delta: float, alpha: float) -> str:
    """Format the method of a bound, such as "one run 95%, delta 1e-05"."""
    return f"{name} {100 * (1 - alpha):.6g}%, delta {delta:g}"


def require_error(delta: float, alpha: float, *, min_delta: float = 0.0) -> None:
    """Raise if ``delta`` is not in [least, 1), or the error probability ``alpha`` not in (0, 1)."""
    if not min_delta <= delta < 1:
        allowed = "[0, 1)" if min_delta == 0 else "(0, 1)"
        raise BadInput(f"delta is a probability in {allowed}, got {delta}")
    if not 0 < alpha < 1:
        raise BadInput(f"alpha, the error probability, is between 0 and 1, got {alpha}")


IMPLAUSIBLE_COIN = 1e-6
"""Smallest p-value of a number of members at which fair coins are considered plausible."""

_LARGEST_EPSILON = 100.0
"""Epsilon at which the search for the largest refuted epsilon stops."""


class Guesses(NamedTuple):
    """Guesses of an attack about samples that were each included by a fair coin.

    Attributes:
        made: Number of guesses; the attack may abstain on the other samples.
        correct: Number of correct guesses.
        samples: Number of samples whose membership a coin decided.

    Examples:
        >>> from fedaudit.metrics import Guesses, one_run_epsilon_from_counts
        >>> round(one_run_epsilon_from_counts(Guesses(made=100, correct=90, samples=200)).value, 3)
        1.631
    """

    made: int
    correct: int
    samples: int


def one_run_epsilon_from_scores(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    guesses: int,
    delta: float = 0.0,
    alpha: float = 0.05,
) -> EpsilonBound:
    """Compute a lower bound on epsilon from one run that included each sample by a fair coin.

    The attack guesses that the samples with the ``guesses / 2`` highest scores are members, and
    that the samples with the ``guesses / 2`` lowest scores are non-members. It abstains on all
    other samples. If a guessed score is tied with one on which the attack abstains, the ties are
    ordered such that as many guesses as possible are wrong.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Outcome of each coin: True for a member, False for a held-out sample.
        guesses: Number of guesses, even, fixed before looking at the scores.
        delta: The delta at which epsilon is claimed, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: The number of guesses is odd or exceeds the number of samples, membership is
            implausible for fair coins, or scores are invalid.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, is_member = np.arange(100), np.arange(100) >= 50
        >>> bound = fa.metrics.one_run_epsilon_from_scores(scores, is_member, guesses=40)
        >>> round(bound.value, 3), round(bound.ceiling, 3)
        (2.554, 2.554)

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    return one_run_epsilon_from_counts(
        count_guesses(scores, is_member, guesses), delta=delta, alpha=alpha
    )


def describe_equal_coins(is_member: npt.ArrayLike) -> str:
    """Return why there is no bound if all coins had the same outcome; otherwise an empty string.

    Eight fair coins all have the same outcome in one of 128 audits. Call this function before
    :func:`one_run_epsilon_from_scores`, which raises an error in this case.
    """
    truth = np.asarray(is_member, dtype=bool)
    members = int(truth.sum())
    if 0 < members < len(truth):
        return ""
    return (
        f"every coin had the same outcome: {members} members and {len(truth) - members} "
        "non-members, so epsilon cannot be bounded; audit more samples"
    )


def count_guesses(scores: npt.ArrayLike, is_member: npt.ArrayLike, guesses: int) -> Guesses:
    """Count the correct guesses for the highest and lowest scores.

    Arguments and errors are those of :func:`one_run_epsilon_from_scores`.
    """
    split = split_scores(scores, is_member)
    members, nonmembers = map(len, split)
    if guesses < 2 or guesses % 2 or guesses > members + nonmembers:
        raise BadInput(
            f"guesses must be an even number from 2 to the {members + nonmembers} samples, "
            f"got {guesses}"
        )
    if _coin_p_value(members, members + nonmembers) < IMPLAUSIBLE_COIN:
        raise BadInput(
            f"this bound assumes that fair coins decided membership, which is implausible for "
            f"{members} members and {nonmembers} non-members; draw the membership of each audited "
            "sample independently with probability one half"
        )
    values = np.concatenate(split)
    truth = np.arange(len(values)) < members
    # The highest score comes first. Among tied scores, non-members come before members. A tie
    # therefore counts against the attack at both ends of the order.
    order = np.lexsort((truth, -values))
    highest, lowest = order[: guesses // 2], order[-guesses // 2 :]
    correct = int(truth[highest].sum() + (~truth[lowest]).sum())
    return Guesses(guesses, correct, len(values))


# Each attack of an audit has the same members.
@lru_cache(maxsize=1024)
def _coin_p_value(members: int, samples: int) -> float:
    return float(sp.stats.binomtest(members, samples).pvalue)


def one_run_epsilon_from_counts(
    guesses: Guesses, *, delta: float = 0.0, alpha: float = 0.05
) -> EpsilonBound:
    """Compute a lower bound on epsilon from counts of guesses made in a single training run.

    Args:
        guesses: Counts of guesses, by a rule fixed in advance, about samples that were included by
            fair coins.
        delta: The delta at which epsilon is claimed, in [0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Examples:
        >>> import fedaudit as fa
        >>> guesses = fa.metrics.Guesses(made=100, correct=90, samples=200)
        >>> bound = fa.metrics.one_run_epsilon_from_counts(guesses)
        >>> round(bound.value, 3), round(bound.ceiling, 3)
        (1.631, 3.493)

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    require_error(delta, alpha)
    return _from_guesses(
        guesses,
        lambda counted, epsilon: one_run_p_value(counted, epsilon, delta) <= alpha,
        bound_method("one run", delta, alpha),
    )


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return the largest probability of at least this many correct guesses under DP.

    Source: Steinke, Nasr and Jagielski 2023, main result with abstentions (p_value_DP_audit).
    """
    total, correct, samples = guesses
    rate = sp.special.expit(epsilon)
    tail = sp.stats.binom.sf(correct - 1, total, rate)
    if delta == 0 or correct == 0:
        return float(tail)
    fewer = np.arange(1, correct + 1)
    slack = (sp.stats.binom.sf(correct - 1 - fewer, total, rate) - tail) / fewer
    return float(min(1.0, tail + 2 * samples * delta * slack.max()))


def one_run_gaussian_bound(guesses: Guesses, *, delta: float, alpha: float = 0.05) -> EpsilonBound:
    """Compute a lower bound on epsilon from one run, if the trade-off function is Gaussian.

    The mechanism is assumed to be at least as private as a Gaussian one. The bound is closer to the
    true epsilon than that of ``one_run_epsilon_from_counts``, which does not need this assumption.

    Args:
        guesses: Counts of guesses, by a rule fixed in advance, about samples that were included by
            fair coins.
        delta: The delta at which epsilon is stated, in (0, 1).
        alpha: Probability that the bound is wrong, in (0, 1).

    Raises:
        BadInput: Counts, delta or alpha out of range.

    Examples:
        >>> from fedaudit.metrics import Guesses, one_run_gaussian_bound
        >>> bound = one_run_gaussian_bound(Guesses(made=100, correct=90, samples=200), delta=1e-5)
        >>> round(bound.value, 3), round(bound.ceiling, 3)
        (3.144, 7.147)

    Source: Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run,
        the recursion for guesses with abstention.
    """
    require_error(delta, alpha, min_delta=1e-300)
    return _one_run_gaussian_bound(guesses, delta, alpha)


# Simulations of many runs repeat the same few counts.
@lru_cache(maxsize=1024)
def _one_run_gaussian_bound(guesses: Guesses, delta: float, alpha: float) -> EpsilonBound:
    refuted = partial(_gaussian_refuted, delta=delta, alpha=alpha)
    return _from_guesses(guesses, refuted, bound_method("one run, Gaussian", delta, alpha))


def _from_guesses(
    guesses: Guesses, refuted: Callable[[Guesses, float], bool], method: str
) -> EpsilonBound:
    """Return the largest epsilon that the guesses refute; the ceiling is for perfect guesses."""
    total, correct, samples = guesses
    if not 0 <= correct <= total <= samples or total < 1:
        raise BadInput(
            f"guesses must satisfy 0 <= correct <= made <= samples with at least one made, got "
            f"{correct} correct of {total} about {samples} samples"
        )
    value = _largest_refuted(partial(refuted, guesses))
    perfect = guesses._replace(correct=guesses.made)
    return EpsilonBound(value, ceiling=_largest_refuted(partial(refuted, perfect)), method=method)


def _gaussian_refuted(guesses: Guesses, epsilon: float, *, delta: float, alpha: float) -> bool:
    total, n_correct, samples = guesses
    shift = gaussian_shift(epsilon, delta)
    correct = alpha * n_correct / samples
    wrong = alpha * (total - n_correct) / samples
    for i in range(n_correct - 1, -1, -1):
        least_wrong = float(sp.special.ndtr(sp.special.ndtri(correct) - shift))
        if least_wrong <= wrong:
            break
        correct = min(1.0, correct + i / (total - i) * (least_wrong - wrong))
        wrong = least_wrong
    return correct + wrong > total / samples


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    # If an epsilon is refuted, all smaller ones are refuted too, so bisection is valid.
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        if high >= _LARGEST_EPSILON:
            return high
        low, high = high, 2 * high
    while high - low > 1e-9:
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low
