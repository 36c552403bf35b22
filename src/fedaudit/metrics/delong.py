"""AUC with DeLong's interval: for one attack, for two attacks, and for clustered samples."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    IntervalEstimate,
    clopper_pearson,
    format_percent,
    require_confidence,
)
from fedaudit.metrics.rate_limits import Proportion, proportion
from fedaudit.metrics.roc import (
    SplitScores,
    allowed_false_positives,
    as_membership,
    as_scores,
    auc,
    rank_scores,
    ranks_within_group,
    split_scores,
)
from fedaudit.metrics.significance import (
    FEW_DIFFER,
    GroupContributions,
    contributions_of,
    has_few_differing,
    limits_from_distances,
    most_frequent,
    normal_distances,
)

FEWEST_DISORDERED = 5.0
"""Smallest number of misordered pairs (or of correctly ordered pairs, if these are fewer) for a
normal approximation. A pair is a member and a non-member; no two pairs share a sample."""

SEPARATE = "separate intervals"
"""Name of the method if a difference of AUCs has limits from the intervals of both AUCs."""


@dataclass(frozen=True)
class AucInterval(IntervalEstimate[float]):
    """AUC with its confidence interval.

    The method is "DeLong 95%". If DeLong's interval would be too narrow, the method is "exact on
    pairs 95%" or "few scores differ 95%"; see :func:`auc_interval`.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.auc_interval([0.9, 0.4, 0.6, 0.1], [True, True, False, False]).value
        0.75
    """


@dataclass(frozen=True)
class AucDifference(IntervalEstimate[float]):
    """Difference of two attacks' AUCs on the same samples: the first minus the second.

    Attributes:
        p_value: Two-sided p-value of the null hypothesis that both AUCs are equal.

    Examples:
        >>> from fedaudit.metrics import compare_auc
        >>> compare_auc([3, 1, 2, 0], [3, 2, 1, 0], is_member=[True, True, False, False]).value
        -0.25
    """

    p_value: float


class Placements(NamedTuple):
    """Fraction of non-members below each member, and of members above each non-member.

    Ties count half.
    """

    members: Float[np.ndarray, " members"]
    nonmembers: Float[np.ndarray, " nonmembers"]

    @property
    def auc(self) -> float:
        """The mean placement of members."""
        return float(self.members.mean())


def auc_interval(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, confidence: float = 0.95
) -> AucInterval:
    """Compute the AUC with an interval that always has a positive width.

    If almost no pair (or almost every pair) is misordered, or all scores are equal, DeLong's
    variance is near zero although other samples would give another AUC. The interval is then the
    exact binomial interval for disjoint member/non-member pairs. Their number is the smaller of the
    numbers of members and non-members. Under perfect separation it is a rigorous bound, since
    disjoint pairs are independent and all of them are ordered correctly.

    If nearly all members (or nearly all non-members) have equal scores, their contribution to the
    variance is near zero as well. It is then replaced by Stringer's bound on the mean of a variable
    that is nearly always 0: how far a member's share of non-members with lower scores is from the
    share of the members with the common score.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> interval = fa.metrics.auc_interval(scores, is_member)
        >>> round(interval.value, 3), round(interval.low, 3), round(interval.high, 3)
        (0.784, 0.682, 0.86)

    Source: DeLong, DeLong and Clarke-Pearson 1988; midranks after Sun and Xu 2014; Stringer 1963
        and Zou and Donner 2008 if nearly all members (or non-members) have equal scores.
    Differs: The interval is computed on the logit scale, so that it stays within (0, 1).
    """
    require_confidence(confidence)
    return interval_of_ranks(rank_scores(split_scores(scores, is_member)), confidence)


def interval_of_ranks(ranks: SplitScores, confidence: float) -> AucInterval:
    """Compute :func:`auc_interval` of midranks among members and non-members, without sorting."""
    placements = placements_of(ranks)
    variance = _covariance(placements, placements)
    value, pairs = placements.auc, min(map(len, placements))
    if variance <= 0 or pairs * min(value, 1 - value) < FEWEST_DISORDERED:
        low, high = clopper_pearson(pairs * value, pairs, confidence=confidence)
        return AucInterval(value, low, high, f"exact on pairs {format_percent(confidence)}")
    limits = _limits_if_few_differ(ranks, placements, confidence)
    if limits is not None:
        return AucInterval(value, *limits, f"{FEW_DIFFER} {format_percent(confidence)}")
    low, high = logit_limits(value, variance, -sp.special.ndtri((1 - confidence) / 2))
    return AucInterval(value, low, high, f"DeLong {format_percent(confidence)}")


def logit_limits(value: float, variance: float, quantile: float) -> ConfidenceLimits:
    """Return the limits of an AUC with this variance that are symmetric on the logit scale."""
    half_width = quantile * np.sqrt(variance) / (value * (1 - value))
    center = sp.special.logit(value)
    low, high = sp.special.expit(center - half_width), sp.special.expit(center + half_width)
    return ConfidenceLimits(float(low), float(high))


def _limits_if_few_differ(
    ranks: SplitScores, placements: Placements, confidence: float
) -> ConfidenceLimits | None:
    """Return limits if nearly all members or nearly all non-members have equal scores, or None."""
    at_modes = [group == most_frequent(group) for group in ranks]
    few_differ = [has_few_differing(at_mode) for at_mode in at_modes]
    if not any(few_differ):
        return None
    quantile = -float(sp.special.ndtri((1 - confidence) / 2))
    distances = []  # of the lower and the upper limit from the AUC, due to each group
    for group, at_mode, is_few in zip(placements, at_modes, few_differ, strict=True):
        if is_few:
            distances.append(
                _contributions_at_equal_weight(group, at_mode).limit_distances(confidence)
            )
        else:
            variance = float(group.var(ddof=1)) / len(group)
            distances.append(normal_distances(variance, quantile))
    return limits_from_distances(placements.auc, distances)


def _contributions_at_equal_weight(
    placements: Float[np.ndarray, " samples"],
    at_mode: Bool[np.ndarray, " samples"],
    person: Int[np.ndarray, " samples"] | None = None,
) -> GroupContributions:
    """Return how far members (or non-members) move the AUC from that of the most frequent score.

    All samples have the same weight. The placement of a sample with the most frequent score is the
    reference, so that only samples with other scores contribute.
    """
    ones = np.ones(len(placements))
    return contributions_of(ones / len(ones), placements, placements[at_mode][0] * ones, person)


def clustered_auc(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    cluster: Int[np.ndarray, " samples"],
    *,
    confidence: float = 0.95,
) -> AucInterval:
    """Compute the AUC of single samples, with an interval for which people are independent.

    Samples of one person may depend on each other in any way. If almost no pair (or almost every
    pair) is misordered, the interval is the exact binomial interval for disjoint pairs of people.
    Their number is the smaller of the numbers of people with members and of people with
    non-members. If the members (or non-members) of nearly all people have equal scores, their
    contribution is computed as in :func:`auc_interval`.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        cluster: Number of the person that each sample belongs to. A person may have both members
            and non-members.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> from fedaudit.metrics import clustered_auc
        >>> import numpy as np
        >>> scores, is_member = np.arange(8), np.arange(8) >= 4
        >>> interval = clustered_auc(scores, is_member, np.array([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> interval.value, round(interval.low, 3)
        (1.0, 0.158)

    Source: Obuchowski 1997, Nonparametric analysis of clustered ROC curve data (its variance).
    Differs: The interval is computed on the logit scale, as in :func:`auc_interval`, with
        Student's t. Its degrees of freedom follow from the smaller of the numbers of people with
        members and of people with non-members.
    """
    require_confidence(confidence)
    truth = as_membership(is_member, len(as_scores(scores)))
    ranks = rank_scores(split_scores(scores, truth))
    placements = placements_of(ranks)
    people, person = np.unique(cluster, return_inverse=True)
    value, n_people = placements.auc, len(people)
    # Entry 0 of each pair is for members, entry 1 for non-members.
    person_of = (person[truth], person[~truth])
    people_per_group = [len(np.unique(group)) for group in person_of]
    # The sum of the centred placements of each person's samples.
    sums = [
        np.bincount(person_of_sample, group - value, n_people) / len(group)
        for person_of_sample, group in zip(person_of, placements, strict=True)
    ]
    variances = [
        float(group @ group) * n / max(1, n - 1)
        for group, n in zip(sums, people_per_group, strict=True)
    ]
    fewer_people, variance = min(people_per_group), 0.0
    if fewer_people >= 2:
        # The covariance is nonzero for people with both members and non-members.
        covariance = float(sums[0] @ sums[1]) * n_people / (n_people - 1)
        variance = variances[0] + variances[1] + covariance + covariance
    if variance <= 0 or fewer_people * min(value, 1 - value) < FEWEST_DISORDERED:
        low, high = clopper_pearson(fewer_people * value, fewer_people, confidence=confidence)
        return AucInterval(
            value, low, high, f"exact on pairs of people {format_percent(confidence)}"
        )
    quantile = -float(sp.special.stdtrit(fewer_people - 1, (1 - confidence) / 2))
    distances, any_few = [], False
    for index, group in enumerate(placements):
        at_mode = ranks[index] == most_frequent(ranks[index])
        differing_people = person_of[index][~at_mode]
        if at_mode.any() and has_few_differing(
            ~np.isin(np.unique(person_of[index]), differing_people)
        ):
            contributions = _contributions_at_equal_weight(group, at_mode, person_of[index])
            distances.append(contributions.limit_distances(confidence))
            any_few = True
        else:
            distances.append(normal_distances(variances[index], quantile))
    if any_few:
        low, high = limits_from_distances(
            value, distances, independent=sum(people_per_group) == n_people
        )
        return AucInterval(
            value, low, high, f"{FEW_DIFFER} between people {format_percent(confidence)}"
        )
    low, high = logit_limits(value, variance, quantile)
    return AucInterval(value, low, high, f"DeLong by people {format_percent(confidence)}")


def compare_auc(
    scores: npt.ArrayLike,
    other_scores: npt.ArrayLike,
    *,
    is_member: npt.ArrayLike,
    confidence: float = 0.95,
) -> AucDifference:
    """Compare the AUCs of two attacks that score the same samples.

    Args:
        scores: The first attack's scores, one per sample.
        other_scores: The second attack's scores, for the same samples in the same order.
        is_member: Whether each sample is a member.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or there are no members or no non-members.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> rng, is_member = np.random.default_rng(0), np.arange(100) < 50
        >>> scores = rng.normal(is_member, 1)
        >>> difference = fa.metrics.compare_auc(scores, rng.normal(size=100), is_member=is_member)
        >>> round(difference.value, 3), round(difference.low, 3)
        (0.218, 0.079)

    Source: DeLong, DeLong and Clarke-Pearson 1988, the test for two correlated curves.
    Differs: If the variance is zero or one AUC is too extreme for DeLong's interval, the limits
        are differences of the limits of both AUCs. They are wider, and the p-value is 1.
    """
    each_confidence = 1 - (1 - confidence) / 2
    first_interval = auc_interval(scores, is_member, confidence=each_confidence)
    second_interval = auc_interval(other_scores, is_member, confidence=each_confidence)
    first = placements_of(rank_scores(split_scores(scores, is_member)))
    second = placements_of(rank_scores(split_scores(other_scores, is_member)))
    value = first.auc - second.auc
    variances = _covariance(first, first) + _covariance(second, second)
    variance = variances - 2 * _covariance(first, second)
    are_delong = all(
        interval.method.startswith("DeLong") for interval in (first_interval, second_interval)
    )
    # If both attacks rank the samples equally, the terms cancel up to rounding errors.
    if variance <= 1e-12 * variances or not are_delong:
        low = first_interval.low - second_interval.high
        high = first_interval.high - second_interval.low
        method = f"{SEPARATE} {format_percent(confidence)}"
        return AucDifference(value, low, high, method, p_value=1.0)
    standard_error = float(np.sqrt(variance))
    half_width = -float(sp.special.ndtri((1 - confidence) / 2)) * standard_error
    return AucDifference(
        value=value,
        low=max(-1.0, value - half_width),
        high=min(1.0, value + half_width),
        p_value=float(2 * sp.special.ndtr(-abs(value) / standard_error)),
        method=f"paired DeLong {format_percent(confidence)}",
    )


def placements_of(ranks: SplitScores) -> Placements:
    """Return the placements of samples from the midranks of their scores."""
    members, nonmembers = ranks
    return Placements(
        members=(members - ranks_within_group(members)) / len(nonmembers),
        nonmembers=1 - (nonmembers - ranks_within_group(nonmembers)) / len(members),
    )


def _covariance(first: Placements, second: Placements) -> float:
    """Return the covariance of two AUCs on the same samples."""
    # The variance of a single sample is undefined. Callers use an exact interval if it is 0.
    if min(len(first.members), len(first.nonmembers)) < 2:
        return 0.0
    total = 0.0
    for a, b in zip(first, second, strict=True):
        product = (a - a.mean()) @ (b - b.mean())
        total += float(product) / (len(a) - 1) / len(a)
    return total


_FEWEST_RUNS = 10
"""Fewest runs for a bootstrap over runs."""


def auc_over_runs(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    run: Int[np.ndarray, " samples"],
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 4000,
) -> IntervalEstimate[float | None]:
    """Compute the AUC over all pairs, with a percentile bootstrap that resamples runs.

    Samples of one run may depend on each other in any way; different runs are assumed to be
    independent. If every resample gives the same AUC, the limits are None.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        run: Number of the run that each sample belongs to.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        resamples: Number of resamples.

    Raises:
        BadInput: There are fewer than ten runs, a run has no members or no non-members, or the
            scores or membership are invalid, as in :func:`auc`.
    """
    require_confidence(confidence)
    values = as_scores(scores)
    truth = as_membership(is_member, len(values))
    runs, run_index = np.unique(run, return_inverse=True)
    n_runs = len(runs)
    members_in = np.bincount(run_index[truth], minlength=n_runs)
    nonmembers_in = np.bincount(run_index[~truth], minlength=n_runs)
    if n_runs < _FEWEST_RUNS or not (members_in.all() and nonmembers_in.all()):
        raise BadInput(
            f"an interval over runs needs at least {_FEWEST_RUNS} runs, each with members and "
            f"non-members, got {n_runs} runs"
        )
    # ordered[i, j] counts the pairs in which a member of run i scores above a non-member of run j;
    # ties count half. The AUC of a resample is then a bilinear form in the number of times that
    # each run is drawn.
    ordered = np.zeros((n_runs, n_runs))
    for i in range(n_runs):
        members = values[(run_index == i) & truth][:, None]
        for j in range(n_runs):
            nonmembers = values[(run_index == j) & ~truth]
            ordered[i, j] = (members > nonmembers).sum() + (members == nonmembers).sum() / 2
    draws = rng.multinomial(n_runs, np.full(n_runs, 1 / n_runs), size=resamples)
    pairs = (draws @ members_in) * (draws @ nonmembers_in)
    aucs = np.einsum("di,ij,dj->d", draws, ordered, draws) / pairs
    value = auc(values, truth)
    if np.ptp(aucs) < 1e-12:
        return IntervalEstimate(value, None, None, f"no spread over {n_runs} runs")
    tail = (1 - confidence) / 2
    low, high = np.quantile(aucs, [tail, 1 - tail])
    method = f"bootstrap over {n_runs} runs {format_percent(confidence)}"
    return IntervalEstimate(value, float(min(low, value)), float(max(high, value)), method)


class ThresholdRates(NamedTuple):
    """Rates at a threshold that was chosen on other runs.

    Attributes:
        true_positive: Fraction of members above the threshold.
        false_positive: Fraction of non-members above the threshold.
    """

    true_positive: Proportion
    false_positive: Proportion


def rates_at_calibrated_threshold(
    calibration: npt.ArrayLike, members: npt.ArrayLike, nonmembers: npt.ArrayLike, *, fpr: float
) -> ThresholdRates:
    """Compute the rates at a threshold that is chosen on non-members of other runs.

    The Clopper-Pearson limits are valid if each run has at most one member and one non-member.

    Args:
        calibration: Scores of non-members of other runs.
        members: Scores of members, larger for likelier members.
        nonmembers: Scores of non-members.
        fpr: Largest fraction of ``calibration`` above the threshold, in [0, 1).

    Raises:
        BadInput: One of the arrays is empty or contains NaNs, or ``fpr`` is out of range.
    """
    reference = as_scores(calibration)
    member_scores, nonmember_scores = as_scores(members), as_scores(nonmembers)
    sizes = [len(reference), len(member_scores), len(nonmember_scores)]
    if not (all(sizes) and 0 <= fpr < 1):
        raise BadInput(
            "a threshold needs calibration scores, scores of members and of non-members, and a "
            f"false-positive rate in [0, 1), got {sizes[0]}, {sizes[1]} and {sizes[2]} scores, and "
            f"a rate of {fpr}"
        )
    allowed = allowed_false_positives(fpr, len(reference))
    threshold = np.sort(reference)[len(reference) - 1 - allowed]
    # An infinite score is always flagged, even if the threshold is infinite as well.
    rates = [
        proportion(int(((scores > threshold) | (scores == np.inf)).sum()), len(scores))
        for scores in (member_scores, nonmember_scores)
    ]
    return ThresholdRates(*rates)
