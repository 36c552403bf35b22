"""AUC with DeLong's interval: of one attack, of two attacks, and of clustered samples."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.family import METHOD as RARE
from fedaudit.metrics.family import (
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
from fedaudit.metrics.rate_limits import Share, share
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
"""Fewest misordered (or well-ordered) disjoint pairs for a normal approximation."""

SEPARATE = "separate intervals"
"""Method of a difference computed from the two AUCs' separate limits."""


@dataclass(frozen=True)
class AucInterval(IntervalEstimate[float]):
    """AUC with its confidence interval.

    The method is "DeLong 95%"; or "exact on pairs 95%" or "few scores differ 95%" if DeLong's
    interval would be too narrow.

    Examples:
        >>> import fedaudit as fa
        >>> fa.metrics.auc_interval([0.9, 0.4, 0.6, 0.1], [True, True, False, False]).value
        0.75
    """


@dataclass(frozen=True)
class AucDifference(IntervalEstimate[float]):
    """Difference of two attacks' AUCs on the same samples: the first minus the second.

    Attributes:
        p_value: Two-sided p-value of the null hypothesis of no difference.

    Examples:
        >>> from fedaudit.metrics import compare_auc
        >>> compare_auc([3, 1, 2, 0], [3, 2, 1, 0], is_member=[True, True, False, False]).value
        -0.25
    """

    p_value: float


class Placements(NamedTuple):
    """Share of non-members below each member, and of members above each non-member; ties half."""

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
    variance is near zero although a second sample would give another AUC. The interval is then the
    exact binomial one for disjoint member/non-member pairs, as many as the smaller side has. Under
    perfect separation it is a rigorous bound, since disjoint pairs are independent and all of them
    are ordered correctly.

    If nearly all scores of a side are equal, that side's variance is near zero as well. Its part
    of the interval is then a Stringer bound on the mean of a variable that is nearly always 0.

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
        and Zou and Donner 2008 if few scores of a side differ.
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
        return AucInterval(value, *rare, f"{RARE} {percent(confidence)}")
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
    """Return limits if nearly all scores of a side are equal, or None."""
    at_modes = [side == most_frequent(side) for side in ranks]
    rare = [is_rare(at_mode) for at_mode in at_modes]
    if not any(rare):
        return None
    quantile = -float(sp.special.ndtri((1 - confidence) / 2))
    reaches = [
        _side(placements, at_mode).reach(confidence)
        if few
        else normal_reach(float(placements.var(ddof=1)) / len(placements), quantile)
        for at_mode, placements, few in zip(at_modes, placed, rare, strict=True)
    ]
    return limits_of_sides(placed.auc, reaches)


