import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.defenses.ldp import FixedPoint, pack_bits, unpack_bits

layouts = st.integers(2, 16).flatmap(
    lambda bits: st.builds(FixedPoint, st.just(bits), st.integers(0, bits - 1))
)
finite = st.floats(-100, 100, width=32)


def written(bits: Tensor) -> list[str]:
    return ["".join("01"[int(bit)] for bit in feature) for feature in bits]


def test_words_have_sign_integer_and_four_fraction_bits() -> None:
    features = torch.tensor([0.0, 1.0, -1.0, 2.5, 0.0625, -31.9375, 17.25])
    assert written(FixedPoint().encode(features)) == [
        "0000000000",
        "0000010000",
        "1000010000",
        "0000101000",
        "0000000001",
        "1111111111",
        "0100010100",
    ]


def test_encoding_rounds_half_to_even() -> None:
    features = torch.tensor([0.03, 0.04, 0.03125, 0.09375, -0.03])
    assert FixedPoint().numbers(FixedPoint().words(features)).tolist() == [
        0.0,
        0.0625,
        0.0,
        0.125,
        0.0,
    ]


def test_encoding_clips_each_feature_separately() -> None:
    features = torch.tensor([[31.96, 32.0, -1e9, 1.0]])
    point = FixedPoint()
    assert point.largest == 31.9375
    assert point.decode(point.encode(features)).tolist() == [[31.9375, 31.9375, -31.9375, 1.0]]


def test_two_bits_without_an_integer_part_are_a_sign_and_a_half() -> None:
    point = FixedPoint(bits=2, integer_bits=0)
    features = torch.tensor([0.2, 0.3, -0.4, 7.0])
    assert written(point.encode(features)) == ["00", "01", "11", "01"]
    assert point.decode(point.encode(features)).tolist() == [0.0, 0.5, -0.5, 0.5]


@given(point=layouts, features=st.lists(finite, min_size=1, max_size=8))
def test_decoding_gives_the_nearest_number_that_fits(
    point: FixedPoint, features: list[float]
) -> None:
    numbers = torch.tensor(features, dtype=torch.float64)
    back = point.decode(point.encode(numbers), torch.float64)
    within = numbers.clamp(-point.largest, point.largest)
    assert float((back - within).abs().max()) <= 0.5 / point.steps
    assert torch.equal(point.decode(point.encode(back), torch.float64), back)


@given(point=layouts, shape=st.sampled_from([(3,), (2, 3), (2, 1, 4)]))
def test_any_shape_is_encoded_feature_by_feature(point: FixedPoint, shape: tuple[int, ...]) -> None:
    features = 9 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    bits = point.encode(features)
    assert bits.shape == (*shape, point.bits)
    assert torch.equal(bits.flatten(0, -2), point.encode(features.flatten()))


@given(bits=st.integers(2, 16))
def test_every_word_is_decoded_and_encoded_back_except_minus_zero(bits: int) -> None:
    words = torch.arange(2**bits).to(torch.int16)
    point = FixedPoint(bits, integer_bits=bits // 2)
    assert torch.equal(pack_bits(unpack_bits(words, bits)), words)
    encoded_again = point.words(point.numbers(words))
    zero = words == torch.tensor(1 << (bits - 1)).to(torch.int16)
    assert torch.equal(encoded_again[~zero], words[~zero])
    assert encoded_again[zero].tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_encoding_supports_half_and_double_precision(dtype: torch.dtype) -> None:
    features = torch.tensor([1.0, -2.5, 300.0]).to(dtype)
    point = FixedPoint()
    expected = torch.tensor([1.0, -2.5, 31.9375]).to(dtype)  # bfloat16 has 32 for the last
    assert torch.equal(point.numbers(point.words(features), dtype), expected)


@pytest.mark.parametrize(
    ("bits", "integer_bits", "message"),
    [(1, 0, "from 2 to 16, got 1;"), (17, 5, "got 17"), (6, 6, "0 to 5, got 6")],
)
def test_invalid_layouts_raise(bits: int, integer_bits: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        FixedPoint(bits, integer_bits)
