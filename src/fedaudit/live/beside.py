"""A process that measures a recording's rounds beside the training, one after another."""

import json
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import NamedTuple, NoReturn

import torch

from fedaudit.core.errors import BadInput
from fedaudit.live.waiting import waiting

MOST_WAITING = 4
"""Rounds that may wait while training goes on."""
_POLLED = 0.5
"""Seconds between two looks at whether the training still runs."""
_PATIENCE = 120.0
"""Seconds that a round may take at least, whatever it was thought to take."""
_STARTS = 3
_END = b"end"


class Outcome(NamedTuple):
    """A round that the process is done with.

    Attributes:
        round: Its number.
        seconds: That it took.
        error: Why it could not be measured; empty where it was.
    """

    round: int
    seconds: float
    error: str


def refuse_impossible(device: torch.device) -> None:
    """Refuses a process of its own where none can be had.

    Raises:
        BadInput: The system has no fork, or models are run on a GPU.
    """
    if not hasattr(os, "fork"):
        raise BadInput(
            "measure='beside' needs a system with fork, such as Linux; take 'now' or 'after'"
        )
    if device.type != "cpu":
        raise BadInput(
            f"measure='beside' measures on the CPU, and the device is {device}; leave the device "
            "out, or take 'now' or 'after'"
        )


class Beside:
    """The process, as whoever trains sees it; it is started with the first round that waits.

    It is a copy of the program (fork): the network need not be importable, and nothing but numbers
    of rounds passes between the two. Rounds lie in the recording's folder, so that whichever is
    killed, nothing is lost: the process measures what waits when the training is gone, and is
    started anew when it is gone itself.
    """

    def __init__(self, folder: Path, measure: Callable[[Path], None], seconds: float) -> None:
        """Starts nothing yet.

        Args:
            folder: Of the recording.
            measure: Measures the round in a file, and takes the file away whatever comes of it.
            seconds: That a round will take, about.
        """
        self._folder, self._measure = folder, measure
        self._limit = max(_PATIENCE, 20 * seconds)
        self._pid, self._starts = 0, 0
        self._pipe: Connection | None = None
        self._heard = monotonic()

    @property
    def given_up(self) -> bool:
        """True if the process has ended too often to be started again."""
        return self._pid == 0 and self._starts >= _STARTS

    def handed(self) -> None:
        """Tells the process that a round waits; starts it where it does not run."""
        if not self._alive() and self._starts < _STARTS:
            self._start()
        self._send(b"round")

    def outcomes(self, *, wait: float = 0.0) -> list[Outcome]:
        """What the process was done with since the last time.

        Args:
            wait: For the first one, at most so many seconds.
        """
        found = list[Outcome]()
        with suppress(EOFError, OSError):
            while self._pipe is not None and self._pipe.poll(0.0 if found else wait):
                found.append(Outcome(*json.loads(self._pipe.recv_bytes())))
                self._heard = monotonic()
        return found

    def wait(self, most: int, heard: Callable[[Outcome], None]) -> None:
        """Waits until at most so many rounds are left; not for a process that hangs.

        Args:
            most: Rounds.
            heard: Takes what the process was done with.
        """
        self._heard = monotonic()
        while True:
            for one in self.outcomes(wait=0.0):
                heard(one)
            if len(waiting(self._folder)) <= most:
                return
            if not self._alive():
                if self._starts >= _STARTS:
                    return
                self._start()
            if monotonic() - self._heard > self._limit:
                # Whatever it hangs in: training goes on, and what waits is measured afterwards.
                self._kill()
                self._starts = _STARTS
                return
            for one in self.outcomes(wait=_POLLED):
                heard(one)

    def close(self, *, wait: bool) -> None:
        """Lets the process end once it has measured what waits.

        Args:
            wait: For that.
        """
        self._send(_END)
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._pid and wait:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
        self._pid = 0

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._starts += 1
        self._heard = monotonic()
        with warnings.catch_warnings():
            # The copy runs one thread of its own, and takes no lock that another may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ours.close()
            _serve(theirs, self._folder, self._measure)
        theirs.close()
        if self._pipe is not None:
            self._pipe.close()
        self._pid, self._pipe = pid, ours

    def _alive(self) -> bool:
        if self._pid:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    self._pid = 0
            except ChildProcessError:  # somebody else's code has waited for all of them
                self._pid = 0
        return self._pid != 0

    def _kill(self) -> None:
        if self._alive():
            os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
        self._pid = 0

    def _send(self, what: bytes) -> None:
        with suppress(OSError):
            if self._pipe is not None:
                self._pipe.send_bytes(what)


def _serve(pipe: Connection, folder: Path, measure: Callable[[Path], None]) -> NoReturn:
    """Measures what waits until the training says that it is over, or is gone."""
    try:
        # Ctrl-C is for the training; what waits is measured all the same.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            os.nice(5)
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        parent, over = os.getppid(), False
        while not over:
            while _measured(pipe, folder, measure):
                over = over or _is_over(pipe, parent, wait=0.0)
            # A round that was handed over before the end was told of is measured still.
            over = over or _is_over(pipe, parent, wait=_POLLED)
        while _measured(pipe, folder, measure):
            pass
    finally:
        # Not through the program's own way out, which would run its code a second time.
        os._exit(0)


def _measured(pipe: Connection, folder: Path, measure: Callable[[Path], None]) -> bool:
    """Measures the first round that waits; False if there is none."""
    for index, path in waiting(folder)[:1]:
        began, said = monotonic(), ""
        try:
            measure(path)
        # Whatever it is: the next round is another one.
        except Exception as error:
            said = str(error)[:2000] or type(error).__name__
        with suppress(OSError):
            pipe.send_bytes(json.dumps([index, monotonic() - began, said]).encode())
        return True
    return False


def _is_over(pipe: Connection, parent: int, *, wait: float) -> bool:
    try:
        while pipe.poll(wait):
            wait = 0.0
            if pipe.recv_bytes() == _END:
                return True
        # Another copy of the program may hold the pipe open, so that its end is not heard.
        return os.getppid() != parent
    except (EOFError, OSError):
        return True
