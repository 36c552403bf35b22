"""Training on this machine: in this process, or in several with one thread each."""

import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

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


def _open(packed: bytes) -> None:
    torch.set_num_threads(1)
    _job[:] = pickle.loads(packed)


def _do(packed: bytes) -> bytes:
    work, shared = _job
    if not callable(work):
        raise TypeError("this worker was given no work")
    return pickle.dumps(work(shared, pickle.loads(packed)), protocol=5)


@dataclass(frozen=True)
class Workers:
    """Several processes with one thread each, every one taking whole clients.

    Jobs travel as bytes between processes of this program only; nothing from outside is ever
    unpickled.

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
            packed = pickle.dumps((work, shared), protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Unsupported(
                f"this run cannot be sent to other processes ({error}); use importable functions "
                "and classes instead of local ones, or one worker"
            ) from error
        # Forking after torch has used its own threads hangs or fails in backward passes.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.count, context, _open, (packed,))

        def run(items: Iterable[Item]) -> Iterator[Result]:
            futures = [pool.submit(_do, pickle.dumps(item, protocol=5)) for item in items]
            for future in futures:
                yield pickle.loads(future.result())

        try:
            yield run
        finally:
            pool.shutdown(cancel_futures=True)


LOCAL = Sequential()


def local_engine(workers: int) -> Sequential | Workers:
    """The engine for a number of workers: this process for one, more processes otherwise."""
    return LOCAL if workers == 1 else Workers(workers)
