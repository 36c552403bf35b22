"""Risk by class or client, and the members most exposed."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.roc import as_scores, sides
from fedaudit.metrics.truth import as_truth


class GroupAuc(NamedTuple):
    """The AUC within one group.

    Attributes:
        group: The group's number (class index, client).
        value: The AUC; None where a side has fewer than two samples.
        low: Lower limit; None likewise.
        high: Upper limit; None likewise.
        n_members: Members in the group.
        n_nonmembers: Non-members in the group.
        method: How the limits were made; empty where there are none.
    """

    group: int
    value: float | None
    low: float | None
    high: float | None
    n_members: int
    n_nonmembers: int
    method: str = ""


class SingledOut(NamedTuple):
    """A member that an attack singles out.

    Attributes:
        position: Where the sample stands in the scores given.
        above_nonmembers: Share of non-members that it scores above.
    """

    position: int
    above_nonmembers: float


def auc_by_group(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    groups: Int[np.ndarray, " grouped"],
    confidence: float = 0.95,
) -> list[GroupAuc]:
    """Members against non-members of the same group, such as a class, for every group.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        groups: Each sample's group.
        confidence: Confidence of each interval, in (0, 1); not corrected for their number.

    Raises:
        BadInput: Lengths differ or a score is NaN.
    """
    values, truth = _grouped(scores, is_member, groups)
    return [
        _group(int(group), values[within], truth[within], confidence)
        for group in np.unique(groups)
        for within in [groups == group]
    ]


def auc_by_owner(
    scores: npt.ArrayLike,
    is_member: npt.ArrayLike,
    *,
    owners: Int[np.ndarray, " grouped"],
    confidence: float = 0.95,
) -> list[GroupAuc]:
    """All members against one other client's samples, for every owner of non-members.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        owners: The client that owns each sample; -1 for nobody.
        confidence: Confidence of each interval, in (0, 1); not corrected for their number.

    Raises:
        BadInput: Lengths differ or a score is NaN.
    """
    values, truth = _grouped(scores, is_member, owners)
    return [
        _group(int(owner), values[within], truth[within], confidence)
        for owner in np.unique(owners[~truth])
        for within in [truth | (owners == owner)]
    ]


def above_nonmembers(
    scores: npt.ArrayLike, is_member: npt.ArrayLike
) -> Float[np.ndarray, " members"]:
    """For each member, in order: the share of non-members that score strictly below it.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    members, nonmembers = sides(scores, is_member)
    return np.searchsorted(np.sort(nonmembers), members, side="left") / len(nonmembers)


def most_exposed(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, top: int = 20
) -> list[SingledOut]:
    """The members that stand out most among non-members, the most exposed first.

    Args:
        scores: One a sample, larger for likelier members.
        is_member: The truth, one a sample.
        top: How many at most.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.
    """
    shares = above_nonmembers(scores, is_member)
    positions = np.flatnonzero(as_truth(is_member, len(as_scores(scores))))
    # Equal shares are put in the order of the scores behind them.
    order = np.lexsort((-as_scores(scores)[positions], -shares))[: max(0, top)]
    return [SingledOut(int(positions[place]), float(shares[place])) for place in order]


def _group(
    group: int,
    scores: Float[np.ndarray, " samples"],
    truth: npt.NDArray[np.bool_],
    confidence: float,
) -> GroupAuc:
    members = int(truth.sum())
    nonmembers = len(truth) - members
    if min(members, nonmembers) < 2:
        return GroupAuc(group, None, None, None, members, nonmembers)
    value, low, high, method = auc_interval(scores, truth, confidence=confidence)
    return GroupAuc(group, value, low, high, members, nonmembers, method)


def _grouped(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, groups: Int[np.ndarray, " grouped"]
) -> tuple[Float[np.ndarray, " samples"], npt.NDArray[np.bool_]]:
    """Scores and the truth of as many samples as have a group."""
    values = as_scores(scores)
    truth = as_truth(is_member, len(values))
    if len(groups) != len(values):
        raise BadInput(
            f"every sample needs a group, got {len(groups)} groups for {len(values)} samples"
        )
    return values, truth
