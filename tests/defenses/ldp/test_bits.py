from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp import pack_bits, unpack_bits
from fedaudit.defenses.ldp.bit_mechanisms import (
    BitFlips,
    exact_probabilities,
    flip_bits,
    flip_bits_with_shared_mask,
    random_words,
)

chances = st.floats(0, 1)
SOME = [0.0, 1.0, 0.5, 0.3, 1e-3, 1 - 1e-3, 2**-9, 0.7, 0.123, 0.996]
"""Flip probabilities, including limits of the method with coins."""


def flips(drops: list[list[float]], sets: list[list[float]] | None = None) -> BitFlips:
    def tensor(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return BitFlips(tensor(drops), tensor(drops if sets is None else sets))


def flip_counts(start: bool, bit_flips: BitFlips, samples: int, seed: int = 0) -> Tensor:
    """Return how often each bit of samples of ones (or zeros) is flipped."""
    bits = torch.full((1, *bit_flips.drops.shape), start)
    words = pack_bits(bits).expand(samples, -1)
    out = unpack_bits(flip_bits(words, bit_flips, seeded(seed, "bits")), bit_flips.bits)
    return (out != bits).sum(0)


def test_bits_flip_with_their_probability_in_both_directions() -> None:
    bit_flips = flips([SOME, SOME[::-1]], [SOME[3:] + SOME[:3], SOME])
    samples = 100_000
    for start, probabilities in ((True, bit_flips.drops), (False, bit_flips.sets)):
        counts = flip_counts(start, bit_flips, samples)
        for count, chance in zip(
            counts.flatten().tolist(), probabilities.flatten().tolist(), strict=True
        ):
            assert binomtest(count, samples, chance).pvalue > 1e-5, (start, chance)


def test_all_sixteen_bits_of_a_word_flip_with_their_probability() -> None:
    bit_flips = flips([[(place + 0.5) / 16 for place in range(16)]])
    for start in (True, False):
        counts = flip_counts(start, bit_flips, 50_000)[0].tolist()
        for count, chance in zip(counts, bit_flips.drops[0].tolist(), strict=True):
            assert binomtest(count, 50_000, chance).pvalue > 1e-5, (start, chance)


def test_flip_probabilities_of_one_in_a_million_are_realised() -> None:
    bit_flips = flips([[1e-6] * 10] * 50, [[1 - 1e-6] * 10] * 50)
    draws = 10_000 * 500
    assert 0 < int(flip_counts(True, bit_flips, 10_000).sum()) < 30
    assert 0 < draws - int(flip_counts(False, bit_flips, 10_000).sum()) < 30


def test_flip_probabilities_of_zero_and_one_are_exact() -> None:
    bit_flips = flips([[1.0, 0.0] * 4] * 30)
    assert flip_counts(True, bit_flips, 3_000).tolist() == [[3_000, 0] * 4] * 30


def test_bits_flip_independently_within_and_across_words() -> None:
    bit_flips = flips([[0.3] * 8] * 8)
    words = torch.zeros(4_000, 8, dtype=torch.int16)
    out = unpack_bits(flip_bits(words, bit_flips, seeded(1, "bits")), 8).flatten(1).double()
    spread = torch.corrcoef(torch.cat([out, out.roll(1, 0)], 1).T).fill_diagonal_(0)
    # The standard deviation of each correlation is 1 / sqrt(4,000).
    assert float(spread.abs().max()) < 5 / 4_000**0.5


def test_random_words_are_fair_in_every_bit_and_every_lane() -> None:
    words = random_words(400_000, seeded(0, "words")).view(-1, 4)
    share = unpack_bits(words, 16).double().mean(0)
    assert float((share - 0.5).abs().max()) < 5 * 0.5 / 100_000**0.5


@given(values=st.lists(chances, min_size=1, max_size=16))
def test_digits_and_remainder_sum_to_the_probability(values: list[float]) -> None:
    bit_flips = flips([values])
    words = torch.zeros(1, 1, dtype=torch.int16)
    digits = torch.cat(
        [unpack_bits(bit_flips.digit(k, words)[0], len(values)) for k in range(8)]
    ).double()
    positions = torch.arange(len(values))
    remainder = bit_flips.remainder(
        torch.zeros_like(positions), positions, torch.zeros(len(values), dtype=torch.bool)
    )
    total = (digits * 0.5 ** torch.arange(1, 9)[:, None]).sum(0) + remainder / 256
    assert torch.equal(total, bit_flips.sets[0])


@given(chance=chances)
def test_drawn_probabilities_are_exact_from_2_to_the_minus_8(chance: float) -> None:
    drawn = float(exact_probabilities(torch.tensor(chance, dtype=torch.float64)))
    assert drawn == chance if chance >= 2**-8 else 0 <= drawn - chance <= 2.0**-61
    assert (drawn == 0) == (chance == 0)


def probability(out: tuple[bool, ...], start: tuple[bool, ...], bit_flips: BitFlips) -> float:
    result = 1.0
    rows = zip(out, start, bit_flips.drops.flatten(), bit_flips.sets.flatten(), strict=True)
    for after, before, drop, set_ in rows:
        p_bit = float(1 - drop if before else set_)
        result *= p_bit if after else 1 - p_bit
    return result


def test_output_frequencies_are_products_of_bit_probabilities() -> None:
    bit_flips = flips([[0.1, 0.9], [0.3, 0.6]], [[0.2, 0.05], [0.9, 0.6]])
    every = list(product([False, True], repeat=4))
    for start in every[::3]:
        words = pack_bits(torch.tensor(start).view(1, 2, 2)).expand(40_000, -1)
        out = unpack_bits(flip_bits(words, bit_flips, seeded(0, "bits")), 2).flatten(1)
        frequencies = torch.bincount(pack_bits(out).long(), minlength=16).numpy()
        expected = [40_000 * probability(each, start, bit_flips) for each in every]
        assert chisquare(frequencies, expected).pvalue > 1e-4


@pytest.mark.parametrize(
    "bit_flips",
    [
        flips([[0.1, 0.3, 0.45], [0.2, 0.5, 0.01]]),
        flips([[0.1, 0.999], [0.3, 0.6]], [[0.2, 0.01], [0.9, 0.6]]),
        flips([[0.25], [0.5]], [[0.125], [0.5]]),
    ],
)
def test_actual_epsilon_is_the_largest_log_likelihood_ratio(
    bit_flips: BitFlips,
) -> None:
    every = list(product([False, True], repeat=bit_flips.drops.numel()))
    table = torch.tensor([[probability(out, start, bit_flips) for out in every] for start in every])
    logs = table.double().log()
    worst = float((logs[:, None] - logs[None]).abs().max())
    assert bit_flips.actual_epsilon == pytest.approx(worst, rel=1e-5)


def test_a_one_sided_flip_has_infinite_epsilon() -> None:
    assert flips([[0.3, 0.0]]).actual_epsilon == float("inf")
    assert flips([[1.0, 0.3]]).actual_epsilon == float("inf")
    assert flips([[0.0]], [[0.5]]).actual_epsilon == float("inf")


def test_a_constant_output_bit_has_epsilon_zero() -> None:
    assert flips([[1.0, 0.0]], [[0.0, 1.0]]).actual_epsilon == 0
    assert flips([[0.5]]).actual_epsilon == 0


def test_a_shared_mask_keeps_equal_samples_equal() -> None:
    bit_flips = flips([SOME] * 20)
    words = pack_bits(torch.rand(1, 20, 10, generator=seeded(0, "record")) < 0.5).expand(50, -1)
    masked = flip_bits_with_shared_mask(words, bit_flips, seeded(1, "bits"))
    unmasked = flip_bits(words, bit_flips, seeded(1, "bits"))
    assert len({tuple(row) for row in masked.tolist()}) == 1
    assert len({tuple(row) for row in unmasked.tolist()}) == 50


def test_a_shared_mask_flips_with_the_given_probability() -> None:
    bit_flips = flips([[0.3] * 10] * 2_000)
    zeros = torch.zeros(1, 2_000, dtype=torch.int16)
    words = torch.cat([zeros, ~zeros & 1023])
    out = flip_bits_with_shared_mask(words, bit_flips, seeded(0, "bits"))
    mask = out ^ words
    assert torch.equal(mask[0], mask[1])
    assert binomtest(int(unpack_bits(mask[0], 10).sum()), 20_000, 0.3).pvalue > 1e-5


def test_flipping_does_not_modify_its_input() -> None:
    words = torch.ones(3, 2, dtype=torch.int16)
    flip_bits(words, flips([[0.5] * 4] * 2), seeded(0, "bits"))
    assert torch.equal(words, torch.ones(3, 2, dtype=torch.int16))


def test_probabilities_out_of_range_are_refused() -> None:
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(BadInput, match=r"probabilities in \[0, 1\]"):
            flips([[bad]])