def _side(
    placements: Float[np.ndarray, " samples"],
    at_mode: Bool[np.ndarray, " samples"],
    person: Int[np.ndarray, " samples"] | None = None,
) -> Side:
    """Return a side whose samples have equal weights."""
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

    Samples of one person may depend on each other in any way; people are taken as independent. If
    almost no pair (or almost every pair) is misordered, the interval is the exact binomial one for
    disjoint pairs of people, as many as the smaller side has people. If the scores of nearly all
    people of a side are equal, that side's part is computed as in :func:`auc_interval`.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        cluster: The person that each sample belongs to; a person may have samples on both sides.
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
        Student's t for the number of people on the smaller side.
    """
    require_confidence(confidence)
    truth = as_truth(is_member, len(as_scores(scores)))
    ranks = ranked(sides(scores, truth))
    placed = placements_of(ranks)
    people, place = np.unique(cluster, return_inverse=True)
    value, count = placed.auc, len(people)
    # For each side, the sum of the centred placements of each person's samples.
    members, others = (
        np.bincount(place[side], placements - value, count) / len(placements)
        for side, placements in zip((truth, ~truth), placed, strict=True)
    )
    on_side = [len(np.unique(place[side])) for side in (truth, ~truth)]
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
    owners = [place[side] for side in (truth, ~truth)]
    rare = [
        at_mode.any() and is_rare(~np.isin(np.unique(owner), owner[~at_mode]))
        for at_mode, owner in zip(at_modes, owners, strict=True)
    ]
    if any(rare):
        reaches = [
            _side(placements, at_mode, owner).reach(confidence)
            if few
            else normal_reach(spread, quantile)
            for placements, at_mode, owner, few, spread in zip(
                placed, at_modes, owners, rare, side_variances, strict=True
            )
        ]
        low, high = limits_of_sides(value, reaches, independent=sum(on_side) == count)
        return AucInterval(value, low, high, f"{RARE} between people {percent(confidence)}")
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
    half = 1 - (1 - confidence) / 2
    alone = [auc_interval(each, is_member, confidence=half) for each in (scores, other_scores)]
    first, second = (
        placements_of(ranked(sides(each, is_member))) for each in (scores, other_scores)
    )
    value = first.auc - second.auc
    variance = (
        _covariance(first, first) + _covariance(second, second) - 2 * _covariance(first, second)
    )
    # The three terms cancel for attacks that rank alike, up to rounding errors.
    negligible = 1e-12 * (_covariance(first, first) + _covariance(second, second))
    if variance <= negligible or not all(part.method.startswith("DeLong") for part in alone):
        low, high = alone[0].low - alone[1].high, alone[0].high - alone[1].low
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
    """Return the placements of scores that are given by their midranks."""
    members, nonmembers = ranks
    return Placements(
        members=(members - within_side(members)) / len(nonmembers),
        nonmembers=1 - (nonmembers - within_side(nonmembers)) / len(members),
    )


def _covariance(first: Placements, second: Placements) -> float:
    # The variance of a single sample is undefined; callers take 0 as "use an exact interval".
    if min(len(first.members), len(first.nonmembers)) < 2:
        return 0.0
    total = 0.0
    for a, b in zip(first, second, strict=True):
        product = (a - a.mean()) @ (b - b.mean())
        total += float(product) / (len(a) - 1) / len(a)
    return total


_FEWEST = 10


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

    Samples of one run may depend on each other in any way; runs are taken as independent. There
    are no limits if every resample of runs gives the same AUC.

    Args:
        scores: One score per sample, larger for likelier members; may be infinite.
        is_member: Whether each sample is a member.
        run: The run that each sample belongs to.
        rng: Draws the resamples.
        confidence: Two-sided confidence, in (0, 1).
        resamples: Number of resamples.

    Raises:
        BadInput: Fewer than ten runs, a run without samples of both sides, or as :func:`auc`.
    """
    require_confidence(confidence)
    values = as_scores(scores)
    truth = as_truth(is_member, len(values))
    runs, place = np.unique(run, return_inverse=True)
    count = len(runs)
    members, others = (np.bincount(place[side], minlength=count) for side in (truth, ~truth))
    if count < _FEWEST or not (members.all() and others.all()):
        raise BadInput(
            f"an interval over runs needs at least {_FEWEST} runs, each with samples of both "
            f"sides, got {count}"
        )
    # won[i, j] counts pairs in which a member of run i scores above a non-member of run j, ties
    # half: the AUC of a resample is then a bilinear form in the numbers of draws of each run.
    won = np.zeros((count, count))
    sides = [[values[(place == i) & side] for i in range(count)] for side in (truth, ~truth)]
    for i, ours in enumerate(sides[0]):
        for j, theirs in enumerate(sides[1]):
            above, same = ours[:, None] > theirs, ours[:, None] == theirs
            won[i, j] = above.sum() + same.sum() / 2
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    areas = np.einsum("di,ij,dj->d", drawn, won, drawn) / ((drawn @ members) * (drawn @ others))
    value = auc(values, truth)
    if np.ptp(areas) < 1e-12:
        return IntervalEstimate(value, None, None, f"no spread over {count} runs")
    tail = (1 - confidence) / 2
    low, high = np.quantile(areas, [tail, 1 - tail])
    method = f"bootstrap over {count} runs {percent(confidence)}"
    return IntervalEstimate(value, float(min(low, value)), float(max(high, value)), method)


class ThresholdRates(NamedTuple):
    """Rates of a threshold that was chosen on other runs.

    Attributes:
        true_positive: Share of members above the threshold.
        false_positive: Share of non-members above the threshold.
    """

    true_positive: Share
    false_positive: Share


def rates_at_calibrated_threshold(
    calibration: npt.ArrayLike, members: npt.ArrayLike, nonmembers: npt.ArrayLike, *, fpr: float
) -> ThresholdRates:
    """Compute the rates at a threshold that is chosen on non-members of other runs.

    The limits (Clopper-Pearson) are valid if each run has at most one member and one non-member.

    Args:
        calibration: Scores of non-members of other runs.
        members: Scores of members, larger for likelier members.
        nonmembers: Scores of non-members.
        fpr: Largest share of ``calibration`` above the threshold, in [0, 1).

    Raises:
        BadInput: A side is empty or holds NaNs, or ``fpr`` is out of range.
    """
    chosen_on, ours, theirs = (as_scores(side) for side in (calibration, members, nonmembers))
    if not (len(chosen_on) and len(ours) and len(theirs) and 0 <= fpr < 1):
        raise BadInput(
            "a threshold needs calibration scores, scores of members and of non-members, and a "
            f"false-positive rate in [0, 1), got {len(chosen_on)}, {len(ours)}, {len(theirs)} and "
            f"{fpr}"
        )
    threshold = np.sort(chosen_on)[
        len(chosen_on) - 1 - allowed_false_positives(fpr, len(chosen_on))
    ]
    # An infinite score is always flagged, even if the threshold is infinite as well.
    above = [(side > threshold) | (side == np.inf) for side in (ours, theirs)]
    return ThresholdRates(*(share(int(side.sum()), len(side)) for side in above))
