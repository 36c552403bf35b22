"""Sessions on Ray: the loop of the main process over tasks, and the tasks.

Ray writes arrays once to memory that all processes of a machine share, and gives read-only views of
them. Tensors are therefore sent as arrays, separately from the rest of a value, and copied on
arrival. A worker trains on its own copies, whose memory layout is that of the main process, since
the last bits of results can depend on it.
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
from typing import NamedTuple, TypeAlias, cast
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
from fedaudit.core.importing import add_module_folders, added_module_folders, refusing_exits
from fedaudit.engines.base import Item, Key, Result, Shared, SharedByKey, is_plain
from fedaudit.engines.ray_cluster import HERE, RayCluster

Arrays: TypeAlias = tuple[np.ndarray, ...]


class Parcel(NamedTuple):
    """A value in the form that is sent.

    Attributes:
        skeleton: The pickled value without tensors and shards.
        arrays: Its tensors; a number refers to a tensor that several parcels share.
        shards: References to the parcels of its shards, by key.
    """

    skeleton: bytes
    arrays: tuple[np.ndarray | int, ...] = ()
    shards: tuple[dict[object, ObjectRef], ...] = ()


class Parcels(NamedTuple):
    """Several values in the form that is sent.

    Attributes:
        each: Their parcels.
        common: Tensors that several of them share, such as those of the global model.
    """

    each: list[Parcel]
    common: Arrays


class _Parts(NamedTuple):
    """A value's skeleton, and the tensors and shards that it refers to by number."""

    skeleton: bytes
    tensors: list[Tensor]
    shards: list[SharedByKey[object, object]]


def pack(value: object, put: Callable[[object], ObjectRef]) -> Parcel:
    """Pack a value; ``put`` writes a shard to the store."""
    return pack_all([value], put).each[0]


def pack_all(values: Sequence[object], put: Callable[[object], ObjectRef]) -> Parcels:
    """Pack several values, with shared tensors only once."""
    skeletons = [_split(value) for value in values]
    counts = Counter(id(tensor) for part in skeletons for tensor in part.tensors)
    shared_tensors = {id(t): t for part in skeletons for t in part.tensors if counts[id(t)] > 1}
    numbers = {name: number for number, name in enumerate(shared_tensors)}
    parcels = [
        Parcel(
            part.skeleton,
            tuple(numbers.get(id(tensor), tensor.numpy()) for tensor in part.tensors),
            tuple({k: put(pack(v, put)) for k, v in shard.items()} for shard in part.shards),
        )
        for part in skeletons
    ]
    return Parcels(parcels, tuple(tensor.numpy() for tensor in shared_tensors.values()))


def unpack(parcel: Parcel, common: Arrays, get: Callable[[ObjectRef], Parcel]) -> object:
    """Unpack a parcel, with copies of its tensors; ``get`` reads a shard from the store.

    Only parcels of this program's cluster are unpickled.
    """
    arrays = [common[item] if isinstance(item, int) else item for item in parcel.arrays]
    tensors = [_copy_to_tensor(array) for array in arrays]
    shards = [_LazyShards(refs, get) for refs in parcel.shards]
    value: object = _Unpickler(parcel.skeleton, {"tensor": tensors, "shards": shards}).load()
    return value


class _Unpickler(pickle.Unpickler):
    """Unpickles a skeleton, and inserts its tensors and shards."""

    def __init__(self, skeleton: bytes, parts: Mapping[str, Sequence[object]]) -> None:
        super().__init__(io.BytesIO(skeleton))
        self._parts = parts

    def persistent_load(self, name: tuple[str, int]) -> object:
        kind, number = name
        return self._parts[kind][number]


class _LazyShards(Mapping[Key, object]):
    """Shards that are fetched at each access, and not stored."""

    def __init__(self, refs: Mapping[Key, ObjectRef], get: Callable[[ObjectRef], Parcel]) -> None:
        self._refs, self._get = refs, get

    def __getitem__(self, key: Key) -> object:
        return unpack(self._get(self._refs[key]), (), self._get)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _copy_to_tensor(array: np.ndarray) -> Tensor:
    # Copied to memory of torch, which has the same alignment on every machine.
    tensor = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
    tensor.numpy()[...] = array
    return tensor


def _split(value: object) -> _Parts:
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
    # Functions and classes of a script or notebook are pickled by value, all others by name.
    pickler = cloudpickle.CloudPickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = name
    pickler.dump(value)
    return _Parts(file.getvalue(), tensors, shards)


_Job: TypeAlias = tuple[Callable[[object, object], object], object]
"""A session's work, and the values that all its items share."""

_TRIES = 3
"""Number of lost workers after which an item is given up."""

_SESSIONS = 3
"""Number of jobs that a worker keeps, since training and measurement alternate."""

_log = logging.getLogger("fedaudit")


class _Versions(NamedTuple):
    fedaudit: str
    torch: str


class _Result(NamedTuple):
    """The result of a task, with levels and texts of its log."""

    value: Parcel
    log: list[tuple[int, str]]


