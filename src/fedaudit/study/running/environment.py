"""Machine, package versions and run time of a record."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedaudit import __version__
from fedaudit.core.devices import CPU, device_model

if TYPE_CHECKING:
    from fedaudit.results.record import Environment


class Clock:
    """Clock that measures the time since a study was started.

    Attributes:
        started: Date and time of the start, in ISO format.
        start_time: Time of the start in seconds since the epoch, for comparison with file times.
    """

    def __init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.start_time = time.time()
        self._monotonic_start = time.monotonic()
        # Determined now, since the source tree may be at another commit when the study ends.
        _commit()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._monotonic_start, 1)


def describe_environment(clock: Clock, device: torch.device = CPU) -> "Environment":
    """Describe this machine, the installed versions and the run time."""
    from fedaudit.results.record import Environment

    processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return Environment(
        versions=dict(_installed_versions()),
        commit=_commit(),
        device=", ".join(filter(None, [device_model(device), processor])),
        started=clock.started,
        seconds=clock.seconds,
    )


@cache
def _installed_versions() -> dict[str, str]:
    names = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic")
    return {
        "fedaudit": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }


@cache
def _commit() -> str:
    """Return the commit of the source tree, with "+" for uncommitted changes; "" if unknown.

    It is determined once, since later changes do not affect the code that the program has imported.
    """
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        process = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
        return process.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
