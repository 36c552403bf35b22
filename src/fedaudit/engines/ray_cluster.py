"""Engine for Ray clusters, on one machine or several.

Ray is imported when a session opens, since it is optional and its import takes a second.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.engines.base import Item, Result, Shared

LOCAL_ADDRESS = "local"
"""Address that starts a new cluster on this machine."""

_MISSING = (
    "the Ray engine needs Ray, which is not installed; pip install 'fedaudit[ray]', or "
    "use the local engine"
)


@dataclass(frozen=True)
class RayCluster:
    """Engine that runs Ray tasks, each on one core with one torch thread.

    The main process owns all data and models in Ray's object store, and workers have no state. If a
    worker or machine is lost, its tasks are repeated on another one, with the same results.

    If ``ray.init`` was called before, its connection is used. Otherwise, the first session opens a
    connection, which stays open until :meth:`close` is called or the Python process exits.

    Attributes:
        address: "local" to start Ray on this machine, or the address of a running cluster: "auto",
            "host:6379" or "ray://host:10001". Every machine of a cluster needs the same versions of
            fedaudit, torch and Ray.
        workers: Number of tasks that run at the same time; 0 for one per core of this machine or
            of the cluster.

    Raises:
        BadInput: The address is empty, or the number of workers is negative.
        Unsupported: Ray is not installed.
    """

    address: str = LOCAL_ADDRESS
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BadInput(f"workers must be at least 1, or 0 for all cores, got {self.workers}")
        if not self.address:
            raise BadInput(
                f'a cluster needs an address: "{LOCAL_ADDRESS}" for this machine, or one such as '
                '"auto", "host:6379" or "ray://host:10001"'
            )
        if find_spec("ray") is None:
            raise Unsupported(_MISSING)

    @property
    def count(self) -> int:
        """Number of tasks that run at the same time, by default one per core.

        Raises:
            BadInput: There is no cluster at the address.
        """
        if self.workers:
            return self.workers
        return _local_cores() if self.address == LOCAL_ADDRESS else int(_ray_tasks().cores(self))

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        """Open a session: a context with a function that runs one task per item and returns the
        results in order.

        Raises:
            Unsupported: The function or data cannot be pickled.
            BadInput: There is no cluster at the address.
        """
        with _ray_tasks().session(self, work, shared) as run:
            yield run

    def close(self) -> None:
        """Close the connection, and stop the cluster if this program started it."""
        _ray_tasks().close()


def _local_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ray_tasks() -> ModuleType:
    # Disable Ray's usage reports and a warning; Ray reads these variables on import.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        from fedaudit.engines import ray_tasks
    except ImportError as error:
        raise Unsupported(f"{_MISSING} ({error})") from error
    return ray_tasks
