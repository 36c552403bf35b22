import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch
from fedaudit.defenses.mixup import MixUp, mix_rows
from tests.defenses.turns import context

SHAPE = (9,)


def batch(samples: int = 6) -> Batch:
    """Return a batch of unit vectors, so that a mixture shows its parts; labels are i mod 3."""
    ids = torch.arange(samples)
    return Batch(torch.eye(9)[:samples], ids % 3, ids + 50)


def mixed(defense: MixUp, original: Batch, seed: int = 0) -> Batch:
    return defense.batch(original, context(shape=SHAPE, seed=seed))


def test_mixup_matches_hand_calculation() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 10.0], [4.0, 4.0]])
    ours = mix_rows(values, torch.tensor([1, 2, 0]), 0.75)
    assert ours.tolist() == [[0.75, 2.5], [1.0, 8.5], [3.25, 3.0]]


@pytest.mark.parametrize("alpha", [0.5, 1.0, 30.0])
def test_inputs_and_labels_are_mixed_with_one_partner_and_share(
    alpha: float,
) -> None:
    original = batch()
    ours = mixed(MixUp(alpha), original)
    assert torch.equal(ours.ids, original.ids)
    shares = ours.x[:, :6]
    # A sample that is its own partner is unchanged. All others have the same larger weight.
    (share,) = {round(float(value), 6) for value in shares.diagonal() if value < 1}
    assert 0.5 <= share < 1
    torch.testing.assert_close(shares.sum(dim=0), torch.ones(6))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(6))
    torch.testing.assert_close(ours.y, shares @ functional.one_hot(original.y, 3).float())


def test_each_batch_draws_its_own_share_and_permutation() -> None:
    training_context, defense = context(shape=SHAPE), MixUp(1.0)
    mixed_batch, other = (
        defense.batch(batch(), training_context),
        defense.batch(batch(), training_context),
    )
    assert not torch.equal(mixed_batch.x, other.x)
    assert torch.equal(mixed_batch.x, mixed(MixUp(1.0), batch()).x)
    assert not torch.equal(mixed_batch.x, mixed(MixUp(1.0), batch(), seed=1).x)


def shares(defense: MixUp, draws: int = 1000) -> torch.Tensor:
    """Return the weight of the sample itself in each draw that mixes a pair."""
    training_context, pair = context(shape=SHAPE), batch(2)
    own_shares = torch.stack([defense.batch(pair, training_context).x[0, 0] for _ in range(draws)])
    return own_shares[own_shares < 1]


def test_shares_have_the_beta_distribution_folded_at_one_half() -> None:
    # Half of all permutations of two are the identity. The folded uniform mean is 3/4.
    uniform = shares(MixUp(1.0))
    assert 400 < len(uniform) < 600
    assert float(uniform.mean()) == pytest.approx(3 / 4, abs=0.03)
    assert float(shares(MixUp(1e5), 50).max()) < 0.51
    # The mean of a folded Beta(2, 2) is 11/16.
    assert float(shares(MixUp(2.0)).mean()) == pytest.approx(11 / 16, abs=0.03)


def test_legacy_label_only_mixes_labels_and_keeps_inputs() -> None:
    original = batch()
    ours = mixed(MixUp(1.0, "legacy_label_only"), original)
    assert ours.x is original.x
    assert ours.y.shape == (6, 3)
    torch.testing.assert_close(ours.y.sum(dim=1), torch.ones(6))
    hard = functional.one_hot(original.y, 3).float()
    assert not torch.allclose(ours.y, hard)


def test_legacy_mixing_often_loses_the_label() -> None:
    lost = 0
    for seed in range(100):
        original = batch(3)
        ours = mixed(MixUp(1e-5, "legacy_label_only"), original, seed)
        lost += int((ours.y.argmax(dim=1) != original.y).sum())
    # The weight is 0 in half of the batches, and 2 of 3 partners are others: 1/3 of all labels.
    assert lost / 300 == pytest.approx(1 / 3, abs=0.1)


def test_soft_labels_are_mixed() -> None:
    soft = seeded(0, "soft")
    y = torch.rand(6, 3, generator=soft, dtype=torch.float64).softmax(dim=1)
    ours = mixed(MixUp(1.0), Batch(batch().x, y, batch().ids))
    assert ours.y.dtype == torch.float64
    torch.testing.assert_close(ours.y.sum(dim=0), y.sum(dim=0))


@given(
    samples=st.integers(1, 9),
    alpha=st.floats(0.01, 100) | st.sampled_from([1e-300, 1e-5, 1e5, 1e300]),
)
def test_mixing_keeps_the_sum_shapes_and_dtypes_of_a_batch(samples: int, alpha: float) -> None:
    given_batch = batch(samples)
    ours = mixed(MixUp(alpha), given_batch)
    assert (ours.x.shape, ours.x.dtype) == (given_batch.x.shape, given_batch.x.dtype)
    # The sums would show numbers that are not finite.
    torch.testing.assert_close(ours.x.sum(dim=0), given_batch.x.sum(dim=0))
    if samples > 2:
        torch.testing.assert_close(ours.y.sum(dim=1), torch.ones(samples))


def test_mixup_does_not_change_empty_batches_or_alpha_zero() -> None:
    original = batch()
    assert mixed(MixUp(0.0), original) is original
    empty = batch(0)
    assert mixed(MixUp(1.0), empty) is empty
