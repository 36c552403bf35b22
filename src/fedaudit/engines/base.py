"""The interface of engines, and tensors as bytes for other processes."""

import copyreg
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


class SharedByKey(dict[Key, Value]):
    """Parts of what is shared of which an item needs few: an engine may hand out one at a time."""


@runtime_checkable
class Engine(Protocol):
    """Processes that train clients. Results depend neither on the engine nor on the workers."""

    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> AbstractContextManager[Callable[[Iterable[Item]], Iterator[Result]]]:
        """A function that does the work for each item, as long as the session is open.

        Args:
            work: A module-level function of (shared, item). It changes neither in place.
            shared: What every item needs (the clients' data); handed out once.
        """
        ...


@runtime_checkable
class Counted(Engine, Protocol):
    """An engine that says how many items it works on at once."""

    @property
    def count(self) -> int:
        """At least 1."""
        ...


Recipe: TypeAlias = tuple[Callable[..., Tensor], tuple[object, ...]]

_AS_ARRAYS = {torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool}


def is_plain(tensor: Tensor) -> bool:
    """True if an array keeps all there is to keep of a tensor."""
    # It keeps neither gaps nor what autograd knows, and there are none of 16-bit floats.
    return (
        tensor.dtype in _AS_ARRAYS
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg())
    )


def packed(value: object) -> bytes:
    """A value as bytes, for a process of this program: nothing from outside is ever unpickled.

    Raises:
        PicklingError, AttributeError, TypeError: It holds what no other process can have.
    """
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _reduced(tensor: Tensor) -> Recipe:
    """The picklable form of a tensor: an array where that is enough."""
    if is_plain(tensor):
        return torch.from_numpy, (tensor.numpy(),)
    usual: Callable[[int], Recipe] = tensor.__reduce_ex__
    return usual(pickle.HIGHEST_PROTOCOL)


class _Packer(pickle.Pickler):
    """Pickles tensors as arrays; torch writes a file in memory for each, 5 to 10 times as slow."""

    dispatch_table = copyreg.dispatch_table | {Tensor: _reduced}
