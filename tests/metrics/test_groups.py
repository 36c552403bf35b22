from dataclasses import astuple

import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import (
    auc_by_group,
    auc_by_owner,
    auc_interval,
    fraction_of_nonmembers_below,
    most_exposed,
)


def test_auc_by_group_compares_within_each_class() -> None:
    scores = np.array([9.0, 8.0, 1.0, 2.0, 1.0, 2.0, 8.0, 9.0, 5.0])
    truth = np.array([1, 1, 0, 0, 1, 1, 0, 0, 1], dtype=bool)
    classes = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    perfect, inverted, lonely = auc_by_group(scores, truth, groups=classes)
    assert (perfect.group, perfect.value, perfect.high) == (0, 1, 1)
    assert (inverted.group, inverted.value, inverted.low) == (1, 0, 0)
    assert (lonely.group, lonely.n_members, lonely.n_nonmembers) == (2, 1, 0)
    assert (lonely.value, lonely.low, lonely.high, lonely.method) == (None, None, None, "")
    interval = auc_interval(scores[:4], truth[:4])
    assert (perfect.value, perfect.low, perfect.high, perfect.method) == astuple(interval)


def test_group_limits_state_their_method() -> None:
    scores = np.concatenate([np.arange(60.0), np.arange(60.0) + 0.5, [1.0, 2.0, 3.0, 4.0]])
    truth = np.concatenate([np.arange(120) >= 60, [True, True, False, False]])
    large, small = auc_by_group(scores, truth, groups=np.arange(124) // 120)
    (with_owner,) = auc_by_owner(scores[120:], truth[120:], owners=np.array([0, 0, 1, 1]))
    assert large.method == "DeLong 95%"
    assert small.method == with_owner.method == "exact on pairs 95%"


def test_auc_by_owner_compares_all_members_with_each_client() -> None:
    scores = np.array([5.0, 6.0, 1.0, 2.0, 8.0, 9.0, 7.0])
    truth = np.array([1, 1, 0, 0, 0, 0, 0], dtype=bool)
    owners = np.array([0, 0, 1, 1, 2, 2, -1])
    unseen, below, above = auc_by_owner(scores, truth, owners=owners)
    assert (unseen.group, unseen.value) == (-1, None)
    assert (below.group, below.value, below.n_members) == (1, 1, 2)
    assert (above.group, above.value) == (2, 0)


def test_groups_of_another_length_are_refused() -> None:
    with pytest.raises(BadInput, match="got 2 groups for 3 samples"):
        auc_by_group([1.0, 2.0, 3.0], [True, False, False], groups=np.array([0, 1]))


def test_a_member_is_exposed_by_the_share_of_nonmembers_strictly_below() -> None:
    scores, truth = [3.0, 1.0, 2.0, 2.0, 0.0, 5.0], [False, True, True, False, False, True]
    # Non-members 3, 2, 0; members 1, 2, 5.
    assert fraction_of_nonmembers_below(scores, truth).tolist() == pytest.approx([1 / 3, 1 / 3, 1])


def test_the_most_exposed_samples_are_sorted_by_share_and_score() -> None:
    scores, truth = (
        [3.0, 1.0, 2.0, 2.0, 0.0, 5.0, 9.0],
        [False, True, True, False, False, True, True],
    )
    exposed = most_exposed(scores, truth, top=3)
    assert [sample.position for sample in exposed] == [6, 5, 2]
    assert exposed[0].above_nonmembers == 1
    assert len(most_exposed(scores, truth)) == 4
