"""Checks of what clients send back against the model that they were sent."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.live.rounds import NOT_FINITE
from fedaudit.live.weights import tensor_of


class Shaped(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Length of each axis."""


Values: TypeAlias = Mapping[str, Tensor | np.ndarray] | Sequence[np.ndarray]
Arrays: TypeAlias = Mapping[str, Shaped] | Sequence[Shaped]

NO_COMMON_MODEL = (
    "clients send something other than the model (no array has the shape of one that they were "
    "sent), as in vertical federated learning or split learning, where they send embeddings or "
    "activations, or in second-order methods, where they send statistics. A recorder "
    "measures models and updates of one network that all clients train, so that no round of such a "
    "run can be recorded"
)


def refuse_not_finite(upload: Values, sent: Callable[[], Values | None]) -> None:
    """Raise if an upload holds NaN or infinite values, or no real numbers at all.

    An array that came back as it was sent may hold them: some masks are buffers of minus infinity.

    Args:
        upload: What a client sends back.
        sent: Returns the model that it was sent; called only if there are such values.

    Raises:
        BadInput: It does.
    """
    for name, value in _items(upload):
        tensor = tensor_of(value, f"its {name!r}")
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        known = dict(_items(sent() or {})).get(name)
        is_same = known is not None and np.array_equal(
            _numbers(value), _numbers(known), equal_nan=True
        )
        if not is_same:
            raise BadInput(f"its {name!r} has {NOT_FINITE}")


def _numbers(value: Tensor | np.ndarray) -> np.ndarray:
    found: np.ndarray = tensor_of(value, "it").double().numpy()
    return found


def _items(arrays: Values) -> Iterable[tuple[str, Tensor | np.ndarray]]:
    if isinstance(arrays, Mapping):
        return arrays.items()
    return ((str(place), value) for place, value in enumerate(arrays))


def share_no_shape(sent: Iterable[Arrays], uploads: Collection[Arrays]) -> bool:
    """Return True if no array of any upload has the shape of an array that was sent."""
    shapes = {shape for model in sent for shape in _shapes(model)}
    return bool(uploads and shapes) and all(shapes.isdisjoint(_shapes(one)) for one in uploads)


def _shapes(arrays: Arrays) -> set[tuple[int, ...]]:
    values = arrays.values() if isinstance(arrays, Mapping) else arrays
    return {tuple(value.shape) for value in values}
