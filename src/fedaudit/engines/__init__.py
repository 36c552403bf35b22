"""Engines: processes and machines on which clients train and samples are measured."""

from multiprocessing.connection import Connection
from typing import NoReturn

from fedaudit.core.progress import importing


def begin(pipe: Connection) -> NoReturn:
    """Imports what a worker needs, and serves: see :func:`fedaudit.engines.local.serve`."""
    with importing():
        from fedaudit.engines.local import serve
    serve(pipe)
