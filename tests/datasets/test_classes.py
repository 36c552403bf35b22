import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.datasets.dataset import select_classes
from tests.datasets.by_id import by_id

DATA = by_id(12, 6, classes=3)


def test_without_selected_classes_the_data_set_is_unchanged() -> None:
    assert select_classes(DATA, ()) is DATA


def test_kept_classes_are_numbered_in_the_order_given() -> None:
    selected = select_classes(DATA, (2, 0))
    assert selected.classes == 2
    assert selected.train.features[:, 0].tolist() == [0, 2, 3, 5, 6, 8, 9, 11]
    assert selected.train.labels.tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert selected.test.features[:, 0].tolist() == [12, 14, 15, 17]
    assert selected.test.ids.tolist() == [8, 9, 10, 11]


def test_class_numbers_may_start_after_those_of_another_data_set() -> None:
    selected = select_classes(DATA, (1,), first=10)
    assert selected.classes == 11
    assert set(selected.train.labels.tolist()) == {10}
    assert select_classes(DATA, (), first=3).train.labels.tolist() == [3, 4, 5] * 4


def test_groups_stay_with_their_samples() -> None:
    selected = select_classes(DATA, (1, 2))
    assert selected.group is not None
    features = torch.cat([selected.train.features, selected.test.features])[:, 0]
    assert selected.group.tolist() == (features.long() % 2).tolist()


@pytest.mark.parametrize("classes", [(0, 3), (-1, 0), (1, 1)])
def test_unknown_and_repeated_classes_are_refused(classes: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"whole numbers from 0 to 2, each once"):
        select_classes(DATA, classes)


def test_a_single_class_raises_unless_numbers_start_above_zero() -> None:
    with pytest.raises(BadInput, match=r"is \[1\]; give at least two classes"):
        select_classes(DATA, (1,))
    assert select_classes(DATA, (1,), first=3).classes == 4
