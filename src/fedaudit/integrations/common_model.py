"""Check that what clients send back has the form of the model that they were sent."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias


class Shaped(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Length of each axis."""


Arrays: TypeAlias = Mapping[str, Shaped] | Sequence[Shaped]

NO_COMMON_MODEL = (
    "clients send something other than the model (no array has the shape of one that they were "
    "sent), as in vertical federated learning or split learning, where they send embeddings or "
    "activations, or in second-order methods, where they send statistics. A recorder "
    "measures models and updates of one network that all clients train, so that no round of such a "
    "run can be recorded"
)


def share_no_shape(sent: Iterable[Arrays], uploads: Collection[Arrays]) -> bool:
    """Return True if no array of any upload has the shape of an array that was sent."""
    shapes = {shape for model in sent for shape in _shapes(model)}
    return bool(uploads and shapes) and all(shapes.isdisjoint(_shapes(one)) for one in uploads)


def _shapes(arrays: Arrays) -> set[tuple[int, ...]]:
    values = arrays.values() if isinstance(arrays, Mapping) else arrays
    return {tuple(value.shape) for value in values}
