"""Sessions on Ray: the tasks, and the loop over them in the main process.

Ray stores an array once per machine, in shared memory, and gives each process a read-only view.
Tensors are therefore sent as arrays, separately from the rest of a value. Each worker copies them
to memory with the same alignment as in the main process, since the last bits of results can depend
on the alignment.
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
from fedaudit.core.importing import (
    add_module_folders,
    added_module_folders,
    convert_exits_to_errors,
)
from fedaudit.engines.base import Item, Key, Result, Shared, SharedByKey, is_plain
from fedaudit.engines.ray_cluster import LOCAL_ADDRESS, RayCluster

Arrays: TypeAlias = tuple[np.ndarray, ...]


class Parcel(NamedTuple):
    """A value in the form in which it is sent.

    Attributes:
        skeleton: The pickled value, with numbers instead of its tensors and shards.
        arrays: The tensors as arrays; an integer is an index into :attr:`Parcels.common`.
        shards: For each :class:`SharedByKey`, references to the parcels of its values, by key.
    """

    skeleton: bytes
    arrays: tuple[np.ndarray | int, ...] = ()
    shards: tuple[dict[object, ObjectRef], ...] = ()


class Parcels(NamedTuple):
    """Several values in the form in which they are sent together.

    Attributes:
        parcels: The parcel of each value.
        common: Tensors that several values share, such as those of the global model.
    """

    parcels: list[Parcel]
    common: Arrays


class _Skeleton(NamedTuple):
    """Pickled value, and the tensors and shards to which it refers by number."""

    content: bytes
    tensors: list[Tensor]
    shards: list[SharedByKey[object, object]]


def pack(value: object, put: Callable[[object], ObjectRef]) -> Parcel:
    """Pack a value; ``put`` writes the parcel of a shard to Ray's object store."""
    return pack_all([value], put).parcels[0]


def pack_all(values: Sequence[object], put: Callable[[object], ObjectRef]) -> Parcels:
    """Pack several values; a tensor that several of them contain is packed once."""
    skeletons = [_pickle_skeleton(value) for value in values]
    tensors = [tensor for skeleton in skeletons for tensor in skeleton.tensors]
    counts = Counter(map(id, tensors))
    common = {id(tensor): tensor for tensor in tensors if counts[id(tensor)] > 1}
    index_by_id = {key: index for index, key in enumerate(common)}
    parcels = list[Parcel]()
    for skeleton in skeletons:
        arrays = [index_by_id.get(id(tensor), tensor.numpy()) for tensor in skeleton.tensors]
        shards = [
            {key: put(pack(part, put)) for key, part in shard.items()} for shard in skeleton.shards
        ]
        parcels.append(Parcel(skeleton.content, tuple(arrays), tuple(shards)))
    return Parcels(parcels, tuple(tensor.numpy() for tensor in common.values()))


def unpack(parcel: Parcel, common: Arrays, get: Callable[[ObjectRef], Parcel]) -> object:
    """Unpack a parcel, with copies of its tensors; ``get`` reads a shard from the object store.

    Call this only for parcels of this program's cluster, since it unpickles them.
    """
    arrays = [common[array] if isinstance(array, int) else array for array in parcel.arrays]
    tensors = [_copy_to_tensor(array) for array in arrays]
    shards = [_LazyShards(refs, get) for refs in parcel.shards]
    value: object = _Unpickler(parcel.skeleton, {"tensor": tensors, "shards": shards}).load()
    return value


class _Unpickler(pickle.Unpickler):
    """Unpickler that inserts the tensors and shards of a skeleton."""

    def __init__(self, skeleton: bytes, parts: Mapping[str, Sequence[object]]) -> None:
        super().__init__(io.BytesIO(skeleton))
        self._parts = parts

    def persistent_load(self, reference: tuple[str, int]) -> object:
        kind, number = reference
        return self._parts[kind][number]


class _LazyShards(Mapping[Key, object]):
    """Mapping of shards, which are fetched at each access and not stored."""

    def __init__(self, refs: Mapping[Key, ObjectRef], get: Callable[[ObjectRef], Parcel]) -> None:
        self._refs, self._get = refs, get

    def __getitem__(self, key: Key) -> object:
        return unpack(self._get(self._refs[key]), (), self._get)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _copy_to_tensor(array: np.ndarray) -> Tensor:
    # Let torch allocate the memory, since its alignment is the same on every machine.
    tensor = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype)
    tensor.numpy()[...] = array
    return tensor


def _pickle_skeleton(value: object) -> _Skeleton:
    tensors, shards, numbers = list[Tensor](), list[SharedByKey[object, object]](), dict[int, int]()

    def reference(part: object) -> tuple[str, int] | None:
        """Return the kind and number of a tensor or shard; None to pickle the object itself."""
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
    # cloudpickle pickles functions and classes of a script or notebook by value.
    pickler = cloudpickle.CloudPickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = reference
    pickler.dump(value)
    return _Skeleton(file.getvalue(), tensors, shards)


_Job: TypeAlias = tuple[Callable[[object, object], object], object]
"""The function of a session, and the values that all its items share."""

_MAX_LOSSES = 3
"""Number of times that the worker of an item may be lost until the session fails."""

_MAX_KEPT_JOBS = 3
"""Number of jobs that a worker keeps, since sessions of training and measurement alternate."""

_log = logging.getLogger("fedaudit")


class _Versions(NamedTuple):
    fedaudit: str
    torch: str


class _Result(NamedTuple):
    """Result of a task, with the level and text of each log message."""

    value: Parcel
    log: list[tuple[int, str]]


class _Running(NamedTuple):
    """Task in progress, and the number of its item."""

    item: int
    ref: ObjectRef


