"""How a command ends that did not come to its end: one sentence, and an exit code."""

import sys
from typing import NamedTuple

from cyclopts import CycloptsError

from fedaudit.errors import Refusal

REFUSED = 2
INTERRUPTED = 130


class End(NamedTuple):
    """What is said on standard error, and the program's exit code."""

    said: str
    code: int


def end_of(error: BaseException) -> End | None:
    """The end that an error makes; None for a fault of the program, which should be seen whole."""
    if isinstance(error, KeyboardInterrupt):
        return End("stopped; start the same command again to go on", INTERRUPTED)
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


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch raised it where Python would raise MemoryError."""
    # Not imported here: what torch raises comes from a torch that is there.
    torch = sys.modules.get("torch")
    on_gpu = getattr(torch, "OutOfMemoryError", None)
    if on_gpu is not None and isinstance(error, on_gpu):
        return True
    # On the CPU torch raises a bare RuntimeError, so that its words are all there is to go by.
    return "DefaultCPUAllocator" in str(error)
