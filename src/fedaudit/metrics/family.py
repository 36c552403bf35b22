"""Chance findings: p-values of an AUC above one half, corrected over a whole study."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import mannwhitneyu

from fedaudit.errors import BadInput
from fedaudit.metrics.sides import sides


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

    Exact for a handful of samples without ties, otherwise normal with the tie correction.
    All scores equal gives 1.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    members, nonmembers = sides(scores, is_member)
    if members.min() == members.max() == nonmembers.min() == nonmembers.max():
        return 1.0
    return float(mannwhitneyu(members, nonmembers, alternative="greater").pvalue)


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
