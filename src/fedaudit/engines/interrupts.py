"""When Ctrl-C and SIGTERM are heard."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

_BOTH = signal.SIGINT, signal.SIGTERM


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after this; processes started inside never see them, not even
    while they start: it is this program that ends, and they with it.
    """
    with _put_off(signal.SIGINT), _put_off(signal.SIGTERM), _blocked():
        yield


@contextmanager
def _put_off(number: signal.Signals) -> Iterator[None]:
    """What this program does at a signal, it does afterwards."""
    # Blocking is not enough: any other thread hears the signal too, and this one then acts.
    handler = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = list[int]()
    try:
        signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        signal.signal(number, handler)
        if came:
            handler(number, None)


@contextmanager
def _blocked() -> Iterator[None]:
    """Processes that are started inside do not hear the signals."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python starts this with the first process, and lets the signals through again when it does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BOTH)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
