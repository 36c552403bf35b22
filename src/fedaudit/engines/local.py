"""Engines on this machine: this process, or several processes with one thread each."""

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
from multiprocessing import current_process, get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

import torch

from fedaudit.core.errors import BadInput, Unsupported, format_assignment
from fedaudit.core.importing import convert_exits_to_errors
from fedaudit.core.progress import without_garbage_collection
from fedaudit.engines import begin
from fedaudit.engines.base import Item, Result, Shared, pickled

if TYPE_CHECKING:
    from fedaudit.engines.ray_cluster import RayCluster

_SIGNALS = signal.SIGINT, signal.SIGTERM
_KILLED = -int(getattr(signal, "SIGKILL", 9))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread within the context.

    All results are computed with one thread, because their last bits depend on the number of
    threads. On small batches, two threads are also slower than one.
    """
    previous_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


@dataclass(frozen=True)
class Sequential:
    """Engine that processes one item after another in this process."""

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """Open a session: a context with a function that maps items to results, in order."""

        def run(items: Iterable[Item]) -> Iterator[Result]:
            for item in items:
                # Yield outside of the context, since the caller may use more threads.
                with one_thread():
                    result = work(shared, item)
                yield result
                del result

        yield run


@contextmanager
def deferring_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM, and block them in processes that are started in the context.

    The parent process handles the signals and stops the workers.
    """
    with _defer(signal.SIGINT), _defer(signal.SIGTERM), _blocking_signals():
        yield


@contextmanager
def _defer(number: signal.Signals) -> Iterator[None]:
    """Defer this program's reaction to a signal until the context ends."""
    # Blocking the signal in this thread is not enough, since another thread may receive it, and
    # Python then runs the handler in the main thread.
    handler = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received = list[int]()
    try:
        signal.signal(number, lambda number, frame: received.append(number))
        yield
    finally:
        signal.signal(number, handler)
        if received:
            handler(number, None)


@contextmanager
def _blocking_signals() -> Iterator[None]:
    """Block signals for this thread and for the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Start this tracker now: Python would start it with the first process, and unblock the signals.
    resource_tracker.ensure_running()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class WorkResult(NamedTuple):
    """Value that the work for an item returned, or the error that it raised."""

    value: object = None
    error: Exception | None = None


def serve(pipe: Connection) -> NoReturn:
    """Receive a job and then items from a pipe, and send the pickled result for each item.

    The process ends when the parent process ends.
    """
    # Ignore Ctrl-C, which the main process handles. On some systems, signals cannot be blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    messages = SimpleQueue[bytes]()
    Thread(target=_receive_messages, args=(pipe, messages), daemon=True).start()
    process_next_item = _prepare_work(messages)
    while True:
        result = process_next_item()
        try:
            pipe.send_bytes(result)
        except OSError:
            os._exit(1)
        # Free the memory of the result, since the next item may take long to arrive.
        del result


def _receive_messages(pipe: Connection, messages: "SimpleQueue[bytes]") -> NoReturn:
    """Queue all messages of a pipe, and end the process when the pipe is closed."""
    try:
        while True:
            messages.put(pipe.recv_bytes())
    except (EOFError, OSError):
        pass
    except BaseException:
        # For example, memory may run out. Without an exit, the worker would wait forever.
        traceback.print_exc()
    finally:
        os._exit(1)


def _prepare_work(messages: "SimpleQueue[bytes]") -> Callable[[], bytes]:
    """Return a function that processes the next item and returns the pickled result.

    If the job cannot be unpickled, the result for every item is this error.
    """
    try:
        with without_garbage_collection():
            work, shared = pickle.loads(messages.get())
    except Exception as error:
        job_error = _pickle_error(error)

        def return_job_error() -> bytes:
            messages.get()
            return job_error

        return return_job_error

    def process_item() -> bytes:
        try:
            item = pickle.loads(messages.get())
            with convert_exits_to_errors():
                result = work(shared, item)
            return pickled(WorkResult(result))
        except Exception as error:
            return _pickle_error(error)

    return process_item


def _pickle_error(error: Exception) -> bytes:
    note = f"In a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        # Add the note to a copy, since the work may raise the same object again.
        copy: Exception = pickle.loads(pickled(error))
        copy.add_note(note)
        return pickled(WorkResult(error=copy))
    except Exception:
        return pickled(WorkResult(error=RuntimeError(note)))


@dataclass(frozen=True)
class Workers:
    """Engine of several processes with one thread each.

    Pickled values are sent only to worker processes of this program, and never to disk or network.
    Workers end with their session or with this process. Only one thread at a time may use a
    session.

    Attributes:
        count: Number of processes, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(
                f"workers must be at least 1, got {self.count}; "
                f"{format_assignment('workers', '0')} starts one process per core"
            )

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """Open a session: a context with a function that maps items to results, in order.

        Raises:
            Unsupported: The function or data cannot be pickled, or no process can be started.
            MemoryError: A worker was killed, probably because memory ran out.
        """
        with closing(_WorkerPool(_pickle_for_workers((work, shared)), self.count)) as pool:

            def run(items: Iterable[Item]) -> Iterator[Result]:
                numbers = pool.submit(list(items))
                try:
                    for number in numbers:
                        yield cast(Result, pool.result(number))
                finally:
                    pool.discard(numbers)

            yield run


