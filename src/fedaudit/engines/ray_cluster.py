"""The engine for Ray clusters, of this machine or of several.

Ray is imported when a session opens, since this takes a second and Ray is optional.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.engines.base import Item, Result, Shared

HERE = "local"
"""Address of a cluster of this machine, which is started for this program."""

_MISSING = (
    "the Ray engine needs Ray, which is not installed; pip install 'fedaudit[ray]', or "
    "use the local engine"
)


@dataclass(frozen=True)
class RayCluster:
    """Works on items as stateless Ray tasks, each on one core with one torch thread.

    The main process owns all data and models in Ray's object store. If a worker or machine is lost,
    its tasks are repeated elsewhere, with the same results. Workers have no state.

    An existing connection to Ray is used. Otherwise the first session connects, until :meth:`close`
    or the end of the program.

    Attributes:
        address: "local" starts Ray on this machine; "auto", "host:6379" and "ray://host:10001"
            are running clusters, with the same fedaudit, torch and Ray on every machine.
        workers: Number of items at once; 0 for one per core of this machine or of the cluster.

    Raises:
        BadInput: The address is empty, or the number of workers is negative.
        Unsupported: Ray is not installed.
    """

    address: str = HERE
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(f"workers must be at least 1, or 0 for all cores, got {self.workers}")
        if not self.address:
            raise BadInput(
                f'a cluster needs an address: "{HERE}" for this machine, or one such as '
                '"auto", "host:6379" or "ray://host:10001"'
            )
        # Checked before anything is started.
        if find_spec("ray") is None:
            raise Unsupported(_MISSING)

    @property
    def count(self) -> int:
        """Number of items at once, by default the cores of the cluster.

        Raises:
            BadInput: There is no cluster at the address.
        """
        if self.workers:
            return self.workers
        return _cores() if self.address == HERE else int(_tasks().cores(self))

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """Return a context with a function that does the work for each item.

        Raises:
            Unsupported: Work or data cannot be sent.
            BadInput: There is no cluster at the address.
        """
        with _tasks().session(self, work, shared) as run:
            yield run

    def close(self) -> None:
        """End the connection, and a cluster that was started for this program."""
        _tasks().close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tasks() -> ModuleType:
    # Ray reads these when it is imported: they disable usage reports and a warning.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        from fedaudit.engines import ray_tasks
    except ImportError as error:
        raise Unsupported(f"{_MISSING} ({error})") from error
    return ray_tasks
