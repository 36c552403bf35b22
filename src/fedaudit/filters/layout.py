"""Layout of a filter's updates, and their conversion to arrays and back."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, format_option, type_of
from fedaudit.filters.claim import Arrays

DEFAULT_EXAMPLE = {
    "first.weight": torch.zeros(32, 16),
    "first.bias": torch.zeros(32),
    "second.weight": torch.zeros(10, 32),
    "second.bias": torch.zeros(10),
}
"""Update of a small network, which is the default example."""


class UpdateLayout:
    """Layout of an update: tensors or arrays by name or in a list, possibly nested.

    Attributes:
        values: Arrays of the example by path, such as "0.weight"; floating-point arrays in double
            precision.
        shapes: Shape of each array.
        integer_paths: Paths of integer arrays.
        rounding: Relative rounding error of the array with the lowest precision.
        max_value: Largest number that every floating-point array can hold.
    """

    def __init__(self, example: object) -> None:
        self._example = dict(example.state_dict()) if isinstance(example, nn.Module) else example
        leaves = leaves_of(self._example)
        invalid = [path for path, leaf in leaves.items() if not is_array(leaf)]
        if invalid or not leaves:
            reason = "it is empty"
            if invalid:
                reason = f"{invalid[0]!r} in it is {type_of(leaves[invalid[0]])}"
            raise BadInput(
                f"{format_option('shape-from')} is not an example of an update: {reason}; give a "
                "network, or tensors or arrays by name or in a list"
            )
        self.values: Arrays = {path: to_numpy(leaf) for path, leaf in leaves.items()}
        self.shapes = {path: value.shape for path, value in self.values.items()}
        self.integer_paths = {
            path for path, value in self.values.items() if value.dtype.kind != "f"
        }
        limits = [
            _float_limits(leaf) for path, leaf in leaves.items() if path not in self.integer_paths
        ]
        self.rounding = max((float(limit.eps) for limit in limits), default=0.0)
        self.max_value = min((float(limit.max) for limit in limits), default=0.0)

    def with_values(self, values: Arrays) -> object:
        """Return a new update of this layout with other values."""
        return _map_leaves(self._example, lambda path, leaf: _convert_like(leaf, values[path]))


def layout_for(kind: str, example: object) -> UpdateLayout:
    """Return the layout of the updates of a filter.

    Args:
        kind: Kind of the filter; see :data:`fedaudit.filters.kinds.FILTER_KINDS`.
        example: An update, or the batch of a step; None for the update of a small network.
    """
    if kind == "step" and example is None:
        raise BadInput(
            "a training step needs a batch of samples; give a function with "
            f"{format_option('shape-from')} that returns the step's arguments as a tuple of "
            "arrays, with one row per sample"
        )
    layout = UpdateLayout(DEFAULT_EXAMPLE if example is None else example)
    if kind in ("flower-mod", "nvflare-filter"):
        # Updates of both frameworks are NumPy arrays by name.
        return UpdateLayout(layout.values)
    if kind == "defense":
        return UpdateLayout({path: torch.as_tensor(v) for path, v in layout.values.items()})
    return layout


def leaves_of(tree: object) -> dict[str, object]:
    """Return the values in nested dictionaries and lists by path, such as "0.weight".

    A single tensor or array gets the path "update".
    """
    leaves: dict[str, object] = {}
    _map_leaves(tree, leaves.__setitem__)
    return {path: leaf for path, leaf in leaves.items() if leaf is not None}


def _map_leaves(tree: object, change: Callable[[str, object], object], path: str = "") -> object:
    """Return a copy of nested dictionaries and lists, with every value changed by a function."""
    if not isinstance(tree, Mapping | list | tuple):
        return change(path or "update", tree)
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    parts = {
        key: _map_leaves(value, change, f"{path}.{key}" if path else str(key))
        for key, value in items
    }
    if isinstance(tree, Mapping):
        return parts
    return tuple(parts.values()) if isinstance(tree, tuple) else list(parts.values())


def _convert_like(leaf: object, value: np.ndarray) -> object:
    """Convert an array to the type and precision of a leaf."""
    if isinstance(leaf, Tensor):
        return torch.as_tensor(np.array(value)).to(leaf.dtype)
    dtype = np.asarray(leaf).dtype
    return np.array(np.rint(value) if dtype.kind in "iu" else value).astype(dtype)


def is_array(value: object) -> bool:
    """Return True for torch tensors, NumPy arrays and NumPy numbers."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def to_numpy(value: object) -> np.ndarray:
    """Return a copy as a NumPy array; floating-point numbers are converted to double precision."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array = np.array(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _float_limits(value: object) -> torch.finfo | np.finfo:
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype)
    return np.finfo(np.asarray(value).dtype)
