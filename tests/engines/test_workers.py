"""Start and end of worker processes."""

import atexit
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.engines import local
from fedaudit.engines.base import SharedByKey, pickled
from fedaudit.engines.local import Workers, WorkResult, _prepare_work, _Worker, _WorkerPool, serve
from tests.engines import contract
from tests.engines.test_local_engines import Unreadable
from tests.programs import heeding


@pytest.mark.slow
def test_a_closed_session_does_no_more_work() -> None:
    shards = SharedByKey(a=torch.zeros(2), b=torch.ones(2))
    with Workers(1).session(contract.one_shard, shards) as run:
        results = run(["b", "a", "b"])
        assert next(results).tolist() == [3, 3]
    for iterator in (results, run(["a"])):
        with pytest.raises(RuntimeError, match="is closed"):
            next(iterator)


def size_or_signal(shared: bytes, item: int) -> int:
    if item:
        os.kill(os.getpid(), item)
    return len(shared)


@pytest.mark.slow
def test_shared_values_are_sent_once_and_a_killed_worker_is_reported() -> None:
    shared = bytes(20_000_000)
    tracemalloc.start()
    try:
        with Workers(1).session(size_or_signal, shared) as run:
            assert list(run([0])) == [len(shared)]
            allocated, peak = tracemalloc.get_traced_memory()
            with pytest.raises(MemoryError, match=r"worker process was killed.*fewer"):
                list(run([signal.SIGKILL]))
            with pytest.raises(RuntimeError, match="is closed"):
                list(run([0]))
    finally:
        tracemalloc.stop()
    assert peak > len(shared) > 10 * allocated


def small_or_large_result(pid_file: Path, size: int) -> object:
    if size == 1:
        return 1
    part = pid_file.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(pid_file)
    return b"x" * size


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_writes_is_reported(tmp_path: Path) -> None:
    pid_file = tmp_path / "worker"
    with Workers(1).session(small_or_large_result, pid_file) as run:
        results = run([1, 50_000_000])
        assert next(results) == 1
        deadline = time.monotonic() + 60
        while not pid_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # The worker is writing to a pipe without a reader.
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        with pytest.raises(MemoryError, match="worker process was killed"):
            next(results)


def limit_memory(shared: object, item: bytes) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000,) * 2)


