"""Packing of several model inputs, such as token ids and a mask, into one tensor."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from fedaudit.core.errors import BadInput

_MAX_EXACT = 2**24
"""Largest number up to which all whole numbers are exact in 32-bit floating point."""


@dataclass(frozen=True)
class Field:
    """An input of a model.

    Attributes:
        name: Parameter of ``forward`` that takes the input.
        shape: Shape of the input for one sample.
        whole: True if the values are whole numbers, such as token ids.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool


@dataclass(frozen=True)
class InputLayout:
    """The layout of a model's inputs within one tensor of features.

    Attributes:
        fields: The inputs, in the order of their columns.
    """

    fields: tuple[Field, ...]

    @property
    def first_shape(self) -> tuple[int, ...]:
        """Input shape for models of the catalogue: the shape of the first input of one sample."""
        return self.fields[0].shape

    def unpack(self, features: Shaped[Tensor, "samples _"]) -> dict[str, Tensor]:
        """Split features into the keyword arguments of ``forward``."""
        sizes = [math.prod(field.shape) for field in self.fields]
        inputs = {}
        for field, part in zip(self.fields, torch.split(features, sizes, dim=1), strict=True):
            value = part.reshape(len(features), *field.shape)
            inputs[field.name] = value.long() if field.whole else value
        return inputs


def pack_inputs(inputs: Mapping[str, Tensor]) -> tuple[InputLayout, Shaped[Tensor, "samples _"]]:
    """Concatenate the inputs of a model to one row per sample, and return their layout as well.

    Args:
        inputs: Tensors by name, with one row per sample.

    Raises:
        BadInput: There are no inputs, the inputs differ in their numbers of rows, or whole numbers
            are too large for 32-bit floating point.
    """
    scalars = [name for name, value in inputs.items() if value.ndim == 0]
    if scalars:
        raise BadInput(f"the input {scalars[0]!r} is a single number; give one row per sample")
    if not inputs or len({len(value) for value in inputs.values()}) != 1:
        sizes = ", ".join(f"{name}: {len(value)}" for name, value in inputs.items()) or "none"
        raise BadInput(
            f"inputs by name are tensors with one row per sample, got {sizes}; give them the same "
            "number of rows"
        )
    inputs = {
        n: value.long() if value.dtype == torch.bool else value for n, value in inputs.items()
    }
    is_whole = {name: not value.is_floating_point() for name, value in inputs.items()}
    dtype = torch.int64 if all(is_whole.values()) else torch.float32
    for name, value in inputs.items():
        if is_whole[name] and value.numel() and int(value.abs().max()) > _MAX_EXACT:
            raise BadInput(
                f"the input {name!r} has whole numbers up to {int(value.abs().max())}, but only "
                f"those up to {_MAX_EXACT} are exact in 32-bit floating point; renumber them from 0"
            )
    fields = tuple(Field(n, tuple(value.shape[1:]), is_whole[n]) for n, value in inputs.items())
    return InputLayout(fields), torch.cat(
        [v.reshape(len(v), -1).to(dtype) for v in inputs.values()], 1
    )
