"""Training and measuring on a Ray cluster: this machine's processes, or many machines'.

Ray itself is imported when a session opens, since it takes a second and need not be installed.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TypeVar

from fedaudit.core.errors import BadInput, Unsupported

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

HERE = "local"
"""The address that stands for a cluster of this machine alone, started for this program."""

_MISSING = (
    "the Ray engine needs Ray, which is not there; install it with pip install 'fedaudit[ray]', or "
    "use the local engine"
)


@dataclass(frozen=True)
class RayCluster:
    """Items as stateless tasks on Ray, each on one core with one torch thread.

    Data and models travel through Ray's object store, and the main process owns them: a worker
    or machine that is lost takes nothing with it that is not there, and what it was doing is
    done again elsewhere, to the same bits. Nothing is kept on workers from round to round.

    A connection to Ray that the program has is used as it is; otherwise the first session makes
    one, which lasts until :meth:`close` or the program's end.

    Attributes:
        address: "local" starts Ray on this machine; "auto", "host:6379" and "ray://host:10001"
            are clusters that run already, with the same fedaudit, torch and Ray everywhere.
        workers: Items at work at once; 0 for one a core of this machine or of the cluster.

    Raises:
        BadInput: No address, or fewer than no workers.
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
        # Said before anything else is begun.
        if find_spec("ray") is None:
            raise Unsupported(_MISSING)

    @property
    def count(self) -> int:
        """See :class:`fedaudit.engines.base.Counted`; a cluster is asked for its cores.

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
        """See :class:`fedaudit.engines.base.Engine`.

        Raises:
            Unsupported: The work or data cannot be sent.
            BadInput: There is no cluster at the address.
        """
        with _tasks().session(self, work, shared) as run:
            yield run

    def close(self) -> None:
        """Ends the connection, and a cluster that was started for this program with it."""
        _tasks().close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tasks() -> ModuleType:
    """Import the part that needs Ray."""
    # Both are read when Ray is imported: no report of use to its makers, and no warning.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        from fedaudit.engines import ray_tasks
    except ImportError as error:
        raise Unsupported(f"{_MISSING} ({error})") from error
    return ray_tasks
