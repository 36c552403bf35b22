"""AUCs within clients or with matched label distributions.

Clients of a federation often have different label distributions. Members of one client and samples
of other clients then differ even without training. An AUC that compares them measures this
difference as well as memorisation. Two remedies exist: compare only pairs of the same client, or
match the label distributions of members and non-members. The AUC of a score that uses only labels
measures the remaining difference.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy as sp
from jaxtyping import Bool, Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import (
    FEWEST_DISORDERED,
    AucInterval,
    Placements,
    logit_limits,
    placements_of,
)
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    clopper_pearson,
    format_percent,
    require_confidence,
)
from fedaudit.metrics.roc import SplitScores, as_membership, as_scores, as_strata, rank_scores
from fedaudit.metrics.significance import (
    FEW_DIFFER,
    contributions_of,
    counted_above_chance,
    has_few_differing,
    limits_from_distances,
    most_frequent,
    normal_distances,
)

_SPLITS = 20
"""Number of random splits into halves over which the AUC of a label-based score is averaged. The
mean has a standard deviation of about 0.01 with 100 members and 100 non-members."""
_FEWEST_FOR_MODE = 3
"""Fewest members (or non-members) of a stratum whose own most frequent score is used. With fewer,
the most frequent score of the stratum's members and non-members together is used."""
_LARGEST_RATIO = 20
"""Largest ratio of non-members to members (or of members to non-members) that matching tries.
Larger ratios would narrow intervals by less than 3 %."""


def stratified_auc(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    strata: npt.ArrayLike,
    *,
    confidence: float = 0.95,
) -> AucInterval:
    """Compute the AUC over pairs of a member and a non-member of the same stratum.

    Every such pair has the same weight. Samples are assumed to be independent. The variance is that
    of the first-order (Hájek) projection around the common AUC, and includes differences between
    the AUCs of strata. For one large stratum, it equals DeLong's variance. With one pair per
    stratum, it is too large by up to a factor of two.

    Args:
        scores: One score per sample, larger for likelier members. Only their order within a
            stratum matters.
        is_member: Whether each sample is a member.
        strata: The stratum of each sample, such as the client that drew its membership.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, a score is NaN, or no stratum has both members and non-members.

    Examples:
        >>> from fedaudit.metrics import stratified_auc
        >>> clients = [0, 0, 1, 1]
        >>> interval = stratified_auc([0.3, 0.2, 0.9, 0.8], [True, False, True, False], clients)
        >>> interval.value, round(interval.low, 3)
        (1.0, 0.158)

    Source: van Elteren 1960 (comparison within strata); DeLong, DeLong and Clarke-Pearson 1988.
    Differs: Strata are weighted by their numbers of pairs. The interval is computed on the logit
        scale. If almost all pairs are ordered the same way, the interval is the exact binomial
        interval for disjoint pairs within strata. If nearly all members (or non-members) have the
        most frequent score of their stratum, their contribution to the width is an upper bound, as
        in :func:`fedaudit.metrics.auc_interval`.
    """
    require_confidence(confidence)
    parts = _by_stratum(as_scores(scores), is_member, strata)
    pairs = sum(len(members) * len(nonmembers) for members, nonmembers in parts)
    disjoint_pairs = sum(min(len(members), len(nonmembers)) for members, nonmembers in parts)
    placements = [placements_of(rank_scores(part)) for part in parts]
    ordered_pairs = sum(p.members.sum() * len(p.nonmembers) for p in placements)
    value = float(ordered_pairs / pairs)
    variance = sum(_variances(placements, value))
    if variance <= 0 or disjoint_pairs * min(value, 1 - value) < FEWEST_DISORDERED:
        low, high = clopper_pearson(disjoint_pairs * value, disjoint_pairs, confidence=confidence)
        return AucInterval(
            value, low, high, f"exact on pairs within strata {format_percent(confidence)}"
        )
    limits = _limits_if_few_differ(parts, placements, value, confidence)
    if limits is not None:
        return AucInterval(
            value, *limits, f"{FEW_DIFFER} within strata {format_percent(confidence)}"
        )
    low, high = logit_limits(value, variance, -sp.special.ndtri((1 - confidence) / 2))
    return AucInterval(value, low, high, f"DeLong within strata {format_percent(confidence)}")


