"""P-values of metrics against chance level, combined over runs and corrected for multiple tests.

The second half of the module computes tests and limits for scores that are nearly all equal.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import ConfidenceLimits, clopper_pearson_upper
from fedaudit.metrics.roc import SplitScores, split_scores


class Holm(NamedTuple):
    """Tests of a family after Holm's correction, with None for tests without a p-value.

    Attributes:
        adjusted: Adjusted p-value of each test: the smallest family-wise error rate at which the
            test would be significant.
        significant: Whether each test is significant at the chosen family-wise error rate.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.holm([0.01, None, 0.04, 0.03]).significant
        (True, None, False, False)
    """

    adjusted: tuple[float | None, ...]
    significant: tuple[bool | None, ...]


def auc_p_value(scores: npt.ArrayLike, is_member: npt.ArrayLike) -> float:
    """Compute the one-sided p-value of the Mann-Whitney test for "members score higher".

    With few samples and no ties, the test is exact. Otherwise it uses a normal approximation with
    the tie correction. If few scores differ from the most frequent one, the tail of the normal
    approximation is too thin at the small significance levels of a corrected family. The test then
    counts the members above and below that score (Fisher's exact test).

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.

    Returns:
        The p-value, in [0, 1]; 1 if all scores are equal.

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.auc_p_value([0.9, 0.8, 0.7, 0.2], [True, True, True, False]), 3)
        0.25
    """
    members, nonmembers = split_scores(scores, is_member)
    if members.min() == members.max() == nonmembers.min() == nonmembers.max():
        return 1.0
    p_value_by_counts = counted_above_chance([SplitScores(members, nonmembers)])
    if p_value_by_counts is not None:
        return p_value_by_counts
    return float(sp.stats.mannwhitneyu(members, nonmembers, alternative="greater").pvalue)


def tpr_p_value(true_positives: int, members: int, *, allowed: int, nonmembers: int) -> float:
    """Compute the one-sided p-value of a true-positive rate at a number of allowed false positives.

    Under the null hypothesis, every order of all samples is equally likely. At least
    ``true_positives`` members are flagged if and only if at most ``allowed`` of the
    ``true_positives + allowed`` highest scores belong to non-members. Without ties, the p-value is
    exact; with ties, it is conservative.

    Args:
        true_positives: Number of members flagged.
        members: Number of members.
        allowed: Number of false positives that the threshold may have.
        nonmembers: Number of non-members.

    Raises:
        BadInput: A count is negative or exceeds its total.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.tpr_p_value(5, 100, allowed=1, nonmembers=100), 3)
        0.106
    """
    if not (0 <= true_positives <= members and 0 <= allowed <= nonmembers):
        raise BadInput(
            "numbers of flagged samples must be between 0 and their totals, got "
            f"{true_positives} of {members} members and {allowed} of {nonmembers} non-members"
        )
    return float(tpr_p_values(true_positives, members, allowed=allowed, nonmembers=nonmembers))


def tpr_p_values(
    true_positives: int | Int[np.ndarray, "*counts"], members: int, *, allowed: int, nonmembers: int
) -> Float[np.ndarray, "*counts"]:
    """Compute :func:`tpr_p_value` for each of several numbers of flagged members."""
    n_highest = np.asarray(true_positives) + allowed
    p_values: Float[np.ndarray, "*counts"] = np.asarray(
        sp.stats.hypergeom.cdf(allowed, members + nonmembers, nonmembers, n_highest)
    )
    return p_values


def fisher_p_value(p_values: Sequence[float]) -> float:
    """Combine the p-values of the same test in several independent runs into one.

    Args:
        p_values: One p-value per run, in [0, 1].

    Returns:
        The combined p-value, in [0, 1].

    Raises:
        BadInput: No p-values, or one out of range.

    Examples:
        >>> import fedaudit as fa
        >>> round(fa.metrics.fisher_p_value([0.04, 0.10, 0.20]), 3)
        0.027

    Source: Fisher, Statistical Methods for Research Workers, 1925, section 21.1.
    """
    if not p_values or not all(0 <= p <= 1 for p in p_values):
        raise BadInput(f"combining needs at least one p-value, each in [0, 1], got {p_values}")
    if len(p_values) == 1:
        return p_values[0]
    # A p-value that underflowed to 0 would make the statistic infinite.
    floored = [max(p, np.finfo(np.float64).tiny) for p in p_values]
    return float(sp.stats.combine_pvalues(floored, method="fisher").pvalue)


def holm(p_values: Sequence[float | None], *, alpha: float = 0.05) -> Holm:
    """Control the probability of any false positive in a family of tests with any dependence.

    The family should contain every test from which a reader could pick the most significant one:
    all attacks, contrasts, target clients, rounds and defenses. Without the correction, eight
    attacks on ten clients almost always show a significant result.

    Args:
        p_values: One p-value per test, in any order; None for a test that was not computed.
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
        raise BadInput("p-values must be in [0, 1]; pass None for a test that was not computed")
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted: list[float | None] = [None] * len(p_values)
    for index, value in zip(order, np.minimum(np.maximum.accumulate(steps), 1.0), strict=True):
        adjusted[positions[index]] = float(value)
    return Holm(
        adjusted=tuple(adjusted),
        significant=tuple(None if value is None else value <= alpha for value in adjusted),
    )


