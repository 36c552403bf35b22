"""The end of a command that failed: one sentence, and an exit code."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import NamedTuple, NoReturn, TextIO, cast

from cyclopts import CycloptsError

from fedaudit.core.errors import Refusal

REFUSED = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """Somebody asked the program to end (SIGTERM); it stops as it does at Ctrl-C."""


class End(NamedTuple):
    """The sentence on standard error, and the program's exit code."""

    said: str
    code: int


def end_of(error: BaseException) -> End | None:
    """The end that an error makes; None for a fault of the program, which should be seen whole."""
    if isinstance(error, KeyboardInterrupt):
        code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        return End("stopped; start the same command again to go on", code)
    if isinstance(error, Refusal | CycloptsError):
        return End(str(error).strip(), REFUSED)
    if isinstance(error, OSError | MemoryError):
        return End(
            f"this machine could not do it ({str(error) or 'out of memory'}); check the path, the "
            "disk and the memory, and start again: what was written before is kept",
            REFUSED,
        )
    if isinstance(error, RuntimeError) and _is_out_of_memory(error):
        return End(
            "out of memory; choose a smaller model, fewer samples or fewer workers, and start "
            "again: what was written before is kept",
            REFUSED,
        )
    return None


class TerminalStream:
    """A stream of text that nobody need be reading, and that need not take what is written.

    Attributes:
        lost: Why something that was written is lost, be it a full disk; None where nothing is, or
            where its reader is gone and did not want it.
    """

    def __init__(self, stream: object, *, closed: bool = False) -> None:
        self._stream = cast(TextIO, stream)
        self._closed = closed
        self.lost: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, to nowhere once nothing can be."""
        if self._closed:
            self.lost = OSError("it is closed")
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:
            self._to_nowhere(error)
            return len(text)

    def flush(self) -> None:
        """Flushes, to nowhere once nothing can be."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._to_nowhere(error)

    def _to_nowhere(self, error: Exception) -> None:
        if not isinstance(error, BrokenPipeError):
            self.lost = self.lost or error
        # Below the stream, since what it holds is written again when the program ends, which
        # would then end with an exit code of Python's own. A stream that is closed holds nothing.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def printing_anyway() -> Iterator[TerminalStream]:
    """Inside, printing ends no command: no reader that is gone, full disk or narrow encoding.

    A character that the terminal's encoding lacks is printed as its escape, and what is printed
    after a pipe was closed (``fedaudit run study.toml | head -1``) goes nowhere, as all does that
    a stream cannot take.

    Yields:
        Standard output, which says whether something that was printed is lost.
    """
    out, err = sys.stdout, sys.stderr
    before = [(stream, stream.errors) for stream in (out, err) if isinstance(stream, TextIOWrapper)]
    for stream, _ in before:
        _reconfigure(stream, "backslashreplace")
    with ExitStack() as opened:
        if out is None or err is None:
            _take_closed()
        printed, told = (
            TerminalStream(
                one or opened.enter_context(open(os.devnull, "w", encoding="utf-8")),
                closed=one is None,
            )
            for one in (out, err)
        )
        sys.stdout, sys.stderr = cast(TextIO, printed), cast(TextIO, told)
        try:
            yield printed
        finally:
            printed.flush()
            told.flush()
            sys.stdout, sys.stderr = out, err
            for stream, errors in before:
                _reconfigure(stream, errors)


def _reconfigure(stream: TextIOWrapper, errors: str | None) -> None:
    # It flushes, which a stream cannot that is closed or full.
    with suppress(OSError, ValueError):
        stream.reconfigure(errors=errors)


def _take_closed() -> None:
    """Opens nothing under the numbers of standard streams that the program was started without.

    A file that were opened later would get them, and what libraries print there would be in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one


@contextmanager
def stopping_at_sigterm() -> Iterator[None]:
    """Inside, SIGTERM stops the program as Ctrl-C does; a second one ends it on the spot."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def _is_out_of_memory(error: RuntimeError) -> bool:
    """True if torch raised it where Python would raise MemoryError."""
    # Not imported here: what torch raises comes from a torch that is there.
    torch = sys.modules.get("torch")
    on_gpu = getattr(torch, "OutOfMemoryError", None)
    if on_gpu is not None and isinstance(error, on_gpu):
        return True
    # On the CPU torch raises a bare RuntimeError, so that its words are all there is to go by.
    return "DefaultCPUAllocator" in str(error)
