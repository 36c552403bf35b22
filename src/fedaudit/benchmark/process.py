"""Separate process in which an attack computes its scores."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import IO

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fedaudit.benchmark.child import checked_scores
from fedaudit.benchmark.suite import Signals, write_signals
from fedaudit.core.errors import BadInput, format_option
from fedaudit.core.files import read_bytes

_MAX_REPLY = 100_000
"""Maximum number of characters of a reply, which the code of an attack may have written."""
_MAX_START_SECONDS = 600.0
_FOLDERS = ("PWD", "OLDPWD")
"""Environment variables that contain the folder of the caller."""


class AttackProcess:
    """Process that runs an attack on signals; see :mod:`fedaudit.benchmark.child`.

    It receives the signals of one recording at a time, in a random order of samples. It receives no
    path of the suite, and no membership. The code of an attack could still search the disk for
    files of the same user.
    """

    def __init__(self, reference: str, scratch: Path, timeout: float) -> None:
        self._scratch, self._timeout = scratch, timeout
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedaudit.benchmark.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=scratch,
            # Neither the arguments nor the environment show the folder of the caller, which may
            # contain the benchmark.
            env={name: value for name, value in os.environ.items() if name not in _FOLDERS},
            text=True,
            # Processes that the attack starts are stopped with it.
            start_new_session=True,
        )
        attack = {"attack": reference, "folder": str(Path.cwd())}
        try:
            # Imports are slow on a busy computer, and no fault of the attack.
            self._reply(attack, _MAX_START_SECONDS)
        except BaseException:
            # The caller has no object yet that it could close, for example after Ctrl-C.
            self.close()
            raise

    def scores(self, signals: Signals, rng: np.random.Generator) -> Float[ndarray, " samples"]:
        """Return the attack's score of each sample.

        Args:
            signals: Signals of a recording.
            rng: Draws the order in which the attack receives the samples.

        Raises:
            BadInput: The attack failed, took too long, or returned something other than scores.
        """
        order = rng.permutation(signals.samples)
        input_file, output_file = self._scratch / "signals", self._scratch / "scores"
        write_signals(signals.in_order(order), input_file, durable=False)
        output_file.unlink(missing_ok=True)
        request = {"signals": str(input_file), "scores": str(output_file)}
        self._reply(request, self._timeout)
        values = np.frombuffer(_content(output_file, 8 * signals.samples), dtype="<f8")
        scores = np.empty(signals.samples)
        scores[order] = checked_scores(values, signals.samples)
        return scores

    def close(self) -> None:
        """Stop the process, and all processes that it has started."""
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # A request that was not sent yet cannot be sent to a process that has ended.
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _kill(self) -> None:
        # The group exists as long as one of its processes does.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reply(self, request: dict[str, str], timeout: float) -> None:
        """Send a request, and wait for its reply."""
        expired = False

        def stop() -> None:
            nonlocal expired
            expired = True
            self._kill()

        timer = Timer(timeout, stop)
        timer.start()
        try:
            error = self._exchange(request)
        finally:
            timer.cancel()
        if expired:
            raise BadInput(
                f"the attack took more than {timeout:g} s for one recording; make it faster, or "
                f"raise {format_option('timeout')}"
            )
        if error is None:
            raise BadInput(
                f"the process of the attack ended (exit code {self._process.wait()}) before it "
                "returned scores; run the attack in a script to debug it"
            )
        if error:
            raise BadInput(error)

    def _exchange(self, request: dict[str, str]) -> str | None:
        """Return the error that the process replies; None if it has ended."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            print(json.dumps(request), file=requests, flush=True)
            return _error_in(replies)
        except (OSError, ValueError):
            return None


def _error_in(replies: IO[str]) -> str:
    reply = json.loads(replies.readline(_MAX_REPLY))
    if not isinstance(reply, dict) or not isinstance(reply.get("error"), str):
        raise ValueError("not a reply")
    error: str = reply["error"]
    return error


def _content(path: Path, size: int) -> bytes:
    try:
        content = read_bytes(path, max_bytes=size)
    except (OSError, ValueError) as error:
        raise BadInput(f"the attack's scores cannot be read ({error}); start again") from error
    if len(content) != size:
        raise BadInput("the attack's scores are incomplete; start again")
    return content


@contextmanager
def attack_process(reference: str, timeout: float) -> Iterator[AttackProcess]:
    """Start the process of an attack, and stop it at the end of the context.

    Args:
        reference: See :func:`fedaudit.benchmark.child.load_attack`. Files have absolute paths.
        timeout: Maximum number of seconds for one recording.
    """
    with tempfile.TemporaryDirectory(prefix="fedaudit-") as scratch:
        process = AttackProcess(reference, Path(scratch), timeout)
        try:
            yield process
        finally:
            process.close()
