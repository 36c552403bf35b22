"""Extraction of training metrics from client reports."""

import math

import pytest

from fedaudit.integrations.common import is_evaluation, training_metrics


@pytest.mark.parametrize(
    ("values", "metrics"),
    [
        ({"train_loss": 0.5}, {"loss": 0.5}),
        ({"train-loss": 0.5, "train-acc": 0.9}, {"loss": 0.5, "accuracy": 0.9}),
        ({"Train Loss": 0.5, "TRAIN_ACCURACY": 90}, {"loss": 0.5, "accuracy": 90.0}),
        ({"training_loss": 1, "training_accuracy": 1}, {"loss": 1.0, "accuracy": 1.0}),
        ({"loss": 2.0, "acc": 0.1}, {"loss": 2.0, "accuracy": 0.1}),
        ({"loss": 2.0, "train_loss": 0.5}, {"loss": 0.5}),
        ({"val_loss": 2.0, "test_accuracy": 0.1, "eval-loss": 1.0}, {}),
        ({"train_loss": 0.5, "val_accuracy": 0.9}, {"loss": 0.5}),
        ({"loss": math.nan, "accuracy": math.inf}, {}),
        ({"loss": "low", "accuracy": [0.5]}, {}),
        ({"loss": True, "accuracy": None}, {}),
        ({"loss": 10**400}, {}),
        ({"lossy": 1.0, "inaccuracy": 1.0, "num-examples": 10, "lr": 0.1}, {}),
        ({}, {}),
    ],
)
def test_metrics_of_training_are_read(values: dict[str, object], metrics: dict[str, float]) -> None:
    assert training_metrics(values) == metrics


def test_unprefixed_metrics_are_read_only_from_training() -> None:
    values = {"loss": 1.0, "accuracy": 0.5, "train_loss": 0.25}
    assert training_metrics(values, bare=False) == {"loss": 0.25}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_metrics", True),
        ("evaluate", True),
        ("evaluation-metrics", True),
        ("validation", True),
        ("test", True),
        ("Test Metrics", True),
        ("held_out", True),
        ("metrics", False),
        ("fitres.metrics", False),
        ("value", False),
        ("train", False),
        ("latest", False),
    ],
)
def test_records_of_an_evaluation_are_recognised_by_name(name: str, expected: bool) -> None:
    assert is_evaluation(name) == expected
