"""Forked processes that compute in parallel to the main process, without being its children."""

import os
import select
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

import torch

POLL_SECONDS = 0.5
"""Seconds between two checks of whether the main process and the forked process still run."""
MAX_STARTS = 3
"""Number of times that a process is started before the main process does the work itself."""
_MIN_PATIENCE = 120.0
"""Minimum of the seconds that a computation may take, whatever the estimate."""
_START_SECONDS = 30.0
"""Seconds within which the forked process must send its process id."""
_SIGNALS = signal.SIGINT, signal.SIGTERM


def can_fork() -> bool:
    """Return True if the system has fork."""
    return hasattr(os, "fork")


class DetachedProcess:
    """Forked process of the main process, which can be started again if it ends.

    The process runs a function on one thread and then exits. It is not a child of the main
    process, since a training script may wait for all of its children. It closes the main process's
    files, and ignores Ctrl-C, which is meant for the main process.

    Attributes:
        owner_pid: Process id of the main process.
        pid: Process id of the forked process; 0 if it does not run.
        pipe: Pipe to the forked process; None if it does not run.
        n_starts: Number of times that the process was started.
        patience: Seconds that a computation may take before the process counts as hanging.
    """

    def __init__(
        self, serve: Callable[[Connection], None], *, seconds: float, open_files: Sequence[int] = ()
    ) -> None:
        """Store the settings; :meth:`start` forks the process.

        Args:
            serve: Function that the process runs with its end of the pipe.
            seconds: Estimate of the time that a computation takes.
            open_files: Descriptors of files that the process keeps open.
        """
        self._serve, self._open_files = serve, tuple(open_files)
        self.owner_pid, self.pid, self.n_starts = os.getpid(), 0, 0
        self.pipe: Connection | None = None
        self.patience = max(_MIN_PATIENCE, 20 * seconds)

    @property
    def is_owner_process(self) -> bool:
        """False in processes forked from the main process, such as those of a data loader."""
        return os.getpid() == self.owner_pid

    def start(self) -> None:
        """Fork the process, unless it runs or was started too often; a failed fork also counts."""
        if self.pipe is not None or self.n_starts >= MAX_STARTS:
            return
        self.n_starts += 1
        pipe, pipe_of_process = Pipe()
        try:
            with _signals_blocked(), warnings.catch_warnings():
                # Forking is safe here: the copy runs a single thread and takes no shared lock.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
                if pid == 0:
                    self._detach(pipe_of_process)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            pipe_of_process.close()
            if pipe.poll(_START_SECONDS):
                self.pid, self.pipe = pipe.recv(), pipe
                return
        # There is no memory or process id left, or the process exited at once.
        except (OSError, EOFError):
            pass
        pipe.close()
        pipe_of_process.close()

    def send(self, message: object) -> bool:
        """Send a message; return False if the process does not run."""
        if self.pipe is None:
            return False
        try:
            self.pipe.send(message)
        except OSError:
            self.disconnect()
            return False
        return True

    def kill(self) -> None:
        """Kill the process if it runs."""
        if self.pipe is not None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        self.disconnect()

    def disconnect(self) -> None:
        """Close the pipe, at which the process exits."""
        if self.pipe is not None:
            self.pipe.close()
        self.pipe, self.pid = None, 0

    def _detach(self, pipe: Connection) -> NoReturn:
        """Fork again, so that the process is not a child of the main process, and exit."""
        try:
            if os.fork() == 0:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                _close_others([pipe.fileno(), *self._open_files])
                warnings.simplefilter("ignore")
                torch.set_num_threads(1)
                pipe.send(os.getpid())
                self._serve(pipe)
        finally:
            # A normal exit would run the main process's exit handlers a second time.
            os._exit(0)


def has_ended(pid: int) -> bool:
    """Return True if a process has exited, even if its parent has not waited for it."""
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, 0)
            return False
        descriptor = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        # The descriptor is readable once the process has exited.
        readable, _, _ = select.select([descriptor], [], [], 0)
        return bool(readable)
    finally:
        os.close(descriptor)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, which in a forked copy would run the main process's exit handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_others(open_files: Sequence[int]) -> None:
    """Close the main process's other open files: output, ports, locks of other recordings.

    The null device takes the place of each file. Otherwise a copied object that closes its
    descriptor later could close a file that the process has opened.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    folder = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)
    for name in os.listdir(folder) if folder else ():
        descriptor = int(name)
        if descriptor not in (null_device, *open_files):
            # The descriptor of the listing itself is closed by now, so fstat raises.
            with suppress(OSError):
                os.fstat(descriptor)
                os.dup2(null_device, descriptor)
