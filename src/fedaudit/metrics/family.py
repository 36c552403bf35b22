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
    """A family of tests after correction; entries are None where no test was made.

    Attributes:
        adjusted: Smallest family-wise error at which each test would be significant.
        significant: Whether it is at the error chosen.
    """

    adjusted: tuple[float | None, ...]
    significant: tuple[bool | None, ...]


def above_chance(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """One-sided p-value of "members do not score higher", the Mann-Whitney test.

    Exact for a handful of samples without ties, otherwise normal with the tie correction. Where few
    scores differ from the most frequent one, so that a normal tail is too thin at the small errors
    of a corrected family, members beyond that score are counted instead (Fisher's exact test). All
    scores equal gives 1.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    members, nonmembers = sides(scores, is_member)
    if members.min() == members.max() == nonmembers.min() == nonmembers.max():
        return 1.0
    counted = counted_above_chance([SplitScores(members, nonmembers)])
    if counted is not None:
        return counted
    return float(sp.stats.mannwhitneyu(members, nonmembers, alternative="greater").pvalue)


def rate_above_chance(true_positives: int, members: int, *, allowed: int, nonmembers: int) -> float:
    """One-sided p-value of a true-positive rate where at most so many false positives are allowed.

    If members and non-members are scored alike, every order of all samples is equally likely;
    so many members lie above the non-member that comes after the allowed ones exactly if, of
    the first ``true_positives + allowed`` samples, at most ``allowed`` are non-members. Exact
    without ties; ties make it larger than it need be.

    Args:
        true_positives: Members flagged.
        members: All members.
        allowed: False positives that the threshold was allowed.
        nonmembers: All non-members.

    Raises:
        BadInput: Counts that do not fit together.
    """
    if not (0 <= true_positives <= members and 0 <= allowed <= nonmembers):
        raise BadInput(
            f"{true_positives} of {members} members and {allowed} of {nonmembers} non-members "
            "flagged: a count lies between 0 and its total"
        )
    first = true_positives + allowed
    return float(sp.stats.hypergeom.cdf(allowed, members + nonmembers, nonmembers, first))


def combined(p_values: Sequence[float]) -> float:
    """One p-value for the same test in several independent runs.

    Source: Fisher, Statistical Methods for Research Workers, 1925, section 21.1.

    Raises:
        BadInput: No p-values, or one out of range.
    """
    if not p_values or not all(0 <= p <= 1 for p in p_values):
        raise BadInput(f"p-values to combine are shares in [0, 1], at least one, got {p_values}")
    if len(p_values) == 1:
        return p_values[0]
    # A p-value that underflowed to 0 would make the statistic infinite: this is as small.
    floored = [max(p, np.finfo(np.float64).tiny) for p in p_values]
    return float(sp.stats.combine_pvalues(floored, method="fisher").pvalue)


def holm(p_values: Sequence[float | None], *, alpha: float = 0.05) -> Holm:
    """Controls the chance of any false finding in a family of tests, however they depend.

    The family is everything a reader could pick the largest from: attacks, contrasts, target
    clients, rounds, defenses. Without it, eight attacks on ten clients show "leakage" almost
    always.

    Args:
        p_values: One a test, in any order; None for a test that was refused.
        alpha: Family-wise error, in (0, 1).

    Raises:
        BadInput: A p-value or alpha out of range.

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