def stratified_auc_p_value(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, strata: npt.ArrayLike
) -> float:
    """Compute the one-sided p-value of a test for "members score higher within their stratum".

    The test statistic is the sum of the Mann-Whitney statistics of all strata. Its null
    distribution is approximated as normal. The variance is exact under permutations within strata,
    and accounts for ties.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        strata: The stratum of each sample.

    Raises:
        BadInput: As in :func:`stratified_auc`.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> scores, is_member = np.arange(12), np.arange(12) % 2 == 1
        >>> round(fa.metrics.stratified_auc_p_value(scores, is_member, np.arange(12) // 4), 3)
        0.132

    Source: van Elteren 1960.
    Differs: Strata are weighted by their numbers of pairs, as in :func:`stratified_auc`. If few
        scores differ from the most frequent score of their stratum, an exact test compares only
        the numbers of members and non-members with such scores.
    """
    parts = _by_stratum(as_scores(scores), is_member, strata)
    counted_p_value = counted_above_chance(parts)
    if counted_p_value is not None:
        return counted_p_value
    surplus, variance = 0.0, 0.0
    for members, nonmembers in parts:
        ranks = sp.stats.rankdata(np.concatenate([members, nonmembers]))
        size, n_members = len(ranks), len(members)
        surplus += float(ranks[:n_members].sum()) - n_members * (size + 1) / 2
        variance += n_members * (size - n_members) / size * float(ranks.var(ddof=1))
    if variance <= 0:
        return 1.0
    # The value 0.5 is the continuity correction, half a rank, as for a single stratum.
    return float(sp.special.ndtr(-(surplus - 0.5) / np.sqrt(variance)))


def scale_within_strata(
    scores: Float[np.ndarray, " samples"], strata: npt.ArrayLike
) -> Float[np.ndarray, " samples"]:
    """Scale scores by the median and the median absolute deviation of their stratum.

    The scale does not depend on membership. If membership was drawn by a fair coin, members and
    non-members therefore remain exchangeable. The order within a stratum is preserved, and
    different scores remain different. Infinite scores remain infinite. If over half of a stratum's
    scores are equal, the median absolute deviation is 0. The standard deviation of the stratum's
    finite scores is then used instead.

    Args:
        scores: One score per sample.
        strata: The stratum of each sample.

    Examples:
        >>> import numpy as np
        >>> from fedaudit.metrics import scale_within_strata
        >>> scores = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
        >>> scale_within_strata(scores, [0, 0, 0, 1, 1, 1]).tolist()
        [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0]
    """
    result = np.array(scores, dtype=np.float64)
    labels = as_strata(strata, len(result))
    for stratum in np.unique(labels):
        in_stratum = labels == stratum
        values = result[in_stratum]
        finite = values[np.isfinite(values)]
        if not len(finite):
            continue
        median = np.median(finite)
        scale = np.median(np.abs(finite - median)) or finite.std() or 1.0
        with np.errstate(over="ignore"):
            scaled = (values - median) / scale
        result[in_stratum] = _restore_order(values, scaled)
    return result


def _restore_order(
    values: Float[np.ndarray, " samples"], scaled: Float[np.ndarray, " samples"]
) -> Float[np.ndarray, " samples"]:
    """Change scaled scores minimally so that their order is that of the original scores.

    Rounding can make different scores equal: 1e-20 - 0.5 and 1e-30 - 0.5 are both -0.5.
    """
    largest = np.finfo(np.float64).max / 2
    scaled = np.where(np.isfinite(values), np.clip(scaled, -largest, largest), scaled)
    if len(np.unique(scaled)) == len(np.unique(values)):
        return scaled
    order = np.argsort(values, kind="stable")
    for lower, upper in pairwise(order):
        if values[upper] == values[lower]:
            scaled[upper] = scaled[lower]
        elif scaled[upper] <= scaled[lower]:
            scaled[upper] = np.nextafter(scaled[lower], np.inf)
    return scaled


