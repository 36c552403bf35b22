"""P-values of figures above chance level, combined over runs and corrected over a study."""

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
    """Tests of a family after Holm's correction, with None for tests without a p-value.

    Attributes:
        adjusted: Smallest family-wise error at which each test would be significant.
        significant: Whether each test is significant at the chosen error.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.holm([0.01, None, 0.04, 0.03]).significant
        (True, None, False, False)
    """

    adjusted: tuple[float | None, ...]
    significant: tuple[bool | None, ...]


def above_chance(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """Compute the one-sided p-value of "members do not score higher", the Mann-Whitney test.

    The test is exact for a handful of samples without ties, otherwise normal with the tie
    correction. If few scores differ from the most frequent one, a normal tail is too thin at the
    small errors of a corrected family. The test then counts the members above and below that score
    (Fisher's exact test). If all scores are equal, the p-value is 1.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The p-value, in [0, 1]; 1 if all scores are equal.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.above_chance([0.9, 0.8, 0.7, 0.2], [True, True, True, False]), 3)
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

    Under the null hypothesis every order of all samples is equally likely. At least
    ``true_positives`` members are flagged exactly if at most ``allowed`` of the
    ``true_positives + allowed`` highest scores belong to non-members. The p-value is exact without
    ties; ties make it conservative.

    Args:
        true_positives: Number of members flagged.
        members: Number of members.
        allowed: Number of false positives that the threshold may have.
        nonmembers: Number of non-members.

    Raises:
        BadInput: Counts that do not fit together.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.rate_above_chance(5, 100, allowed=1, nonmembers=100), 3)
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
        p_values: One p-value per run, in [0, 1].

    Returns:
        The combined p-value, in [0, 1].

    Raises:
        BadInput: No p-values, or one out of range.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.combined([0.04, 0.10, 0.20]), 3)
        0.027

    Source: Fisher, Statistical Methods for Research Workers, 1925, section 21.1.
    """
    if not p_values or not all(0 <= p <= 1 for p in p_values):
        raise BadInput(f"p-values to combine are shares in [0, 1], at least one, got {p_values}")
    if len(p_values) == 1:
        return p_values[0]
    # A p-value that underflowed to 0 would make the statistic infinite.
    floored = [max(p, np.finfo(np.float64).tiny) for p in p_values]
    return float(sp.stats.combine_pvalues(floored, method="fisher").pvalue)


def holm(p_values: Sequence[float | None], *, alpha: float = 0.05) -> Holm:
    """Control the probability of any false finding in a family of tests with any dependence.

    The family contains every figure from which a reader could pick the largest: attacks, contrasts,
    target clients, rounds, defenses. Without the correction, eight attacks on ten clients show
    "leakage" almost always.

    Args:
        p_values: One p-value per test, in any order; None for a test that was refused.
        alpha: Family-wise error, in (0, 1).

    Raises:
        BadInput: A p-value or alpha out of range.

    Examples:
        >>> import fedaudit as fa
        >>> [round(p, 3) for p in fa.metrics.holm([0.01, 0.04, 0.03]).adjusted]
        [0.03, 0.06, 0.06]

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    if not 0 < alpha < 1:
        raise BadInput(f"alpha, the family-wise error, is between 0 and 1, got {alpha}")
    positions = [position for position, p in enumerate(p_values) if p is not None]
    values = np.array([p for p in p_values if p is not None], dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise BadInput("p-values must be in [0, 1]; give None for a test that was refused")
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted: list[float | None] = [None] * len(p_values)
    for place, value in zip(order, np.minimum(np.maximum.accumulate(steps), 1.0), strict=True):
        adjusted[positions[place]] = float(value)
    return Holm(
        adjusted=tuple(adjusted),
        significant=tuple(None if value is None else value <= alpha for value in adjusted),
    )


FEWEST_OTHERS = 8
"""Number of scores, other than the most frequent one, that a side needs for DeLong's variance. With
five of 100 scores, DeLong's lower limit is above the truth in 4 % of audits instead of 2.5 %."""
_FEWEST_EXPECTED = 20.0
"""Number of other scores expected on the smaller side below which a test counts scores instead of
ranking them. With 100 against 1,000 samples, a normal tail of 1e-4 is four times too thin at 10
other scores, and seven times at 5."""
_UNEVEN = 3
"""Ratio of all samples to the smaller side above which the null distribution is skewed."""
METHOD = "few scores differ"
"""Method of limits for sides with few other scores, to which the confidence is appended."""


class Side(NamedTuple):
    """Contributions of the members, or of the non-members, to the AUC.

    The AUC is a weighted sum of placements. A sample's placement is the share of the other side
    that is ordered correctly with it. Contributions are measured relative to that of a sample with
    the most frequent score, so nearly all of them are 0. A unit is a sample or a person.

    Attributes:
        deficit: Amount by which each unit's contribution is below the reference, at least 0.
        surplus: Amount by which each unit's contribution is above the reference, at least 0.
        largest_deficit: Largest possible deficit of a unit.
        largest_surplus: Largest possible surplus of a unit.
    """

    deficit: Float[np.ndarray, " units"]
    surplus: Float[np.ndarray, " units"]
    largest_deficit: float
    largest_surplus: float

    def reach(self, confidence: float) -> ConfidenceLimits:
        """Return the distances from the AUC to its lower and upper limit that this side causes."""
        deficit, surplus = float(self.deficit.sum()), float(self.surplus.sum())
        deficit_limit = _bound_on_sum(self.deficit, self.largest_deficit, confidence)
        surplus_limit = _bound_on_sum(self.surplus, self.largest_surplus, confidence)
        return ConfidenceLimits(
            max(0.0, deficit_limit - deficit + surplus), max(0.0, surplus_limit - surplus + deficit)
        )


def is_rare(at_mode: Bool[np.ndarray, " units"]) -> bool:
    """Return True if under eight units, and under half, differ from the most frequent score."""
    others = len(at_mode) - int(at_mode.sum())
    return others < FEWEST_OTHERS and 2 * others < len(at_mode)


def most_frequent(scores: Float[np.ndarray, " samples"]) -> float:
    """Return the score that more than half of the samples have; NaN without one."""
    # Such a score is the median as well. Avoiding a sort matters for thousands of permutations.
    middle = np.partition(scores, len(scores) // 2)[len(scores) // 2]
    return float(middle) if 2 * int((scores == middle).sum()) > len(scores) else np.nan


def side_of(
    weights: Float[np.ndarray, " samples"],
    placements: Float[np.ndarray, " samples"],
    at_mode: Float[np.ndarray, " samples"],
    unit: np.ndarray | None = None,
) -> Side:
    """Compute the contributions of one side to the AUC.

    Args:
        weights: The weight of each sample in the AUC. Weights add up to 1.
        placements: The share of the other side that is ordered correctly with each sample.
        at_mode: That share for a sample with the most frequent score.
        unit: The person of each sample, numbered from 0; None if samples are independent.
    """
    deficit = weights * np.maximum(at_mode - placements, 0.0)
    surplus = weights * np.maximum(placements - at_mode, 0.0)
    largest_deficit, largest_surplus = weights * at_mode, weights * (1 - at_mode)
    if unit is not None:
        _, unit = np.unique(unit, return_inverse=True)
        deficit, surplus, largest_deficit, largest_surplus = (
            np.bincount(unit, part) for part in (deficit, surplus, largest_deficit, largest_surplus)
        )
    return Side(deficit, surplus, float(largest_deficit.max()), float(largest_surplus.max()))


def normal_reach(variance: float, quantile: float) -> ConfidenceLimits:
    """Return the half-width of a normal interval, below and above the value."""
    reach = quantile * math.sqrt(variance)
    return ConfidenceLimits(reach, reach)


def limits_of_sides(
    value: float,
    reaches: Sequence[ConfidenceLimits],
    *,
    independent: bool = True,
) -> ConfidenceLimits:
    """Return the limits of an AUC from the contributions of both sides.

    Args:
        value: The AUC.
        reaches: For each side, the distances below and above the AUC.
        independent: False if one person may have samples on both sides.

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4).
    """
    combine = np.linalg.norm if independent else np.sum
    below, above = (float(combine(side)) for side in zip(*reaches, strict=True))
    return ConfidenceLimits(max(0.0, value - below), min(1.0, value + above))


def _bound_on_sum(amounts: Float[np.ndarray, " units"], largest: float, confidence: float) -> float:
    """Return an upper limit of the expected sum of amounts in [0, largest] that are mostly 0.

    Source: Stringer, Practical aspects of statistical sampling in auditing, 1963; Bickel, Inference
        and auditing: the Stringer bound, 1992.
    """
    if largest <= 0:
        return 0.0
    shares = np.sort(amounts[amounts > 0])[::-1] / largest
    units, one_sided = len(amounts), 1 - (1 - confidence) / 2
    bounds = [upper_limit(count, units, confidence=one_sided) for count in range(len(shares) + 1)]
    mean = bounds[0] + float(np.diff(bounds) @ np.minimum(shares, 1.0))
    return units * largest * mean


def counted_above_chance(parts: Sequence[SplitScores]) -> float | None:
    """Test whether members score above the most frequent score more often than non-members.

    Under the null hypothesis every division of a stratum's samples into members and non-members is
    equally likely. The number of members above the stratum's most frequent score is then
    hypergeometric, and so is the number below it. The choice between this
    test and the rank test depends on the pooled scores, never on membership.

    Args:
        parts: Scores of members and non-members, one pair per stratum.

    Returns:
        The exact one-sided p-value, which is 1 if no score differs from the most frequent one of
        its stratum. None if the rank test applies: the smaller side has a third of the samples, or
        twenty or more scores other than the most frequent one are expected on it.

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
    # If members score higher, they are above it more often, or below it less often.
    above, below = (
        [compare(scores, mode) for scores, mode in zip(pooled, modes, strict=True)]
        for compare in (np.greater, np.less)
    )
    members = [size[0] for size in sizes]
    p_values = [
        _counted(marked, members, upper=upper)
        for marked, upper in ((above, True), (below, False))
        if any(flags.any() for flags in marked)
    ]
    # Bonferroni's correction for two tests; without any other score there is no evidence.
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0


def _counted(
    marked: Sequence[Bool[np.ndarray, " samples"]], members: Sequence[int], *, upper: bool
) -> float:
    """Return the upper (or lower) tail probability of the number of marked members."""
    distribution, observed = np.ones(1), 0
    for flags, drawn in zip(marked, members, strict=True):
        total = int(flags.sum())
        counts = np.arange(min(total, drawn) + 1)
        stratum = sp.stats.hypergeom.pmf(counts, len(flags), total, drawn)
        distribution = np.convolve(distribution, stratum)
        observed += int(flags[:drawn].sum())
    tail = distribution[observed:] if upper else distribution[: observed + 1]
    return float(min(1.0, tail.sum()))
