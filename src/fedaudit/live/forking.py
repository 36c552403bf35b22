"""Forked processes that compute next to the program, without being its children."""

import json
import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

import torch

_START_SECONDS = 30.0
"""Seconds within which the forked process must send its process id."""
_SIGNALS = signal.SIGINT, signal.SIGTERM


class Forked(NamedTuple):
    """Forked process.

    Attributes:
        pid: Its process id.
        pipe: Pipe to it.
    """

    pid: int
    pipe: Connection


def can_fork() -> bool:
    """Return True if the system has fork."""
    return hasattr(os, "fork")


def fork_detached(serve: Callable[[Connection], None], keeps: Sequence[int] = ()) -> Forked | None:
    """Fork a process that runs a function on one thread and then exits.

    It is not a child of the program, which may wait for all of its children. It closes the
    program's files, and ignores Ctrl-C, which is meant for the program.

    Args:
        serve: Function of the process's end of the pipe.
        keeps: Descriptors of files that it keeps open.

    Returns:
        The process; None if it could not be started, for lack of memory or process ids.
    """
    ours, theirs = Pipe()
    try:
        with _signals_blocked(), warnings.catch_warnings():
            # Forking is safe here: the copy runs a single thread and takes no shared lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                _detach(serve, theirs, keeps)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        theirs.close()
        if ours.poll(_START_SECONDS):
            return Forked(int(json.loads(ours.recv_bytes())), ours)
    # There is no memory or process id left, or the process ended at once.
    except (OSError, EOFError, ValueError):
        pass
    ours.close()
    theirs.close()
    return None


def has_ended(process: int) -> bool:
    """Return True if a process has exited, even if its parent has not waited for it."""
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(process, 0)
            return False
        number = os.pidfd_open(process)
    except OSError:
        return True
    try:
        return bool(select.select([number], [], [], 0)[0])
    finally:
        os.close(number)


def _detach(
    serve: Callable[[Connection], None], pipe: Connection, keeps: Sequence[int]
) -> NoReturn:
    """Fork again, so that the process is not a child of the program, and exit."""
    try:
        if os.fork() == 0:
            # Waiting rounds are still measured after Ctrl-C.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            _close_others([pipe.fileno(), *keeps])
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            pipe.send_bytes(json.dumps(os.getpid()).encode())
            serve(pipe)
    finally:
        # A normal exit would run the program's exit handlers a second time.
        os._exit(0)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, which in a forked copy would run the program's exit handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_others(keeps: Sequence[int]) -> None:
    """Close the program's other open files: output, ports, locks of other recordings.

    Descriptors stay occupied by the null device. Otherwise an object of the program that closes its
    descriptor later could close a file that was opened here.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    folder = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)
    for name in os.listdir(folder) if folder else ():
        number = int(name)
        if number not in (null_device, *keeps):
            # Skip the descriptor of the listing itself, which is closed by now.
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null_device, number)
