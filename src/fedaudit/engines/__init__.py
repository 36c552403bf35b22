"""Engines: processes and machines on which clients train and samples are measured.

Worker processes import this module first, which therefore imports little.
"""

from multiprocessing.connection import Connection
from typing import NoReturn

from fedaudit.core.progress import importing


def begin(pipe: Connection) -> NoReturn:
    """Import what a worker needs, and start it; see :func:`fedaudit.engines.local.serve`."""
    with importing():
        from fedaudit.engines.local import serve
    serve(pipe)
