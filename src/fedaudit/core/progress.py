"""Progress of long commands: imports without garbage collection, callbacks and progress bars."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple


@contextmanager
def importing() -> Iterator[None]:
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
_SPEED_WINDOW = 3600
"""Window of Rich's speed estimate in seconds. Rich shows no estimate if a step takes longer."""


def quiet(phase: str, done: int, total: int) -> None:
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


@contextmanager
def bars() -> Iterator[Progress]:
    """Show progress bars with the remaining time on standard error, one line per phase."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    tasks: dict[str, TaskID] = {}
    pace = Pace()
    console = Console(stderr=True)
    display = Bars(
        *columns,
        console=console,
        speed_estimate_period=_SPEED_WINDOW,
        # Output that is redirected to a file must not appear in the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )

    def progress(phase: str, done: int, total: int) -> None:
        display.start()  # Not earlier, so that a refused command shows no bars.
        if phase not in tasks:
            tasks[phase] = display.add_task(phase, total=total)
        if not total:
            display.remove_task(tasks.pop(phase))
            return
        # Rich estimates the speed from this first update, so that steps that were done before the
        # command was resumed do not count.
        display.update(tasks[phase], completed=done)
        warning = pace.warning(phase, done, total)
        if warning:
            console.print(warning, markup=False)

    try:
        yield progress
    finally:
        if display.live.is_started:
            display.stop()
