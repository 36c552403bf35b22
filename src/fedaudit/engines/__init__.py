"""Engines, which run the training of clients and the measurement of samples in processes.

This module has few imports, since worker processes import it first.
"""

from multiprocessing.connection import Connection
from typing import NoReturn

from fedaudit.core.progress import without_garbage_collection


def begin(pipe: Connection) -> NoReturn:
    """Entry point of a worker process; see :func:`fedaudit.engines.local.serve`."""
    with without_garbage_collection():
        from fedaudit.engines.local import serve
    serve(pipe)