def _pickle_for_workers(value: object) -> bytes:
    try:
        return pickled(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"this run cannot be sent to other processes ({error}); define functions and classes "
            "at the top level of a module, or use one worker"
        ) from error


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    item: int | None = None

    def end(self) -> None:
        """Kill the process if it was started; a second call does nothing."""
        if self.process.pid is not None:
            self.process.kill()
        # If the start was interrupted, the pid is unknown; the process exits when the pipe closes.
        self.pipe.close()

    def wait(self) -> None:
        if self.process.pid is not None:
            self.process.join()


class _WorkerPool:
    """Worker processes for one job, which are started when items are submitted."""

    def __init__(self, job: bytes, max_workers: int) -> None:
        self._job, self._max_workers = job, max_workers
        self._workers = list[_Worker]()
        self._numbers = itertools.count()
        self._requested = set[int]()
        # Items are pickled only when a worker is free: the items of a thousand clients, each with
        # the global model, would take more memory than their results.
        self._queue = deque[tuple[int, object]]()
        self._results = dict[int, bytes]()
        self._is_closed = False
        # Also close the pool if the program exits without leaving the session's context.
        atexit.register(self.close)

    def submit(self, items: Sequence[object]) -> list[int]:
        """Queue items for the workers, and return their numbers for :meth:`result`."""
        with self._closing_on_error():
            self._start_workers(min(self._max_workers, len(items)) - len(self._workers))
            numbers = [next(self._numbers) for _ in items]
            self._requested.update(numbers)
            self._queue.extend(zip(numbers, items, strict=True))
            self._send_items()
        return numbers

    def result(self, number: int) -> object:
        """Wait for the result of an item, and return it or raise the error of the work."""
        while number not in self._results:
            with self._closing_on_error():
                self._receive_results()
        result: WorkResult = pickle.loads(self._results.pop(number))
        if result.error is not None:
            raise result.error
        return result.value

    def discard(self, numbers: Collection[int]) -> None:
        """Discard items and their results."""
        self._requested.difference_update(numbers)
        self._queue = deque(item for item in self._queue if item[0] in self._requested)
        self._results = {
            number: self._results[number] for number in self._results.keys() & self._requested
        }

    def close(self) -> None:
        """End the workers; call it again if it was interrupted."""
        self._is_closed = True
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.wait()
        self._workers.clear()
        self._job = b""
        self.discard(list(self._requested))
        atexit.unregister(self.close)

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Close the pool after any error, since a partly sent message makes a pipe unusable."""
        if self._is_closed:
            raise RuntimeError("the session of these workers is closed; open a new session")
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _start_workers(self, count: int) -> None:
        # Start all workers before sending a job, since sending waits until the worker is running.
        new = [self._start_worker() for _ in range(count)]
        for worker in new:
            with _explaining_exit(worker):
                worker.pipe.send_bytes(self._job)
        if len(self._workers) == self._max_workers:
            # All workers have the job, so free its memory: it contains the data of all clients.
            self._job = b""

    def _start_worker(self) -> _Worker:
        # Do not fork: after torch used threads, a forked process hangs or fails in backward passes.
        context = get_context("spawn")
        with deferring_signals():
            pipe, pipe_of_worker = context.Pipe()
            worker = _Worker(context.Process(target=begin, args=(pipe_of_worker,)), pipe)
            # Register the worker first, since close() must end it even if its start is interrupted.
            self._workers.append(worker)
            worker.process.start()
            # Close this process's copy of the worker's end, so that the pipe closes when the worker
            # exits.
            pipe_of_worker.close()
        return worker

    def _send_items(self) -> None:
        for worker in self._workers:
            while worker.item is None and self._queue:
                number, item = self._queue.popleft()
                try:
                    content = _pickle_for_workers(item)
                except Unsupported as error:
                    # result() raises this error.
                    self._results[number] = pickled(WorkResult(error=error))
                    continue
                worker.item = number
                with _explaining_exit(worker):
                    worker.pipe.send_bytes(content)

    def _receive_results(self) -> None:
        working = {worker.pipe: worker for worker in self._workers if worker.item is not None}
        for pipe in wait(list(working)):
            worker = working[cast(Connection, pipe)]
            with _explaining_exit(worker):
                result = worker.pipe.recv_bytes()
            if worker.item in self._requested:
                self._results[worker.item] = result
            worker.item = None
        self._send_items()


@contextmanager
def _explaining_exit(worker: _Worker) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        # Wait at most ten seconds, since a process that closed its pipe may never exit.
        worker.process.join(10)
        if worker.process.exitcode == _KILLED:
            raise MemoryError(
                "a worker process was killed, probably because memory ran out; use fewer workers"
            ) from error
        raise Unsupported(
            f"a worker process exited (exit code {worker.process.exitcode}); see its error output "
            "above, if any; if you run a script, call fedaudit under if __name__ == '__main__':, "
            "or use one worker, which needs no other process"
        ) from error


def raise_if_import_by_worker() -> None:
    """Raise if this is a worker process that is importing the main script.

    A script that starts its audit on import would deadlock: the parent waits for the worker, which
    imports the script and starts the audit again.
    """
    if getattr(current_process(), "_inheriting", False):
        raise Unsupported(
            "every worker process imports your script, which would start the audit again; call "
            "fedaudit under if __name__ == '__main__':, or use workers=1"
        )


LOCAL = Sequential()


def local_engine(workers: int) -> Sequential | Workers:
    """Return the engine with this number of workers; one worker means this process."""
    return LOCAL if workers == 1 else Workers(workers)


def raise_if_unknown_engine(name: str) -> None:
    """Raise if no engine has this name; see :func:`engine_named`."""
    if name != "local" and (name.partition(":")[0] != "ray" or name == "ray:"):
        raise BadInput(
            f'there is no engine named {name!r}; give "local", "ray" for Ray on this machine, or '
            'the address of a cluster: "ray:auto", "ray:host:6379" or "ray://host:10001"'
        )


def engine_named(name: str, workers: int) -> "RayCluster | None":
    """Return the Ray engine of this name; None if the name is "local".

    Args:
        name: "local", "ray" for Ray on this machine, or "ray:auto", "ray:host:6379" or
            "ray://host:10001" for a cluster.
        workers: Number of items that are processed at once; 0 for one per core.

    Raises:
        BadInput: There is no engine of that name.
        Unsupported: Ray is not installed.
    """
    raise_if_unknown_engine(name)
    if name == "local":
        return None
    _, _, address = name.partition(":")
    from fedaudit.engines.ray_cluster import LOCAL_ADDRESS, RayCluster

    # ray:// is Ray's own scheme, for clients outside the cluster.
    return RayCluster(name if address.startswith("//") else address or LOCAL_ADDRESS, workers)
