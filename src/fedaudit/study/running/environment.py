"""Place and time at which a record was made."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedaudit import __version__
from fedaudit.core.devices import CPU, described

if TYPE_CHECKING:
    from fedaudit.results.record import Environment


class Clock:
    """The start of a study, and the time it has taken since.

    Attributes:
        started: As a date and time.
        at: In seconds since the epoch, as files have it.
    """

    def __init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.at = time.time()
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._begin, 1)


def environment(clock: Clock, device: torch.device = CPU) -> "Environment":
    """This machine, these versions, and the clock's times."""
    from fedaudit.results.record import Environment

    processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return Environment(
        versions=_versions(),
        commit=_commit(),
        device=", ".join(filter(None, [described(device), processor])),
        started=clock.started,
        seconds=clock.seconds,
    )


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic")
    return {
        "fedaudit": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }


def _commit() -> str:
    """The commit of the source tree, where this is one; "+" marks uncommitted changes."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
