"""Short representations of values that hold samples, for notebooks and tracebacks."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch

_LONGEST = 60

Kind = TypeVar("Kind", bound=type)


def short_repr(kind: Kind) -> Kind:
    """Replace a dataclass's generated ``repr`` by one that never prints samples, targets or ids.

    Apply it above ``@dataclass``. The generated one stays available as ``__wrapped__``, by which
    identities of objects are found.
    """

    @functools.wraps(kind.__repr__)
    def summarise(self: object) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        parts = (f"{field.name}={summary(getattr(self, field.name))}" for field in fields)
        return f"{type(self).__qualname__}({', '.join(parts)})"

    type.__setattr__(kind, "__repr__", summarise)
    return kind


def summary(value: object) -> str:
    """Return a value in a few characters: the shape of an array, the size of a collection."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"<{type(value).__name__} {tuple(value.shape)}>"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else value[:_LONGEST] + "…")
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"<{type(value).__name__} of {len(value)}>"
    if isinstance(value, type):
        return value.__qualname__
    if hasattr(type(value).__repr__, "__wrapped__") and dataclasses.is_dataclass(value):
        inner = type(value).__repr__.__wrapped__  # type: ignore[attr-defined]
        if hasattr(inner, "__wrapped__"):
            return repr(value)
    return f"<{getattr(value, '__qualname__', type(value).__name__)}>"
