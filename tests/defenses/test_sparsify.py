import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.values import Params, flat
from fedaudit.defenses.sparsify import (
    GradientSparsification,
    sparsify_globally,
    sparsify_per_tensor,
)
from fedaudit.observe.round import Update
from tests.defenses.turns import context

entries = st.lists(st.integers(-4, 4), min_size=2, max_size=40)
ratios = st.floats(0, 1)


def two_tensors(numbers: list[int]) -> Params:
    values = torch.tensor(numbers, dtype=torch.float32)
    return {"w": values[: len(numbers) // 2].clone(), "b": values[len(numbers) // 2 :].clone()}


@pytest.mark.parametrize(
    ("total", "ratio", "n_kept"),
    [(2, 0.25, 2), (2, 0.75, 0), (6, 0.25, 4), (6, 0.75, 2), (1, 0.5, 0)],
)
def test_the_number_of_kept_entries_rounds_half_to_even(
    total: int, ratio: float, n_kept: int
) -> None:
    # The numbers before rounding are 1.5, 0.5, 4.5, 1.5 and 0.5.
    sparse = sparsify_globally({"w": torch.arange(1.0, total + 1)}, ratio)
    assert int((sparse["w"] != 0).sum()) == n_kept


@given(numbers=entries, ratio=ratios)
def test_sparsification_matches_sorting(numbers: list[int], ratio: float) -> None:
    count = round((1 - ratio) * len(numbers))
    # Of equal entries, those with lower indices are kept.
    kept_indices = sorted(range(len(numbers)), key=lambda i: (-abs(numbers[i]), i))[:count]
    slow = [float(n) if i in kept_indices else 0.0 for i, n in enumerate(numbers)]
    assert flat(sparsify_globally(two_tensors(numbers), ratio)).tolist() == slow


@given(numbers=entries, ratio=ratios, per_tensor=st.booleans())
def test_sparsification_is_idempotent(numbers: list[int], ratio: float, per_tensor: bool) -> None:
    sparse = sparsify_per_tensor if per_tensor else sparsify_globally
    # "per-tensor" does not change tensors with up to 1,000 entries.
    values = two_tensors(numbers * 60 if per_tensor else numbers)
    once = sparse(values, ratio)
    assert torch.equal(flat(sparse(once, ratio)), flat(once))


def test_tensors_keep_their_precision_when_mixed() -> None:
    tensors = {"w": torch.tensor([1.0, 3.0]), "b": torch.tensor([2.0, 4.0], dtype=torch.float64)}
    sparse = sparsify_globally(tensors, 0.5)
    assert sparse["w"].dtype == torch.float32
    assert sparse["b"].dtype == torch.float64
    assert flat(sparse).tolist() == [0.0, 3.0, 0.0, 4.0]


def test_sparse_per_tensor_ranks_each_large_tensor_alone() -> None:
    ramp = torch.arange(1, 1001, dtype=torch.float32)
    tensors = {
        "large": torch.arange(1, 2001, dtype=torch.float32),
        "small": ramp,
        "equal": torch.ones(1001),
    }
    sparse = sparsify_per_tensor(tensors, 0.75)
    assert sparse["large"].nonzero().flatten().tolist() == list(range(1500, 2000))
    # Tensors with up to 1,000 entries are not changed, and all entries that equal the smallest kept
    # entry are kept.
    assert torch.equal(sparse["small"], ramp)
    assert torch.equal(sparse["equal"], torch.ones(1001))


def test_per_tensor_sparsification_sends_zeros_at_ratio_one() -> None:
    sparse = sparsify_per_tensor({"large": torch.ones(1001), "small": torch.ones(3)}, 1.0)
    assert not sparse["large"].any()
    assert sparse["small"].all()


def test_the_scope_selects_entries_and_buffers_are_unchanged() -> None:
    large = torch.arange(1, 1011, dtype=torch.float32)
    upload = Update({"large": large, "tiny": torch.tensor([0.1])}, {"mean": torch.ones(1)})
    everywhere = GradientSparsification(0.5).upload(upload, context())
    alone = GradientSparsification(0.5, scope="per-tensor").upload(upload, context())
    assert float(everywhere.values["tiny"]) == 0.0
    assert float(alone.values["tiny"]) == pytest.approx(0.1)
    assert isinstance(everywhere, Update)
    assert torch.equal(everywhere.buffers["mean"], torch.ones(1))
