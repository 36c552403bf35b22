"""AUC with DeLong's interval: for one attack, for two attacks, and for clustered samples."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.family import (
    FEW_DIFFER,
    Side,
    is_rare,
    limits_of_sides,
    most_frequent,
    normal_reach,
    side_of,
)
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    IntervalEstimate,
    clopper_pearson,
    percent,
    require_confidence,
)
from fedaudit.metrics.rate_limits import Proportion, share
from fedaudit.metrics.roc import (
    SplitScores,
    allowed_false_positives,
    as_scores,
    as_truth,
    auc,
    ranked,
    sides,
    within_side,
)

FEWEST_DISORDERED = 5.0
"""Smallest number of misordered disjoint pairs (or of correctly ordered ones, if these are fewer)
at which a normal approximation is used."""

SEPARATE = "separate intervals"
"""Name of the method for the difference of two AUCs that have separate limits."""


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
    exact binomial one for disjoint member/non-member pairs. Their number is the smaller of the
    numbers of members and non-members. Under perfect separation it is a rigorous bound, since
    disjoint pairs are independent and all of them are ordered correctly.

    If nearly all members (or all non-members) have equal scores, their contribution to the
    variance is near zero as well. It is then replaced by a Stringer bound on the mean of a variable
    that is nearly always 0.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

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
    return interval_of_ranks(ranked(sides(scores, is_member)), confidence)


def interval_of_ranks(ranks: SplitScores, confidence: float) -> AucInterval:
    """Compute :func:`auc_interval` of midranks among members and non-members, without sorting."""
    placed = placements_of(ranks)
    variance = _covariance(placed, placed)
    value, pairs = placed.auc, min(map(len, placed))
    if variance <= 0 or pairs * min(value, 1 - value) < FEWEST_DISORDERED:
        low, high = clopper_pearson(pairs * value, pairs, confidence=confidence)
        return AucInterval(value, low, high, f"exact on pairs {percent(confidence)}")
    rare = _few_differ(ranks, placed, confidence)
    if rare is not None:
        return AucInterval(value, *rare, f"{FEW_DIFFER} {percent(confidence)}")
    low, high = logit_limits(value, variance, -sp.special.ndtri((1 - confidence) / 2))
    return AucInterval(value, low, high, f"DeLong {percent(confidence)}")


def logit_limits(value: float, variance: float, quantile: float) -> ConfidenceLimits:
    """Return the limits of an AUC with this variance that are symmetric on the logit scale."""
    reach = quantile * np.sqrt(variance) / (value * (1 - value))
    low, high = (sp.special.expit(sp.special.logit(value) + side * reach) for side in (-1, 1))
    return ConfidenceLimits(float(low), float(high))


def _few_differ(
    ranks: SplitScores, placed: Placements, confidence: float
) -> ConfidenceLimits | None:
    """Return limits if nearly all members or nearly all non-members have equal scores, or None."""
    at_modes = [side == most_frequent(side) for side in ranks]
    few_differ = [is_rare(at_mode) for at_mode in at_modes]
    if not any(few_differ):
        return None
    quantile = -float(sp.special.ndtri((1 - confidence) / 2))
    reaches = [
        _side(placements, at_mode).reach(confidence)
        if is_few
        else normal_reach(float(placements.var(ddof=1)) / len(placements), quantile)
        for at_mode, placements, is_few in zip(at_modes, placed, few_differ, strict=True)
    ]
    return limits_of_sides(placed.auc, reaches)


def _side(
    placements: Float[np.ndarray, " samples"],
    at_mode: Bool[np.ndarray, " samples"],
    person: Int[np.ndarray, " samples"] | None = None,
) -> Side:
    """Return the contributions of members (or of non-members) whose samples have equal weights."""
    ones = np.ones(len(placements))
    return side_of(ones / len(ones), placements, placements[at_mode][0] * ones, person)


def clustered_auc(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    cluster: Int[np.ndarray, " samples"],
    *,
    confidence: float = 0.95,
) -> AucInterval:
    """Compute the AUC of single samples, with an interval whose independent units are people.

    Samples of one person may depend on each other in any way; different people are assumed to be
    independent. If almost no pair (or almost every pair) is misordered, the interval is the exact
    binomial one for disjoint pairs of people. Their number is the smaller of the numbers of people
    with members and of people with non-members. If the members (or non-members) of nearly all
    people have equal scores, their contribution is computed as in :func:`auc_interval`.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        cluster: Number of the person that each sample belongs to. A person may have both members
            and non-members.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> from fedaudit.metrics import clustered_auc
        >>> import numpy as np
        >>> scores, is_member = np.arange(8), np.arange(8) >= 4
        >>> interval = clustered_auc(scores, is_member, np.array([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> interval.value, round(interval.low, 3)
        (1.0, 0.158)

    Source: Obuchowski 1997, Nonparametric analysis of clustered ROC curve data (its variance).
    Differs: The interval is computed on the logit scale, as in :func:`auc_interval`, with
        Student's t for the smaller number of people, of those with members or with non-members.
    """
    require_confidence(confidence)
    truth = as_truth(is_member, len(as_scores(scores)))
    ranks = ranked(sides(scores, truth))
    placed = placements_of(ranks)
    people, person = np.unique(cluster, return_inverse=True)
    value, count = placed.auc, len(people)
    # For each side, the sum of the centred placements of each person's samples.
    members, others = (
        np.bincount(person[side], placements - value, count) / len(placements)
        for side, placements in zip((truth, ~truth), placed, strict=True)
    )
    on_side = [len(np.unique(person[side])) for side in (truth, ~truth)]
    fewest, variance = min(on_side), 0.0
    side_variances = [
        float(sums @ sums) * n / max(1, n - 1)
        for sums, n in zip((members, others), on_side, strict=True)
    ]
    if fewest >= 2:
        # The covariance of the two sides, for people with samples on both, counts twice.
        terms = ((members, members), (others, others), (members, others), (members, others))
        for (first, second), n in zip(terms, (*on_side, count, count), strict=True):
            variance += float(first @ second) * n / (n - 1)
    if variance <= 0 or fewest * min(value, 1 - value) < FEWEST_DISORDERED:
        low, high = clopper_pearson(fewest * value, fewest, confidence=confidence)
        return AucInterval(value, low, high, f"exact on pairs of people {percent(confidence)}")
    quantile = -float(sp.special.stdtrit(fewest - 1, (1 - confidence) / 2))
    at_modes = [side == most_frequent(side) for side in ranks]
    person_of = [person[side] for side in (truth, ~truth)]
    few_differ = [
        at_mode.any() and is_rare(~np.isin(np.unique(persons), persons[~at_mode]))
        for at_mode, persons in zip(at_modes, person_of, strict=True)
    ]
    if any(few_differ):
        reaches = [
            _side(placements, at_mode, persons).reach(confidence)
            if is_few
            else normal_reach(side_variance, quantile)
            for placements, at_mode, persons, is_few, side_variance in zip(
                placed, at_modes, person_of, few_differ, side_variances, strict=True
            )
        ]
        low, high = limits_of_sides(value, reaches, independent=sum(on_side) == count)
        return AucInterval(value, low, high, f"{FEW_DIFFER} between people {percent(confidence)}")
    low, high = logit_limits(value, variance, quantile)
    return AucInterval(value, low, high, f"DeLong by people {percent(confidence)}")


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
        BadInput: Lengths differ, a score is NaN, or a side is empty.

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
        are differences of the two AUCs' separate limits. They are wider, and the p-value is 1.
    """
    each_confidence = 1 - (1 - confidence) / 2
    separate = [
        auc_interval(each, is_member, confidence=each_confidence) for each in (scores, other_scores)
    ]
    first, second = (
        placements_of(ranked(sides(each, is_member))) for each in (scores, other_scores)
    )
    value = first.auc - second.auc
    variance = (
        _covariance(first, first) + _covariance(second, second) - 2 * _covariance(first, second)
    )
    # If both attacks rank the samples equally, the three terms cancel up to rounding errors.
    negligible = 1e-12 * (_covariance(first, first) + _covariance(second, second))
    if variance <= negligible or not all(each.method.startswith("DeLong") for each in separate):
        low, high = separate[0].low - separate[1].high, separate[0].high - separate[1].low
        method = f"{SEPARATE} {percent(confidence)}"
        return AucDifference(value, low, high, method, p_value=1.0)
    error = float(np.sqrt(variance))
    reach = -float(sp.special.ndtri((1 - confidence) / 2)) * error
    return AucDifference(
        value=value,
        low=max(-1.0, value - reach),
        high=min(1.0, value + reach),
        p_value=float(2 * sp.special.ndtr(-abs(value) / error)),
        method=f"paired DeLong {percent(confidence)}",
    )


def placements_of(ranks: SplitScores) -> Placements:
    """Return the placements of samples from the midranks of their scores."""
    members, nonmembers = ranks
    return Placements(
        members=(members - within_side(members)) / len(nonmembers),
        nonmembers=1 - (nonmembers - within_side(nonmembers)) / len(members),
    )


def _covariance(first: Placements, second: Placements) -> float:
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
    """Compute the AUC over all pairs, with a percentile bootstrap that resamples whole runs.

    Samples of one run may depend on each other in any way; different runs are assumed to be
    independent. If every resample of runs gives the same AUC, the limits are None.

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
    truth = as_truth(is_member, len(values))
    runs, run_index = np.unique(run, return_inverse=True)
    count = len(runs)
    members, others = (np.bincount(run_index[side], minlength=count) for side in (truth, ~truth))
    if count < _FEWEST_RUNS or not (members.all() and others.all()):
        raise BadInput(
            f"an interval over runs needs at least {_FEWEST_RUNS} runs, each with members and "
            f"non-members, got {count} runs"
        )
    # ordered[i, j] counts the pairs in which a member of run i scores above a non-member of run j;
    # ties count half. The AUC of a resample is then a bilinear form in the number of times that
    # each run is drawn.
    ordered = np.zeros((count, count))
    sides = [[values[(run_index == i) & side] for i in range(count)] for side in (truth, ~truth)]
    for i, of_members in enumerate(sides[0]):
        for j, of_others in enumerate(sides[1]):
            above, tied = of_members[:, None] > of_others, of_members[:, None] == of_others
            ordered[i, j] = above.sum() + tied.sum() / 2
    draws = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    pairs = (draws @ members) * (draws @ others)
    aucs = np.einsum("di,ij,dj->d", draws, ordered, draws) / pairs
    value = auc(values, truth)
    if np.ptp(aucs) < 1e-12:
        return IntervalEstimate(value, None, None, f"no spread over {count} runs")
    tail = (1 - confidence) / 2
    low, high = np.quantile(aucs, [tail, 1 - tail])
    method = f"bootstrap over {count} runs {percent(confidence)}"
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
    reference, of_members, of_others = map(as_scores, (calibration, members, nonmembers))
    if not (len(reference) and len(of_members) and len(of_others) and 0 <= fpr < 1):
        raise BadInput(
            "a threshold needs calibration scores, scores of members and of non-members, and a "
            f"false-positive rate in [0, 1), got {len(reference)}, {len(of_members)} and "
            f"{len(of_others)} scores, and a rate of {fpr}"
        )
    allowed = allowed_false_positives(fpr, len(reference))
    threshold = np.sort(reference)[len(reference) - 1 - allowed]
    # An infinite score is always flagged, even if the threshold is infinite as well.
    above = [(side > threshold) | (side == np.inf) for side in (of_members, of_others)]
    return ThresholdRates(*(share(int(side.sum()), len(side)) for side in above))
