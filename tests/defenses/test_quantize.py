import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.seeds import seeded
from fedaudit.defenses.quantize import GradientQuantization, floor_to_level, round_stochastically
from fedaudit.observe.round import Update
from tests.defenses.turns import context

bits_of = st.integers(1, 10)


def round_at_random(values: torch.Tensor, bits: int, seed: int = 0) -> torch.Tensor:
    return round_stochastically(values, bits, seeded(seed, "rounding"))


def random_values(size: int, seed: int, *, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return shift + scale * torch.randn(size, generator=seeded(seed, "values"))


def test_floor_rounding_matches_hand_calculation() -> None:
    # With 2 bits, the range 0 to 8 has the levels 0, 2, 4, 6 and 8.
    values = torch.tensor([[0.0, 1.9, 2.0], [3.9, 7.9, 8.0]])
    assert floor_to_level(values, 2).tolist() == [[0.0, 0.0, 2.0], [2.0, 6.0, 8.0]]
    assert floor_to_level(values - 4, 1).tolist() == [[-4.0, -4.0, -4.0], [-4.0, 0.0, 4.0]]


def test_stochastic_rounding_uses_the_adjacent_levels() -> None:
    # With 2 bits, the range 0 to 6 has the levels 0, 2, 4 and 6.
    values = torch.tensor([0.0, 2.0, 3.0, 4.5, 6.0])
    rounded = torch.stack([round_at_random(values, 2, seed) for seed in range(60)])
    levels = [sorted(set(column.tolist())) for column in rounded.T]
    assert levels == [[0.0], [2.0], [2.0, 4.0], [4.0, 6.0], [6.0]]


@given(bits=bits_of, seed=st.integers(0, 10**6), shift=st.sampled_from([0.0, 3.0, -50.0]))
def test_drawn_levels_have_the_entrys_mean(bits: int, seed: int, shift: float) -> None:
    value, draws = random_values(4, seed, shift=shift), 2_000
    many = value.repeat(draws, 1)
    mean = round_at_random(many, bits, seed).double().mean(0)
    step = float(value.max() - value.min()) / (2**bits - 1)
    # Hoeffding's bound with error 1e-9 for values within one step, and the rounding of entries.
    bound = step * (torch.log(torch.tensor(2e9)) / (2 * draws)).sqrt() + 1e-6 * (1 + abs(shift))
    assert float((mean - value.double()).abs().max()) <= bound


@given(bits=bits_of, seed=st.integers(0, 10**6))
def test_no_entry_moves_by_a_step_or_beyond_the_extremes(bits: int, seed: int) -> None:
    value = random_values(30, seed)
    spread = float(value.max() - value.min())
    for sent, step in (
        (round_at_random(value, bits, seed), spread / (2**bits - 1)),
        (floor_to_level(value, bits), spread / 2**bits),
    ):
        assert float((sent - value).abs().max()) <= step + 1e-6
        assert float(sent.min()) == float(value.min())
        assert float(sent.max()) == float(value.max())
        assert len(set(sent.tolist())) <= 2**bits + 1
    assert bool((floor_to_level(value, bits) <= value + 1e-6).all())


@given(
    bits=bits_of,
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-30, 1e-4, 1.0, 1e4]),
    shift=st.sampled_from([0.0, 1.0, -1e3]),
    floor=st.booleans(),
)
def test_quantisation_is_idempotent(
    bits: int, seed: int, scale: float, shift: float, floor: bool
) -> None:
    def moved(values: torch.Tensor, repeated: int) -> torch.Tensor:
        return (
            floor_to_level(values, bits)
            if floor
            else round_at_random(values, bits, seed + repeated)
        )

    once = moved(random_values(20, seed, scale=scale, shift=shift), 0)
    assert torch.equal(moved(once, 1), once)


@pytest.mark.parametrize("bits", [1, 10])
@pytest.mark.parametrize(
    "value",
    [
        torch.full((4,), 0.3),
        torch.zeros(2, 2),
        torch.zeros(0),
        torch.tensor(5.0),
        torch.full((2,), 1e-45),
    ],
    ids=["constant", "zeros", "empty", "scalar", "smallest number"],
)
def test_a_tensor_without_a_range_stays_as_it_is(value: torch.Tensor, bits: int) -> None:
    assert torch.equal(floor_to_level(value, bits), value)
    assert torch.equal(round_at_random(value, bits), value)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_each_tensor_keeps_its_precision(kind: torch.dtype) -> None:
    value = random_values(50, 0).to(kind)
    assert round_at_random(value, 3).dtype == floor_to_level(value, 3).dtype == kind


def test_each_tensor_is_quantised_within_its_range() -> None:
    upload = Update(
        {"w": torch.tensor([0.0, 1.0, 4.0]), "b": torch.tensor([10.0, 10.4, 11.0])},
        {"mean": torch.tensor([0.123])},
    )
    sent = GradientQuantization(1, rounding="floor").upload(upload, context())
    assert isinstance(sent, Update)
    assert sent.values["w"].tolist() == [0.0, 0.0, 4.0]
    assert sent.values["b"].tolist() == [10.0, 10.0, 11.0]
    assert torch.equal(sent.buffers["mean"], upload.buffers["mean"])


def test_stochastic_rounding_differs_between_rounds() -> None:
    upload = Update({"w": random_values(200, 0)})
    first, repeated, later = (
        GradientQuantization(1).upload(upload, training_context).values["w"]
        for training_context in (context(1), context(1), context(2))
    )
    assert torch.equal(first, repeated)
    assert not torch.equal(first, later)
