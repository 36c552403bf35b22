from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp import FEATURES_PER_CHUNK, FixedPoint, Mechanism
from fedaudit.defenses.ldp.bit_mechanisms import (
    BitMechanism,
    BitRandPublished,
    BitwiseRR,
    OmePublished,
)

EACH = [BitRandPublished(5.0), OmePublished(5.0), BitwiseRR(20.0), BitwiseRR(20.0, split="linear")]
every = pytest.mark.parametrize("mechanism", EACH, ids=repr)


def drawn(mechanism: Mechanism, x: Tensor, seed: int = 0) -> Tensor:
    return mechanism(x, seeded(seed, "local"))


def different(rows: Tensor) -> int:
    return len({tuple(row) for row in rows.tolist()})


def skewed(samples: int) -> Tensor:
    """Return features like those of an embedding: non-negative, and mostly small."""
    values = np.random.default_rng(0).gamma(1.0, 0.9, (samples, 512))
    return torch.from_numpy(values).float()


def correlation(mechanism: Mechanism) -> float:
    x = skewed(600)
    before_and_after = torch.stack([x.flatten(), drawn(mechanism, x).flatten()]).double()
    return float(torch.corrcoef(before_and_after)[0, 1])


@pytest.mark.parametrize(
    ("nominal", "true"), [(1.0, 2_207), (3.0, 5_350), (5.0, 9_239), (10.0, 20_038)]
)
def test_actual_epsilons_of_published_mechanisms(nominal: float, true: int) -> None:
    assert round(BitRandPublished(nominal).actual_epsilon(512)) == true
    assert round(OmePublished(nominal).actual_epsilon(512)) == 35_342


@pytest.mark.parametrize(
    ("nominal", "expected"), [(1.0, 0.01), (3.0, 0.05), (5.0, 0.17), (10.0, 0.77)]
)
def test_correlation_of_features_after_bitrand(nominal: float, expected: float) -> None:
    assert correlation(BitRandPublished(nominal)) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("nominal", [1.0, 10.0])
def test_correlation_of_features_after_ome_does_not_depend_on_epsilon(nominal: float) -> None:
    assert correlation(OmePublished(nominal)) == pytest.approx(0.23, abs=0.01)


def test_bitrand_flips_the_sign_least_and_the_last_bit_most() -> None:
    for nominal, sign, last in ((1.0, 0.294, 0.506), (3.0, 0.092, 0.601), (5.0, 0.019, 0.640)):
        chances = BitRandPublished(nominal).flips(512).drops[0]
        assert bool((chances.diff() > 0).all())
        assert chances[[0, -1]].tolist() == pytest.approx([sign, last], abs=6e-4)


def test_bitrand_alpha_matches_hand_calculation() -> None:
    # For one feature of two bits at epsilon 2, alpha^2 is (2 + 2) / (2 (1 + e^2)).
    alpha = (4 / (2 * (1 + np.exp(2)))) ** 0.5
    expected = [alpha / (1 + alpha), alpha * np.e / (1 + alpha * np.e)]
    drop_probability = BitRandPublished(2.0, bits=2, integer_bits=1).flips(1).drops[0]
    assert drop_probability.tolist() == pytest.approx(expected)


def test_ome_probabilities_match_hand_calculation() -> None:
    flips = OmePublished(4.0, alpha=2.0, bits=2, integer_bits=1).flips(2)
    assert (1 - flips.drops).flatten().tolist() == pytest.approx([2 / 3, 1 / 9] * 2)
    assert flips.sets.flatten().tolist() == pytest.approx([1 / (1 + 2 * np.e)] * 4)


def test_ome_positions_are_counted_over_the_whole_sample() -> None:
    flips = OmePublished(1.0, bits=3, integer_bits=1).flips(2)
    keep_probability = 1 - flips.drops
    assert (keep_probability > 0.5).tolist() == [[True, False, True], [False, True, False]]


@every
def test_decoded_features_have_the_stated_flip_rates(mechanism: BitMechanism) -> None:
    # 21.3125 is 0101010101 and -10.625 is 1010101010, so each bit is 0 and 1 once.
    x = torch.tensor([21.3125, -10.625]).expand(40_000, 2)
    point = FixedPoint()
    before, after = point.encode(x[0]), point.encode(drawn(mechanism, x))
    flips = mechanism.flips(2)
    chances = torch.where(before, flips.drops, flips.sets)
    # Minus zero is decoded as zero, so signs are compared only for other words.
    is_nonzero = after[..., 1:].any(-1)
    for feature, bit in np.ndindex(2, 10):
        rows = after[is_nonzero[:, feature]] if bit == 0 else after
        count = int((rows[:, feature, bit] != before[feature, bit]).sum())
        p_value = binomtest(count, len(rows), float(chances[feature, bit])).pvalue
        assert p_value > 1e-5, (feature, bit)


