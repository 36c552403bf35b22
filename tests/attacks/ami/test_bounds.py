"""Bounds on the values of a neuron over a box of samples."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.attacks.ami.plant import Neurons, range_over_box
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded


def random_neurons(seed: int, features: int = 3, hidden: int = 4, neurons: int = 2) -> Neurons:
    rng = seeded(seed, "neurons")
    return Neurons(
        torch.randn(neurons, hidden, features, generator=rng),
        torch.randn(neurons, hidden, generator=rng),
        torch.randn(neurons, hidden, generator=rng),
        torch.randn(neurons, generator=rng),
    )


@given(st.integers(0, 10**6), st.floats(0, 5))
def test_values_lie_in_their_range(seed: int, half: float) -> None:
    neurons = random_neurons(seed)
    rng = seeded(seed, "records")
    inside = (torch.rand(2, 200, 3, generator=rng) * 2 - 1) * half
    corners = torch.tensor(list(product((-half, half), repeat=3)), dtype=torch.float32)
    values = neurons.values(torch.cat([inside, corners.expand(2, -1, -1)], dim=1)).double()
    interval = range_over_box(neurons, torch.tensor(-half), torch.tensor(half))
    assert bool((values >= interval.least[:, None] - 1e-4).all())
    assert bool((values <= interval.most[:, None] + 1e-4).all())


def test_the_range_over_a_box_is_exact_for_one_unit() -> None:
    # v = 2 ReLU(x - 1) - 3 has the range -3 to 3 over x in [-1, 4].
    neuron = Neurons(
        torch.ones(1, 1, 1), torch.tensor([[-1.0]]), torch.tensor([[2.0]]), torch.tensor([-3.0])
    )
    interval = range_over_box(neuron, torch.tensor([-1.0]), torch.tensor([4.0]))
    assert (interval.least.tolist(), interval.most.tolist(), interval.width.tolist()) == (
        [-3.0],
        [3.0],
        [6.0],
    )


def test_the_range_over_a_single_point_has_width_zero() -> None:
    neurons, point = random_neurons(4), torch.tensor([0.5, -1.0, 2.0])
    interval = range_over_box(neurons, point, point)
    values = neurons.values(point.expand(2, 1, 3))[:, 0].double()
    torch.testing.assert_close(interval.least, values, rtol=1e-5, atol=1e-5)
    assert interval.width.abs().max() < 1e-12


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_invalid_boxes_raise(low: float, high: float) -> None:
    with pytest.raises(BadInput, match="must be finite"):
        range_over_box(random_neurons(1), torch.tensor(low), torch.tensor(high))
