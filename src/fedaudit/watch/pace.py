"""Speed of a federation from the times of its files, and the time that is left."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from fedaudit.watch.state import RunState

_RECENT = 20
"""Number of recent intervals from which the speed is estimated."""
_SILENT_ROUNDS, _SILENT_SECONDS = 10, 60
"""Intervals and seconds without a changed file after which an audit counts as silent."""


class Milestone(NamedTuple):
    """A round that is known to be complete, with the time of the file that shows it."""

    round: int
    time: float


def seconds_per_round(milestones: Iterable[Milestone]) -> float | None:
    """Return the median duration of recent rounds; None if fewer than two rounds are known.

    The median ignores the pause of a run that was stopped and resumed.
    """
    ordered = sorted(milestones)[-_RECENT - 1 :]
    durations = [
        (later.time - earlier.time) / (later.round - earlier.round)
        for earlier, later in pairwise(ordered)
        if later.round > earlier.round and later.time >= earlier.time
    ]
    return median(durations) if durations else None


def seconds_left(pace: float | None, runs: Sequence[RunState]) -> float | None:
    """Return the time until all rounds are trained; None if the speed or a total is unknown."""
    if pace is None or any(run.total is None for run in runs):
        return None
    return pace * sum(max((run.total or 0) - run.done, 0) for run in runs)


def is_silent(last_change: float, now: float, pace: float | None, every: int) -> bool:
    """Return True if no file has changed for much longer than the usual interval.

    Args:
        last_change: Time of the last change.
        now: Current time.
        pace: Seconds per round, if known.
        every: Largest number of rounds between two changed files.
    """
    usual = (pace or 0.0) * every
    return now - last_change > max(_SILENT_SECONDS, _SILENT_ROUNDS * usual)
