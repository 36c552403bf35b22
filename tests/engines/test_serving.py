"""What a worker makes of what it is sent, without a process."""

import os
import pickle
import signal
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue

import pytest

from fedaudit.engines import local
from fedaudit.engines.base import packed
from fedaudit.engines.local import WorkResult, _worker, serve
from tests.engines import contract
from tests.engines.test_local_engines import Unreadable

ALWAYS_THE_SAME = ValueError("what else")


def outcomes(*sent: object) -> list[WorkResult]:
    came = SimpleQueue[bytes]()
    for one in sent:
        came.put(packed(one))
    outcome = _worker(came)
    made = [pickle.loads(outcome()) for _ in sent[1:]]
    assert came.empty()
    return made


def refused(shared: object, item: object) -> None:
    raise ALWAYS_THE_SAME


def left(shared: object, item: object) -> None:
    raise SystemExit(item)


@pytest.mark.parametrize("job", [(refused, 0), (refused, Unreadable())], ids=["work", "job"])
def test_an_error_that_comes_again_says_once_where_it_was_raised(job: object) -> None:
    for outcome in outcomes(job, 1, 2, 3):
        assert isinstance(outcome.error, ValueError)
        assert len(outcome.error.__notes__) == 1


def test_a_worker_ends_when_work_ends_the_process() -> None:
    with pytest.raises(SystemExit):
        outcomes((left, 0), 3)


def test_a_worker_ends_in_silence_when_nobody_waits_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hear_two(pipe: Connection, came: "SimpleQueue[bytes]") -> None:
        for _ in range(2):
            came.put(pipe.recv_bytes())

    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(local, "_listen", hear_two)
    ours, theirs = get_context("spawn").Pipe()
    for sent in ((contract.product, 2), 3):
        theirs.send_bytes(packed(sent))
    theirs.close()
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            serve(ours)
    finally:
        signal.signal(signal.SIGINT, before)
        ours.close()