# Below, a group is either the members or the non-members. The mode is the most frequent score. A
# differing score is a score other than the mode.

FEWEST_DIFFERING = 8
"""Number of differing scores that a group needs for DeLong's variance. With five differing scores
among 100, DeLong's lower limit is above the true AUC in 4 % of audits instead of 2.5 %."""
_FEWEST_EXPECTED = 20.0
"""Expected number of differing scores in the smaller group below which a test counts scores instead
of ranking them. With 100 against 1,000 samples, the normal approximation of a tail of 1e-4 is too
thin by a factor of four at 10 differing scores, and of seven at 5."""
_SKEWED_RATIO = 3
"""Ratio of all samples to the smaller group above which the null distribution is skewed."""
FEW_DIFFER = "few scores differ"
"""Name of the method for limits if a group has few differing scores, followed by the confidence."""


class GroupContributions(NamedTuple):
    """Contributions of the members, or of the non-members, to the AUC.

    The AUC is a weighted sum of placements. A sample's placement is the fraction of its pairs with
    samples of the other group that are ordered correctly. Contributions are measured relative to
    that of a sample at the mode, so nearly all of them are 0. A unit is a sample or a person.

    Attributes:
        deficit: Amount by which each unit's contribution is below that of the mode, at least 0.
        surplus: Amount by which each unit's contribution is above that of the mode, at least 0.
        largest_deficit: Largest possible deficit of a unit.
        largest_surplus: Largest possible surplus of a unit.
    """

    deficit: Float[np.ndarray, " units"]
    surplus: Float[np.ndarray, " units"]
    largest_deficit: float
    largest_surplus: float

    def limit_distances(self, confidence: float) -> ConfidenceLimits:
        """Return the distances from the AUC to its limits if only this group were random."""
        deficit, surplus = float(self.deficit.sum()), float(self.surplus.sum())
        deficit_limit = _bound_on_sum(self.deficit, self.largest_deficit, confidence)
        surplus_limit = _bound_on_sum(self.surplus, self.largest_surplus, confidence)
        return ConfidenceLimits(
            max(0.0, deficit_limit - deficit + surplus), max(0.0, surplus_limit - surplus + deficit)
        )


def has_few_differing(at_mode: Bool[np.ndarray, " units"]) -> bool:
    """Return whether fewer than eight units, and fewer than half of all, have differing scores."""
    differing = len(at_mode) - int(at_mode.sum())
    return differing < FEWEST_DIFFERING and 2 * differing < len(at_mode)


