"""Training in several processes of this machine, each with one thread and a pipe of its own.

``concurrent.futures`` has one pipe for all results: a worker that is ended while it writes, for
want of memory or because the program stops, leaves half a result there, for which its reader then
waits for ever. Here the pipe ends with its worker, and what was half written is known to be lost.
"""

import atexit
import itertools
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, NoReturn, TypeVar, cast

import torch

from fedaudit.engines.packing import packed
from fedaudit.errors import BadInput, Unsupported

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
            Unsupported: The work or the data cannot be sent to another process, or none starts.
            MemoryError: A worker was ended from outside.
        """
        try:
            job = packed((work, shared))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Unsupported(
                f"this run cannot be sent to other processes ({error}); use importable functions "
                "and classes instead of local ones, or one worker"
            ) from error
        with closing(_Crew(job, self.count)) as crew:

            def run(items: Iterable[Item]) -> Iterator[Result]:
                numbers = crew.take([packed(item) for item in items])
                try:
                    for number in numbers:
                        yield cast(Result, crew.result(number))
                finally:
                    crew.forget(numbers)

            yield run


class _Outcome(NamedTuple):
    """What work came to in a worker."""

    value: object = None
    error: Exception | None = None


@dataclass
class _Worker:
    """A process, this end of its pipe, and the number of the item that it is at."""

    process: SpawnProcess
    pipe: Connection
    item: int | None = None


class _Crew:
    """Workers at one job, who are started when there is something to do."""

    def __init__(self, job: bytes, most: int) -> None:
        self._job, self._most = job, most
        self._workers = list[_Worker]()
        self._numbers = itertools.count()
        self._wanted = set[int]()
        self._waiting = deque[tuple[int, bytes]]()
        self._done = dict[int, bytes]()
        # A program that ends in the midst of a session may never leave it.
        atexit.register(self.close)

    def take(self, items: Sequence[bytes]) -> list[int]:
        """Gives items to the workers, in their order; the numbers ask for the results."""
        self._engage(min(self._most, len(items)) - len(self._workers))
        numbers = [next(self._numbers) for _ in items]
        self._wanted.update(numbers)
        self._waiting.extend(zip(numbers, items, strict=True))
        self._hand_out()
        return numbers

    def result(self, number: int) -> object:
        """What the work made of an item; waits until it is there.

        Raises:
            Exception: What the work raised.
            MemoryError, Unsupported: A worker ended.
        """
        while number not in self._done:
            self._receive()
        self._wanted.remove(number)
        outcome: _Outcome = pickle.loads(self._done.pop(number))
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def forget(self, numbers: Collection[int]) -> None:
        """Gives up items: nobody will ask for them any more."""
        self._wanted.difference_update(numbers)
        self._waiting = deque(item for item in self._waiting if item[0] in self._wanted)
        self._done = {number: self._done[number] for number in self._done.keys() & self._wanted}

    def close(self) -> None:
        """Ends the workers, whatever they are doing: it is of no use to anybody any more."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            worker = self._workers.pop()
            worker.process.join()
            worker.process.close()
            worker.pipe.close()

    def _engage(self, more: int) -> None:
        # All of them start before the first is told its job, which it only hears when it has.
        new = [self._started() for _ in range(more)]
        for worker in new:
            with _told_of(worker):
                worker.pipe.send_bytes(self._job)

    def _started(self) -> _Worker:
        # Forking after torch has used its own threads hangs or fails in backward passes.
        context = get_context("spawn")
        with _uninterrupted():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,))
            process.start()
            worker = _Worker(process, ours)
            self._workers.append(worker)
            # What the worker alone holds ends with it.
            theirs.close()
        return worker

    def _hand_out(self) -> None:
        """Gives every worker who is free an item, as long as there are any."""
        for worker in self._workers:
            if worker.item is None and self._waiting:
                worker.item, item = self._waiting.popleft()
                with _told_of(worker):
                    worker.pipe.send_bytes(item)

    def _receive(self) -> None:
        """Takes what workers have done, as soon as one has done something."""
        working = {worker.pipe: worker for worker in self._workers if worker.item is not None}
        for pipe in wait(list(working)):
            worker = working[cast(Connection, pipe)]
            with _told_of(worker):
                done = worker.pipe.recv_bytes()
            if worker.item in self._wanted:
                self._done[worker.item] = done
            worker.item = None
        self._hand_out()


@contextmanager
def _told_of(worker: _Worker) -> Iterator[None]:
    """Says of a worker who is no longer there what became of it.

    Raises:
        MemoryError: It was ended from outside.
        Unsupported: It ended of itself.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        worker.process.join()
        if worker.process.exitcode == -signal.SIGKILL:
            raise MemoryError(
                "a worker process was ended from outside, most often for want of memory; fewer "
                "workers need less"
            ) from error
        raise Unsupported(
            f"a worker process ended (exit code {worker.process.exitcode}), and said why above if "
            "it could; a script that uses workers begins its own work under if __name__ == "
            "'__main__', and one worker needs no other process"
        ) from error


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


def _serve(pipe: Connection) -> NoReturn:
    """What a worker does: the same job for one item after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    came = SimpleQueue[bytes]()
    Thread(target=_listen, args=(pipe, came), daemon=True).start()
    do = _unpacked(came.get())
    while True:
        pipe.send_bytes(_outcome(do, came.get()))


def _listen(pipe: Connection, came: "SimpleQueue[bytes]") -> NoReturn:
    """Passes on what is sent, and ends the process when there is nobody left to send anything."""
    while True:
        try:
            came.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


def _unpacked(job: bytes) -> Callable[[bytes], object]:
    """The work as a function of an item; one that cannot be unpacked here fails for each."""
    try:
        work, shared = pickle.loads(job)
    except Exception as error:
        failed = error

        def fail(item: bytes) -> NoReturn:
            raise failed

        return fail
    return lambda item: work(shared, pickle.loads(item))


def _outcome(do: Callable[[bytes], object], item: bytes) -> bytes:
    try:
        return packed(_Outcome(do(item)))
    except Exception as error:
        where = f"In a worker process:\n{traceback.format_exc()}"
        return packed(_Outcome(error=_sendable(error, where)))


def _sendable(error: Exception, where: str) -> Exception:
    """An error as it was raised, if it is one that can be raised elsewhere."""
    error.add_note(where)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(where)
    return error