def label_matched_mask(
    labels: Int[np.ndarray, " samples"], is_member: npt.ArrayLike, *, rng: np.random.Generator
) -> Bool[np.ndarray, " samples"]:
    """Select members and non-members such that both have the same label distribution.

    The ratio of non-members to members is made equal in every class, so that labels alone cannot
    distinguish members. The function uses the ratio with the narrowest expected interval of the
    AUC, and removes excess samples at random.

    Args:
        labels: The class of each sample.
        is_member: Whether each sample is a member.
        rng: Generator that draws the samples to remove.

    Returns:
        A mask of the selected samples. It is False everywhere if no class has both members and
        non-members.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> labels = np.array([0, 0, 0, 1, 0, 1, 1, 1])
        >>> is_member = np.arange(8) < 4
        >>> rng = np.random.default_rng(0)
        >>> selected = fa.metrics.label_matched_mask(labels, is_member, rng=rng)
        >>> np.bincount(labels[selected & is_member]), np.bincount(labels[selected & ~is_member])
        (array([1, 1]), array([1, 1]))
    """
    truth = as_membership(is_member, len(labels))
    classes, class_index = np.unique(labels, return_inverse=True)
    members_in = np.bincount(class_index[truth], minlength=len(classes))
    nonmembers_in = np.bincount(class_index[~truth], minlength=len(classes))
    ratios = [
        *(1 / step for step in range(_LARGEST_RATIO, 1, -1)),
        *(float(step) for step in range(1, _LARGEST_RATIO + 1)),
    ]
    best_counts, largest_size = None, 0.0
    for ratio in ratios:
        members = np.minimum(members_in, np.floor(nonmembers_in / ratio)).astype(np.int64)
        # Round down to a number of members for which the number of non-members is whole.
        step = round(1 / ratio) if ratio < 1 else 1
        members = members // step * step
        total = float(members.sum())
        # With m members and r m non-members, the variance of an AUC is proportional to
        # (1 + 1 / r) / m. Its inverse is the effective sample size.
        effective_size = total * ratio / (1 + ratio)
        if effective_size > largest_size:
            nonmembers = np.rint(members * ratio).astype(np.int64)
            best_counts, largest_size = (members, nonmembers), effective_size
    mask = np.zeros(len(labels), dtype=bool)
    if best_counts is None:
        return mask
    for in_group, counts in zip((truth, ~truth), best_counts, strict=True):
        for index, count in enumerate(counts):
            candidates = np.flatnonzero(in_group & (class_index == index))
            mask[rng.permutation(candidates)[:count]] = True
    return mask


def labels_alone_auc(
    labels: Int[np.ndarray, " samples"],
    is_member: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    strata: npt.ArrayLike | None = None,
) -> float | None:
    """Estimate the AUC of the best score that depends only on labels.

    The score of a class is the log ratio of its frequencies among members and among non-members.
    Members and non-members are each split at random into two halves. Frequencies are estimated on
    one half, and the score is evaluated on the other half. The expected AUC is therefore 0.5 if
    labels are uninformative. The result is the mean over several splits.

    Args:
        labels: The class of each sample.
        is_member: Whether each sample is a member.
        rng: Generator that draws the halves.
        strata: The stratum of each sample. If given, frequencies are those of a class within a
            stratum, and only samples of the same stratum are compared.

    Returns:
        The AUC, at least 0.5, since an adversary would not use a worse score. None if there are
        fewer than two members or fewer than two non-members.

    Examples:
        >>> import fedaudit as fa
        >>> import numpy as np
        >>> labels, is_member = np.arange(40) // 20, np.arange(40) < 20
        >>> fa.metrics.labels_alone_auc(labels, is_member, rng=np.random.default_rng(0))
        1.0
    """
    truth = as_membership(is_member, len(labels))
    sample_strata = np.zeros(len(truth), dtype=int) if strata is None else np.asarray(strata)
    # A cell is a class within a stratum.
    cells, cell_of = np.unique(
        np.stack([sample_strata, labels], axis=1), axis=0, return_inverse=True
    )
    cell_of = cell_of.reshape(-1)
    member_cells, nonmember_cells = cell_of[truth], cell_of[~truth]
    if min(len(member_cells), len(nonmember_cells)) < 2:
        return None
    # Axes of counts: split, members or non-members, half, cell.
    counts = np.array(
        [
            [_count_halves(group, len(cells), rng) for group in (member_cells, nonmember_cells)]
            for _ in range(_SPLITS)
        ]
    )
    frequencies = (counts + 0.5) / (counts.sum(axis=3, keepdims=True) + 0.5 * len(cells))
    scores = np.log(frequencies[:, 0] / frequencies[:, 1])
    # The scores of one half are evaluated on the samples of the other half.
    evaluated = counts[:, :, ::-1]
    aucs = _aucs_of_cells(
        scores.reshape(-1, len(cells)),
        evaluated[:, 0].reshape(-1, len(cells)),
        evaluated[:, 1].reshape(-1, len(cells)),
        np.unique(cells[:, 0], return_inverse=True)[1],
    )
    return max(0.5, float(np.mean(aucs))) if len(aucs) else None


def _count_halves(
    cell_of: Int[np.ndarray, " samples"], cells: int, rng: np.random.Generator
) -> Int[np.ndarray, "halves cells"]:
    """Split samples into two random halves, and count the samples of each cell in each half."""
    shuffled, size = rng.permutation(cell_of), (len(cell_of) + 1) // 2
    halves = (shuffled[:size], shuffled[size:])
    return np.stack([np.bincount(half, minlength=cells) for half in halves])


