import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc, permute_nonmembers_per_round, tpr_at_fpr


def cube(rounds: int = 30, clients: int = 4, samples: int = 3000) -> np.ndarray:
    """Draw a signal that differs persistently between samples, none of which is a member."""
    rng = np.random.default_rng(0)
    sample_levels = rng.normal(size=samples)
    return (sample_levels + rng.normal(size=(rounds, clients, samples))).astype(np.float32)


def test_redraw_permutes_only_nonmembers() -> None:
    values, truth = cube(2, 3, 20), np.arange(20) < 8
    dealt = permute_nonmembers_per_round(values, truth, rng=np.random.default_rng(1))
    assert dealt.dtype == np.float32
    np.testing.assert_array_equal(dealt[:, :, truth], values[:, :, truth])
    np.testing.assert_array_equal(
        np.sort(dealt[:, :, ~truth], axis=2), np.sort(values[:, :, ~truth], axis=2)
    )
    assert len({tuple(row) for row in np.argsort(dealt[:, :, ~truth].reshape(6, -1))}) == 6


def test_redraw_does_not_change_its_input() -> None:
    values = cube(2, 3, 20)
    before = values.copy()
    permute_nonmembers_per_round(values, np.arange(20) < 8, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(values, before)


def test_only_the_redraw_evaluation_finds_leaks_without_members() -> None:
    values, truth = cube(), np.arange(3000) < 1000
    aligned = values.mean(axis=0)[0]
    dealt = permute_nonmembers_per_round(values, truth, rng=np.random.default_rng(1)).mean(axis=0)[
        0
    ]
    assert tpr_at_fpr(aligned, truth, 0.001).tpr < 0.01
    assert tpr_at_fpr(dealt, truth, 0.001).tpr > 0.15
    # The means are equal, so the AUC of a plain mean does not reveal the leak.
    assert auc(dealt, truth) == pytest.approx(0.5, abs=0.05)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(BadInput, match="got 3 for 20 samples"):
        permute_nonmembers_per_round(
            cube(2, 3, 20), np.ones(3, dtype=bool), rng=np.random.default_rng(0)
        )
