"""Chance findings: p-values of figures above guessing, combined and corrected over a study."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import ConfidenceLimits, upper_limit
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

    Args:
        scores: One score a sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The p-value, in [0, 1]; 1 if all scores are equal.

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

    Args:
        p_values: One p-value of each run, in [0, 1].

    Returns:
        The combined p-value, in [0, 1].

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


FEWEST_OTHERS = 8
"""A side with fewer scores beside its most frequent one has limits of its own. With five of 100
scores DeLong's lower limit still lies above the truth in 4 % of audits instead of 2.5 %."""
_FEWEST_EXPECTED = 20.0
"""Other scores expected on the smaller side, below which a test counts instead of ranking. At 100
samples against 1,000 a normal tail of 1e-4 is four times too thin with 10, seven times with 5."""
_UNEVEN = 3
"""Times that all samples are as many as the smaller side, from which on the tail is skewed."""
METHOD = "few scores differ"
"""How the method of such limits begins; the level follows."""


class Side(NamedTuple):
    """One side's share in the error of an AUC, sample by sample or person by person.

    An AUC is a weighted sum over the samples of a side: of each, how much of the other side lies on
    the right side of it. A unit at the most frequent score adds what it adds there; any other adds
    less or more.

    Attributes:
        less: Units that add less than at the most frequent score: by how much.
        more: Units that add more: by how much.
        most_less: The most that any unit could add less.
        most_more: The most that any unit could add more.
    """

    less: Float[np.ndarray, " units"]
    more: Float[np.ndarray, " units"]
    most_less: float
    most_more: float

    def reach(self, confidence: float) -> ConfidenceLimits:
        """Return how far the AUC may lie below and above its value, by this side alone.

        Args:
            confidence: Two-sided confidence, in (0, 1).
        """
        less, more = float(self.less.sum()), float(self.more.sum())
        lost = _bound_on_sum(self.less, self.most_less, confidence)
        won = _bound_on_sum(self.more, self.most_more, confidence)
        return ConfidenceLimits(max(0.0, lost - less + more), max(0.0, won - more + less))


def is_rare(at_mode: Bool[np.ndarray, " units"]) -> bool:
    """Return True if fewer than eight units, and under half, lie off the most frequent score."""
    others = len(at_mode) - int(at_mode.sum())
    return others < FEWEST_OTHERS and 2 * others < len(at_mode)


