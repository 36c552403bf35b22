"""Inputs of several tensors a sample, such as token ids and a mask, laid side by side in one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from fedaudit.core.errors import BadInput

_EXACT = 2**24
"""Whole numbers up to here are exact as 32-bit floating point."""


@dataclass(frozen=True)
class Field:
    """One tensor of a model's inputs.

    Attributes:
        name: Of the parameter of ``forward`` that takes it.
        shape: Of one sample.
        whole: Whether it holds whole numbers.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool


@dataclass(frozen=True)
class Inputs:
    """The layout of a model's inputs within one tensor of features.

    Attributes:
        fields: In the order in which they lie side by side.
    """

    fields: tuple[Field, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, of the first input."""
        return self.fields[0].shape

    def unpacked(self, features: Shaped[Tensor, "samples _"]) -> dict[str, Tensor]:
        """The tensors by name, as ``forward`` takes them by keyword."""
        sizes = [math.prod(field.shape) for field in self.fields]
        found = {}
        for field, part in zip(self.fields, torch.split(features, sizes, dim=1), strict=True):
            value = part.reshape(len(features), *field.shape)
            found[field.name] = value.long() if field.whole else value
        return found


def packed(given: Mapping[str, Tensor]) -> tuple[Inputs, Shaped[Tensor, "samples _"]]:
    """Named tensors side by side in one, and how they lie in it.

    Args:
        given: With a row a sample each.

    Raises:
        BadInput: There are none, they differ in their number of rows or have none, or whole numbers
            are too large for 32-bit floating point.
    """
    flat = [name for name, value in given.items() if value.ndim == 0]
    if flat:
        raise BadInput(f"the input {flat[0]!r} is one number; give a row a sample")
    if not given or len({len(value) for value in given.values()}) != 1:
        sizes = ", ".join(f"{name}: {len(value)}" for name, value in given.items()) or "none"
        raise BadInput(
            f"inputs by name are tensors with a row a sample each, got {sizes}; give as many rows "
            "of each"
        )
    given = {n: value.long() if value.dtype == torch.bool else value for n, value in given.items()}
    whole = {name: not value.is_floating_point() for name, value in given.items()}
    kind = torch.int64 if all(whole.values()) else torch.float32
    for name, value in given.items():
        if whole[name] and value.numel() and int(value.abs().max()) > _EXACT:
            raise BadInput(
                f"the input {name!r} holds whole numbers up to {int(value.abs().max())}, and at "
                f"most {_EXACT} are exact in 32-bit floating point, through which they go; number "
                "them from 0"
            )
    fields = tuple(Field(n, tuple(value.shape[1:]), whole[n]) for n, value in given.items())
    return Inputs(fields), torch.cat([v.reshape(len(v), -1).to(kind) for v in given.values()], 1)
