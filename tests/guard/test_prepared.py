"""A guard that prepared a model decides by the same figures, even if its process fails."""

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.guard.guard import Guard
from fedaudit.live import forking, measuring
from fedaudit.live.decisions import Decision
from fedaudit.live.forking import DetachedProcess, has_ended
from fedaudit.live.preparing import PreparingProcess
from fedaudit.observe.measurements import measured_rounds_in
from fedaudit.signals.measure import measure_round
from fedaudit.signals.updates import GradientCosine
from tests.guard.client import guard, honest, initial, memorising, network, noisy

GRADIENTS = {"gradient-cosine", "projection-residual"}


def preparing_of(opened: Guard) -> PreparingProcess:
    preparing = opened._recorder._measurer._preparing
    assert preparing is not None
    return preparing


def process_of(opened: Guard) -> DetachedProcess:
    return preparing_of(opened)._process


def measured_here(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return a list that receives the signals of each measurement in this process."""
    names = list[set[str]]()
    measure = measure_round

    def watched(round: Any, signals: Any, samples: Any, **settings: Any) -> Any:
        names.append({each.name for each in signals})
        return measure(round, signals, samples, **settings)

    monkeypatch.setattr(measuring, "measure_round", watched)
    return names


def decided(folder: Path, *, prepares: bool, **settings: Any) -> list[Decision]:
    """Return the decisions on an honest and a memorising upload."""
    with guard(folder, **settings) as opened:
        for number, sent, upload in ((1, initial(), honest()), (2, honest(), memorising())):
            if prepares:
                opened.prepare(sent=sent)
            opened.check(number, sent=sent, upload=upload)
        return [*opened.decisions]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("filter", [None, noisy], ids=["without a filter", "filter"])
def test_a_prepared_guard_has_bit_identical_signals_and_equal_decisions(
    filter: Any, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = decided(tmp_path / "plain", prepares=False, filter=filter)
    local_signals = measured_here(monkeypatch)
    prepared = decided(tmp_path / "prepared", prepares=True, filter=filter, workers=workers)
    assert prepared == plain
    assert local_signals
    assert not any(signals & GRADIENTS for signals in local_signals), (
        "they are measured in the second process"
    )
    stored = [measured_rounds_in(tmp_path / name) for name in ("plain", "prepared")]
    for plain_round, prepared_round in zip(*stored, strict=True):
        assert [*plain_round.measured.signals] == [*prepared_round.measured.signals]
        assert plain_round.notes == {**prepared_round.notes, "run": plain_round.notes["run"]}
        for name, values in plain_round.measured.signals.items():
            assert torch.equal(values, prepared_round.measured.signals[name])


def not_at_all(opened: Guard) -> None:
    pass


def another_model(opened: Guard) -> None:
    opened.prepare(sent=honest())


def a_later_model(opened: Guard) -> None:
    opened.prepare(sent=initial())
    opened.prepare(sent=honest())


def no_model(opened: Guard) -> None:
    opened.prepare(sent={"0.weight": torch.zeros(3)})


def killed(opened: Guard) -> None:
    opened.prepare(sent=initial())
    os.kill(process_of(opened).pid, signal.SIGKILL)


def stopped(opened: Guard) -> None:
    opened.prepare(sent=initial())
    os.kill(process_of(opened).pid, signal.SIGSTOP)


def failing(opened: Guard) -> None:
    opened.prepare(sent=initial())
    process_of(opened).send("nonsense")


@pytest.mark.parametrize(
    "prepare", [not_at_all, another_model, a_later_model, no_model, killed, stopped, failing]
)
def test_a_process_that_fails_changes_no_decision(
    prepare: Callable[[Guard], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_MIN_PATIENCE", 0.5)
    expected = decided(tmp_path / "plain", prepares=False)
    local_signals = measured_here(monkeypatch)
    with guard(tmp_path / "prepared") as opened:
        prepare(opened)
        assert opened.check(1, sent=initial(), upload=honest()) is not None
        assert local_signals[-1] >= GRADIENTS or local_signals[0] >= GRADIENTS
        assert opened.decisions[0] == expected[0]
        # A lost process is restarted.
        local_signals.clear()
        opened.prepare(sent=honest())
        monkeypatch.setattr(process_of(opened), "patience", 60.0)
        assert opened.check(2, sent=honest(), upload=memorising()) is None
        assert not any(signals & GRADIENTS for signals in local_signals)
        assert opened.decisions[1] == expected[1]


def test_an_upload_whose_signals_fail_in_the_process_is_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: GradientCosine, seen: Any) -> None:
        raise RuntimeError("no gradients")

    with guard(tmp_path) as opened:
        monkeypatch.setattr(GradientCosine, "__call__", fails)
        opened.prepare(sent=initial())
        assert opened.check(1, sent=initial(), upload=honest()) is None
    assert opened.decisions[0].is_error


def test_an_upload_with_infinite_values_is_withheld(tmp_path: Path) -> None:
    upload = {name: value.clone() for name, value in honest().items()}
    upload["0.weight"][0, 0] = torch.inf
    with guard(tmp_path) as opened:
        opened.prepare(sent=initial())
        assert opened.check(1, sent=initial(), upload=upload) is None
        # The next upload is measured separately.
        assert opened.check(2, sent=initial(), upload=honest()) is not None


def test_a_system_without_fork_measures_everything_at_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "can_fork", lambda: False)
    with guard(tmp_path) as opened:
        opened.prepare(sent=initial())
        assert opened._recorder._measurer._preparing is None
        assert opened.check(1, sent=initial(), upload=honest()) is not None


def test_attacks_on_losses_start_no_process(tmp_path: Path) -> None:
    with guard(tmp_path, attacks=["blackbox-loss"]) as opened:
        opened.prepare(sent=initial())
        assert process_of(opened).pid == 0


def test_a_closed_guard_has_no_process(tmp_path: Path) -> None:
    opened = guard(tmp_path)
    opened.prepare(sent=initial())
    process = process_of(opened).pid
    assert not has_ended(process)
    opened.close()
    opened.prepare(sent=initial())
    wait_for_end(process)


def wait_for_end(process: int) -> None:
    until = time.monotonic() + 10
    while not has_ended(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert has_ended(process)


def test_a_process_ends_with_a_killed_program(tmp_path: Path) -> None:
    initial()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        program = os.fork()
    if program == 0:
        try:
            opened = guard(tmp_path / "guard")
            opened.prepare(sent=initial())
            (tmp_path / "process").write_text(str(process_of(opened).pid))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(program, 0)
    wait_for_end(int((tmp_path / "process").read_text()))
    with guard(tmp_path / "guard") as reopened:
        assert reopened.check(1, sent=initial(), upload=honest()) is not None


def test_a_fork_of_the_program_does_not_affect_the_process(tmp_path: Path) -> None:
    with guard(tmp_path) as opened:
        opened.prepare(sent=initial())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            program = os.fork()
        if program == 0:
            try:
                opened.prepare(sent=honest())
                preparing_of(opened).close()
            finally:
                os._exit(0)
        os.waitpid(program, 0)
        assert not has_ended(process_of(opened).pid)
        assert preparing_of(opened)._base.holds(
            {f"params/{name}": value for name, value in initial().items()}
        )


def test_preparing_changes_no_random_numbers_and_threads(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        with guard(tmp_path) as opened:
            before = torch.random.get_rng_state()
            opened.prepare(sent=initial())
            assert torch.equal(torch.random.get_rng_state(), before)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("form", ["module", "arrays", "list"])
def test_every_form_of_a_model_is_prepared(form: str, tmp_path: Path) -> None:
    sent: Any = initial()
    if form == "module":
        sent = network()
        sent.load_state_dict(initial())
    elif form == "arrays":
        sent = {name: value.numpy() for name, value in sent.items()}
    else:
        sent = [value.numpy() for value in sent.values()]
    with guard(tmp_path) as opened:
        opened.prepare(sent=sent)
        assert process_of(opened).pid > 0
