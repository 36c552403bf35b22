"""Tests of whether one unit (a sample or a person) is a member, by its rank among non-members."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    clopper_pearson_lower,
    clopper_pearson_upper,
    require_confidence,
)
from fedaudit.metrics.roc import as_scores, split_scores


class IndividualTest(NamedTuple):
    """P-values of the null hypothesis that one unit is not a member, by one or more attacks.

    Attributes:
        p_values: P-value of each attack, in [1 / (n + 1), 1] for n non-members.
        combined: P-value of all attacks together, in the same range.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.individual_test([3.5, 0.5], [[1, 4], [2, 2], [3, 3]]).combined
        0.5
    """

    p_values: tuple[float, ...]
    combined: float


def conformal_p_value(score: float, nonmembers: npt.ArrayLike) -> float:
    """Compute the p-value of the hypothesis that a unit is not a member, by its rank.

    If the unit and the non-members are exchangeable, such as draws from one population, the p-value
    of a non-member is at most alpha with probability at most alpha. A non-member with the same
    score as the unit counts as scoring higher.

    Args:
        score: Score of the unit, larger for likelier members; may be infinite.
        nonmembers: Scores of non-members, not including the tested unit.

    Returns:
        The p-value, in [1 / (n + 1), 1] for n non-members.

    Raises:
        BadInput: A score is NaN.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.conformal_p_value(2.5, [1, 2, 3])
        0.5

    Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005; Bates et al.,
        Testing for outliers with conformal p-values, 2023.
    """
    nonmember_scores = as_scores(nonmembers)
    (unit_score,) = as_scores([score])
    return (1 + int((nonmember_scores >= unit_score).sum())) / (1 + len(nonmember_scores))


def individual_test(scores: npt.ArrayLike, nonmembers: npt.ArrayLike) -> IndividualTest:
    """Compute p-values of the hypothesis that a unit is not a member, by several attacks.

    The combined p-value is valid for any dependence between attacks. Every attack ranks each unit
    among all units. Units are then sorted by their smallest rank; ties are broken by the second
    smallest rank, and so on. The p-value is the fraction of units that do not come after the tested
    unit. It needs no more non-members than the p-value of a single attack.

    Args:
        scores: Score of the unit by each attack, larger for likelier members.
        nonmembers: Scores of non-members, one row for each non-member and one column for each
            attack, not including the tested unit.

    Raises:
        BadInput: A score is NaN, or the numbers of attacks differ.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.individual_test([3.5, 0.5], [[1, 4], [2, 2], [3, 3]]).p_values
        (0.25, 1.0)

    Source: Westfall and Young, Resampling-Based Multiple Testing, 1993 (minP).
    Differs: Ranks among exchangeable units replace resamples. The second smallest and further ranks
        break ties; otherwise, the p-value would be as coarse as Bonferroni's.
    """
    unit_scores, nonmember_scores = as_scores(scores), _score_matrix(nonmembers)
    (combined,) = combined_p_values(unit_scores[None], nonmember_scores)
    n_not_lower = (nonmember_scores >= unit_scores).sum(0)
    p_values = (1 + n_not_lower) / (1 + len(nonmember_scores))
    return IndividualTest(tuple(p_values.tolist()), float(combined))


def combined_p_values(
    units: npt.ArrayLike, nonmembers: npt.ArrayLike
) -> Float[np.ndarray, " units"]:
    """Compute the combined p-value of :func:`individual_test` for each of several units.

    Each unit is tested separately against the same non-members.

    Args:
        units: Scores of the units, one row for each unit and one column for each attack.
        nonmembers: Scores of non-members, one row for each and the same columns.

    Raises:
        BadInput: A score is NaN, or the numbers of attacks differ.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.combined_p_values([[3.5, 0.5], [0, 0]], [[1, 4], [2, 2], [3, 3]]).tolist()
        [0.5, 1.0]
    """
    all_scores, nonmember_scores = _score_matrix(units), _score_matrix(nonmembers)
    if not all_scores.shape[1] == nonmember_scores.shape[1] > 0:
        raise BadInput(
            f"units have scores of {all_scores.shape[1]} attacks and non-members of "
            f"{nonmember_scores.shape[1]}; pass scores of the same attacks for both"
        )
    ranks_without_unit = _ranks(nonmember_scores)
    p_values = np.empty(len(all_scores))
    for index, unit_scores in enumerate(all_scores):
        unit_ranks = np.sort(1 + (nonmember_scores >= unit_scores).sum(0))
        # The unit increases the rank of each non-member that does not score higher by one.
        nonmember_ranks = np.sort(ranks_without_unit + (unit_scores >= nonmember_scores), axis=1)
        n_not_after = _count_not_after(nonmember_ranks, unit_ranks)
        p_values[index] = (1 + n_not_after) / (1 + len(nonmember_scores))
    return p_values


def _ranks(scores: Float[np.ndarray, "units attacks"]) -> Int[np.ndarray, "units attacks"]:
    """Return, for each unit and attack, the number of units that score at least as high."""
    ranks = np.empty(scores.shape, dtype=np.int64)
    for column, attack_scores in enumerate(scores.T):
        n_lower = np.searchsorted(np.sort(attack_scores), attack_scores, side="left")
        ranks[:, column] = len(attack_scores) - n_lower
    return ranks


def _count_not_after(
    rows: Int[np.ndarray, "units attacks"], row: Int[np.ndarray, " attacks"]
) -> int:
    """Count the rows that equal a given row or precede it in lexicographic order."""
    differences = rows - row
    first = (differences != 0).argmax(1)
    return int((differences[np.arange(len(rows)), first] <= 0).sum())


def membership_posterior_limits(
    score: float,
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    prior: float,
    confidence: float = 0.95,
) -> ConfidenceLimits:
    """Compute limits of the probability that a unit with at least this score is a member.

    The error is divided between the exact limits of the true-positive and the false-positive rate
    at this score. The probability follows from these limits and the prior by Bayes' rule.

    Args:
        score: Score of the unit, larger for likelier members; may be infinite.
        scores: Scores of other units, not including the tested unit.
        is_member: Whether each of the other units is a member.
        prior: Probability of membership before the score is known, in (0, 1).
        confidence: Two-sided confidence of the limits, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, there are no members or no non-members, or
            ``prior`` or ``confidence`` is out of range.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> is_member = np.arange(200) < 100
        >>> scores = is_member * 1.0
        >>> limits = fa.metrics.membership_posterior_limits(1.0, scores, is_member, prior=0.5)
        >>> round(limits.low, 3), limits.high
        (0.957, 1.0)

    Source: Clopper and Pearson 1934 for both rates; Bonferroni's inequality for their ratio.
    """
    require_confidence(confidence)
    if not 0 < prior < 1:
        raise BadInput(f"the prior is a probability between 0 and 1, such as 0.5, got {prior}")
    members, nonmembers = split_scores(scores, is_member)
    (unit_score,) = as_scores([score])
    true_positives = int((members >= unit_score).sum())
    false_positives = int((nonmembers >= unit_score).sum())
    # Each limit of the likelihood ratio uses one limit of each rate, with half of its error.
    one_sided = 1 - (1 - confidence) / 4
    low_tpr = clopper_pearson_lower(true_positives, len(members), confidence=one_sided)
    high_tpr = clopper_pearson_upper(true_positives, len(members), confidence=one_sided)
    low_fpr = clopper_pearson_lower(false_positives, len(nonmembers), confidence=one_sided)
    high_fpr = clopper_pearson_upper(false_positives, len(nonmembers), confidence=one_sided)
    return ConfidenceLimits(
        _posterior(prior, low_tpr / high_fpr),
        _posterior(prior, high_tpr / low_fpr if low_fpr else np.inf),
    )


def _posterior(prior: float, likelihood_ratio: float) -> float:
    if likelihood_ratio == np.inf:
        return 1.0
    return prior * likelihood_ratio / (prior * likelihood_ratio + 1 - prior)


def _score_matrix(scores: npt.ArrayLike) -> Float[np.ndarray, "units attacks"]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or np.isnan(values).any():
        raise BadInput(
            f"scores of several attacks need a row for each unit and a column for each attack, "
            f"without NaNs; got the shape {values.shape}"
        )
    return values
