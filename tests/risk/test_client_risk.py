from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.risk.catalog import best_loss_threshold, client_risk

LOSSES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=12)


def exactly(losses: list[float]) -> torch.Tensor:
    return torch.tensor(losses, dtype=torch.float64)


def brute(trained: list[float], held_out: list[float], threshold: float) -> float:
    hits = sum(loss <= threshold for loss in trained) / len(trained)
    return (hits + sum(loss > threshold for loss in held_out) / len(held_out)) / 2


@given(trained=LOSSES, held_out=LOSSES)
def test_the_threshold_is_the_lowest_of_the_best(
    trained: list[float], held_out: list[float]
) -> None:
    threshold = best_loss_threshold(exactly(trained), exactly(held_out))
    right = {level: brute(trained, held_out, level) for level in [-inf, *trained, *held_out]}
    best = max(right.values())
    assert right[threshold] == pytest.approx(best)
    assert threshold == min(level for level, share in right.items() if share > best - 1e-12)


@given(trained=LOSSES, held_out=LOSSES, threshold=st.sampled_from([-inf, 0.0, 0.2, 0.5, inf]))
def test_the_risk_is_the_balanced_accuracy_of_the_threshold(
    trained: list[float], held_out: list[float], threshold: float
) -> None:
    estimate = client_risk(exactly(trained), exactly(held_out), threshold)
    assert estimate == pytest.approx(brute(trained, held_out, threshold))


def test_the_client_threshold_matches_hand_calculation() -> None:
    trained, held_out = (
        torch.tensor([0.1, 0.2, 0.9]).double(),
        torch.tensor([0.2, 0.8, 1.5]).double(),
    )
    # Two of three members and one of three others are at most 0.2.
    assert best_loss_threshold(trained, held_out) == pytest.approx(0.1)
    assert client_risk(trained, held_out, 0.15) == pytest.approx((1 / 3 + 1) / 2)
    assert client_risk(trained, held_out, 0.25) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_float32_losses_are_compared_with_the_threshold_exactly() -> None:
    trained, held_out = torch.tensor([0.1]), torch.tensor([0.7])
    assert client_risk(trained, held_out, best_loss_threshold(trained, held_out)) == 1.0


def test_a_client_without_leak_measures_no_risk() -> None:
    nothing = best_loss_threshold(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))
    assert nothing == -inf
    assert client_risk(torch.tensor([0.0]), torch.tensor([9.0]), nothing) == 0.5


@pytest.mark.parametrize("held_out", [[], [float("nan")]])
def test_a_client_without_losses_of_samples_held_out_is_refused(held_out: list[float]) -> None:
    with pytest.raises(BadInput, match="pass members and non-members"):
        best_loss_threshold(exactly([0.1]), exactly(held_out))
    with pytest.raises(BadInput, match="pass members and non-members"):
        client_risk(exactly([0.1]), exactly(held_out), 0.5)
