"""Progress of a long command: its imports, the callback of the work, and the bar that shows it."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple


@contextmanager
def importing() -> Iterator[None]:
    """Import what a command needs without garbage collection, and leave it out of later ones.

    There is barely any garbage, and going through all that stays, again and again, took a seventh
    of a small study's start.
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
"""Called as work goes on with (phase, done, total): first with nothing done, and with a total of 0
where it turns out that nothing is left to do."""

LONG = 24 * 3600
"""Seconds left from which a user is told in words, who may have typed a digit too many."""

_SURE = 3.0
# Rich forgets steps older than this, and has no estimate where a step takes longer.
_MEMORY = 3600


def quiet(phase: str, done: int, total: int) -> None:
    """Shows nothing."""


def on_stderr(text: str) -> None:
    """A line for whoever watches a program that is not ours; one that nobody reads is lost."""
    with suppress(OSError, ValueError):
        print(f"fedaudit: {text}", file=sys.stderr, flush=True)


def size_of(count: int) -> str:
    """A number of bytes in words."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"


def time_of(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


class _Start(NamedTuple):
    time: float
    done: int


class Pace:
    """Tells once a phase when it will take very long at its present speed."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._starts: dict[str, _Start] = {}
        self._told: set[str] = set()

    def warning(self, phase: str, done: int, total: int) -> str:
        """A sentence for the user; empty where there is nothing to say (any more)."""
        now = self._clock()
        if phase not in self._starts or done == 0:
            self._starts[phase] = _Start(now, done)
            return ""
        start = self._starts[phase]
        steps, passed = done - start.done, now - start.time
        if steps <= 0 or passed < _SURE or phase in self._told:
            return ""
        left = passed / steps * (total - done)
        if left < LONG:
            return ""
        self._told.add(phase)
        return (
            f"{phase}: about {left / (24 * 3600):,.0f} days at this speed; Ctrl-C stops it, and "
            "the same command goes on"
        )


@contextmanager
def bars() -> Iterator[Progress]:
    """A bar with the time left on standard error, one line a phase."""
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
    shown = Bars(
        *columns,
        console=console,
        speed_estimate_period=_MEMORY,
        # Lines that go to a file are the file's, not the terminal's.
        redirect_stdout=sys.stdout.isatty(),
    )

    def progress(phase: str, done: int, total: int) -> None:
        shown.start()  # once; a command that is refused before has shown nothing
        if phase not in tasks:
            tasks[phase] = shown.add_task(phase, total=total)
        if not total:
            shown.remove_task(tasks.pop(phase))
            return
        # Rich takes the first step as the start, so that what was done in an earlier start of the
        # program does not count into this one's speed.
        shown.update(tasks[phase], completed=done)
        warning = pace.warning(phase, done, total)
        if warning:
            console.print(warning, markup=False)

    try:
        yield progress
    finally:
        if shown.live.is_started:
            shown.stop()
