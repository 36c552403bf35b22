"""Training on this machine: in this process, or in several with one thread each."""

import copyreg
import io
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import TypeVar

import torch
from torch import Tensor

from fedaudit.errors import BadInput, Unsupported

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

_job: list[object] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside, as many as before afterwards.

    Training bits change with the number of intra-op threads, and two threads on small batches
    are slower than one; so results are made on one thread everywhere.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Sequential:
    """One client after another, in this process."""

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """See :class:`fedaudit.engines.base.Engine`."""

        def run(items: Iterable[Item]) -> Iterator[Result]:
            with one_thread():
                results = [work(shared, item) for item in items]
            yield from results

        yield run


Recipe = tuple[Callable[..., Tensor], tuple[object, ...]]

_AS_ARRAYS = {torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool}


def is_plain(tensor: Tensor) -> bool:
    """Whether an array keeps all there is to keep of a tensor."""
    # It keeps neither gaps nor what autograd knows, and there are none of 16-bit floats.
    return (
        tensor.dtype in _AS_ARRAYS
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg())
    )


def _reduced(tensor: Tensor) -> Recipe:
    """What to pickle of a tensor: an array where that is enough."""
    if is_plain(tensor):
        return torch.from_numpy, (tensor.numpy(),)
    usual: Callable[[int], Recipe] = tensor.__reduce_ex__
    return usual(pickle.HIGHEST_PROTOCOL)


class _Packer(pickle.Pickler):
    """Pickles tensors as arrays; torch writes a file in memory for each, 5 to 10 times as slow."""

    dispatch_table = copyreg.dispatch_table | {Tensor: _reduced}


def _packed(value: object) -> bytes:
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _open(packed: bytes, lifeline: Connection) -> None:
    """Makes a worker ready; it ends as soon as nobody holds the other end of the lifeline."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    torch.set_num_threads(1)
    _job[:] = pickle.loads(packed)


def _end_with(lifeline: Connection) -> None:
    # Nothing is ever sent: it becomes ready when the parent closes it, or is no more.
    wait([lifeline])
    os._exit(1)


def _do(packed: bytes) -> bytes:
    work, shared = _job
    if not callable(work):
        raise TypeError("this worker was given no work")
    return _packed(work(shared, pickle.loads(packed)))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after this; processes started inside never see them, not even
    while they start: it is this program that ends, and they with it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Workers:
    """Several processes with one thread each, every one taking whole clients.

    Jobs travel as bytes between processes of this program only; nothing from outside is ever
    unpickled. No worker outlives its session or this process, however either ends.

    Attributes:
        count: Number of processes, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(f"workers must be at least 1, got {self.count}")

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """See :class:`fedaudit.engines.base.Engine`.

        Raises:
            Unsupported: The work or the data cannot be sent to another process.
        """
        try:
            packed = _packed((work, shared))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Unsupported(
                f"this run cannot be sent to other processes ({error}); use importable functions "
                "and classes instead of local ones, or one worker"
            ) from error
        # Forking after torch has used its own threads hangs or fails in backward passes.
        context = multiprocessing.get_context("spawn")
        lifeline, ours = context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(self.count, context, _open, (packed, lifeline))

        def run(items: Iterable[Item]) -> Iterator[Result]:
            with _uninterrupted():
                futures = [pool.submit(_do, _packed(item)) for item in items]
            try:
                for future in futures:
                    yield pickle.loads(future.result())
            except BrokenProcessPool as error:
                raise MemoryError(
                    "a worker process was ended from outside, most often for want of memory; "
                    "fewer workers need less"
                ) from error

        try:
            yield run
        except BaseException:
            # What the workers are doing is of no use to anybody any more.
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            ours.close()
            lifeline.close()


LOCAL = Sequential()


def local_engine(workers: int) -> Sequential | Workers:
    """The engine for a number of workers: this process for one, more processes otherwise."""
    return LOCAL if workers == 1 else Workers(workers)
