"""Progress of long commands: imports without garbage collection, callbacks and progress bars."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection within the context, and exclude imported modules from it later.

    Imports leave barely any garbage, and collections took a seventh of a small study's start-up.
    """
    before, is_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if is_enabled:
            gc.enable()


Progress = Callable[[str, int, int], None]
"""Callback of (phase, steps done, total steps).

The first call of a phase has 0 steps done. A total of 0 means that the phase has nothing to do."""

LONG_SECONDS = 24 * 3600
"""Remaining seconds from which the user is warned, since a setting may be mistyped."""

_MIN_SECONDS = 3.0
"""Seconds before the speed of a phase is estimated."""


def ignore_progress(phase: str, done: int, total: int) -> None:
    """Ignore progress."""


def print_to_stderr(text: str) -> None:
    """Print a line to standard error, and ignore a closed stream."""
    with suppress(OSError, ValueError):
        print(f"fedaudit: {text}", file=sys.stderr, flush=True)


def format_bytes(count: int) -> str:
    """Format a number of bytes."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


def format_duration(seconds: float) -> str:
    """Format a duration."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


class _Start(NamedTuple):
    time: float
    done: int


class Pace:
    """Warns once per phase if it would take very long at the current speed."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._starts: dict[str, _Start] = {}
        self._warned: set[str] = set()

    def warning(self, phase: str, done: int, total: int) -> str:
        """Return a warning; empty if the phase is fast enough or was warned about before."""
        now = self._clock()
        if phase not in self._starts or done == 0:
            self._starts[phase] = _Start(now, done)
            return ""
        start = self._starts[phase]
        steps, elapsed = done - start.done, now - start.time
        if steps <= 0 or elapsed < _MIN_SECONDS or phase in self._warned:
            return ""
        remaining = elapsed / steps * (total - done)
        if remaining < LONG_SECONDS:
            return ""
        self._warned.add(phase)
        return (
            f"{phase}: about {remaining / (24 * 3600):,.0f} days at this speed; press Ctrl-C to "
            "stop, and run the same command to continue"
        )


def announce_phase(progress: Progress, phase: str, total: int, seconds: float = 0.0) -> None:
    """Announce a phase that follows, so that the whole run's remaining time is known.

    Args:
        progress: Callback for progress; a function of the user ignores announcements.
        phase: The phase, as it will be passed to the callback.
        total: Number of steps.
        seconds: Typical number of seconds per step, until the phase has run.
    """
    if (time_left := getattr(progress, "time_left", None)) is not None:
        time_left.announce(phase, total, seconds)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show progress bars with the remaining time on standard error, one line per phase."""
    from fedaudit.core.progress_display import TerminalProgress

    display = TerminalProgress()
    try:
        yield display
    finally:
        display.close()


@contextmanager
def progress_for(show_progress: bool | None) -> Iterator[Progress]:
    """Show progress in a notebook, or else as :func:`progress_bars` do.

    Args:
        show_progress: Whether to show progress; None shows it only in a terminal or a notebook.
    """
    if show_progress is not False and is_notebook():
        from fedaudit.core.progress_display import NotebookProgress

        display = NotebookProgress()
        try:
            yield display
        finally:
            display.close()
    elif show_progress or (
        show_progress is None and sys.stderr is not None and sys.stderr.isatty()
    ):
        with progress_bars() as progress:
            yield progress
    else:
        yield ignore_progress


def is_notebook() -> bool:
    """Return True if a kernel of a notebook runs this process."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_ipython(), "kernel")
