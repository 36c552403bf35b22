"""Risk by class or client, and the members most exposed."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from fedaudit.core.errors import BadInput
from fedaudit.metrics.delong import auc_interval
from fedaudit.metrics.intervals import Limits
from fedaudit.metrics.roc import as_scores, sides
from fedaudit.metrics.truth import as_truth


@dataclass(frozen=True, kw_only=True)
class GroupAuc(Limits[float | None]):
    """AUC within one group, such as a class or a client.

    Attributes:
        group: The group's number (class index, client).
        value: The AUC; None, as its limits are, if a side has fewer than two samples.
        n_members: Members in the group.
        n_nonmembers: Non-members in the group.

    Examples:
        >>> auc_by_group([3, 1, 2, 0], [True, True, False, False], groups=np.zeros(4, int))[0].value
        0.75
    """

    group: int
    value: float | None
    n_members: int
    n_nonmembers: int


class SingledOut(NamedTuple):
    """Member that an attack singles out.

    Attributes:
        position: Index of the sample in the scores.
        above_nonmembers: Share of non-members that it scores above.

    Examples:
        >>> most_exposed([3, 1, 2, 0], [True, True, False, False], top=1)
        [SingledOut(position=0, above_nonmembers=1.0)]
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
    """Compute the AUC of members against non-members of the same group, for every group.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        groups: Each sample's group.
        confidence: Confidence of each interval, in (0, 1); not corrected for their number.

    Raises:
        BadInput: Lengths differ or a score is NaN.

    Examples:
        >>> scores, is_member = np.arange(8), np.arange(8) % 2 == 1
        >>> classes = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> [group.value for group in auc_by_group(scores, is_member, groups=classes)]
        [0.75, 0.75]
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
    """Compute the AUC of all members against the non-members of one owner, for every owner.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        owners: The client that owns each sample; -1 for samples of no client.
        confidence: Confidence of each interval, in (0, 1); not corrected for their number.

    Raises:
        BadInput: Lengths differ or a score is NaN.

    Examples:
        >>> scores, owners = [0.9, 0.8, 0.7, 0.6, 0.95, 0.5], np.array([0, 0, 1, 1, 2, 2])
        >>> clients = auc_by_owner(scores, owners == 0, owners=owners)
        >>> [(client.group, client.value) for client in clients]
        [(1, 1.0), (2, 0.5)]
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
    """Compute, for each member, the share of non-members that score strictly below it.

    The shares are in the order of the members.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> above_nonmembers([0.9, 0.4, 0.6, 0.1], [True, True, False, False]).tolist()
        [1.0, 0.5]
    """
    members, nonmembers = sides(scores, is_member)
    return np.searchsorted(np.sort(nonmembers), members, side="left") / len(nonmembers)


def most_exposed(
    scores: npt.ArrayLike, is_member: npt.ArrayLike, *, top: int = 20
) -> list[SingledOut]:
    """Return the members that score above most non-members, the most exposed first.

    Args:
        scores: One score per sample, larger for likelier members.
        is_member: Whether each sample is a member.
        top: Most members to return.

    Raises:
        BadInput: Lengths differ, a score is NaN, or a side is empty.

    Examples:
        >>> [member.position for member in most_exposed([3, 1, 2, 0], [True, True, False, False])]
        [0, 1]
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
    figure: dict[str, Any] = {"value": None, "low": None, "high": None}
    if min(members, nonmembers) >= 2:
        figure = asdict(auc_interval(scores, truth, confidence=confidence))
    return GroupAuc(group=group, n_members=members, n_nonmembers=nonmembers, **figure)


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
