"""Arrays of uploads: private copies, digests, and the site's filter."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, type_of
from fedaudit.live.weights import Array, tensor_of
from fedaudit.observe.tensors import digest_of

Sendable: TypeAlias = nn.Module | Mapping[str, Array] | Sequence[Array]
"""A module, arrays by name, or arrays in the order of the network."""

Arrays: TypeAlias = dict[str, Array] | list[Array]
"""Arrays by name, or in the order of the network."""

Filter: TypeAlias = Callable[[Arrays], object]
"""Filter of a site: takes the difference from the received model, and returns one of its form."""


def copied(weights: object, what: str) -> Arrays:
    """Return a private copy of arrays, so that what is measured is what leaves.

    Args:
        weights: A module, arrays by name, or a sequence of arrays.
        what: Name of the argument, for messages.

    Raises:
        BadInput: It is something else.
    """
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    if isinstance(weights, Mapping):
        return {
            str(name): _copy(value, f"{what} has {name!r}, which")
            for name, value in weights.items()
        }
    if isinstance(weights, Sequence) and not isinstance(weights, str | bytes):
        return [_copy(value, f"{what} has the array {n}, which") for n, value in enumerate(weights)]
    raise BadInput(
        f"{what} is {type_of(weights)}; give a module, a state dict, or a list of arrays"
    )


def _copy(value: object, what: str) -> Array:
    # Refuses arrays without numbers.
    tensor_of(value, what)
    return value.detach().clone() if isinstance(value, Tensor) else np.array(value)


def digest(arrays: Arrays) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of arrays."""
    return digest_of({name: tensor_of(v, name) for name, v in _items(arrays)}, {})


def filtered_model(filter: Filter, upload: Arrays, received: Arrays) -> Arrays:
    """Return the received model plus the filtered difference between an upload and it.

    Whole numbers pass unchanged.

    Raises:
        BadInput: The upload does not fit the received model, or the filter returns another form.
    """
    before, after = dict(_items(received)), dict(_items(upload))
    change = dict[str, Array]()
    for name, value in after.items():
        if not tensor_of(value, name).is_floating_point():
            continue
        if name not in before or before[name].shape != value.shape:
            raise BadInput(
                f"the upload has {name!r}, which the model sent lacks or has in another shape, so "
                "that the filter cannot be applied; pass both in one form"
            )
        change[name] = _like(value, tensor_of(value, name) - tensor_of(before[name], name))
    result = filtered(filter, change if isinstance(upload, dict) else [*change.values()])
    changed = dict(zip(change, dict(_items(result)).values(), strict=True))
    after |= {
        name: _like(after[name], tensor_of(before[name], name) + tensor_of(value, name))
        for name, value in changed.items()
    }
    return after if isinstance(upload, dict) else [*after.values()]


def filtered(filter: Filter, change: Arrays) -> Arrays:
    """Return a private copy of what a filter returns for a change.

    Raises:
        BadInput: It returns other names, shapes or numbers of arrays.
    """
    given = dict(_items(change))
    result = dict(_items(copied(filter(copied(change, "the update")), "the filter's result")))
    if given.keys() != result.keys() or any(
        given[name].shape != result[name].shape for name in given
    ):
        raise BadInput(
            "the filter returns arrays of other names or shapes than it was given; return one "
            "array for each array of the update"
        )
    values = {n: _like(v, tensor_of(result[n], n)) for n, v in given.items()}
    return values if isinstance(change, dict) else [*values.values()]


def _like(example: Array, value: Tensor) -> Array:
    """Return a value in the form and precision of an example."""
    if isinstance(example, Tensor):
        return value.to(example.dtype)
    numbers: np.ndarray = value.double().numpy()
    return numbers.astype(example.dtype)


def _items(arrays: Arrays) -> list[tuple[str, Array]]:
    if isinstance(arrays, dict):
        return [*arrays.items()]
    return [(str(place), value) for place, value in enumerate(arrays)]