def _aucs_of_cells(
    scores: Float[np.ndarray, "draws cells"],
    members: Int[np.ndarray, "draws cells"],
    nonmembers: Int[np.ndarray, "draws cells"],
    strata: Int[np.ndarray, " cells"],
) -> Float[np.ndarray, " with_pairs"]:
    """Compute the AUC of each draw over pairs within strata; leave out draws without such pairs.

    A cell is a class within a stratum. All samples of a cell have the same score, so counts per
    cell determine the AUC. All draws are computed in one pass over groups, each of which is one
    stratum in one draw.
    """
    draws = np.arange(len(scores)).repeat(len(strata))
    group = (np.arange(len(scores))[:, None] * (strata.max() + 1) + strata).ravel()
    order = np.lexsort((scores.ravel(), group))
    score, group = scores.ravel()[order], group[order]
    member_count, nonmember_count = members.ravel()[order], nonmembers.ravel()[order]
    starts_group = np.diff(group, prepend=-1) != 0
    # Cells of the same group with equal scores have the same level.
    level = np.cumsum(starts_group | (np.diff(score, prepend=np.nan) != 0)) - 1
    at_level = np.bincount(level, nonmember_count)
    below = (np.cumsum(at_level) - at_level)[level]
    # ``below`` also counts samples of earlier groups. They form no pairs with this group.
    ordered = member_count * (below - below[starts_group][group] + at_level[level] / 2)
    pairs = member_count * np.bincount(group, nonmember_count)[group]
    ordered_in_draw, pairs_in_draw = np.bincount(draws, ordered), np.bincount(draws, pairs)
    has_pairs = pairs_in_draw > 0
    return ordered_in_draw[has_pairs] / pairs_in_draw[has_pairs]


def _variances(placements: Sequence[Placements], value: float) -> tuple[float, float]:
    """Return the contributions of members and non-members to the variance of the AUC."""
    pairs = float(sum(len(p.members) * len(p.nonmembers) for p in placements))
    members = sum(((len(p.nonmembers) * (p.members - value)) ** 2).sum() for p in placements)
    nonmembers = sum(((len(p.members) * (p.nonmembers - value)) ** 2).sum() for p in placements)
    return members / pairs**2, nonmembers / pairs**2


def _limits_if_few_differ(
    parts: Sequence[SplitScores], placements: Sequence[Placements], value: float, confidence: float
) -> ConfidenceLimits | None:
    """Return limits if nearly all members (or non-members) have the mode of their stratum, or None.

    The mode is the most frequent score.
    """
    pairs = sum(len(members) * len(nonmembers) for members, nonmembers in parts)
    # In each of these, entry 0 is for members, entry 1 for non-members.
    weights: tuple[list[np.ndarray], ...] = ([], [])
    at_mode: tuple[list[np.ndarray], ...] = ([], [])
    mode_placements: tuple[list[np.ndarray], ...] = ([], [])
    for part in parts:
        pooled_mode = most_frequent(np.concatenate(part))
        for group, (scores, opposite) in enumerate((part, part[::-1])):
            # With one or two scores, a most frequent score is meaningless.
            mode = most_frequent(scores) if len(scores) >= _FEWEST_FOR_MODE else pooled_mode
            ordered = opposite < mode if group == 0 else opposite > mode
            placement = (ordered.sum() + (opposite == mode).sum() / 2) / len(opposite)
            weights[group].append(np.full(len(scores), len(opposite) / pairs))
            at_mode[group].append(scores == mode)
            mode_placements[group].append(np.full(len(scores), placement))
    few_differ = [has_few_differing(np.concatenate(group)) for group in at_mode]
    if not any(few_differ):
        return None
    quantile = -float(sp.special.ndtri((1 - confidence) / 2))
    distances = []
    for group, variance in enumerate(_variances(placements, value)):
        if few_differ[group]:
            contributions = contributions_of(
                np.concatenate(weights[group]),
                np.concatenate([stratum[group] for stratum in placements]),
                np.concatenate(mode_placements[group]),
            )
            distances.append(contributions.limit_distances(confidence))
        else:
            distances.append(normal_distances(variance, quantile))
    return limits_from_distances(value, distances)


def _by_stratum(
    scores: Float[np.ndarray, " samples"], is_member: npt.ArrayLike, strata: npt.ArrayLike
) -> list[SplitScores]:
    """Return the scores of the members and the non-members of each stratum that has both."""
    truth, labels = as_membership(is_member, len(scores)), as_strata(strata, len(scores))
    parts = []
    for stratum in np.unique(labels):
        in_stratum = labels == stratum
        members, nonmembers = scores[in_stratum & truth], scores[in_stratum & ~truth]
        if len(members) and len(nonmembers):
            parts.append(SplitScores(members, nonmembers))
    if not parts:
        raise BadInput(
            "no stratum has both members and non-members, so there are no pairs to compare; "
            "use coarser strata or none"
        )
    return parts