@example(7977.203125, 106, 9, "even")
@example(1e4, 300, 16, "linear")
@given(
    epsilon=st.floats(1e-3, 1e4),
    features=st.integers(1, 600),
    bits=st.integers(2, 16),
    split=st.sampled_from(["even", "linear"]),
)
def test_bitwise_rr_never_exceeds_its_epsilon(
    epsilon: float, features: int, bits: int, split: str
) -> None:
    mechanism = BitwiseRR(epsilon, split=split, bits=bits, integer_bits=1)  # type: ignore[arg-type]
    budgets = mechanism.budgets(features)
    assert float(budgets.sum()) == pytest.approx(epsilon)
    true = mechanism.actual_epsilon(features)
    assert true <= epsilon
    assert bool((mechanism.flips(features).epsilons <= budgets).all())
    if float(budgets.max()) < 35:  # Above, flip probabilities are rounded up.
        assert true == pytest.approx(epsilon, rel=1e-3)


def test_a_linear_split_gives_the_sign_the_largest_budget() -> None:
    budgets = BitwiseRR(12.0, split="linear", bits=3, integer_bits=1).budgets(2)
    assert budgets.tolist() == [[3.0, 2.0, 1.0]] * 2


@every
def test_perturbation_depends_on_the_seed(
    mechanism: BitMechanism,
) -> None:
    x = skewed(40)
    assert torch.equal(drawn(mechanism, x, 1), drawn(mechanism, x, 1))
    assert not torch.equal(drawn(mechanism, x, 1), drawn(mechanism, x, 2))


@every
def test_additional_samples_do_not_change_earlier_chunks(
    mechanism: BitMechanism,
) -> None:
    rows = FEATURES_PER_CHUNK // 512
    x = skewed(rows + 30)
    assert torch.equal(drawn(mechanism, x)[:rows], drawn(mechanism, x[:rows]))


@every
def test_perturbation_keeps_shape_dtype_and_input(
    mechanism: BitMechanism,
) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = skewed(3).to(dtype)
        copy = x.clone()
        out = drawn(mechanism, x)
        assert (out.shape, out.dtype) == (x.shape, dtype)
        assert torch.equal(x, copy)
        assert float(out.abs().max()) <= 32


@every
def test_a_shared_mask_has_infinite_actual_epsilon(mechanism: BitMechanism) -> None:
    shared = replace(mechanism, shared_mask=True)
    x = skewed(1).expand(30, -1)
    assert different(drawn(shared, x)) == 1
    assert different(drawn(mechanism, x)) == 30
    assert shared.actual_epsilon(512) == float("inf") > mechanism.actual_epsilon(512)


def test_sign_lost_decodes_absolute_values() -> None:
    x = torch.tensor([[-3.5, 3.5, 0.0, -10.625]])
    with_sign = BitwiseRR(1e6)
    assert drawn(with_sign, x).tolist() == x.tolist()
    for shared in (False, True):
        lost = replace(with_sign, sign_lost=True, shared_mask=shared)
        assert drawn(lost, x).tolist() == [[3.5, 3.5, 0.0, 10.625]]


@pytest.mark.parametrize(
    ("mechanism", "share"),
    [(BitRandPublished(1.0), 0.294), (BitRandPublished(3.0), 0.092), (OmePublished(1.0), 0.01)],
    ids=repr,
)
@pytest.mark.parametrize("shared", [False, True])
def test_sign_lost_gives_absolute_values_of_the_same_draw(
    mechanism: BitMechanism, share: float, shared: bool
) -> None:
    mechanism, x = replace(mechanism, shared_mask=shared), skewed(200)
    decoded, lost = drawn(mechanism, x), drawn(replace(mechanism, sign_lost=True), x)
    # A positive feature becomes negative if its sign is flipped.
    assert float((decoded < 0).double().mean()) == pytest.approx(share, abs=0.05)
    assert not bool((lost < 0).any())
    assert torch.equal(lost, decoded.abs())


def test_sign_lost_excludes_the_sign_from_the_actual_epsilon() -> None:
    # A linear split of epsilon 12 over two features of three bits gives 3, 2 and 1.
    with_sign = BitwiseRR(12.0, split="linear", bits=3, integer_bits=1)
    assert with_sign.actual_epsilon(2) == pytest.approx(12)
    assert replace(with_sign, sign_lost=True).actual_epsilon(2) == pytest.approx(6)
    assert replace(with_sign, sign_lost=True, shared_mask=True).actual_epsilon(2) == float("inf")


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_not_finite_are_refused(mechanism: BitMechanism, bad: float) -> None:
    x = torch.tensor([[0.0, 1.0], [bad, 2.0]])
    with pytest.raises(BadInput, match="needs finite features"):
        drawn(mechanism, x)


@every
def test_non_contiguous_features_are_perturbed_alike(mechanism: BitMechanism) -> None:
    x = skewed(300)
    across = x.T.contiguous().T
    assert not across.is_contiguous()
    assert torch.equal(drawn(mechanism, across), drawn(mechanism, x))
