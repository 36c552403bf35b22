"""What the trained model is worth: accuracy and how far it drops on fresh samples."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fedaudit.errors import BadInput
from fedaudit.metrics.intervals import Interval, clopper_pearson
from fedaudit.metrics.rates import Share, share


class Gap(NamedTuple):
    """Accuracy on training samples minus accuracy on fresh ones.

    Attributes:
        value: The difference; what a loss-threshold attack lives on.
        low: Lower limit.
        high: Upper limit.
    """

    value: float
    low: float
    high: float


def accuracy(
    predicted: Int[np.ndarray, " samples"],
    labels: Int[np.ndarray, " labelled"],
    *,
    confidence: float = 0.95,
) -> Share:
    """Share of samples classified rightly, with its Clopper-Pearson interval.

    Args:
        predicted: Predicted class of each sample.
        labels: True class of each sample.
        confidence: Two-sided confidence, in (0, 1).

    Raises:
        BadInput: Lengths differ, or no samples.
    """
    if len(predicted) != len(labels):
        raise BadInput(
            f"every sample needs a prediction and a label, got {len(predicted)} and {len(labels)}"
        )
    right: Bool[np.ndarray, " samples"] = predicted == labels
    return share(int(right.sum()), len(right), confidence=confidence)


def generalisation_gap(train: Share, test: Share, *, confidence: float = 0.95) -> Gap:
    """How much better the model is on its training samples, with a conservative interval.

    The limits are differences of the two accuracies' exact limits, each with half of the
    error allowed.

    Args:
        train: Accuracy on training samples.
        test: Accuracy on fresh samples.
        confidence: Two-sided confidence, in (0, 1).
    """
    each = 1 - (1 - confidence) / 2
    limits: list[Interval] = [
        clopper_pearson(part.hits, part.total, confidence=each) for part in (train, test)
    ]
    return Gap(
        value=train.value - test.value,
        low=limits[0].low - limits[1].high,
        high=limits[0].high - limits[1].low,
    )
