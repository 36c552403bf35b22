"""Engines: processes and machines on which clients train and samples are measured.

This module imports little, since worker processes import it first.
"""

from multiprocessing.connection import Connection
from typing import NoReturn

from fedaudit.core.progress import importing


def begin(pipe: Connection) -> NoReturn:
    """Run a worker process; see :func:`fedaudit.engines.local.serve`."""
    with importing():
        from fedaudit.engines.local import serve
    serve(pipe)
