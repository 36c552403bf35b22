"""The first thing that a process of :class:`fedaudit.engines.local.Workers` runs."""

from multiprocessing.connection import Connection
from typing import NoReturn

from fedaudit.core.progress import importing


def begin(pipe: Connection) -> NoReturn:
    """Imports what a worker needs, and serves: see :func:`fedaudit.engines.local.serve`."""
    with importing():
        from fedaudit.engines.local import serve
    serve(pipe)