@pytest.mark.slow
def test_a_worker_without_memory_for_a_message_is_reported(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Workers(1).session(limit_memory, 0) as run:
        list(run([b""]))
        with pytest.raises(Unsupported, match=r"exit code 1.*see its error output"):
            list(run([bytes(200_000_000)]))
    assert "MemoryError" in capfd.readouterr().err


@pytest.mark.parametrize("begun", [True, False], ids=["afterwards", "before"])
def test_workers_end_with_a_start_that_was_interrupted(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = SpawnProcess.start, list[int]()

    def interrupted(process: SpawnProcess) -> None:
        second = len(started) == 1
        if begun or not second:
            start(process)
            started.append(process.pid or 0)
        if second:
            raise KeyboardInterrupt

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Workers(2).session(contract.product, 1) as run:
        list(run([1, 2]))
    assert not alive(started)


def alive(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_with_an_unknown_pid_ends_with_its_pipe() -> None:
    ours, theirs = get_context("spawn").Pipe()
    worker = _Worker(SpawnProcess(), ours)
    for _ in range(2):
        worker.end()
        worker.wait()
    assert theirs.poll(), "nobody tells its process that it is closed"
    theirs.close()


class StartedPool:
    """A pool whose workers have started."""

    def __init__(self, count: int = 1) -> None:
        self.pool = _WorkerPool(pickled((contract.product, 1)), count)
        self.pool.submit([pickled(1)] * count)
        self.pids = [worker.process.pid or 0 for worker in self.pool._workers]

    def run_one(self) -> object:
        """Return the result of one more item."""
        return self.pool.result(self.pool.submit([pickled(2)])[0])


def once(interrupted: Callable[..., object]) -> Callable[..., object]:
    """Return a function whose first call is interrupted."""
    came = list[bool]()

    def sometimes(*arguments: object) -> object:
        if came:
            return interrupted(*arguments)
        came.append(True)
        raise KeyboardInterrupt

    return sometimes


@pytest.mark.parametrize("moment", ["kill", "join"])
def test_workers_end_with_the_program_when_their_end_was_interrupted(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_the_end = list[Callable[[], None]]()
    monkeypatch.setattr(atexit, "register", for_the_end.append)
    monkeypatch.setattr(atexit, "unregister", for_the_end.remove)
    started = StartedPool(2)
    monkeypatch.setattr(SpawnProcess, moment, once(getattr(SpawnProcess, moment)))
    with pytest.raises(KeyboardInterrupt):
        started.pool.close()
    assert alive(started.pids)
    (end,) = for_the_end
    end()
    assert not alive(started.pids)
    assert not for_the_end


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "moment"), [(Connection, "send_bytes"), (local, "wait")])
def test_a_session_that_was_interrupted_during_a_message_is_closed(
    owner: object, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = StartedPool()
    monkeypatch.setattr(owner, moment, once(getattr(owner, moment)))
    with pytest.raises(KeyboardInterrupt):
        started.run_one()
    assert not alive(started.pids)
    with pytest.raises(RuntimeError, match="is closed"):
        started.run_one()


def test_sessions_leave_no_file_descriptors_open() -> None:
    StartedPool().pool.close()  # With its first process, Python opens other descriptors.
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        StartedPool(2).pool.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_session_ends_if_the_system_reaps_processes() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        begun = StartedPool()
        begun.pool.close()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not alive(begun.pids)


HANGING = r"""
import os, sys, time
from fedaudit.engines.local import Workers

def tell(shared, item):
    os.write(1, f"{os.getpid()}\n".encode())  # One write, since another worker writes, too.
    time.sleep(60 * (item == "sleep"))
    return item * 10_000_000

if __name__ == "__main__":
    with Workers(2).session(tell, 0) as run:
        results = run(["", "sleep", "much"])
        next(results)
        if "read" not in sys.argv:
            time.sleep(60)
        list(results)
"""


@pytest.mark.parametrize(
    ("sent", "how"),
    [(signal.SIGKILL, "write"), (signal.SIGINT, "read")],
    ids=["killed", "interrupted"],
)
@pytest.mark.slow
def test_workers_end_at_once_with_the_program(
    sent: signal.Signals, how: str, tmp_path: Path
) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    program = subprocess.Popen(
        heeding([sys.executable, script, how]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    working = [int(program.stdout.readline()) for _ in range(3)]
    assert len(set(working)) == 2
    for worker in working:
        status = Path(f"/proc/{worker}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert all(blocked >> (each - 1) & 1 for each in (signal.SIGINT, signal.SIGTERM))
    time.sleep(0.3)  # A worker is writing, or all is read.
    # Ctrl-C reaches all processes of a terminal, and kill -9 only one.
    (os.kill if sent is signal.SIGKILL else os.killpg)(program.pid, sent)
    stderr = program.communicate(timeout=30)[1]
    deadline = time.monotonic() + 30
    while alive(working):
        assert time.monotonic() < deadline, "a worker continues without the program"
        time.sleep(0.05)
    assert stderr.count("Traceback") == (sent is signal.SIGINT), (
        "only the program prints a traceback"
    )


UNFINISHED = """
import sys, time
from fedaudit.engines.local import Workers

def nap(shared, seconds):
    time.sleep(seconds)

def rounds():
    with Workers(1).session(nap, 0) as run:
        yield list(run([0, 0]))

if __name__ == "__main__":
    sys.unfinished = rounds()
    next(sys.unfinished)
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_program_ends_although_its_session_is_open(tmp_path: Path) -> None:
    script = tmp_path / "unfinished.py"
    script.write_text(UNFINISHED)
    ended = subprocess.run([sys.executable, script], capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")


UNGUARDED = """
import math
from fedaudit.engines.local import Workers

with Workers(1).session(math.gcd, 4) as run:
    list(run([2]))
"""


@pytest.mark.slow
def test_a_script_without_a_main_block_gets_an_explanation(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, timeout=300, check=False, text=True
    )
    assert ended.returncode == 1
    assert "call fedaudit under if __name__ == '__main__'" in ended.stderr


ALWAYS_THE_SAME = ValueError("what else")


def outcomes(*sent: object) -> list[WorkResult]:
    queue = SimpleQueue[bytes]()
    for value in sent:
        queue.put(pickled(value))
    outcome = _prepare_work(queue)
    results = [pickle.loads(outcome()) for _ in sent[1:]]
    assert queue.empty()
    return results


def refused(shared: object, item: object) -> None:
    raise ALWAYS_THE_SAME


def exits(shared: object, item: object) -> None:
    raise SystemExit(item)


@pytest.mark.parametrize("job", [(refused, 0), (refused, Unreadable())], ids=["work", "job"])
def test_a_repeated_error_has_its_traceback_once(job: object) -> None:
    for outcome in outcomes(job, 1, 2, 3):
        assert isinstance(outcome.error, ValueError)
        assert len(outcome.error.__notes__) == 1


def test_work_that_exits_is_refused_and_the_worker_continues() -> None:
    first, second = outcomes((exits, 0), 3, 4)
    assert isinstance(first.error, BadInput)
    assert "custom code ended the process (SystemExit: 3, in test_workers.py" in str(first.error)
    assert "SystemExit: 4" in str(second.error)


def test_a_worker_ends_without_output_when_the_pipe_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hear_two(pipe: Connection, came: "SimpleQueue[bytes]") -> None:
        for _ in range(2):
            came.put(pipe.recv_bytes())

    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(local, "_receive_messages", hear_two)
    ours, theirs = get_context("spawn").Pipe()
    for sent in ((contract.product, 2), 3):
        theirs.send_bytes(pickled(sent))
    theirs.close()
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            serve(ours)
    finally:
        signal.signal(signal.SIGINT, before)
        ours.close()