def most_frequent(scores: Float[np.ndarray, " samples"]) -> float:
    """Return the score that more than half of the samples have; NaN if there is no such score."""
    # Such a score is also the median. Avoiding a full sort matters for thousands of permutations.
    middle = np.partition(scores, len(scores) // 2)[len(scores) // 2]
    return float(middle) if 2 * int((scores == middle).sum()) > len(scores) else np.nan


def contributions_of(
    weights: Float[np.ndarray, " samples"],
    placements: Float[np.ndarray, " samples"],
    at_mode: Float[np.ndarray, " samples"],
    unit: np.ndarray | None = None,
) -> GroupContributions:
    """Compute the contributions of one group to the AUC.

    Args:
        weights: The weight of each sample in the AUC. Weights add up to 1.
        placements: The placement of each sample, see :class:`GroupContributions`.
        at_mode: The placement that each sample would have at the mode of its stratum.
        unit: Number of each sample's person; None if samples are independent.
    """
    deficit = weights * np.maximum(at_mode - placements, 0.0)
    surplus = weights * np.maximum(placements - at_mode, 0.0)
    largest_deficit, largest_surplus = weights * at_mode, weights * (1 - at_mode)
    if unit is not None:
        _, unit = np.unique(unit, return_inverse=True)
        deficit, surplus, largest_deficit, largest_surplus = (
            np.bincount(unit, amounts)
            for amounts in (deficit, surplus, largest_deficit, largest_surplus)
        )
    return GroupContributions(
        deficit, surplus, float(largest_deficit.max()), float(largest_surplus.max())
    )


def normal_distances(variance: float, quantile: float) -> ConfidenceLimits:
    """Return the distances from an estimate to the limits of its normal interval."""
    half_width = quantile * math.sqrt(variance)
    return ConfidenceLimits(half_width, half_width)


def limits_from_distances(
    value: float, distances: Sequence[ConfidenceLimits], *, independent: bool = True
) -> ConfidenceLimits:
    """Return the limits of an AUC from the distances that members and non-members contribute.

    Args:
        value: The AUC.
        distances: Distances below and above the AUC, for members and for non-members.
        independent: False if one person may have both members and non-members.

    Source: Zou and Donner, Construction of confidence limits about effect measures, 2008, Eq. (4).
    """
    combine = np.linalg.norm if independent else np.sum
    lower_distance, upper_distance = (
        float(combine(groups)) for groups in zip(*distances, strict=True)
    )
    return ConfidenceLimits(max(0.0, value - lower_distance), min(1.0, value + upper_distance))


def _bound_on_sum(amounts: Float[np.ndarray, " units"], largest: float, confidence: float) -> float:
    """Return an upper limit of the expected sum of amounts in [0, largest] that are mostly 0.

    Source: Stringer, Practical aspects of statistical sampling in auditing, 1963; Bickel, Inference
        and auditing: the Stringer bound, 1992.
    """
    if largest <= 0:
        return 0.0
    relative = np.sort(amounts[amounts > 0])[::-1] / largest
    units, one_sided = len(amounts), 1 - (1 - confidence) / 2
    bounds = [
        clopper_pearson_upper(count, units, confidence=one_sided)
        for count in range(len(relative) + 1)
    ]
    mean = bounds[0] + float(np.diff(bounds) @ np.minimum(relative, 1.0))
    return units * largest * mean


def counted_above_chance(parts: Sequence[SplitScores]) -> float | None:
    """Test whether members score above the most frequent score more often than non-members.

    Under the null hypothesis, every division of a stratum's samples into members and non-members is
    equally likely. The number of members above the stratum's mode is then hypergeometric, and so is
    the number of members below it. The choice between this test and the rank test depends on the
    pooled scores, never on membership.

    Args:
        parts: Scores of members and non-members, one pair per stratum.

    Returns:
        The exact one-sided p-value. It is 1 if no score differs from the mode of its stratum. None
        if the rank test should be used instead, because the smaller group has at least a third of
        all samples, or because at least twenty differing scores are expected in it.

    Source: Fisher, Statistical Methods for Research Workers, 1934, section 21.02.
    """
    n_members = [len(part.members) for part in parts]
    n_nonmembers = [len(part.nonmembers) for part in parts]
    smaller = min(sum(n_members), sum(n_nonmembers))
    if _SKEWED_RATIO * smaller >= sum(n_members) + sum(n_nonmembers):
        return None
    pooled = [np.concatenate(part) for part in parts]
    modes = [most_frequent(scores) for scores in pooled]
    if any(np.isnan(mode) for mode in modes):
        return None
    differing = [int((scores != mode).sum()) for scores, mode in zip(pooled, modes, strict=True)]
    expected = [
        sum(
            size * count / len(scores)
            for size, count, scores in zip(sizes, differing, pooled, strict=True)
        )
        for sizes in (n_members, n_nonmembers)
    ]
    if min(expected) >= _FEWEST_EXPECTED:
        return None
    # If members score higher, they are above the mode more often, or below it less often.
    is_above = [scores > mode for scores, mode in zip(pooled, modes, strict=True)]
    is_below = [scores < mode for scores, mode in zip(pooled, modes, strict=True)]
    p_values = [
        _tail_probability(marked, n_members, upper=upper)
        for marked, upper in ((is_above, True), (is_below, False))
        if any(flags.any() for flags in marked)
    ]
    # Bonferroni's correction for two tests. If no score differs from the mode, the p-value is 1.
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0


def _tail_probability(
    marked: Sequence[Bool[np.ndarray, " samples"]], members: Sequence[int], *, upper: bool
) -> float:
    """Return the upper (or lower) tail probability of the number of marked members over strata.

    Members come first among the samples of a stratum.
    """
    distribution, observed = np.ones(1), 0
    for flags, n_members in zip(marked, members, strict=True):
        total = int(flags.sum())
        counts = np.arange(min(total, n_members) + 1)
        stratum = sp.stats.hypergeom.pmf(counts, len(flags), total, n_members)
        distribution = np.convolve(distribution, stratum)
        observed += int(flags[:n_members].sum())
    tail = distribution[observed:] if upper else distribution[: observed + 1]
    return float(min(1.0, tail.sum()))