class _Running(NamedTuple):
    item: int
    ref: ObjectRef


VERSIONS = _Versions(__version__, torch.__version__)


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
        # Ray replaces the handler, and would end the program in another way.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def cores(cluster: RayCluster) -> int:
    """Return the number of cores of a cluster, at least 1."""
    connect(cluster)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def close() -> None:
    """End this program's connection."""
    ray.shutdown()


@contextmanager
def session(
    cluster: RayCluster, work: Callable[[Shared, Item], Result], shared: Shared
) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """Return the context of :meth:`fedaudit.engines.ray_cluster.RayCluster.session`."""
    connect(cluster)
    try:
        # Owned by this process, since objects of a worker are lost with it.
        job = ray.put(pack((work, shared), ray.put))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"this run cannot be sent to other processes ({error}); use functions and classes "
            "that can be pickled, or one worker of the local engine"
        ) from error
    token, max_running, folders = uuid4().hex, cluster.count, added_module_folders()

    def run(items: Iterable[Item]) -> Iterator[Result]:
        parcels = pack_all(list(items), ray.put)
        # Arrays in a tuple arrive as shared memory; references in a list are not resolved.
        common = ray.put(parcels.common)

        def start(number: int) -> ObjectRef:
            begun: ObjectRef = _task().remote(
                VERSIONS, token, [job], folders, common, parcels.each[number]
            )
            return begun

        yield from cast(Iterator[Result], _in_order(start, len(parcels.each), max_running))

    yield run


def _in_order(start: Callable[[int], ObjectRef], count: int, max_running: int) -> Iterator[object]:
    queue, running = deque(range(count)), dict[Future[_Result], _Running]()
    results, losses = dict[int, object](), Counter[int]()
    try:
        for number in range(count):
            while number not in results:
                while queue and len(running) < max_running:
                    item = queue.popleft()
                    ref = start(item)
                    running[ref.future()] = _Running(item, ref)
                # Not ray.wait, which treats any exception of a signal handler as Ctrl-C.
                ready = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
                item = running.pop(ready).item
                try:
                    results[item] = _result_of(ready)
                except RayError as error:
                    losses[item] += 1
                    if losses[item] >= _TRIES:
                        raise MemoryError(
                            f"a Ray worker was lost {_TRIES} times at the same work "
                            f"({type(error).__name__}), most often since memory ran out; use "
                            "fewer workers"
                        ) from error
                    _log.warning("a Ray worker was lost; its task is repeated")
                    queue.appendleft(item)
            yield results.pop(number)
    finally:
        # Results of running tasks are not needed any more.
        for begun in running.values():
            ray.cancel(begun.ref, force=True)


def _result_of(future: Future[_Result]) -> object:
    try:
        result = future.result()
    except RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            raise Unsupported(
                f"a machine of the cluster lacks a module of this one ({error.cause}); install it "
                "there, or name it in Ray's runtime environment"
            ) from error
        raise error.cause from error
    for level, text in result.log:
        _log_once(level, text)
    return unpack(result.value, (), ray.get)


@cache
def _log_once(level: int, text: str) -> None:
    _log.log(level, "%s", text)


@cache
def _task() -> RemoteFunction:
    # No retries by Ray, since _in_order repeats lost tasks.
    task: RemoteFunction = ray.remote(num_cpus=1, max_retries=0)(_run_task)
    return task


def _run_task(
    versions: _Versions,
    token: str,
    job: list[ObjectRef],
    folders: tuple[str, ...],
    common: Arrays,
    item: Parcel,
) -> _Result:
    if tuple(versions) != tuple(VERSIONS):
        raise Unsupported(
            f"results depend on versions, but a machine of the cluster has others: fedaudit "
            f"{VERSIONS.fedaudit} with torch {VERSIONS.torch} instead of {versions.fedaudit} with "
            f"{versions.torch}; install the same versions everywhere"
        )
    torch.set_num_threads(1)
    add_module_folders(folders)
    work, shared = _job_of(token, job)
    with _capturing_log() as log, refusing_exits():
        result = work(shared, unpack(item, common, ray.get))
    return _Result(pack(result, ray.put), log)


_jobs: OrderedDict[str, _Job] = OrderedDict()


def _job_of(token: str, job: Sequence[ObjectRef]) -> _Job:
    """Return a session's work and shared values, which each worker unpacks once."""
    if token not in _jobs:
        while len(_jobs) >= _SESSIONS:
            _jobs.popitem(last=False)
        _jobs[token] = cast(_Job, unpack(ray.get(job[0]), (), ray.get))
    return _jobs[token]


@contextmanager
def _capturing_log() -> Iterator[list[tuple[int, str]]]:
    """Inside, collect fedaudit's log, since the output of a worker is not shown."""
    messages = list[tuple[int, str]]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    listener = Listener()
    _log.addHandler(listener)
    try:
        yield messages
    finally:
        _log.removeHandler(listener)
