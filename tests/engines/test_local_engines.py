import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, local_engine, one_thread
from fedaudit.engines.workers import Workers
from fedaudit.errors import BadInput, Unsupported
from tests.engines import contract
from tests.programs import heeding


def test_one_worker_is_this_process() -> None:
    assert local_engine(1) is LOCAL
    assert local_engine(3) == Workers(3)
    assert all(isinstance(engine, Engine) for engine in (LOCAL, Workers(2)))


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_worker_is_refused(count: int) -> None:
    with pytest.raises(BadInput, match=f"at least 1, got {count}"):
        Workers(count)


def test_threads_are_one_inside_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


PROCESSES = pytest.mark.parametrize("engine", [LOCAL, Workers(2)], ids=["sequential", "workers"])


@PROCESSES
def test_results_come_in_the_order_of_the_items(engine: Engine) -> None:
    contract.results_come_in_the_order_of_the_items(engine)


@PROCESSES
def test_a_refusal_comes_through_as_it_was_said(engine: Engine) -> None:
    contract.a_refusal_comes_through_as_it_was_said(engine)


@PROCESSES
def test_an_item_finds_its_shard(engine: Engine) -> None:
    contract.an_item_finds_its_shard(engine)
    contract.work_is_done_on_one_thread(engine)


def test_tensors_come_through_as_they_are() -> None:
    contract.tensors_come_through_as_they_are(Workers(1))
    contract.tensors_that_came_through_can_be_written_to(Workers(1))


def test_work_that_cannot_be_sent_to_another_process_is_refused() -> None:
    with (
        pytest.raises(Unsupported, match=r"cannot be sent to other processes.*one worker"),
        Workers(2).session(lambda shared, item: item, 0),
    ):
        pass


HANGING = r"""
import os, time
from fedaudit.engines.workers import Workers

def pid_then_sleep(shared, seconds):
    os.write(1, f"{os.getpid()}\n".encode())  # in one piece: another worker does the same
    time.sleep(seconds)

if __name__ == "__main__":
    with Workers(2).session(pid_then_sleep, 0) as run:
        list(run([60, 60]))
"""


@pytest.mark.parametrize(
    "sent",
    [signal.SIGKILL, signal.SIGINT, signal.SIGTERM],
    ids=["killed", "interrupted", "terminated"],
)
def test_workers_end_at_once_with_the_program(sent: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    program = subprocess.Popen(
        heeding([sys.executable, script]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    working = [int(program.stdout.readline()) for _ in range(2)]
    # Ctrl-C reaches every process of the terminal, kill -9 only the one that it names.
    (os.kill if sent is signal.SIGKILL else os.killpg)(program.pid, sent)
    said = program.communicate(timeout=30)[1]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in working):
        assert time.monotonic() < deadline, "a worker goes on without the program"
        time.sleep(0.05)
    assert said.count("Traceback") == (sent is signal.SIGINT), "only the program says that it ended"


def test_a_worker_that_was_ended_from_outside_is_told_of() -> None:
    with Workers(1).session(signal_itself, 0) as run, pytest.raises(MemoryError, match="fewer"):
        list(run([signal.SIGKILL]))


def signal_itself(shared: object, item: int) -> None:
    os.kill(os.getpid(), item)


def test_a_worker_that_was_ended_while_it_writes_is_told_of(tmp_path: Path) -> None:
    told = tmp_path / "worker"
    with Workers(2).session(little_or_much, told) as run:
        results = run([1, 50_000_000])
        assert next(results) == 1
        deadline = time.monotonic() + 60
        while not told.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # it is in the midst of writing what nobody reads yet
        os.kill(int(told.read_text()), signal.SIGKILL)
        with pytest.raises(MemoryError, match="ended from outside"):
            next(results)


def little_or_much(told: Path, size: int) -> object:
    if size == 1:
        return 1
    part = told.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(told)
    return b"x" * size


def test_results_that_nobody_asked_for_any_more_are_of_no_other_items() -> None:
    with Workers(2).session(contract.product, 10) as run:
        for result in run(range(9)):
            assert result == 0
            break
        first, second = run([4, 5, 6]), run([7, 8, 9])
        assert list(zip(first, second, strict=True)) == [(40, 70), (50, 80), (60, 90)]


class Odd(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def fails(shared: type[Exception], item: int) -> None:
    raise shared(item, item)


@pytest.mark.parametrize(("kind", "raised"), [(ValueError, ValueError), (Odd, RuntimeError)])
def test_what_work_raises_comes_with_where_it_was_raised(
    kind: type[Exception], raised: type[Exception]
) -> None:
    with Workers(2).session(fails, kind) as run, pytest.raises(raised) as caught:
        list(run([3]))
    said = "".join(traceback.format_exception(caught.value))
    assert "In a worker process" in said
    assert "raise shared(item, item)" in said


UNFINISHED = """
import sys, time
from fedaudit.engines.workers import Workers

def nap(shared, seconds):
    time.sleep(seconds)

def rounds():
    with Workers(2).session(nap, 0) as run:
        yield list(run([0, 0]))

if __name__ == "__main__":
    sys.unfinished = rounds()
    next(sys.unfinished)
    sys.exit(3)
"""


def test_a_program_ends_whose_session_was_never_left(tmp_path: Path) -> None:
    script = tmp_path / "unfinished.py"
    script.write_text(UNFINISHED)
    ended = subprocess.run([sys.executable, script], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")


UNGUARDED = """
import math
from fedaudit.engines.workers import Workers

with Workers(2).session(math.gcd, 4) as run:
    list(run([2]))
"""


def test_a_script_that_starts_itself_again_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, timeout=60, check=False, text=True
    )
    assert ended.returncode == 1
    assert "begins its own work under if __name__ == '__main__'" in ended.stderr
