"""Background process that measures a recording's rounds during training, one after another."""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import own_folder, read_text, write_whole
from fedaudit.core.values import ClientId
from fedaudit.live.files import FOLDER, TRAINER, waiting
from fedaudit.live.forking import can_fork, fork_detached, has_ended

_MAX_PID_BYTES = 40
"""Maximum size of the file with a process id."""
MOST_WAITING = 4
"""Maximum number of rounds that may wait during training."""
_POLL_SECONDS = 0.5
"""Seconds between two checks whether the training still runs."""
_MIN_PATIENCE = 120.0
"""Minimum of the seconds that a round may take, whatever the estimate."""
_MAX_STARTS = 3
_END = b"end"


Measure: TypeAlias = Callable[[Path], Mapping[ClientId, str]]
"""Measures the round in a file, and returns the clients that it left out, with the reason."""


class Outcome(NamedTuple):
    """Result of a round that the background process measured."""

    round: int
    seconds: float
    error: str
    faulty: Mapping[ClientId, str] = MappingProxyType({})


def outcome_of(index: int, path: Path, measure: Measure) -> Outcome:
    """Measure the round in a file; an error is part of the outcome."""
    began, reason, faulty = monotonic(), "", dict[ClientId, str]()
    try:
        faulty |= measure(path)
    # Any error concerns this round only.
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


def is_trainer_gone(folder: Path) -> bool:
    """Return True if the training that locked a recording has ended or is this process."""
    try:
        trainer = int(read_text(folder / FOLDER / TRAINER, max_bytes=_MAX_PID_BYTES))
    except (OSError, ValueError):
        return False
    return trainer == os.getpid() or has_ended(trainer)


class BackgroundProcess:
    """Background process that measures waiting rounds, seen from the training process.

    It is forked when the first round waits, so that the network need not be importable. Rounds are
    stored in the recording's folder, so none is lost if either process is killed: the background
    process measures remaining rounds after training, and is restarted if it dies. It is not a child
    of the program, which may wait for all of its children.
    """

    def __init__(
        self, folder: Path, measure: Measure, seconds: float, keeps: Sequence[int]
    ) -> None:
        """Store the settings; the process starts later."""
        self._folder, self._measure, self._keeps = folder, measure, tuple(keeps)
        self._limit = max(_MIN_PATIENCE, 20 * seconds)
        self._trainer = os.getpid()
        self._pid, self._starts = 0, 0
        self._pipe: Connection | None = None
        self._received: list[Outcome] = []

    @property
    def given_up(self) -> bool:
        """True if the process has ended too often to be started again."""
        return self._starts >= _MAX_STARTS and not self._alive()

    def notify(self) -> None:
        """Notify the process that a round waits, and start it if it is not running."""
        # Do nothing in a process that was forked from this one, such as a data loader's worker.
        if os.getpid() == self._trainer:
            if not self._alive() and self._starts < _MAX_STARTS:
                self._start()
            self._send(b"round")

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        self._poll(0.0)
        outcomes, self._received = self._received, []
        return outcomes

    def wait(self, n_waiting: int) -> None:
        """Wait until at most ``n_waiting`` rounds are left, or the process makes no progress."""
        fewest, since = len(waiting(self._folder)), monotonic()
        while (remaining := len(waiting(self._folder))) > n_waiting:
            if remaining < fewest:
                fewest, since = remaining, monotonic()
            if not self._alive():
                if self._starts >= _MAX_STARTS:
                    return
                self._start()
            if monotonic() - since > self._limit:
                # Kill a hanging process: training continues, and waiting rounds are measured at
                # the end.
                self._kill()
                self._starts = _MAX_STARTS
                return
            self._poll(_POLL_SECONDS)

    def close(self) -> None:
        """End the process once all waiting rounds are measured, and release the folder."""
        if os.getpid() != self._trainer:
            return
        self._send(_END)
        until = monotonic() + 2 * _POLL_SECONDS
        while not waiting(self._folder) and self._alive() and monotonic() < until:
            self._poll(_POLL_SECONDS)
        self._disconnect()

    def _start(self) -> None:
        """Fork a detached process; a failed fork counts as a start."""
        self._starts += 1
        self._disconnect()
        # A full disk counts as a process that could not be started.
        with suppress(OSError, BadInput):
            write_whole(own_folder(self._folder, FOLDER) / TRAINER, str(self._trainer))
            forked = fork_detached(self._serve, self._keeps)
            if forked is not None:
                self._pid, self._pipe = forked

    def _alive(self) -> bool:
        self._poll(0.0)
        return self._pipe is not None

    def _poll(self, wait: float) -> None:
        """Receive outcomes, and notice if the process has exited."""
        try:
            while self._pipe is not None and self._pipe.poll(wait):
                index, seconds, error, faulty = json.loads(self._pipe.recv_bytes())
                named = {int(client): str(why) for client, why in faulty.items()}
                self._received.append(Outcome(index, seconds, error, named))
                wait = 0.0
        except (EOFError, OSError):
            self._disconnect()

    def _kill(self) -> None:
        if self._alive():
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, self._pid = None, 0

    def _send(self, what: bytes) -> None:
        with suppress(OSError):
            if self._pipe is not None:
                self._pipe.send_bytes(what)

    def _serve(self, pipe: Connection) -> None:
        """Measure waiting rounds until training ends or its process is gone."""
        with suppress(OSError):
            os.nice(5)
        done, is_over = set[int](), False
        while not is_over:
            while not is_over and self._measure_next(pipe, done):
                is_over = _is_over(pipe, self._trainer, wait=0.0)
            is_over = is_over or _is_over(pipe, self._trainer, wait=_POLL_SECONDS)
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
                pipe.send_bytes(json.dumps(outcome).encode())
        return bool(waiting_rounds)


def _is_over(pipe: Connection, trainer: int, *, wait: float) -> bool:
    try:
        while pipe.poll(wait):
            wait = 0.0
            if pipe.recv_bytes() == _END:
                return True
        # Another forked process may hold the pipe open, which hides its end.
        return has_ended(trainer)
    except (EOFError, OSError):
        return True
