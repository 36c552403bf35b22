"""Chance findings: p-values of figures above guessing, combined and corrected over a study."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from fedaudit.core.errors import BadInput
from fedaudit.metrics.rare import counted_above_chance
from fedaudit.metrics.roc import SplitScores, sides


class Holm(NamedTuple):
    """Tests of a family after Holm's correction; entries are None for tests that were refused.

    Attributes:
        adjusted: Smallest family-wise error at which each test would be significant.
        significant: Whether each test is significant at the chosen error.

    Examples:
        >>> holm([0.01, None, 0.04, 0.03]).significant
        (True, None, False, False)
    """

    adjusted: tuple[float | None, ...]
    significant: tuple[bool | None, ...]


def above_chance(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """Compute the one-sided p-value of "members do not score higher", the Mann-Whitney test.

    The test is exact for a handful of samples without ties, otherwise normal with the tie
    correction. If few scores differ from the most frequent one, a normal tail is too thin at the
    small errors of a corrected family. Members beyond that score are then counted instead (Fisher's
    exact test). If all scores are equal, the p-value is 1.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> round(above_chance([0.9, 0.8, 0.7, 0.2], [True, True, True, False]), 3)
        0.25
    """
    members, nonmembers = sides(scores, is_member)
    if members.min() == members.max() == nonmembers.min() == nonmembers.max():
        return 1.0
    counted = counted_above_chance([SplitScores(members, nonmembers)])
    if counted is not None:
        return counted
    return float(sp.stats.mannwhitneyu(members, nonmembers, alternative="greater").pvalue)


def rate_above_chance(true_positives: int, members: int, *, allowed: int, nonmembers: int) -> float:
    """Compute the one-sided p-value of a true-positive rate at a number of allowed false positives.

    If members and non-members are scored alike, every order of all samples is equally likely. At
    least ``true_positives`` members lie above the non-member after the allowed ones exactly if, of
    the first ``true_positives + allowed`` samples, at most ``allowed`` are non-members. The p-value
    is exact without ties; ties make it larger than necessary.

    Args:
        true_positives: Members flagged.
        members: All members.
        allowed: False positives that the threshold was allowed.
        nonmembers: All non-members.

    Raises:
        BadInput: Counts that do not fit together.

    Examples:
        >>> round(rate_above_chance(5, 100, allowed=1, nonmembers=100), 3)
        0.106
    """
    if not (0 <= true_positives <= members and 0 <= allowed <= nonmembers):
        raise BadInput(
            f"{true_positives} of {members} members and {allowed} of {nonmembers} non-members "
            "flagged: a count lies between 0 and its total"
        )
    first = true_positives + allowed
    return float(sp.stats.hypergeom.cdf(allowed, members + nonmembers, nonmembers, first))


def combined(p_values: Sequence[float]) -> float:
    """Combine the p-values of the same test in several independent runs into one.

    Raises:
        BadInput: No p-values, or one out of range.

    Examples:
        >>> round(combined([0.04, 0.10, 0.20]), 3)
        0.027

    Source: Fisher, Statistical Methods for Research Workers, 1925, section 21.1.
    """
    if not p_values or not all(0 <= p <= 1 for p in p_values):
        raise BadInput(f"p-values to combine are shares in [0, 1], at least one, got {p_values}")
    if len(p_values) == 1:
        return p_values[0]
    # A p-value that underflowed to 0 would make the statistic infinite: this is as small.
    floored = [max(p, np.finfo(np.float64).tiny) for p in p_values]
    return float(sp.stats.combine_pvalues(floored, method="fisher").pvalue)


def holm(p_values: Sequence[float | None], *, alpha: float = 0.05) -> Holm:
    """Control the chance of any false finding in a family of tests, however they depend.

    The family is everything that a reader could pick the largest from: attacks, contrasts, target
    clients, rounds, defenses. Without the correction, eight attacks on ten clients show "leakage"
    almost always.

    Args:
        p_values: One p-value per test, in any order; None for a test that was refused.
        alpha: Family-wise error, in (0, 1).

    Raises:
        BadInput: A p-value or alpha out of range.

    Examples:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03]).adjusted]
        [0.03, 0.06, 0.06]

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    if not 0 < alpha < 1:
        raise BadInput(f"alpha, the family-wise error, is between 0 and 1, got {alpha}")
    made = [place for place, p in enumerate(p_values) if p is not None]
    values = np.array([p for p in p_values if p is not None], dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise BadInput("p-values must be in [0, 1]; give None for a test that was refused")
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted: list[float | None] = [None] * len(p_values)
    for place, value in zip(order, np.minimum(np.maximum.accumulate(steps), 1.0), strict=True):
        adjusted[made[place]] = float(value)
    return Holm(
        adjusted=tuple(adjusted),
        significant=tuple(None if value is None else value <= alpha for value in adjusted),
    )
