"""How a command ends that did not come to its end: one sentence, and an exit code."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

from cyclopts import CycloptsError

from fedaudit.errors import Refusal

REFUSED = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """Somebody asked the program to end (SIGTERM); it stops as it does at Ctrl-C."""


class End(NamedTuple):
    """What is said on standard error, and the program's exit code."""

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
    """Whether torch raised it where Python would raise MemoryError."""
    # Not imported here: what torch raises comes from a torch that is there.
    torch = sys.modules.get("torch")
    on_gpu = getattr(torch, "OutOfMemoryError", None)
    if on_gpu is not None and isinstance(error, on_gpu):
        return True
    # On the CPU torch raises a bare RuntimeError, so that its words are all there is to go by.
    return "DefaultCPUAllocator" in str(error)