def most_frequent(scores: Float[np.ndarray, " samples"]) -> float:
    """Return the score that more than half of the samples have; NaN without one."""
    # It is the median as well: no sort is needed, which matters for thousands of shuffles.
    middle = np.partition(scores, len(scores) // 2)[len(scores) // 2]
    return float(middle) if 2 * int((scores == middle).sum()) > len(scores) else np.nan


def side_of(
    weights: Float[np.ndarray, " samples"],
    placements: Float[np.ndarray, " samples"],
    at_mode: Float[np.ndarray, " samples"],
    unit: np.ndarray | None = None,
) -> Side:
    """Return one side of an AUC.

    Args:
        weights: The weight of each sample in the AUC; they add up to 1.
        placements: The share of the other side that is on the right side of each sample.
        at_mode: The same share for a sample at the most frequent score.
        unit: The person of each sample, numbered from 0; None if samples are independent.
    """
    less = weights * np.maximum(at_mode - placements, 0.0)
    more = weights * np.maximum(placements - at_mode, 0.0)
    most_less, most_more = weights * at_mode, weights * (1 - at_mode)
    if unit is not None:
        _, unit = np.unique(unit, return_inverse=True)
        less, more, most_less, most_more = (
            np.bincount(unit, part) for part in (less, more, most_less, most_more)
        )
    return Side(less, more, float(most_less.max()), float(most_more.max()))


def normal_reach(variance: float, quantile: float) -> ConfidenceLimits:
    """Return how far a side with a variance lets the AUC lie below and above its value."""
    reach = quantile * math.sqrt(variance)
    return ConfidenceLimits(reach, reach)


def limits_of_sides(
    value: float,
    reaches: Sequence[ConfidenceLimits],
    *,
    independent: bool = True,
) -> ConfidenceLimits:
    """Return the limits of an AUC from how far each side lets it lie below and above.

    Args:
        value: The AUC.
        reaches: Distances below and above, one pair a side.
        independent: False if one person may have samples on both sides.

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4).
    """
    together = np.linalg.norm if independent else np.sum
    below, above = (float(together(side)) for side in zip(*reaches, strict=True))
    return ConfidenceLimits(max(0.0, value - below), min(1.0, value + above))


def _bound_on_sum(amounts: Float[np.ndarray, " units"], most: float, confidence: float) -> float:
    """Return the upper limit of the expected sum of amounts up to ``most`` that are nearly all 0.

    Source: Stringer, Practical aspects of statistical sampling in auditing, 1963; Bickel, Inference
        and auditing: the Stringer bound, 1992.
    """
    if most <= 0:
        return 0.0
    shares = np.sort(amounts[amounts > 0])[::-1] / most
    units, one_sided = len(amounts), 1 - (1 - confidence) / 2
    bounds = [upper_limit(count, units, confidence=one_sided) for count in range(len(shares) + 1)]
    mean = bounds[0] + float(np.diff(bounds) @ np.minimum(shares, 1.0))
    return units * most * mean


def counted_above_chance(parts: Sequence[SplitScores]) -> float | None:
    """Test by counts whether members lie above the most frequent score more often.

    Under the null hypothesis every division of a stratum's samples into members and non-members is
    equally likely. How many members lie above the stratum's most frequent score then is
    hypergeometric, and how many lie below it as well. Whether this test takes the place of ranks
    depends on all scores together, never on who was a member.

    Args:
        parts: Scores of members and non-members, a pair for each stratum.

    Returns:
        The exact one-sided p-value, which is 1 if no score differs from the most frequent one of
        its stratum. None where ranks do: the smaller side has a third of the samples, or twenty or
        more scores other than the most frequent one are expected on it.

    Source: Fisher, Statistical Methods for Research Workers, 1934, section 21.02.
    """
    smaller = min(sum(map(len, side)) for side in zip(*parts, strict=True))
    if _UNEVEN * smaller >= sum(len(side) for part in parts for side in part):
        return None
    pooled = [np.concatenate(part) for part in parts]
    modes = [most_frequent(scores) for scores in pooled]
    if any(np.isnan(mode) for mode in modes):
        return None
    sizes = [(len(part.members), len(part.nonmembers)) for part in parts]
    others = [int((scores != mode).sum()) for scores, mode in zip(pooled, modes, strict=True)]
    expected = [
        sum(size[side] * count / sum(size) for size, count in zip(sizes, others, strict=True))
        for side in (0, 1)
    ]
    if min(expected) >= _FEWEST_EXPECTED:
        return None
    # Members lie above more often, or below less often.
    above, below = (
        [compare(scores, mode) for scores, mode in zip(pooled, modes, strict=True)]
        for compare in (np.greater, np.less)
    )
    members = [size[0] for size in sizes]
    found = [
        _counted(marked, members, upper=upper)
        for marked, upper in ((above, True), (below, False))
        if any(flags.any() for flags in marked)
    ]
    # Without any other score there is nothing to count, and no evidence.
    return min(1.0, len(found) * min(found)) if found else 1.0


def _counted(
    marked: Sequence[Bool[np.ndarray, " samples"]], members: Sequence[int], *, upper: bool
) -> float:
    """Return the chance of as many marked members or more; of as many or fewer if not ``upper``."""
    chances, observed = np.ones(1), 0
    for flags, drawn in zip(marked, members, strict=True):
        total = int(flags.sum())
        counts = np.arange(min(total, drawn) + 1)
        chances = np.convolve(chances, sp.stats.hypergeom.pmf(counts, len(flags), total, drawn))
        observed += int(flags[:drawn].sum())
    tail = chances[observed:] if upper else chances[: observed + 1]
    return float(min(1.0, tail.sum()))
