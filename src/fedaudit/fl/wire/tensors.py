"""Tensors as bytes: each once, in the order that it lies in memory, and nothing else."""

from typing import TypeAlias

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedaudit.core.errors import Unsupported
from fedaudit.core.headers import MAX_TENSORS, is_countable, refuse_heavy
from fedaudit.core.values import Params

_HEADER = 1000
"""Bytes, at most, that say where one tensor is; 64 axes take less."""


Places: TypeAlias = dict[str, int]
"""For the name of a tensor its number among all of them."""

Axes: TypeAlias = tuple[tuple[int, ...], ...]
"""For each tensor its axes from the outermost in memory; nothing where they are in order.

The last bits of what is calculated from a tensor can depend on it."""


class Outgoing:
    """Tensors on their way out, each with a number."""

    def __init__(self) -> None:
        self._numbers = dict[int, int]()
        self._tensors = list[Tensor]()
        self._axes = list[tuple[int, ...]]()

    def places(self, params: Params, what: str) -> Places:
        """Numbers of tensors by name."""
        return {name: self._number(value, f"{what} {name!r}") for name, value in params.items()}

    @property
    def axes(self) -> Axes:
        """Axes of all of them; gaps between numbers are left out."""
        return tuple(self._axes)

    def packed(self) -> bytes:
        """All of them."""
        lying = zip(self._tensors, self._axes, strict=True)
        apart = {
            str(place): (tensor.permute(axes) if axes else tensor)
            .detach()
            .clone(memory_format=torch.contiguous_format)
            for place, (tensor, axes) in enumerate(lying)
        }
        return save(apart)

    def _number(self, tensor: Tensor, what: str) -> int:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_complex():
            raise Unsupported(
                f"{what} cannot be carried to another machine: it is {tensor.dtype}, "
                f"{tensor.layout} on {tensor.device}, and plain tensors on the CPU can; use the "
                "local engine"
            )
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._tensors)
            # Kept, so that its id is not given to another one.
            self._tensors.append(tensor)
            self._axes.append(_axes(tensor))
        return self._numbers[id(tensor)]


def _axes(tensor: Tensor) -> tuple[int, ...]:
    if tensor.is_contiguous():
        return ()
    axes = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return axes if tensor.permute(axes).is_contiguous() else ()


def opened(packed: bytes, axes: Axes) -> list[Tensor]:
    """Tensors that have arrived, in memory of their own.

    Raises:
        SafetensorError, ValueError: They are cut off, or other ones than told.
    """
    # Before it is read: a tensor takes far more memory than the bytes that announce one.
    header = int.from_bytes(packed[:8], "little")
    if header > _HEADER * (len(axes) + 1) or len(axes) > MAX_TENSORS:
        raise ValueError(f"{header} bytes are too many to announce {len(axes)} tensors")
    refuse_heavy(header, packed[8 : 8 + header])
    try:
        found = load(packed)
    except (RuntimeError, TypeError) as error:
        # Empty ones along axes that no memory has.
        raise ValueError(f"a tensor of it cannot be ({str(error).splitlines()[0]})") from error
    if found.keys() != {str(place) for place in range(len(axes))}:
        raise ValueError(f"it holds {len(found)} tensors and tells of {len(axes)}")
    return [_own(found[str(place)], lying) for place, lying in enumerate(axes)]


def _own(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    if tensor.is_complex() or not is_countable(tensor.shape):
        what = "complex" if tensor.is_complex() else f"of the shape {tuple(tensor.shape)}"
        raise ValueError(f"a tensor of it is {what}")
    # Into torch's own memory, which is aligned alike everywhere.
    own = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    if not axes:
        return own
    if sorted(axes) != list(range(own.dim())):
        raise ValueError(f"{axes[:10]} are not the axes of a tensor with {own.dim()}")
    return own.permute([axes.index(axis) for axis in range(own.dim())])
