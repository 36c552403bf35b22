"""The loop of the main process over Ray's tasks, and what a task does.

Ray writes arrays to memory that all processes of a machine share, once, and hands them out as
views that cannot be written to. Tensors are taken out of whatever is sent, travel as such arrays,
and are copied where they arrive: what a worker trains on is its own, and lies in memory as it
would in the main process, on which last bits can depend.
"""

import io
import logging
import pickle
import signal
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeAlias, TypeVar, cast
from uuid import uuid4

import numpy as np
import ray
import torch
from ray import ObjectRef, cloudpickle
from ray.exceptions import RayError, RayTaskError
from ray.remote_function import RemoteFunction
from torch import Tensor

from fedaudit import __version__
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.importing import look_in, looked_in, refusing_exits
from fedaudit.engines.base import SharedByKey, is_plain
from fedaudit.engines.ray_cluster import HERE, RayCluster

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
    """Return one value as a parcel; ``put`` writes a shard to the store."""
    return packed_together([value], put).each[0]


def packed_together(values: Sequence[object], put: Callable[[object], ObjectRef]) -> Parcels:
    """Return several values as parcels; what they share is in memory once."""
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
    """Return the value of a parcel, with tensors of its own; ``get`` reads a shard from the store.

    Only parcels of this program's own cluster are ever opened: nothing from outside is unpickled.
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


Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

_Job: TypeAlias = tuple[Callable[[object, object], object], object]
"""A session's work, and what all its items share."""

_TRIES = 3
"""So often an item is begun, when workers are lost, before the cause is taken to be the item."""

_SESSIONS = 3
"""What so many sessions share stays on a worker: training and measurement take turns."""

_log = logging.getLogger("fedaudit")


class _Made(NamedTuple):
    fedaudit: str
    torch: str


class _Result(NamedTuple):
    """The result of a task, with level and text of what fedaudit logged on the way."""

    value: Parcel
    said: list[tuple[int, str]]


class _Begun(NamedTuple):
    item: int
    ref: ObjectRef


MADE = _Made(__version__, torch.__version__)


def connect(cluster: RayCluster) -> None:
    """Connect this program to the cluster, unless it is connected."""
    if ray.is_initialized():
        return
    quiet: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
    before = signal.getsignal(signal.SIGTERM)
    try:
        if cluster.address == HERE:
            ray.init(address=HERE, num_cpus=cluster.count, include_dashboard=False, **quiet)
        else:
            ray.init(address=cluster.address, **quiet)
    except (OSError, ValueError, ImportError, RuntimeError, RayError) as error:
        raise BadInput(
            f"no connection to Ray at {cluster.address!r}: {str(error).split('. ')[0]}; give the "
            "address of a cluster that runs, or none to start Ray on this machine; if the cluster "
            "asks for a token (InvalidAuthToken), set RAY_AUTH_MODE=token here "
            "and for every 'ray start', with one token in ~/.ray/auth_token of all machines"
        ) from error
    finally:
        # Ray puts a handler of its own there, which would end the program otherwise than we do.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def cores(cluster: RayCluster) -> int:
    """Processor cores of a cluster, at least 1."""
    connect(cluster)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def close() -> None:
    """Ends this program's connection."""
    ray.shutdown()


@contextmanager
def session(
    cluster: RayCluster, work: Callable[[Shared, Item], Result], shared: Shared
) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """See :meth:`fedaudit.engines.ray_cluster.RayCluster.session`."""
    connect(cluster)
    try:
        # Owned by this process: what a worker owned would be lost with it.
        job = ray.put(packed((work, shared), ray.put))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"this run cannot be sent to other processes ({error}); use functions and classes "
            "that can be pickled, or one worker of the local engine"
        ) from error
    token, most, folders = uuid4().hex, cluster.count, looked_in()

    def run(items: Iterable[Item]) -> Iterator[Result]:
        together = packed_together(list(items), ray.put)
        # Arrays inside a tuple are shared memory on arrival; a list of references is passed on.
        common = ray.put(together.common)

        def start(number: int) -> ObjectRef:
            begun: ObjectRef = _task().remote(
                MADE, token, [job], folders, common, together.each[number]
            )
            return begun

        yield from cast(Iterator[Result], _in_order(start, len(together.each), most))

    yield run


def _in_order(start: Callable[[int], ObjectRef], count: int, most: int) -> Iterator[object]:
    waiting, running = deque(range(count)), dict[Future[_Result], _Begun]()
    done, lost = dict[int, object](), Counter[int]()
    try:
        for number in range(count):
            while number not in done:
                while waiting and len(running) < most:
                    item = waiting.popleft()
                    ref = start(item)
                    running[ref.future()] = _Begun(item, ref)
                # Not ray.wait, which takes whatever a signal raises for Ctrl-C.
                ready = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
                item = running.pop(ready).item
                try:
                    done[item] = _received(ready)
                except RayError as error:
                    lost[item] += 1
                    if lost[item] >= _TRIES:
                        raise MemoryError(
                            f"a Ray worker was lost {_TRIES} times at the same work "
                            f"({type(error).__name__}), most often for want of memory; fewer "
                            "workers need less"
                        ) from error
                    _log.warning("a Ray worker was lost; what it was doing is done again")
                    waiting.appendleft(item)
            yield done.pop(number)
    finally:
        # What is still at work is of no use to anybody any more.
        for begun in running.values():
            ray.cancel(begun.ref, force=True)


def _received(ready: Future[_Result]) -> object:
    """A task's result, or what the work itself raised."""
    try:
        result = ready.result()
    except RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            raise Unsupported(
                f"a machine of the cluster lacks what this one has ({error.cause}); install the "
                "same there, or name it in Ray's runtime environment"
            ) from error
        raise error.cause from error
    for level, text in result.said:
        _say(level, text)
    return unpacked(result.value, (), ray.get)


@cache
def _say(level: int, text: str) -> None:
    _log.log(level, "%s", text)


@cache
def _task() -> RemoteFunction:
    # Lost tasks are begun again by the loop above, which knows when to give up.
    made: RemoteFunction = ray.remote(num_cpus=1, max_retries=0)(_do)
    return made


def _do(
    made: _Made,
    token: str,
    job: list[ObjectRef],
    folders: tuple[str, ...],
    common: Arrays,
    item: Parcel,
) -> _Result:
    if tuple(made) != tuple(MADE):
        raise Unsupported(
            f"results depend on versions, and a machine of the cluster has other ones: fedaudit "
            f"{MADE.fedaudit} with torch {MADE.torch} instead of {made.fedaudit} with "
            f"{made.torch}; install the same everywhere"
        )
    torch.set_num_threads(1)
    look_in(folders)
    work, shared = _shared(token, job)
    with _listening() as said, refusing_exits():
        result = work(shared, unpacked(item, common, ray.get))
    return _Result(packed(result, ray.put), said)


_kept: OrderedDict[str, _Job] = OrderedDict()


def _shared(token: str, job: Sequence[ObjectRef]) -> _Job:
    """A session's work and what it shares, unpacked once for each worker."""
    if token not in _kept:
        while len(_kept) >= _SESSIONS:
            _kept.popitem(last=False)
        _kept[token] = cast(_Job, unpacked(ray.get(job[0]), (), ray.get))
    return _kept[token]


@contextmanager
def _listening() -> Iterator[list[tuple[int, str]]]:
    """Collects fedaudit's log inside, since a worker's own output is read by nobody."""
    said = list[tuple[int, str]]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append((record.levelno, record.getMessage()))

    listener = Listener()
    _log.addHandler(listener)
    try:
        yield said
    finally:
        _log.removeHandler(listener)
