"""Training loss and accuracy among the metrics that clients of any framework report."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import TypeGuard

_BARE = {
    "loss": ("loss",),
    "accuracy": ("accuracy", "acc"),
}
_OF_TRAINING = {
    "loss": ("train_loss", "training_loss", "loss_train"),
    "accuracy": (
        "train_accuracy",
        "train_acc",
        "training_accuracy",
        "training_acc",
        "accuracy_train",
        "acc_train",
    ),
}
_EVALUATION = re.compile(r"(^|[^a-z])(e?val|evaluat\w*|valid\w*|test\w*|held\w*)([^a-z]|$)")


def is_evaluation(name: str) -> bool:
    """Return True if a metric, or a record of metrics, is named after an evaluation."""
    return _EVALUATION.search(name.lower()) is not None


def training_metrics(values: Mapping[str, object], *, bare: bool = True) -> dict[str, float]:
    """Return "loss" and "accuracy" on training data, as far as the metrics hold them.

    Args:
        values: Metrics by name; a client chooses them, so they may be anything.
        bare: Whether "loss" and "accuracy" alone are taken to be on training data.

    Returns:
        Finite numbers only. Names that speak of training come before bare ones.
    """
    by_name = {_normalised(name): value for name, value in values.items() if _is_number(value)}
    metrics = dict[str, float]()
    for metric, names in _OF_TRAINING.items():
        for name in (*names, *(_BARE[metric] if bare else ())):
            if name in by_name:
                metrics[metric] = float(by_name[name])
                break
    return metrics


def _normalised(name: object) -> str:
    return re.sub(r"[^a-z]+", "_", str(name)[:200].lower()).strip("_")


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e15 and isfinite(value)
