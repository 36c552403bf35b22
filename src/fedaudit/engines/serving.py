"""What a worker process does: the same job for one item after the other."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, NoReturn

import torch

from fedaudit.engines.packing import packed


class Outcome(NamedTuple):
    """What work came to in a worker."""

    value: object = None
    error: Exception | None = None


def serve(pipe: Connection) -> NoReturn:
    """Takes a job and then items from a pipe, and sends an outcome for each item.

    Ends with the process at the other end, whatever the work is at.
    """
    # Ctrl-C is for the program, also where processes cannot be started with it blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    came = SimpleQueue[bytes]()
    Thread(target=_listen, args=(pipe, came), daemon=True).start()
    next_outcome = _worker(came)
    while True:
        outcome = next_outcome()
        try:
            pipe.send_bytes(outcome)
        except OSError:
            os._exit(1)
        # It can be large, and the next item long in coming.
        del outcome


def _listen(pipe: Connection, came: "SimpleQueue[bytes]") -> NoReturn:
    """Passes on what is sent, and ends the process when there is nobody left to send anything."""
    try:
        while True:
            came.put(pipe.recv_bytes())
    except (EOFError, OSError):
        pass
    except BaseException:
        # Such as too little memory for what is sent; the work would wait for it for ever.
        traceback.print_exc()
    finally:
        os._exit(1)


def _worker(came: "SimpleQueue[bytes]") -> Callable[[], bytes]:
    """What does the job for the next item; one that cannot be unpacked here fails for each."""
    try:
        work, shared = pickle.loads(came.get())
    except Exception as error:
        failed = _failure(error)

        def fail() -> bytes:
            came.get()
            return failed

        return fail

    def do() -> bytes:
        try:
            return packed(Outcome(work(shared, pickle.loads(came.get()))))
        except Exception as error:
            return _failure(error)

    return do


def _failure(error: Exception) -> bytes:
    """An error as it was raised, if it is one that can be raised elsewhere."""
    where = f"In a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        # The note is for a copy: work may raise the same error again.
        copy: Exception = pickle.loads(packed(error))
        copy.add_note(where)
        return packed(Outcome(error=copy))
    except Exception:
        return packed(Outcome(error=RuntimeError(where)))
