"""Background process that measures a recording's rounds during training, one after another."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import UnpicklingError
from time import monotonic
from typing import NamedTuple, TypeAlias

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import create_subfolder, read_text, write_whole
from fedaudit.core.values import ClientId
from fedaudit.live.files import FOLDER, TRAINER, waiting
from fedaudit.live.forking import MOST_STARTS, POLL_SECONDS, DetachedProcess, can_fork, has_ended

_MAX_PID_BYTES = 40
"""Maximum size of the file with a process id."""
MOST_WAITING = 4
"""Maximum number of rounds that may wait during training."""
_WAITING, _END = "a round waits", "training has ended"
"""Messages to the background process."""

MeasureFile: TypeAlias = Callable[[Path], Mapping[ClientId, str]]
"""Measures the round in a file, and returns the clients that were left out, with the reason."""


class Outcome(NamedTuple):
    """Result of measuring a round.

    Attributes:
        round: Number of the round.
        seconds: Duration of the measurement.
        error: Reason why the round could not be measured; empty if it was.
        faulty: Clients that were left out, with the reason.
    """

    round: int
    seconds: float
    error: str
    faulty: Mapping[ClientId, str]


def outcome_of(index: int, path: Path, measure: MeasureFile) -> Outcome:
    """Measure the round in a file, and return an error as part of the outcome."""
    began, reason, faulty = monotonic(), "", dict[ClientId, str]()
    try:
        faulty |= measure(path)
    # Catch any error, since it concerns only this round.
    except Exception as error:
        reason = str(error)[:2000] or type(error).__name__
    return Outcome(index, monotonic() - began, reason, faulty)


def refuse_impossible(device: torch.device) -> None:
    """Raise if the system has no fork, or models are run on a GPU."""
    if not can_fork():
        raise BadInput(
            "measure='background' needs a system with fork, such as Linux; use 'now' or 'after'"
        )
    if device.type != "cpu":
        raise BadInput(
            f"measure='background' measures on the CPU, and the device is {device}; omit the "
            "device, or use 'now' or 'after'"
        )


def has_trainer_ended(folder: Path) -> bool:
    """Return True if the training that locked a recording has ended or is this process."""
    try:
        trainer = int(read_text(folder / FOLDER / TRAINER, max_bytes=_MAX_PID_BYTES))
    except (OSError, ValueError):
        return False
    return trainer == os.getpid() or has_ended(trainer)


class BackgroundProcess:
    """Background process that measures stored rounds, controlled by the training process.

    The process is forked, so the network need not be importable. Rounds are stored in the
    recording's folder, so none is lost if either process is killed: the background process measures
    the remaining rounds after training, and is started again if it ends.
    """

    def __init__(
        self, folder: Path, measure: MeasureFile, seconds: float, open_files: Sequence[int]
    ) -> None:
        """Store the settings; the process starts when the first round waits.

        Args:
            folder: Folder of the recording.
            measure: Measures the round in a file.
            seconds: Estimate of the time that a round takes.
            open_files: Descriptors of files that the process keeps open.
        """
        self._folder, self._measure = folder, measure
        self._process = DetachedProcess(self._serve, seconds=seconds, open_files=open_files)
        self._received: list[Outcome] = []

    @property
    def has_given_up(self) -> bool:
        """True if the process has ended too often to be started again."""
        return self._process.n_starts >= MOST_STARTS and not self._is_running()

    def notify(self) -> None:
        """Notify the process that a round waits, and start it if it is not running."""
        if self._process.is_owner_process:
            self._start()
            self._process.send(_WAITING)

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        self._poll(0.0)
        outcomes, self._received = self._received, []
        return outcomes

    def wait(self, n_waiting: int) -> None:
        """Wait until at most ``n_waiting`` rounds are left, or the process makes no progress."""
        fewest, since = len(waiting(self._folder)), monotonic()
        while (remaining := len(waiting(self._folder))) > n_waiting and not self.has_given_up:
            if remaining < fewest:
                fewest, since = remaining, monotonic()
            self._start()
            if monotonic() - since > self._process.patience:
                # Give up a hanging process: waiting rounds are then measured after training.
                self._process.kill()
                self._process.n_starts = MOST_STARTS
                return
            self._poll(POLL_SECONDS)

    def close(self) -> None:
        """End the process once all waiting rounds are measured, and release the folder."""
        if not self._process.is_owner_process:
            return
        self._process.send(_END)
        until = monotonic() + 2 * POLL_SECONDS
        while not waiting(self._folder) and self._is_running() and monotonic() < until:
            self._poll(POLL_SECONDS)
        self._process.disconnect()

    def _start(self) -> None:
        if not self._is_running() and self._process.n_starts < MOST_STARTS:
            # On a full disk, the file with the process id is missing. A recorder that opens the
            # recording later then does not wait for the end of this training.
            with suppress(OSError, BadInput):
                path = create_subfolder(self._folder, FOLDER) / TRAINER
                write_whole(path, str(self._process.owner_pid))
            self._process.start()

    def _is_running(self) -> bool:
        self._poll(0.0)
        return self._process.pipe is not None

    def _poll(self, seconds: float) -> None:
        """Wait up to ``seconds`` for outcomes, receive them, and notice if the process exited."""
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
        done, is_over = set[int](), False
        while not is_over:
            while not is_over and self._measure_next(pipe, done):
                is_over = self._is_over(pipe, 0.0)
            is_over = is_over or self._is_over(pipe, POLL_SECONDS)
        # Measure rounds that were stored just before the end.
        while self._measure_next(pipe, done):
            pass

    def _measure_next(self, pipe: Connection, done: set[int]) -> bool:
        """Measure the first waiting round that is not in ``done``; return whether there was one."""
        waiting_rounds = [each for each in waiting(self._folder) if each[0] not in done]
        for index, path in waiting_rounds[:1]:
            done.add(index)
            outcome = outcome_of(index, path, self._measure)
            with suppress(OSError):
                pipe.send(outcome)
        return bool(waiting_rounds)

    def _is_over(self, pipe: Connection, seconds: float) -> bool:
        """Wait up to ``seconds`` for a message; return True if training has ended."""
        try:
            while pipe.poll(seconds):
                seconds = 0.0
                if pipe.recv() == _END:
                    return True
            # Another forked process may hold the pipe open, which hides its end.
            return has_ended(self._process.owner_pid)
        except (EOFError, OSError):
            return True
