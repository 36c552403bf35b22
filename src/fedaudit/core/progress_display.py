"""Progress in a terminal and in a notebook, with the remaining time of all announced phases."""

import html
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from fedaudit.core.progress import Pace, format_duration

_SPEED_WINDOW = 3600
"""Window of Rich's speed estimate in seconds. Rich shows no estimate if a step takes longer."""
_MIN_INTERVAL = 0.2
"""Smallest number of seconds between two updates of a notebook."""
_TOTAL = "in total"


@dataclass
class _Phase:
    total: int
    seconds: float
    done: int = 0
    updated: float | None = None

    @property
    def left(self) -> int:
        return max(self.total - self.done, 0)


class TimeLeft:
    """Remaining time of a run: of the current phase, and of phases that are announced.

    Phases of the same kind ("seed 1: training rounds", "seed 2: training rounds") have one speed.
    For a kind that has not run yet, the announcement's seconds per step are used.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._phases: dict[str, _Phase] = {}
        self._is_known = False
        self._seconds, self._steps = defaultdict[str, float](float), Counter[str]()

    @property
    def is_known(self) -> bool:
        """True if phases were announced; otherwise, unknown phases may follow."""
        return self._is_known and len(self._phases) > 1

    def announce(self, phase: str, total: int, seconds: float) -> None:
        """Announce a phase that follows, with the typical number of seconds per step."""
        if total:
            self._is_known = True
            self._phases.setdefault(phase, _Phase(total, seconds))

    def update(self, phase: str, done: int, total: int) -> None:
        """Note how many steps of a phase are done; a total of 0 removes the phase."""
        now = self._clock()
        if not total:
            self._phases.pop(phase, None)
            return
        entry = self._phases.setdefault(phase, _Phase(total, 0.0))
        # Steps before the first update were done before the run was resumed.
        if entry.updated is not None and done > entry.done:
            self._seconds[_kind(phase)] += now - entry.updated
            self._steps[_kind(phase)] += done - entry.done
        if entry.updated is None or done != entry.done:
            entry.updated = now
        entry.done, entry.total = done, total

    def remaining(self) -> float | None:
        """Return the remaining seconds of all phases; None before the first step is done."""
        if not self._steps.total():
            return None
        now, seconds = self._clock(), 0.0
        for phase, entry in self._phases.items():
            per_step = self._seconds_per_step(phase, entry)
            seconds += entry.left * per_step
            if entry.updated is not None and entry.left:
                # Part of the current step is done.
                seconds -= min(now - entry.updated, per_step)
        return max(seconds, 0.0)

    def fraction(self) -> float:
        """Return the fraction of the whole time that has passed."""
        remaining, elapsed = self.remaining(), self._clock() - self._start
        return 0.0 if remaining is None else elapsed / max(elapsed + remaining, 1e-9)

    def _seconds_per_step(self, phase: str, entry: _Phase) -> float:
        steps = self._steps[_kind(phase)]
        return self._seconds[_kind(phase)] / steps if steps else entry.seconds


def _kind(phase: str) -> str:
    return phase.rpartition(": ")[2]


class TerminalProgress:
    """Progress bars on standard error: one for the whole run, and one for each phase."""

    def __init__(self) -> None:
        self.time_left, self._pace = TimeLeft(), Pace()
        self._tasks: dict[str, TaskID] = {}
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Count(),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            _Remaining(self.time_left),
            TextColumn("left"),
            console=self._console,
            speed_estimate_period=_SPEED_WINDOW,
            # Output that is redirected to a file must not appear in the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a phase are done."""
        self.time_left.update(phase, done, total)
        self._bars.start()  # Not earlier, so that a refused command shows no bars.
        if self.time_left.is_known:
            self._task(_TOTAL, 1)
            self._bars.update(self._tasks[_TOTAL], completed=self.time_left.fraction())
        task = self._task(phase, total)
        if not total:
            self._bars.remove_task(self._tasks.pop(phase))
            return
        # Rich estimates the speed from this first update, so that steps that were done before the
        # command was resumed do not count.
        self._bars.update(task, completed=done)
        if warning := self._pace.warning(phase, done, total):
            self._console.print(warning, markup=False)

    def _task(self, name: str, total: int) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
        return self._tasks[name]

    def close(self) -> None:
        """Stop the display, and leave the last state on the screen."""
        if self._bars.live.is_started:
            if _TOTAL in self._tasks and not self.time_left.remaining():
                self._bars.update(self._tasks[_TOTAL], completed=1)
            self._bars.stop()


class _Count(ProgressColumn):
    """Number of steps; for the whole run the percentage of its time."""

    def render(self, task: Task) -> Text:
        if task.description == _TOTAL:
            return Text(f"{100 * task.completed:.0f}%", style="progress.download")
        return Text(f"{task.completed:.0f}/{task.total or 0:.0f}", style="progress.download")


class _Remaining(TimeRemainingColumn):
    """Remaining time; for the whole run that of all announced phases."""

    def __init__(self, time_left: TimeLeft) -> None:
        self._time_left = time_left
        super().__init__()

    def render(self, task: Task) -> Text:
        if task.description != _TOTAL:
            return super().render(task)
        seconds = 0.0 if task.finished else self._time_left.remaining()
        if seconds is None:
            return Text("-:--:--", style="progress.remaining")
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02}", style="progress.remaining")


class NotebookProgress:
    """Progress line in the output of a notebook's cell, which disappears at the end."""

    def __init__(self, show: Callable[..., Any] | None = None) -> None:
        """Show nothing yet.

        Args:
            show: Function that displays a page and returns a handle to update it; that of IPython
                by default.
        """
        self.time_left = TimeLeft()
        self._show, self._shown = show, 0.0
        self._handle: Any = None
        self._last = ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a phase are done."""
        self.time_left.update(phase, done, total)
        now = monotonic()
        # The first step of a phase is always shown, since it may take long.
        if total and (phase != self._last or now - self._shown >= _MIN_INTERVAL):
            self._last, self._shown = phase, now
            self._update(self._page(phase, done, total))

    def _page(self, phase: str, done: int, total: int) -> str:
        remaining = self.time_left.remaining()
        left = "" if remaining is None else f", about {format_duration(remaining)} left"
        is_known = self.time_left.is_known
        fraction = self.time_left.fraction() if is_known else done / total
        whole = f" {_TOTAL} {100 * fraction:.0f}%{left} ·" if is_known else ""
        return (
            f'<progress value="{fraction:.3f}" max="1"></progress>{whole} '
            f"{html.escape(phase)} {done} of {total}"
        )

    def _update(self, page: str) -> None:
        content = {"text/html": page, "text/plain": ""}
        if self._handle is not None:
            self._handle.update(content, raw=True)
            return
        show = self._show or import_module("IPython.display").display
        self._handle = show(content, raw=True, display_id=True)

    def close(self) -> None:
        """Remove the line."""
        if self._handle is not None:
            self._update("")
