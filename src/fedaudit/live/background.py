"""Background process that measures a recording's rounds during training, one after another."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import UnpicklingError
from time import monotonic
from typing import NamedTuple

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import create_subfolder, read_text, write_atomically
from fedaudit.core.values import ClientId
from fedaudit.live.files import TRAINING_PID_FILE, WAITING_FOLDER, waiting_rounds
from fedaudit.live.forking import MAX_STARTS, POLL_SECONDS, DetachedProcess, can_fork, has_ended

MAX_WAITING_ROUNDS = 4
"""Maximum number of rounds that may wait during training."""
_MAX_PID_BYTES = 40
"""Maximum size of the file with a process id."""
_ROUND_WAITS, _TRAINING_ENDED = "a round waits", "training has ended"
"""Messages to the background process."""


class RoundOutcome(NamedTuple):
    """Outcome of measuring a round.

    Attributes:
        round: Number of the round.
        seconds: Duration of the measurement.
        error: Message of the error that prevented the measurement; empty without an error.
        excluded: Clients without a measurable upload, with the reason for each.
    """

    round: int
    seconds: float
    error: str
    excluded: Mapping[ClientId, str]


def try_measuring(
    index: int, path: Path, measure_file: Callable[[Path], Mapping[ClientId, str]]
) -> RoundOutcome:
    """Measure the round in a file, and return an error as part of the outcome."""
    start = monotonic()
    error_text = ""
    excluded: Mapping[ClientId, str] = {}
    try:
        excluded = measure_file(path)
    # Catch any error, since it concerns only this round.
    except Exception as error:
        error_text = str(error)[:2000] or type(error).__name__
    return RoundOutcome(index, monotonic() - start, error_text, excluded)


def raise_if_background_unsupported(device: torch.device) -> None:
    """Raise if the system cannot fork a background process, or models are run on a GPU."""
    if not can_fork():
        raise BadInput(
            "measure='background' needs a system with fork, such as Linux; use 'now' or 'after'"
        )
    if device.type != "cpu":
        raise BadInput(
            f"measure='background' measures on the CPU, and the device is {device}; omit the "
            "device, or use 'now' or 'after'"
        )


def has_training_ended(folder: Path) -> bool:
    """Return True if the training that locked a recording has ended or is this process."""
    path = folder / WAITING_FOLDER / TRAINING_PID_FILE
    try:
        pid = int(read_text(path, max_bytes=_MAX_PID_BYTES))
    except (OSError, ValueError):
        return False
    return pid == os.getpid() or has_ended(pid)


class BackgroundProcess:
    """Background process that measures stored rounds, controlled by the training process.

    The process is forked, so the network need not be importable. Rounds are stored in the
    recording's folder, so no round is lost if either process is killed. The background process
    measures the remaining rounds after training, and is started again if it exits too early.
    """

    def __init__(
        self,
        folder: Path,
        measure_file: Callable[[Path], Mapping[ClientId, str]],
        seconds: float,
        open_files: Sequence[int],
    ) -> None:
        """Store the settings; the process starts when the first round waits.

        Args:
            folder: Folder of the recording.
            measure_file: Measures the round in a file, and returns the excluded clients with the
                reason for each.
            seconds: Estimate of the time that a round takes.
            open_files: Descriptors of files that the process keeps open.
        """
        self._folder, self._measure_file = folder, measure_file
        self._process = DetachedProcess(self._serve, seconds=seconds, open_files=open_files)
        self._received: list[RoundOutcome] = []

    @property
    def has_given_up(self) -> bool:
        """True if the process has exited too often to be started again."""
        return self._process.n_starts >= MAX_STARTS and not self._is_running()

    def notify(self) -> None:
        """Notify the process that a round waits, and start it if it is not running."""
        if self._process.is_owner_process:
            self._start()
            self._process.send(_ROUND_WAITS)

    def outcomes(self) -> list[RoundOutcome]:
        """Return the outcomes since the last call."""
        self._poll(0.0)
        outcomes, self._received = self._received, []
        return outcomes

    def wait(self, max_waiting: int) -> None:
        """Wait until at most ``max_waiting`` rounds wait, or the process makes no progress."""
        n_before, last_progress = len(waiting_rounds(self._folder)), monotonic()
        while (n_waiting := len(waiting_rounds(self._folder))) > max_waiting:
            if self.has_given_up:
                return
            if n_waiting < n_before:
                n_before, last_progress = n_waiting, monotonic()
            self._start()
            if monotonic() - last_progress > self._process.patience:
                # Give up a hanging process: waiting rounds are then measured after training.
                self._process.kill()
                self._process.n_starts = MAX_STARTS
                return
            self._poll(POLL_SECONDS)

    def close(self) -> None:
        """Let the process exit after the last waiting round, and disconnect from it."""
        if not self._process.is_owner_process:
            return
        self._process.send(_TRAINING_ENDED)
        # If no round waits, the process exits soon and releases the lock of the folder.
        deadline = monotonic() + 2 * POLL_SECONDS
        while not waiting_rounds(self._folder) and self._is_running() and monotonic() < deadline:
            self._poll(POLL_SECONDS)
        self._process.disconnect()

    def _start(self) -> None:
        if not self._is_running() and self._process.n_starts < MAX_STARTS:
            # On a full disk, the file with the process id is missing. A recorder that opens the
            # recording later then does not wait for the end of this training.
            with suppress(OSError, BadInput):
                path = create_subfolder(self._folder, WAITING_FOLDER) / TRAINING_PID_FILE
                write_atomically(path, str(self._process.owner_pid))
            self._process.start()

    def _is_running(self) -> bool:
        self._poll(0.0)
        return self._process.pipe is not None

    def _poll(self, seconds: float) -> None:
        """Receive outcomes for up to ``seconds``, and notice if the process has exited."""
        try:
            while self._process.pipe is not None and self._process.pipe.poll(seconds):
                self._received.append(self._process.pipe.recv())
                seconds = 0.0
        except (EOFError, OSError, UnpicklingError):
            self._process.disconnect()

    def _serve(self, pipe: Connection) -> None:
        """Measure waiting rounds until training has ended."""
        with suppress(OSError):
            os.nice(5)
        attempted = set[int]()
        is_training = True
        while is_training:
            has_measured = self._measure_next(pipe, attempted)
            is_training = self._is_training(pipe, 0.0 if has_measured else POLL_SECONDS)
        # Measure rounds that were stored just before the end.
        while self._measure_next(pipe, attempted):
            pass

    def _measure_next(self, pipe: Connection, attempted: set[int]) -> bool:
        """Measure the first waiting round that was not attempted; return False if none is left."""
        for index, path in waiting_rounds(self._folder):
            if index not in attempted:
                attempted.add(index)
                outcome = try_measuring(index, path, self._measure_file)
                with suppress(OSError):
                    pipe.send(outcome)
                return True
        return False

    def _is_training(self, pipe: Connection, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message; return False if training has ended."""
        try:
            while pipe.poll(seconds):
                seconds = 0.0
                if pipe.recv() == _TRAINING_ENDED:
                    return False
            # Another forked process may hold the pipe open, which hides its end.
            return not has_ended(self._process.owner_pid)
        except (EOFError, OSError):
            return False
