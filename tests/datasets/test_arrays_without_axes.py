"""Files of arrays that are single values are refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedaudit.core.errors import BadInput
from fedaudit.datasets.formats import npz

X, Y = np.eye(6, 3, dtype=np.float32), np.array([0, 1] * 3)
BLOCK = {"x": X, "y": Y}
PARTS = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("arrays", "name"),
    [*((BLOCK, name) for name in BLOCK), *((PARTS, name) for name in PARTS)],
)
def test_an_array_without_axes_is_refused(
    arrays: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **{**arrays, name: np.array(1)})
    with pytest.raises(BadInput, match=f"{name} in data.npz is a single value"):
        npz.npz(path).read(seed=1)


@pytest.mark.parametrize("distinct", [True, False])
def test_labels_of_another_name_without_axes_are_refused(distinct: bool, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=X, other=np.array(1))
    with pytest.raises(BadInput, match=r"other in .* is a single value"):
        npz.npz(path, labels="other", distinct=distinct).read(seed=1)
