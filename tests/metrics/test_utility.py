import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import accuracy, clopper_pearson, generalisation_gap, proportion


def test_accuracy_counts_right_predictions_with_their_exact_interval() -> None:
    result = accuracy(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2]))
    assert (result.value, result.hits, result.total) == (0.75, 3, 4)
    assert (result.low, result.high) == clopper_pearson(3, 4)


def test_the_gap_interval_covers_errors_of_both_accuracies() -> None:
    gap = generalisation_gap(proportion(95, 100), proportion(70, 100))
    assert gap.value == pytest.approx(0.25)
    train, test = (
        clopper_pearson(95, 100, confidence=0.975),
        clopper_pearson(70, 100, confidence=0.975),
    )
    assert (gap.low, gap.high) == pytest.approx((train.low - test.high, train.high - test.low))


def test_missing_predictions_are_refused() -> None:
    with pytest.raises(BadInput, match="got 1 and 2"):
        accuracy(np.array([0]), np.array([0, 1]))
    with pytest.raises(BadInput, match="total > 0"):
        accuracy(np.array([], dtype=int), np.array([], dtype=int))
