"""Training on this machine: in this process, or in several with one thread each."""

import atexit
import itertools
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar, cast

import torch

from fedaudit.core.errors import BadInput, Unsupported, assignment
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import importing
from fedaudit.engines import begin
from fedaudit.engines.base import packed

if TYPE_CHECKING:
    from fedaudit.engines.ray_cluster import RayCluster

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

_BOTH = signal.SIGINT, signal.SIGTERM
_KILLED = -int(getattr(signal, "SIGKILL", 9))


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
            for item in items:
                # Not around the yield: whoever takes the result has as many threads as before.
                with one_thread():
                    result = work(shared, item)
                yield result
                del result

        yield run


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after this; processes started inside never see them, not even
    while they start: it is this program that ends, and they with it.
    """
    with _put_off(signal.SIGINT), _put_off(signal.SIGTERM), _blocked():
        yield


@contextmanager
def _put_off(number: signal.Signals) -> Iterator[None]:
    """Puts off this program's reaction to a signal until afterwards."""
    # Blocking is not enough: any other thread hears the signal too, and this one then acts.
    handler = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = list[int]()
    try:
        signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        signal.signal(number, handler)
        if came:
            handler(number, None)


@contextmanager
def _blocked() -> Iterator[None]:
    """Processes that are started inside do not hear the signals."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python starts this with the first process, and lets the signals through again when it does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BOTH)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkResult(NamedTuple):
    """The result of work in a worker."""

    value: object = None
    error: Exception | None = None


def serve(pipe: Connection) -> NoReturn:
    """Takes a job and then items from a pipe, and sends an outcome for each item.

    Ends with the process at the other end, whatever the work is at.
    """
    # Ctrl-C is for the program, also where processes cannot be started with it blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    came = SimpleQueue[bytes]()
    Thread(target=_listen, args=(pipe, came), daemon=True).start()
    next_outcome = _worker(came)
    while True:
        outcome = next_outcome()
        try:
            pipe.send_bytes(outcome)
        except OSError:
            os._exit(1)
        # It can be large, and the next item long in coming.
        del outcome


def _listen(pipe: Connection, came: "SimpleQueue[bytes]") -> NoReturn:
    """Passes on what is sent, and ends the process when there is nobody left to send anything."""
    try:
        while True:
            came.put(pipe.recv_bytes())
    except (EOFError, OSError):
        pass
    except BaseException:
        # Such as too little memory for what is sent; the work would wait for it for ever.
        traceback.print_exc()
    finally:
        os._exit(1)


def _worker(came: "SimpleQueue[bytes]") -> Callable[[], bytes]:
    """The function for the next item; one that cannot be unpacked here fails for each."""
    try:
        with importing():
            work, shared = pickle.loads(came.get())
    except Exception as error:
        failed = _failure(error)

        def fail() -> bytes:
            came.get()
            return failed

        return fail

    def do() -> bytes:
        try:
            item = pickle.loads(came.get())
            with refusing_exits():
                result = work(shared, item)
            return packed(WorkResult(result))
        except Exception as error:
            return _failure(error)

    return do


def _failure(error: Exception) -> bytes:
    """An error as it was raised, if it is one that can be raised elsewhere."""
    where = f"In a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        # The note is for a copy: work may raise the same error again.
        copy: Exception = pickle.loads(packed(error))
        copy.add_note(where)
        return packed(WorkResult(error=copy))
    except Exception:
        return packed(WorkResult(error=RuntimeError(where)))


@dataclass(frozen=True)
class Workers:
    """Several processes with one thread each, every one taking whole clients.

    Jobs travel as bytes between processes of this program only; nothing from outside is ever
    unpickled. No worker outlives its session or this process, however either ends. A session
    belongs to one thread at a time.

    Attributes:
        count: Number of processes, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(
                f"workers must be at least 1, got {self.count}; "
                f"{assignment('workers', '0')} starts one process per core"
            )

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """See :class:`fedaudit.engines.base.Engine`.

        Raises:
            Unsupported: The work or the data cannot be sent to another process, or none starts.
            MemoryError: A worker was ended from outside.
        """
        with closing(_Crew(_to_send((work, shared)), self.count)) as crew:

            def run(items: Iterable[Item]) -> Iterator[Result]:
                numbers = crew.take(list(items))
                try:
                    for number in numbers:
                        yield cast(Result, crew.result(number))
                finally:
                    crew.forget(numbers)

            yield run


def _to_send(value: object) -> bytes:
    try:
        return packed(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"this run cannot be sent to other processes ({error}); use importable functions "
            "and classes instead of local ones, or one worker"
        ) from error


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    item: int | None = None

    def end(self) -> None:
        """Ends it if it has begun to start; can be said again."""
        if self.process.pid is not None:
            self.process.kill()
        # One that was stopped in its start, so that nobody knows its number, ends by this.
        self.pipe.close()

    def wait(self) -> None:
        """Waits until it has ended."""
        if self.process.pid is not None:
            self.process.join()


