"""No unmeasured upload is returned if a process is killed, at any moment or executed line."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
import torch

import fedaudit
from fedaudit.core import files
from fedaudit.guard import candidates
from fedaudit.guard import guard as module
from fedaudit.live import decisions, measuring, recorder
from fedaudit.live.decisions import read_decisions
from fedaudit.observe.measurements import measured_rounds_in
from tests.guard.client import guard, honest, initial, memorising, noisy

Place = tuple[Any, str]


def kill(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    return kill


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def killed(*args: Any, **settings: Any) -> None:
        function(*args, **settings)
        kill()

    return killed


def halfway(function: Callable[..., Any]) -> Callable[..., Any]:
    def killed(path: Path, line: str, **_: Any) -> None:
        with files.open_to_append(path) as log:
            log.write(line.encode()[:40])
        kill()

    return killed


MOMENTS: dict[str, tuple[Place, Callable[..., Any]]] = {
    "before it is measured": ((measuring, "measure_round"), before),
    "before it is judged": ((candidates.Judge, "judge"), before),
    "before it is written": ((measuring, "write_measured"), before),
    "after its signals are written": ((measuring, "write_measured"), after),
    "after its line of the recording": ((recorder, "append_round"), after),
    "before its decision": ((module, "append_decision"), before),
    "within its decision": ((decisions, "append_line"), halfway),
    "after its decision": ((module, "append_decision"), after),
}


def checked_in_a_fork(folder: Path, moment: str, *, prepares: bool = False, **settings: Any) -> int:
    """Check an upload in another process that is killed; return the signal."""
    (owner, name), how = MOMENTS[moment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        try:
            opened = guard(folder, **settings)
            if prepares:
                opened.prepare(sent=initial())
            setattr(owner, name, how(getattr(owner, name)))
            upload = memorising() if settings else honest()
            leaving = opened.check(1, sent=initial(), upload=upload)
            (folder / "left").write_text(str(leaving is not None))
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(process, 0)[1])


CREATION: dict[str, tuple[str, Callable[..., Any]]] = {
    "before the untrained models are written": ("write_untrained", before),
    "after the untrained models are written": ("write_untrained", after),
    "after the samples are written": ("write_audit", after),
    "after the settings are written": ("write_recording", after),
}


@pytest.mark.parametrize("moment", CREATION)
def test_a_guard_that_is_killed_during_its_creation_can_be_created_again(
    moment: str, tmp_path: Path
) -> None:
    name, how = CREATION[moment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        try:
            setattr(recorder, name, how(getattr(recorder, name)))
            guard(tmp_path)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    with guard(tmp_path) as reopened:
        assert reopened.check(1, sent=initial(), upload=honest()) is not None


@pytest.mark.parametrize(
    ("filter", "prepares"),
    [
        pytest.param(None, False, id="sent"),
        pytest.param(None, True, id="sent-prepared", marks=pytest.mark.slow),
        pytest.param(noisy, False, id="filtered", marks=pytest.mark.slow),
        pytest.param(noisy, True, id="filtered-prepared"),
    ],
)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_returns_no_upload_and_the_next_process_measures(
    moment: str, filter: Any, prepares: bool, tmp_path: Path
) -> None:
    settings = {} if filter is None else {"filter": filter}
    honest(), memorising()
    killed = checked_in_a_fork(tmp_path, moment, prepares=prepares, **settings)
    assert killed == signal.SIGKILL
    assert not (tmp_path / "left").exists(), "nothing was returned"
    was_decided = moment == "after its decision"
    assert len([d for d in read_decisions(tmp_path) if d.was_sent]) == was_decided
    with guard(tmp_path, **settings) as reopened:
        leaving = reopened.check(1, sent=initial(), upload=memorising() if settings else honest())
    assert isinstance(leaving, dict)
    sent = [decision for decision in reopened.decisions if decision.was_sent]
    # A filtered upload is filtered again, and counts although the first one was not returned.
    assert len(sent) == 1 + (was_decided and filter is not None)
    measured = measured_rounds_in(tmp_path) + measured_rounds_in(tmp_path / "repeated" / "1")
    assert len(measured) == len(sent)
    if filter is None:
        assert all(torch.equal(torch.as_tensor(leaving[name]), honest()[name]) for name in honest())


def kill_at_line(number: int) -> Callable[..., Any]:
    """Return a trace function that kills the process at the n-th executed line of fedaudit."""
    root, n_executed = str(Path(fedaudit.__file__).parent), 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal n_executed
        if not frame.f_code.co_filename.startswith(root):
            return None
        n_executed += event == "line"
        if n_executed == number:
            kill()
        return trace

    return trace


@pytest.mark.slow
@pytest.mark.parametrize("number", [int(10 * 1.35**k) for k in range(24)])
def test_a_kill_at_any_line_leaves_only_measured_uploads(number: int, tmp_path: Path) -> None:
    honest()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        try:
            sys.settrace(kill_at_line(number))
            leaving = guard(tmp_path / "guard").check(1, sent=initial(), upload=honest())
            sys.settrace(None)
            (tmp_path / "left").write_text(str(leaving is not None))
        finally:
            os._exit(0)
    was_killed = os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert was_killed != (tmp_path / "left").exists()
    with guard(tmp_path / "guard") as reopened:
        assert reopened.check(1, sent=initial(), upload=honest()) is not None
        n_sent = sum(decision.was_sent for decision in reopened.decisions)
    assert n_sent == len(measured_rounds_in(tmp_path / "guard")) == 1


def test_a_lock_is_released_by_a_killed_process(tmp_path: Path) -> None:
    honest()
    checked_in_a_fork(tmp_path, "before it is judged")
    with guard(tmp_path) as reopened:
        assert reopened.check(2, sent=initial(), upload=honest()) is not None
