import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.values import Samples
from fedaudit.defenses.sampling import DataSampling
from fedaudit.fl.hooks import UNDEFENDED
from tests.defenses.turns import context


def samples(count: int) -> Samples:
    return Samples(
        torch.arange(count).float()[:, None],
        torch.zeros(count, dtype=torch.int64),
        torch.arange(count),
    )


def epoch(
    defense: DataSampling, count: int, batch_size: int, *, epochs: int = 1
) -> list[list[int]]:
    """Return the ids in each batch of the last epoch."""
    training_context = context()
    chosen = defense.select(samples(count), training_context)
    for _ in range(epochs):
        batches = [
            batch.ids.tolist() for batch in defense.batches(chosen, batch_size, training_context)
        ]
    return batches


def test_a_share_of_the_samples_is_used_with_a_smaller_last_batch() -> None:
    batches = epoch(DataSampling(0.5), 20, 4)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert len({id for batch in batches for id in batch}) == 10


@given(share=st.floats(0.01, 1), count=st.integers(1, 40), batch_size=st.integers(1, 50))
def test_exactly_the_share_is_used_once_each(share: float, count: int, batch_size: int) -> None:
    for every in ("epoch", "round"):
        batches = epoch(DataSampling(share, every=every), count, batch_size)
        ids = [id for batch in batches for id in batch]
        assert len(ids) == len(set(ids)) == max(1, round(share * count))
        assert all(batches)


def test_a_share_of_less_than_one_sample_is_one() -> None:
    assert sum(map(len, epoch(DataSampling(0.01), 20, 4))) == 1


def test_the_sampled_share_is_drawn_per_epoch_or_round() -> None:
    used = {
        every: [
            {id for batch in epoch(DataSampling(0.5, every=every), 40, 8, epochs=e) for id in batch}
            for e in (1, 2)
        ]
        for every in ("epoch", "round")
    }
    assert used["epoch"][0] != used["epoch"][1]
    assert used["round"][0] == used["round"][1]


def test_every_sample_is_used_eventually() -> None:
    training_context, seen = context(), set()
    for _ in range(30):
        for batch in DataSampling(0.3).batches(samples(20), 4, training_context):
            seen |= set(batch.ids.tolist())
    assert seen == set(range(20))


@pytest.mark.parametrize("every", ["epoch", "round"])
def test_a_share_of_1_draws_the_undefended_batches(every: str) -> None:
    plain = [batch.ids.tolist() for batch in UNDEFENDED.batches(samples(9), 4, context())]
    assert epoch(DataSampling(1.0, every=every), 9, 4) == plain  # type: ignore[arg-type]


def test_data_sampling_acts_in_one_hook_only() -> None:
    hooks = ("prepare", "select", "batches", "batch", "loss", "gradient", "upload")
    acting = [
        [hook for hook in hooks if defense.acts_in(hook)]
        for defense in (DataSampling(0.5), DataSampling(0.5, every="round"), DataSampling(1.0))
    ]
    assert acting == [["batches"], ["select"], []]
