"""Assignment of classes to the members of a coalition."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.defenses.cofedmid.partition import (
    ClassGuided,
    assign_at_random,
    assign_with_bound,
    overlap_bound,
)
from fedaudit.fl.hooks import ClientContext


@pytest.mark.parametrize(
    ("classes", "members", "size", "bound"),
    [
        # 5 * (2 * 5 - 10) / (10 * 1) = 0: two halves can be disjoint.
        (10, 2, 5, 0),
        # 8 * (2 * 8 - 10) / (10 * 1) = 4.8
        (10, 2, 8, 5),
        # 20 * (2 * 20 - 100) / (100 * 1) = -12
        (100, 2, 20, 0),
        # 50 * (5 * 50 - 100) / (100 * 4) = 18.75
        (100, 5, 50, 19),
        # 10 * (2 * 10 - 10) / (10 * 1) = 10: all members have all classes.
        (10, 2, 10, 10),
        (10, 1, 4, 0),
    ],
)
def test_the_bound_on_common_classes_matches_hand_calculation(
    classes: int, members: int, size: int, bound: int
) -> None:
    assert overlap_bound(classes, members, size) == bound


@settings(max_examples=150)
@given(
    classes=st.integers(1, 40),
    members=st.integers(1, 8),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_sets_have_their_size_keep_their_bound_and_cover_all_they_can(
    classes: int, members: int, share: float, seed: int
) -> None:
    size = max(1, round(share * classes))
    rng = np.random.default_rng(seed)
    preferred = rng.permutation(classes) < min(classes, members * size)
    sets, bound = assign_with_bound(members, size, preferred=preferred, rng=rng)
    assert sets.shape == (members, classes)
    assert (sets.sum(1) == size).all()
    common = [int((a & b).sum()) for a, b in combinations(sets, 2)]
    assert max(common, default=0) <= bound
    assert bound >= overlap_bound(classes, members, size)
    covered = sets.any(0)
    assert covered.sum() == min(classes, members * size)
    if members * size < classes:
        assert (covered == preferred).all()


@pytest.mark.parametrize(("classes", "members", "size"), [(10, 2, 5), (10, 5, 2), (100, 2, 35)])
def test_sets_without_required_overlap_are_disjoint(classes: int, members: int, size: int) -> None:
    rng = np.random.default_rng(0)
    sets, bound = assign_with_bound(members, size, preferred=np.ones(classes, dtype=bool), rng=rng)
    assert bound == overlap_bound(classes, members, size) == 0
    assert int(sets.sum(0).max()) == 1


def test_two_sets_of_eight_of_ten_classes_share_six() -> None:
    rng = np.random.default_rng(0)
    sets, bound = assign_with_bound(2, 8, preferred=np.ones(10, dtype=bool), rng=rng)
    assert int((sets[0] & sets[1]).sum()) == bound == 6


def test_classes_are_used_about_equally_often() -> None:
    rng = np.random.default_rng(0)
    sets, _ = assign_with_bound(5, 50, preferred=np.ones(100, dtype=bool), rng=rng)
    # 250 assignments of 100 classes.
    assert set(sets.sum(0).tolist()) <= {1, 2, 3, 4}
    assert 2 <= np.median(sets.sum(0)) <= 3


def test_random_sets_have_their_size_and_overlap() -> None:
    rng = np.random.default_rng(0)
    drawn = [assign_at_random(2, 5, classes=10, rng=rng).sets for _ in range(50)]
    assert all((sets.sum(1) == 5).all() for sets in drawn)
    assert any(not sets.any(0).all() for sets in drawn)
    assert len({sets.tobytes() for sets in drawn}) > 40


def test_members_without_coordination_draw_independent_sets() -> None:
    def sets(*, independent: bool) -> list[list[np.ndarray]]:
        defense = ClassGuided(clients=(0, 1), m_max=5, m_min=5, independent=independent)
        visits = [
            [
                ClientContext(
                    round=r,
                    rounds=40,
                    client=c,
                    cohort=(0, 1),
                    weights={0: 0.5, 1: 0.5},
                    seed=3,
                )
                for c in (0, 1)
            ]
            for r in range(1, 41)
        ]
        return [
            [defense.assigned_classes(v, classes=10).numpy() for v in pair_of_contexts]
            for pair_of_contexts in visits
        ]

    def common(rounds: list[list[np.ndarray]]) -> float:
        return float(np.mean([(round_ & other).sum() for round_, other in rounds]))

    # Coordinated sets of five of ten classes are disjoint; independent ones share 2.5 on average.
    assert common(sets(independent=False)) == 0
    assert common(sets(independent=True)) == pytest.approx(2.5, abs=0.6)
    assert all(classes.sum() == 5 for pair in sets(independent=True) for classes in pair)
