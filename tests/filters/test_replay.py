"""Replay of random draws, and conversion of update formats."""

import os
import random
import secrets
import uuid
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.filters.layout import UpdateLayout
from fedaudit.filters.state import Snapshot, seeding_draws

SOURCES: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.randn(3).tolist(),
    "numpy": lambda: np.random.normal(size=3).tolist(),  # noqa: NPY002
    "numpy without a seed": lambda: np.random.default_rng().normal(size=3).tolist(),
    "python": random.random,
    "the system": lambda: os.urandom(8),
    "secrets": lambda: (secrets.token_bytes(8), secrets.randbits(62), secrets.randbelow(10**9)),
    "names": lambda: str(uuid.uuid4()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_draws_depend_on_the_seed(source: str) -> None:
    draws = []
    for seed in (1, 1, 2):
        with seeding_draws(seed):
            draws.append([SOURCES[source]() for _ in range(2)])
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0][0] != draws[0][1]


def test_seeding_draws_restores_the_generators() -> None:
    torch.manual_seed(3)
    random.seed(3)
    expected = (torch.randn(2).tolist(), random.random())
    torch.manual_seed(3)
    random.seed(3)
    with pytest.raises(RuntimeError), seeding_draws(5):
        raise RuntimeError
    assert (torch.randn(2).tolist(), random.random()) == expected
    assert os.urandom(8) != os.urandom(8)


def counting(*, start: int = 0) -> Callable[[], int]:
    seen = [start]

    def count(limits: list[int] = [9]) -> int:  # noqa: B006
        seen[0] += 1
        limits[0] += 1
        count.calls = getattr(count, "calls", 0) + 1  # type: ignore[attr-defined]
        return seen[0] + limits[0]

    count.calls = 0  # type: ignore[attr-defined]
    return count


def test_the_state_of_a_function_is_restored_for_every_copy() -> None:
    counter = counting()
    counter()
    copies = Snapshot(counter, is_factory=False)
    values = []
    for _ in range(3):
        copy = copies.new_filter()
        assert callable(copy)
        values.append((copy(), copy()))
    assert values == [(13, 15)] * 3
    copies.close()
    assert counter() == 13


TREES = st.recursive(
    st.sampled_from(["float", "double", "half", "int", "numpy", "numpy int"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)
LEAVES: dict[str, object] = {
    "float": torch.ones(2, 3),
    "double": torch.ones(2, dtype=torch.double),
    "half": torch.ones(()).half(),
    "int": torch.ones(2, dtype=torch.int64),
    "numpy": np.ones((0, 2), np.float32),
    "numpy int": np.ones(3, np.int32),
}


def planted(tree: object) -> object:
    if isinstance(tree, str):
        return LEAVES[tree]
    if isinstance(tree, list):
        return [planted(branch) for branch in tree]
    assert isinstance(tree, dict)
    return {name: planted(branch) for name, branch in tree.items()}


@given(TREES)
def test_an_update_with_other_values_has_the_same_form(tree: object) -> None:
    layout = UpdateLayout(planted(tree))
    values = {path: np.full_like(value, 2) for path, value in layout.values.items()}
    rebuilt = UpdateLayout(layout.with_values(values))
    assert rebuilt.shapes == layout.shapes
    assert rebuilt.integer_paths == layout.integer_paths
    assert rebuilt.rounding == layout.rounding
    for path, value in rebuilt.values.items():
        np.testing.assert_array_equal(value, values[path])
