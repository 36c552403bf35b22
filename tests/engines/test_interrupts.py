import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import pytest

from fedaudit.engines.local import deferring_signals

BOTH = {signal.SIGINT, signal.SIGTERM}


class Stopped(Exception):
    """Error that the program raises at a signal."""


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped


@pytest.fixture(params=sorted(BOTH), ids=str)
def handled(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """Yield a signal at which the program stops and that another thread can receive."""
    number: signal.Signals = request.param
    before = signal.signal(number, stop)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield number
    ended.set()
    thread.join()
    signal.signal(number, before)


def test_a_deferred_signal_is_handled_afterwards(handled: signal.Signals) -> None:
    done = list[int]()
    with pytest.raises(Stopped):
        send_and_continue(handled, done)
    assert done == [handled]
    assert signal.getsignal(handled) is stop
    with pytest.raises(Stopped):
        signal.raise_signal(handled)


def send_and_continue(number: signal.Signals, done: list[int]) -> None:
    with deferring_signals():
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # The other thread may receive the signal.
        done.append(number)


def test_processes_that_are_started_inside_receive_no_signal() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with deferring_signals():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= BOTH
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_signal_that_is_ignored_stays_so(handled: signal.Signals) -> None:
    signal.signal(handled, signal.SIG_IGN)
    with deferring_signals():
        assert signal.getsignal(handled) is signal.SIG_IGN
        os.kill(os.getpid(), handled)


def test_another_thread_defers_no_signals(handled: signal.Signals) -> None:
    handlers = list[object]()

    def look() -> None:
        with deferring_signals():
            handlers.append(signal.getsignal(handled))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [stop]