VERSIONS = _Versions(__version__, torch.__version__)


def connect(cluster: RayCluster) -> None:
    """Connect this program to the cluster, unless it is already connected to Ray."""
    if ray.is_initialized():
        return
    log_options: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if cluster.address == LOCAL_ADDRESS:
            ray.init(
                address=LOCAL_ADDRESS,
                num_cpus=cluster.count,
                include_dashboard=False,
                **log_options,
            )
        else:
            ray.init(address=cluster.address, **log_options)
    except (OSError, ValueError, ImportError, RuntimeError, RayError) as error:
        raise BadInput(
            f"cannot connect to Ray at {cluster.address!r}: {str(error).split('. ')[0]}; give the "
            "address of a running cluster, or no address to start Ray on this machine; if the "
            "cluster requires a token (InvalidAuthToken), set RAY_AUTH_MODE=token here and for "
            "every 'ray start', with the same token in ~/.ray/auth_token on all machines"
        ) from error
    finally:
        # Ray replaces the program's handler of SIGTERM, so restore it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def cores(cluster: RayCluster) -> int:
    """Return the number of cores of a cluster, at least 1."""
    connect(cluster)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def close() -> None:
    """Close this program's connection to Ray."""
    ray.shutdown()


@contextmanager
def session(
    cluster: RayCluster, work: Callable[[Shared, Item], Result], shared: Shared
) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """Open a session; see :meth:`fedaudit.engines.ray_cluster.RayCluster.session`."""
    connect(cluster)
    try:
        # Write the job from this process, since objects that a worker writes are lost with it.
        job = ray.put(pack((work, shared), ray.put))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"this run cannot be sent to other processes ({error}); use functions and classes "
            "that can be pickled, or one worker of the local engine"
        ) from error
    token, max_running, folders = uuid4().hex, cluster.count, added_module_folders()

    def run(items: Iterable[Item]) -> Iterator[Result]:
        parcels, common_arrays = pack_all(list(items), ray.put)
        # Ray replaces an argument that is a reference by its value, here arrays in shared memory.
        # It does not do this for a reference in a list.
        common = ray.put(common_arrays)

        def start(item: int) -> ObjectRef:
            ref: ObjectRef = _remote_task().remote(
                VERSIONS, token, [job], folders, common, parcels[item]
            )
            return ref

        yield from cast(Iterator[Result], _run_tasks(start, len(parcels), max_running))

    yield run


def _run_tasks(start: Callable[[int], ObjectRef], count: int, max_running: int) -> Iterator[object]:
    """Yield the results of tasks in order; repeat the tasks of lost workers."""
    queue, running = deque(range(count)), dict[Future[_Result], _Running]()
    results, losses = dict[int, object](), Counter[int]()
    try:
        for number in range(count):
            while number not in results:
                while queue and len(running) < max_running:
                    item = queue.popleft()
                    ref = start(item)
                    running[ref.future()] = _Running(item, ref)
                # Do not use ray.wait, which treats any exception of a signal handler as Ctrl-C.
                ready = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
                item = running.pop(ready).item
                try:
                    results[item] = _result(ready)
                except RayError as error:
                    losses[item] += 1
                    if losses[item] >= _MAX_LOSSES:
                        raise MemoryError(
                            f"a Ray worker was lost {_MAX_LOSSES} times in the same task "
                            f"({type(error).__name__}), probably because memory ran out; use "
                            "fewer workers"
                        ) from error
                    _log.warning("a Ray worker was lost; its task is repeated")
                    queue.appendleft(item)
            yield results.pop(number)
    finally:
        # Cancel tasks that still run after an error, or after the caller stopped early.
        for task in running.values():
            ray.cancel(task.ref, force=True)


def _result(future: Future[_Result]) -> object:
    try:
        result = future.result()
    except RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            raise Unsupported(
                f"a machine of the cluster lacks a module of this machine ({error.cause}); install "
                "it there, or add it to Ray's runtime environment"
            ) from error
        raise error.cause from error
    for level, text in result.log:
        _log_once(level, text)
    return unpack(result.value, (), ray.get)


@cache
def _log_once(level: int, text: str) -> None:
    _log.log(level, "%s", text)


@cache
def _remote_task() -> RemoteFunction:
    # Disable Ray's own retries, since _run_tasks repeats lost tasks.
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
            f"a machine of the cluster has fedaudit {VERSIONS.fedaudit} with torch "
            f"{VERSIONS.torch} instead of {versions.fedaudit} with {versions.torch}, but results "
            "depend on these versions; install the same versions on all machines"
        )
    torch.set_num_threads(1)
    add_module_folders(folders)
    work, shared = _load_job(token, job)
    with _capturing_log() as log, convert_exits_to_errors():
        result = work(shared, unpack(item, common, ray.get))
    return _Result(pack(result, ray.put), log)


_jobs: OrderedDict[str, _Job] = OrderedDict()
"""The jobs of a worker's latest sessions, by token."""


def _load_job(token: str, job: Sequence[ObjectRef]) -> _Job:
    """Return the job of a session; each worker unpacks it only once."""
    if token not in _jobs:
        while len(_jobs) >= _MAX_KEPT_JOBS:
            _jobs.popitem(last=False)
        _jobs[token] = cast(_Job, unpack(ray.get(job[0]), (), ray.get))
    return _jobs[token]


@contextmanager
def _capturing_log() -> Iterator[list[tuple[int, str]]]:
    """Collect fedaudit's log messages, since Ray does not show the output of workers."""
    messages = list[tuple[int, str]]()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    collector = Collector()
    _log.addHandler(collector)
    try:
        yield messages
    finally:
        _log.removeHandler(collector)
