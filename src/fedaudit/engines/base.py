"""Interface of engines, and pickling for other processes."""

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
    """Shared values by key, which an engine may send separately, since each item needs few."""


@runtime_checkable
class Engine(Protocol):
    """Interface of engines, which apply a function to many items, possibly in several processes.

    The function trains clients or measures samples. Results depend on neither the engine nor its
    number of workers.
    """

    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> AbstractContextManager[Callable[[Iterable[Item]], Iterator[Result]]]:
        """Open a session: a context with a function that maps items to results, in order.

        Args:
            work: A module-level function of (shared, item), which must not change its arguments.
            shared: Values that all items need, such as the clients' data; they are sent only once.
        """
        ...


@runtime_checkable
class CountedEngine(Engine, Protocol):
    """Engine with a known number of workers."""

    @property
    def count(self) -> int:
        """Number of items that are processed at once, at least 1."""
        ...


_Reduced: TypeAlias = tuple[Callable[..., Tensor], tuple[object, ...]]
"""A function and its arguments, from which pickle restores a tensor."""

_ARRAY_TYPES = {torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool}


def is_plain(tensor: Tensor) -> bool:
    """Return True if a NumPy array can represent the tensor without loss."""
    # An array has neither autograd state nor bfloat16, and pickling does not preserve strides.
    return (
        tensor.dtype in _ARRAY_TYPES
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg())
    )


def pickled(value: object) -> bytes:
    """Pickle a value for a worker process. Workers unpickle only data from this program.

    Raises:
        PicklingError, AttributeError, TypeError: A part of the value cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _reduce_tensor(tensor: Tensor) -> _Reduced:
    """Pickle a tensor as a NumPy array if this is lossless, and otherwise in torch's format."""
    if is_plain(tensor):
        return torch.from_numpy, (tensor.numpy(),)
    reduce: Callable[[int], _Reduced] = tensor.__reduce_ex__
    return reduce(pickle.HIGHEST_PROTOCOL)


class _Pickler(pickle.Pickler):
    """Pickler that writes tensors as NumPy arrays, 5 to 10 times as fast as in torch's format."""

    dispatch_table = copyreg.dispatch_table | {Tensor: _reduce_tensor}
