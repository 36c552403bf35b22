"""Parcels to and from Ray's workers: arrays for its object store, and little else.

Ray writes arrays to memory that all processes of a machine share, once, and hands them out as
views that cannot be written to. Tensors are taken out of whatever is sent, travel as such arrays,
and are copied where they arrive: what a worker trains on is its own, and lies in memory as it
would in the main process, on which last bits can depend.
"""

import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from ray import ObjectRef, cloudpickle
from torch import Tensor

from fedaudit.engines.base import SharedByKey, is_plain

Key = TypeVar("Key")
Arrays: TypeAlias = tuple[np.ndarray, ...]


class Parcel(NamedTuple):
    """A value, taken apart.

    Attributes:
        skeleton: All but the tensors and shards, pickled.
        arrays: Its tensors; a number stands for one that several parcels share.
        shards: For each of its shards a reference to a parcel, by key.
    """

    skeleton: bytes
    arrays: tuple[np.ndarray | int, ...] = ()
    shards: tuple[dict[object, ObjectRef], ...] = ()


class Parcels(NamedTuple):
    """Several values, taken apart together.

    Attributes:
        each: Their parcels.
        common: Tensors that more than one of them has, such as the global model's.
    """

    each: list[Parcel]
    common: Arrays


class _Apart(NamedTuple):
    """A value's skeleton, and what was taken out of it, in the order of its numbers."""

    skeleton: bytes
    tensors: list[Tensor]
    shards: list[SharedByKey[object, object]]


def packed(value: object, put: Callable[[object], ObjectRef]) -> Parcel:
    """One value as a parcel.

    Args:
        value: What to send.
        put: Writes a shard to the store.

    Raises:
        PicklingError, TypeError: It holds what no other process can have.
    """
    apart = _apart(value)
    shards = tuple(
        {key: put(packed(part, put)) for key, part in shard.items()} for shard in apart.shards
    )
    return Parcel(apart.skeleton, tuple(tensor.numpy() for tensor in apart.tensors), shards)


def packed_together(values: Sequence[object], put: Callable[[object], ObjectRef]) -> Parcels:
    """Several values as parcels; what they share is in memory once. Arguments as for packed."""
    parts = [_apart(value) for value in values]
    seen = Counter(id(tensor) for part in parts for tensor in part.tensors)
    several = {id(t): t for part in parts for t in part.tensors if seen[id(t)] > 1}
    place = {name: number for number, name in enumerate(several)}
    parcels = [
        Parcel(
            part.skeleton,
            tuple(place.get(id(tensor), tensor.numpy()) for tensor in part.tensors),
            tuple({k: put(packed(v, put)) for k, v in shard.items()} for shard in part.shards),
        )
        for part in parts
    ]
    return Parcels(parcels, tuple(tensor.numpy() for tensor in several.values()))


def unpacked(parcel: Parcel, common: Arrays, get: Callable[[ObjectRef], Parcel]) -> object:
    """The value of a parcel, with tensors of its own.

    Only parcels of this program's own cluster are ever opened: nothing from outside is unpickled.

    Args:
        parcel: As it came.
        common: What it shares with others.
        get: Reads a shard from the store.
    """
    arrays = [common[one] if isinstance(one, int) else one for one in parcel.arrays]
    tensors = [_own(array) for array in arrays]
    shards = [_Fetched(refs, get) for refs in parcel.shards]
    value: object = _Opener(parcel.skeleton, {"tensor": tensors, "shards": shards}).load()
    return value


class _Opener(pickle.Unpickler):
    """Puts what was taken out of a value into its place again."""

    def __init__(self, skeleton: bytes, parts: Mapping[str, Sequence[object]]) -> None:
        super().__init__(io.BytesIO(skeleton))
        self._parts = parts

    def persistent_load(self, name: tuple[str, int]) -> object:
        kind, number = name
        return self._parts[kind][number]


class _Fetched(Mapping[Key, object]):
    """Shards where they have arrived: each is fetched when it is asked for, and kept by nobody."""

    def __init__(self, refs: Mapping[Key, ObjectRef], get: Callable[[ObjectRef], Parcel]) -> None:
        self._refs, self._get = refs, get

    def __getitem__(self, key: Key) -> object:
        return unpacked(self._get(self._refs[key]), (), self._get)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _own(array: np.ndarray) -> Tensor:
    # Through torch's own memory, which is aligned alike everywhere.
    own = torch.empty(array.shape, dtype=_torch_type(array))
    own.numpy()[...] = array
    return own


def _torch_type(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def _apart(value: object) -> _Apart:
    tensors, shards, numbers = list[Tensor](), list[SharedByKey[object, object]](), dict[int, int]()

    def name(part: object) -> tuple[str, int] | None:
        if type(part) is Tensor and is_plain(part):
            if id(part) not in numbers:
                numbers[id(part)] = len(tensors)
                tensors.append(part)
            return "tensor", numbers[id(part)]
        if isinstance(part, SharedByKey):
            shards.append(part)
            return "shards", len(shards) - 1
        return None

    file = io.BytesIO()
    # Functions and classes of a script or notebook travel by value, all others by name.
    pickler = cloudpickle.CloudPickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = name
    pickler.dump(value)
    return _Apart(file.getvalue(), tensors, shards)
