"""Arrays of uploads: copies, digests, and application of the site's filter."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.live.weights import Array, as_cpu_tensor
from fedaudit.observe.tensors import digest_of

Sendable: TypeAlias = nn.Module | Mapping[str, Array] | Sequence[Array]
"""A module, arrays by name, or arrays in the order of the network."""

Arrays: TypeAlias = dict[str, Array] | list[Array]
"""Arrays by name, or in the order of the network."""

_MAX_LOST_FRACTION = 0.01
"""Largest fraction of an update's Euclidean norm that may be lost to rounding."""

Filter: TypeAlias = Callable[[Any], object]
"""Filter of a site: a function from update to changed update.

It receives the difference from the received model as tensors by name, or as a list of tensors if
the upload is a list. It returns the same number of tensors or arrays, in the same form."""


def copy_arrays(weights: object, description: str) -> Arrays:
    """Copy arrays, so that the training loop cannot change an upload after its measurement.

    Args:
        weights: A module, arrays by name, or a sequence of arrays.
        description: Name of the argument, for messages.

    Raises:
        BadInput: The weights have another type.
    """
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    if isinstance(weights, Mapping):
        return {
            str(name): _copy(value, f"{description} has {name!r}, which")
            for name, value in weights.items()
        }
    if isinstance(weights, Sequence) and not isinstance(weights, str | bytes):
        return [
            _copy(value, f"{description} has the array {n}, which")
            for n, value in enumerate(weights)
        ]
    raise BadInput(
        f"{description} is {type_of(weights)}; give a module, a state dict, or a list of arrays"
    )


def _copy(value: object, description: str) -> Array:
    as_cpu_tensor(value, description)  # Raises if the array does not contain numbers.
    return value.detach().clone() if isinstance(value, Tensor) else np.array(value)


def digest(arrays: Arrays, **notes: str) -> str:
    """Return the SHA-256 of arrays (names, types, shapes and bytes) and of notes."""
    return digest_of({name: as_cpu_tensor(v, name) for name, v in _items(arrays)}, notes)


class Upload(NamedTuple):
    """Upload of a client, with the model that the client received.

    Attributes:
        arrays: Copy of the upload.
        received: Copy of the model that the client received.
        is_update: Whether the arrays are differences from ``received``.
    """

    arrays: Arrays
    received: Arrays
    is_update: bool

    def digest(self) -> str:
        """Return the SHA-256 of the arrays and their kind."""
        return digest(self.arrays, kind="update" if self.is_update else "model")

    def model(self) -> Arrays:
        """Return the model after training.

        Raises:
            BadInput: An update does not fit the received model, or is so small that adding it
                changes nothing.
        """
        if not self.is_update:
            return self.arrays
        base, change = dict(_items(self.received)), self._by_fitting_name()
        updated = {
            n: _like(v, as_cpu_tensor(v, n) + as_cpu_tensor(change[n], n))
            for n, v in base.items()
            if n in change
        }
        _raise_if_absorbed(base, change, updated)
        return _in_form(self.received, base | updated)

    def filtered(self, filter: Filter) -> "Upload":
        """Apply a filter to the difference from the received model.

        Integer arrays are not filtered. The result is an upload of the same kind.

        Raises:
            BadInput: The upload does not fit the received model, or the filter returns other names
                or shapes.
        """
        upload, base = self._by_fitting_name(), dict(_items(self.received))
        change = {
            name: value
            if self.is_update
            else _like(value, as_cpu_tensor(value, name) - as_cpu_tensor(base[name], name))
            for name, value in upload.items()
            if as_cpu_tensor(value, name).is_floating_point()
        }
        tensors = {name: as_cpu_tensor(value, name).clone() for name, value in change.items()}
        update = tensors if isinstance(self.arrays, dict) else [*tensors.values()]
        result = dict(_items(copy_arrays(filter(update), "the filter's result")))
        if isinstance(self.arrays, list):
            # The filter's list lacks integer arrays, so its positions differ from the upload's.
            result = dict(zip(change, result.values(), strict=True))
        if change.keys() != result.keys() or any(
            change[name].shape != result[name].shape for name in change
        ):
            raise BadInput(
                "the site's filter returned arrays with other names or shapes than it received; "
                "return one array of the same shape for each array of the update"
            )
        for name, value in result.items():
            tensor = as_cpu_tensor(value, name)
            tensor = tensor if self.is_update else as_cpu_tensor(base[name], name) + tensor
            upload[name] = _like(upload[name], tensor)
        return self._replace(arrays=_in_form(self.arrays, upload))

    def _by_fitting_name(self) -> dict[str, Array]:
        """Return the arrays by name; raise if one does not fit the received model."""
        base, arrays = dict(_items(self.received)), dict(_items(self.arrays))
        for name, value in arrays.items():
            if name not in base or base[name].shape != value.shape:
                raise BadInput(
                    f"the upload has {name!r}, which the received model (sent) lacks or has in "
                    "another shape; pass both in the same form"
                )
        return arrays


def _raise_if_absorbed(
    base: Mapping[str, Array], change: Mapping[str, Array], updated: Mapping[str, Array]
) -> None:
    """Raise if a large part of an update is lost to rounding when it is added to the model.

    Attacks would otherwise measure a smaller update than the one that is sent. A client that trains
    in the model's precision cannot compute such an update.
    """
    lost = total = 0.0
    for name, value in updated.items():
        update = as_cpu_tensor(change[name], name).double()
        rounded = as_cpu_tensor(value, name).double() - as_cpu_tensor(base[name], name).double()
        lost += float((rounded - update).square().sum())
        total += float(update.square().sum())
    if lost > _MAX_LOST_FRACTION**2 * total:
        raise BadInput(
            "the update is so small compared with the received model that it is lost to rounding "
            "and cannot be measured; pass the model after training instead of the update"
        )


def _in_form(example: Arrays, values: dict[str, Array]) -> Arrays:
    return values if isinstance(example, dict) else [*values.values()]


def _like(example: Array, value: Tensor) -> Array:
    """Convert a tensor to the type and precision of an example."""
    if isinstance(example, Tensor):
        return value.to(example.dtype)
    numbers: np.ndarray = value.double().numpy()
    return numbers.astype(example.dtype)


def _items(arrays: Arrays) -> list[tuple[str, Array]]:
    if isinstance(arrays, dict):
        return [*arrays.items()]
    return [(str(position), value) for position, value in enumerate(arrays)]
