from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import Samples
from fedaudit.datasets.arrays import Arrays, from_arrays, from_samples, stratified_split
from fedaudit.datasets.dataset import Dataset, number_samples, prepare_for_task

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
TEST = (np.ones((2, 2)), np.array([0, 1]))


def small() -> Dataset:
    return from_arrays("small", Arrays(X, Y, *TEST), standardise=False)


def test_ids_number_training_before_test_samples() -> None:
    dataset = small()
    assert dataset.train.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.test.ids.tolist() == [6, 7]
    assert dataset.classes == 3


def test_samples_are_found_by_id_in_the_order_asked_for() -> None:
    samples = small().samples(torch.tensor([7, 1, 6, 0]))
    assert samples.ids.tolist() == [7, 1, 6, 0]
    assert samples.labels.tolist() == [1, 1, 0, 0]
    assert samples.features[1].tolist() == [2, 3]


PART = number_samples(torch.zeros(2, 1), torch.tensor([0, 2]))
TWO = (torch.tensor([0, 1]), ("a", "b"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small().samples(torch.tensor([3, 8])), "run from 0 to 7, got 3 to 8"),
        (
            lambda: Dataset("d", small().train, small().test, 3, "", *TWO),
            "one code for each sample",
        ),
        (lambda: Dataset("d", PART, PART, 3, ""), "must count from 0"),
        (lambda: Dataset("d", PART, PART.take(slice(0)), 2, ""), "in 0 to 1, got 0 to 2"),
    ],
)
def test_ids_groups_and_labels_that_do_not_fit_are_refused(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        build()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (Arrays(X, Y[:5], *TEST), "one row of features per label"),
        (Arrays(X, Y, np.ones((2, 3)), TEST[1]), "give both parts the same shape"),
        (Arrays(np.where(X == 3, np.nan, X), Y, *TEST), "1 of 6 samples .* NaN or infinity"),
        (Arrays(np.where(X > 9, np.inf, X), Y, *TEST), "1 of 6 samples .* NaN or infinity"),
        (Arrays(X, Y.astype(float), *TEST), "whole number for each sample, got .* float64"),
        (Arrays(X, Y[:, None], *TEST), "whole number for each sample, got shape"),
        (Arrays(X, Y - 1, *TEST), "every class from 0 up"),
        (Arrays(X, Y + 1, *TEST), "set first_label"),
        (Arrays(X, Y * 2, *TEST), "3 classes between 0 and 4"),
        (Arrays(X, np.zeros(6, dtype=int), TEST[0], np.zeros(2, dtype=int)), "1 class"),
        (Arrays(X[:0], Y[:0], *TEST), "is empty"),
        (Arrays(X.astype(object), Y, *TEST), "have type object"),
        (Arrays(X, Y, TEST[0], np.array([0, 7])), "test label 7 does not occur"),
        (Arrays(np.zeros((6, 4, 4, 2), np.uint8), Y, np.zeros((2, 4, 4, 2), np.uint8), TEST[1]),
         "1 or 3 channels last"),
    ],
)  # fmt: skip
def test_unusable_arrays_are_refused_with_the_reason(arrays: Arrays, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prepare_for_task(from_arrays("bad", arrays), CLASSIFICATION)


def test_labels_may_start_at_one() -> None:
    dataset = from_arrays("letters", Arrays(X, Y + 1, TEST[0], TEST[1] + 1), first_label=1)
    assert dataset.train.labels.tolist() == Y.tolist()


def test_a_split_takes_the_same_share_of_every_class_and_loses_nothing() -> None:
    labels = np.repeat([0, 1, 2], [10, 20, 40])
    parts = stratified_split(labels, 0.2, rng=np.random.default_rng(0))
    assert np.bincount(labels[parts.test]).tolist() == [2, 4, 8]
    assert sorted([*parts.train, *parts.test]) == list(range(70))


def test_a_split_that_leaves_a_part_empty_is_refused() -> None:
    with pytest.raises(BadInput, match="leaves a part empty"):
        stratified_split(np.array([0, 1]), 0.1, rng=np.random.default_rng(0))


def test_groups_of_samples_take_the_place_of_classes() -> None:
    books = torch.arange(60) % 3
    dataset = from_samples(Samples(torch.randn(60, 4), torch.rand(60), labels=books))(seed=1)
    assert dataset.classes == 3
    assert sorted(dataset.test.labels.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    assert len(dataset.train) == 48
