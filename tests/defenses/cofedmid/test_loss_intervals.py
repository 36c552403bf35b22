"""Loss intervals of the compensation."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.defenses.cofedmid.compensation import interval_edges, interval_of, scale_losses


def test_losses_are_scaled_to_the_range_from_0_to_1() -> None:
    assert scale_losses(torch.tensor([3.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]
    assert scale_losses(torch.tensor([3.0, 3.0])).tolist() == [0.0, 0.0]


def test_edges_lie_at_the_ranks_of_the_paper() -> None:
    scaled = torch.tensor([0.9, 0.1, 0.0, 0.5, 0.3, 1.0, 0.7])
    # Seven samples in three intervals have the ranks 0-1, 2-3 and 4-6.
    edges = interval_edges(scaled, 3)
    assert torch.equal(edges, torch.tensor([0.3, 0.7]))
    assert interval_of(scaled, edges).tolist() == [2, 0, 0, 1, 1, 2, 2]


def test_the_last_interval_includes_its_upper_end() -> None:
    assert interval_of(torch.tensor([0.0, 1.0]), torch.tensor([0.2, 1.0])).tolist() == [0, 2]


@given(count=st.integers(1, 12), size=st.integers(1, 80), seed=st.integers(0, 99))
def test_loss_intervals_have_equally_many_samples(count: int, size: int, seed: int) -> None:
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    scaled = scale_losses(order.float())
    sizes = torch.bincount(interval_of(scaled, interval_edges(scaled, count)), minlength=count)
    assert len(sizes) == count
    if count <= size:
        assert int(sizes.max() - sizes.min()) <= 1
