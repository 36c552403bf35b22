"""Number of classes that clients train on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.defenses.cofedmid.partition import DECAYS, largest_size, size_in_round, smallest_size


@pytest.mark.parametrize(
    ("decay", "sizes"),
    [
        # 10, 8, 6, 4, 2
        ("linear", [10, 8, 6, 4, 2]),
        # 2 + 8 * (1, .854, .5, .146, 0)
        ("cosine", [10, 9, 6, 3, 2]),
        # 10 * 5 ** -(0, 1/4, 1/2, 3/4, 1) = 10, 6.69, 4.47, 2.99, 2
        ("exponential", [10, 7, 4, 3, 2]),
        # 2 + 8 * (1, .5625, .25, .0625, 0) = 10, 6.5, 4, 2.5, 2
        ("polynomial", [10, 7, 4, 3, 2]),
    ],
)
def test_sizes_fall_from_ten_to_two_in_five_rounds(decay: str, sizes: list[int]) -> None:
    assert [size_in_round(t, 5, largest=10, smallest=2, decay=decay) for t in range(1, 6)] == sizes


def test_sizes_on_cifar100_round_the_papers_formula() -> None:
    sizes = [
        size_in_round(t, 100, largest=50, smallest=20, decay="linear") for t in (1, 2, 3, 51, 100)
    ]
    # 50 - 30 (t - 1) / 99 = 50, 49.70, 49.39, 34.85, 20
    assert sizes == [50, 50, 49, 35, 20]


@given(
    decay=st.sampled_from(sorted(DECAYS)),
    least=st.integers(1, 30),
    extra=st.integers(0, 70),
    rounds=st.integers(1, 60),
)
def test_sizes_never_grow_and_end_at_the_least(
    decay: str, least: int, extra: int, rounds: int
) -> None:
    largest = least + extra
    sizes = [
        size_in_round(t, rounds, largest=largest, smallest=least, decay=decay)
        for t in range(1, rounds + 1)
    ]
    assert sizes[0] == largest
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= least
    if rounds > 1:
        assert sizes[-1] == least


@given(
    classes=st.integers(1, 120),
    members=st.integers(1, 12),
    rounds=st.integers(2, 40),
    decay=st.sampled_from(sorted(DECAYS)),
)
def test_the_class_count_is_the_smallest_with_full_mean_coverage(
    classes: int, members: int, rounds: int, decay: str
) -> None:
    least = smallest_size(classes, 0)

    def places(largest: int) -> int:
        every = range(1, rounds + 1)
        return members * sum(
            size_in_round(t, rounds, largest=largest, smallest=least, decay=decay) for t in every
        )

    largest = largest_size(classes, members, rounds, m_max=0, smallest=least, decay=decay)
    assert least <= largest <= classes
    assert places(largest) >= classes * rounds or largest == classes
    assert largest == least or places(largest - 1) < classes * rounds


def test_largest_size_by_number_of_members() -> None:
    # Two members need 5 classes each on average, between 8 and 2; five members need 2 each.
    assert largest_size(10, 2, 100, m_max=0, smallest=2, decay="linear") == 8
    assert largest_size(10, 5, 100, m_max=0, smallest=2, decay="linear") == 2


@pytest.mark.parametrize(("classes", "least"), [(10, 2), (100, 20), (200, 40), (3, 1)])
def test_the_smallest_size_is_a_fifth_of_the_classes_by_default(classes: int, least: int) -> None:
    assert smallest_size(classes, 0) == least
    assert smallest_size(classes, 1) == 1


def test_impossible_class_set_sizes_are_refused() -> None:
    with pytest.raises(BadInput, match="from 1 to 10"):
        smallest_size(10, 11)
    with pytest.raises(BadInput, match="m_max is a number of classes"):
        largest_size(10, 2, 5, m_max=11, smallest=2, decay="linear")
    with pytest.raises(BadInput, match="at least m_min"):
        largest_size(10, 2, 5, m_max=2, smallest=3, decay="linear")
    with pytest.raises(BadInput, match="did you mean 'linear'"):
        size_in_round(1, 2, largest=2, smallest=1, decay="linar")