class _Crew:
    """Workers at one job, who are started when there is something to do."""

    def __init__(self, job: bytes, most: int) -> None:
        self._job, self._most = job, most
        self._workers = list[_Worker]()
        self._numbers = itertools.count()
        self._wanted = set[int]()
        # Each is packed when a worker is free for it: packed items of a thousand clients, of which
        # every one holds the global model, are larger than what they send back.
        self._waiting = deque[tuple[int, object]]()
        self._done = dict[int, bytes]()
        self._over = False
        # A program that ends in the midst of a session may never leave it.
        atexit.register(self.close)

    def take(self, items: Sequence[object]) -> list[int]:
        """Gives items to the workers, in their order; the numbers ask for the results."""
        with self._talking():
            self._engage(min(self._most, len(items)) - len(self._workers))
            numbers = [next(self._numbers) for _ in items]
            self._wanted.update(numbers)
            self._waiting.extend(zip(numbers, items, strict=True))
            self._hand_out()
        return numbers

    def result(self, number: int) -> object:
        """Wait for the result of an item, and return it or raise what the work raised."""
        while number not in self._done:
            with self._talking():
                self._receive()
        outcome: WorkResult = pickle.loads(self._done.pop(number))
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def forget(self, numbers: Collection[int]) -> None:
        """Gives up items: nobody will ask for them any more."""
        self._wanted.difference_update(numbers)
        self._waiting = deque(item for item in self._waiting if item[0] in self._wanted)
        self._done = {number: self._done[number] for number in self._done.keys() & self._wanted}

    def close(self) -> None:
        """Ends the workers, whatever they are doing: it is of no use to anybody any more.

        Can be called again, as when it was interrupted.
        """
        self._over = True
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.wait()
        self._workers.clear()
        self._job = b""
        self.forget(list(self._wanted))
        atexit.unregister(self.close)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Inside, messages go to and fro; who is stopped there has said or heard half of one."""
        if self._over:
            raise RuntimeError("the session of these workers is over; open another one")
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _engage(self, more: int) -> None:
        # All of them start before the first is told its job, which it only hears when it has.
        new = [self._started() for _ in range(more)]
        for worker in new:
            with _told_of(worker):
                worker.pipe.send_bytes(self._job)
        if len(self._workers) == self._most:
            # The data of all clients, of no use any more.
            self._job = b""

    def _started(self) -> _Worker:
        # Forking after torch has used its own threads hangs or fails in backward passes.
        context = get_context("spawn")
        with uninterrupted():
            ours, theirs = context.Pipe()
            worker = _Worker(context.Process(target=begin, args=(theirs,)), ours)
            # Before it starts, so that it is ended whatever comes in between.
            self._workers.append(worker)
            worker.process.start()
            # What the worker alone holds ends with it.
            theirs.close()
        return worker

    def _hand_out(self) -> None:
        for worker in self._workers:
            while worker.item is None and self._waiting:
                number, item = self._waiting.popleft()
                try:
                    content = _to_send(item)
                except Unsupported as error:
                    # Of this item alone, and raised to whoever asks for its result.
                    self._done[number] = packed(WorkResult(error=error))
                    continue
                worker.item = number
                with _told_of(worker):
                    worker.pipe.send_bytes(content)

    def _receive(self) -> None:
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
    """Explain why a worker process exited."""
    try:
        yield
    except (EOFError, OSError) as error:
        # One that closed its end itself may never end.
        worker.process.join(10)
        if worker.process.exitcode == _KILLED:
            raise MemoryError(
                "a worker process was ended from outside, most often for want of memory; fewer "
                "workers need less"
            ) from error
        raise Unsupported(
            f"a worker process ended (exit code {worker.process.exitcode}), and said why above if "
            "it could; a script that uses workers begins its own work under if __name__ == "
            "'__main__', and one worker needs no other process"
        ) from error


LOCAL = Sequential()


def local_engine(workers: int) -> Sequential | Workers:
    """The engine for a number of workers: this process for one, more processes otherwise."""
    return LOCAL if workers == 1 else Workers(workers)


def refuse_unknown_engine(name: str) -> None:
    """Raise if there is no engine of a name; see :func:`engine_named`."""
    if name != "local" and (name.partition(":")[0] != "ray" or name == "ray:"):
        raise BadInput(
            f'there is no engine named {name!r}; it is "local", "ray" for Ray on this machine, or '
            'the address of a cluster: "ray:auto", "ray:host:6379" or "ray://host:10001"'
        )


def engine_named(name: str, workers: int) -> "RayCluster | None":
    """The engine that a command line names; None for this machine's own processes.

    Args:
        name: "local", "ray" for Ray on this machine, and for a cluster "ray:auto",
            "ray:host:6379" or "ray://host:10001".
        workers: Items at work at once; 0 for one a core.

    Raises:
        BadInput: There is no engine of that name.
        Unsupported: Ray is not installed.
    """
    refuse_unknown_engine(name)
    if name == "local":
        return None
    _, _, address = name.partition(":")
    from fedaudit.engines.ray_cluster import HERE, RayCluster

    # Ray itself has the scheme for clients that are no part of the cluster.
    return RayCluster(name if address.startswith("//") else address or HERE, workers)
