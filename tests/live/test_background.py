"""Rounds measured in a background process or after training."""

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.live import forking
from fedaudit.live.attack import attack_recording
from fedaudit.live.files import read_waiting, store_waiting, waiting_rounds
from fedaudit.live.measuring import RoundMeasurer
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import RoundEntry, read_round_log
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors
from fedaudit.observe.views import seen_from, view_named
from tests.live.federation import NET, ROUNDS, data, measured, network, recorder, rounds, trained

Measure = Callable[..., dict[int, str]]


def watch(recorder: Recorder, *, view: str = "uploads", kind: str = "models") -> None:
    for live_round in rounds():
        if view == "globals":
            recorder.round(live_round.number, sent=live_round.sent, after=live_round.after)
            continue
        changes = {
            c: {n: value - live_round.sent[n] for n, value in local.items()}
            for c, local in live_round.uploads.items()
        }
        uploads = live_round.uploads if kind == "models" else changes
        recorder.round(
            live_round.number,
            sent=live_round.sent,
            uploads=uploads,
            weights={0: 1.0, 1: 2.0, 2: 5.0},
        )


def slowly(recorder: Recorder) -> None:
    for live_round in rounds():
        recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
        time.sleep(0.5)


def equal_signals(folder: Path, other: Path) -> bool:
    ours, theirs = measured(folder), measured(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["background", "after"])
@pytest.mark.parametrize(
    ("view", "kind"),
    [
        ("uploads", "models"),
        ("uploads", "updates"),
        ("uploads", "gradients"),
        ("sum", "models"),
        ("globals", "models"),
    ],
)
def test_measuring_time_does_not_change_signals(
    when: str, view: str, kind: str, tmp_path: Path
) -> None:
    keep = "full" if view == "uploads" else "signals"
    attacks = ["loss-series"] if view == "globals" else ["loss-series", "avg-cosine"]
    for name in ("now", when):
        settings = {"view": view, "uploads": kind, "keep": keep, "attacks": attacks}
        with recorder(tmp_path / name, measure=name, **settings) as recording:
            watch(recording, view=view, kind=kind)
    assert equal_signals(tmp_path / "now", tmp_path / when)
    assert len(measured(tmp_path / when)) >= ROUNDS
    assert read_round_log(tmp_path / when) == read_round_log(tmp_path / "now")
    for file in (tmp_path / "now").glob("rounds/*/*"):
        reference, tensors = (
            read_tensors(tmp_path / name / file.relative_to(tmp_path / "now"))
            for name in ("now", when)
        )
        assert reference[1] == tensors[1]
        assert all(
            torch.equal(reference[0][n], tensors[0][n]) for n in {**reference[0], **tensors[0]}
        )
    assert not (tmp_path / when / "waiting").exists()


@pytest.mark.parametrize("view", ["uploads", "sum", "globals"])
def test_a_queued_round_is_restored_exactly(view: str, tmp_path: Path) -> None:
    trained_round = trained()[0]
    bare_round = Round(
        index=trained_round.index,
        observed=trained_round.observed,
        sent={},
        uploads={},
        weights=trained_round.weights,
        selected=trained_round.selected,
        answered=trained_round.answered,
        after=trained_round.after,
    )
    (seen,) = seen_from([bare_round], view_named(view))
    with recorder(tmp_path / "any") as recording:
        watch(recording)
    entry = read_round_log(tmp_path / "any")[0]
    assert store_waiting(tmp_path, seen, entry)
    ((index, path),) = waiting_rounds(tmp_path)
    restored, restored_entry = read_waiting(path, NET)
    assert (index, restored_entry) == (1, entry)
    assert (restored.weights, restored.group_of) == (dict(seen.weights), dict(seen.group_of))
    assert restored.observed.keys() == seen.observed.keys()
    for client, queued in seen.observed.items():
        read_back = restored.observed[client]
        for queued_model, restored_model in (
            (queued.base, read_back.base),
            (queued.local, read_back.local),
        ):
            assert (queued_model is None) == (restored_model is None)
            if queued_model is not None and restored_model is not None:
                assert list(queued_model.params) == list(restored_model.params)
                assert all(
                    torch.equal(queued_model.params[n], restored_model.params[n])
                    for n in queued_model.params
                )
        assert (queued.update is None) == (read_back.update is None)
        if queued.update is not None and read_back.update is not None:
            assert all(torch.equal(queued.update[n], read_back.update[n]) for n in queued.update)


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Measuring takes longer, in every copy of this program that is made from here on."""
    original: Measure = RoundMeasurer._measure_and_write

    def slower(self: RoundMeasurer, *measuring: object) -> dict[int, str]:
        time.sleep(seconds)
        return original(self, *measuring)

    monkeypatch.setattr(RoundMeasurer, "_measure_and_write", slower)


def test_training_waits_only_if_the_queue_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 0.3)
    monkeypatch.setattr("fedaudit.live.measuring.MAX_WAITING_ROUNDS", 2)
    lines: list[str] = []
    with recorder(tmp_path, measure="background", log=lines.append) as recording:
        for each in rounds():
            recording.round(each.number, sent=each.sent, uploads=each.uploads)
            assert len(waiting_rounds(tmp_path)) <= 2
    assert len(read_round_log(tmp_path)) == ROUNDS
    (line,) = [text for text in lines if " waits " in text]
    assert line.startswith("round 3 waits until one of 2 other rounds is measured"), "too early"


def test_a_round_file_that_cannot_be_deleted_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_MIN_PATIENCE", 1.0)
    unlink = Path.unlink

    def kept(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == "waiting" and self.suffix == ".safetensors":
            raise OSError("read-only file system")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", kept)
    recording = recorder(tmp_path, measure="background", strict=False)
    watch(recording)
    with pytest.warns(RuntimeWarning, match="read-only file system"):
        recording.close()
    assert (tmp_path / "rounds.jsonl").read_text().count('"round":1,') <= 3
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 2, 3, 4]


def test_the_measuring_process_is_not_a_child(tmp_path: Path) -> None:
    with recorder(tmp_path, measure="background") as recording:
        watch(recording)
        assert recording._measurer._background is not None
        with pytest.raises(ChildProcessError):
            os.waitpid(recording._measurer._background._process.pid, os.WNOHANG)


def test_if_fork_fails_rounds_are_measured_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    lines: list[str] = []
    with recorder(tmp_path, measure="background", log=lines.append) as recording:
        watch(recording)
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True] * ROUNDS
    assert any("could not be kept running" in text for text in lines)


@pytest.mark.slow
def test_an_error_of_one_round_does_not_affect_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Measure = RoundMeasurer._measure_and_write

    def once(self: RoundMeasurer, seen: Round, entry: RoundEntry) -> dict[int, str]:
        if entry.round == 1:
            raise BadInput("there is no more paper")
        return original(self, seen, entry)

    monkeypatch.setattr(RoundMeasurer, "_measure_and_write", once)
    recording = recorder(tmp_path, measure="background", strict=False)
    with pytest.warns(RuntimeWarning, match="round 1 is not recorded"):
        slowly(recording)
    with pytest.warns(RuntimeWarning, match="1 of 4 rounds are not recorded"):
        recording.close()
    log = {entry.round: entry for entry in read_round_log(tmp_path)}
    assert "paper" in log[1].note
    assert all(entry.measured for index, entry in log.items() if index > 1)


def test_a_closed_recording_accepts_no_rounds(tmp_path: Path) -> None:
    recording = recorder(tmp_path, measure="after", strict=False)
    recording.close()
    first = next(rounds())
    with pytest.warns(RuntimeWarning, match="the recording is closed; open it again"):
        recording.round(1, sent=first.sent, uploads=first.uploads)
    assert not waiting_rounds(tmp_path)


def test_a_measuring_process_holds_only_its_own_lock(tmp_path: Path) -> None:
    with recorder(tmp_path / "other", measure="after") as other:
        recording = recorder(tmp_path / "one", measure="background")
        watch(recording)
        other.close()
        recorder(tmp_path / "other").close()
        recording.close()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5])
def test_a_killed_measuring_process_loses_no_rounds(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder(tmp_path / "now") as recording:
        watch(recording)
    slow(monkeypatch, 0.05)
    lines: list[str] = []
    with recorder(tmp_path / "killed", measure="background", log=lines.append) as recording:
        assert recording._measurer._background is not None
        process = recording._measurer._background._process
        for index, each in enumerate(rounds()):
            recording.round(each.number, sent=each.sent, uploads=each.uploads)
            if index < times and process.pid:
                os.kill(process.pid, signal.SIGKILL)
    assert equal_signals(tmp_path / "now", tmp_path / "killed")
    assert [entry.round for entry in read_round_log(tmp_path / "killed")] == [1, 2, 3, 4]


def test_a_hanging_measuring_process_does_not_block_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_MIN_PATIENCE", 0.2)
    original, trainer = RoundMeasurer._measure_and_write, os.getpid()

    def hanging(self: RoundMeasurer, *measuring: object) -> dict[int, str]:
        if os.getpid() != trainer:
            time.sleep(600)
        return original(self, *measuring)  # type: ignore[arg-type]

    monkeypatch.setattr(RoundMeasurer, "_measure_and_write", hanging)
    with recorder(tmp_path, measure="background") as recording:
        watch(recording)
    assert [entry.measured for entry in read_round_log(tmp_path)] == [True] * ROUNDS


LOOP = """
import os, signal, sys, time
from pathlib import Path
from fedaudit.live.measuring import RoundMeasurer
from tests.live.federation import recorder, rounds
own = RoundMeasurer._measure_and_write
RoundMeasurer._measure_and_write = lambda self, *given: (time.sleep(0.2), own(self, *given))[1]
recording = recorder(Path(sys.argv[1]), measure=sys.argv[2])
for one in rounds():
    recording.round(one.number, sent=one.sent, uploads=one.uploads)
    if one.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["background", "after"])
@pytest.mark.slow
def test_a_killed_training_can_be_resumed_without_loss(when: str, tmp_path: Path) -> None:
    with recorder(tmp_path / "now") as recording:
        watch(recording)
    folder = tmp_path / "killed"
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *sys.path])
    killed = subprocess.run(
        [sys.executable, "-c", LOOP, str(folder), when],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    lines: list[str] = []
    if when == "background":
        # The process continues alone, and a restarted recorder waits for it.
        recording = recorder(folder, measure=when, log=lines.append)
        assert [entry.round for entry in read_round_log(folder)] == [1, 2, 3]
        assert lines[0].startswith("waiting for the previous run, which measures ")
    else:
        assert [index for index, _ in waiting_rounds(folder)] == [1, 2, 3]
        with pytest.raises(BadInput, match="no measured round yet, and 3 waiting"):
            attack_recording(folder, (), folder / "attacked")
        recording = recorder(folder, measure=when)
    with recording:
        watch(recording)
    assert equal_signals(tmp_path / "now", folder)


def test_an_interrupted_loop_reports_unmeasured_rounds(tmp_path: Path) -> None:
    lines: list[str] = []
    recording = recorder(tmp_path, measure="after", log=lines.append)
    watch(recording)
    recording.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert len(waiting_rounds(tmp_path)) == ROUNDS
    assert lines[-1].startswith("4 rounds are still to be measured: open the recording again")
    recorder(tmp_path).close()
    assert not waiting_rounds(tmp_path)
    assert len(read_round_log(tmp_path)) == ROUNDS


@pytest.mark.parametrize("when", ["background", "after"])
def test_a_round_that_cannot_be_measured_is_reported(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RoundMeasurer, *measuring: object) -> dict[int, str]:
        raise BadInput("there is no more paper")

    monkeypatch.setattr(RoundMeasurer, "_measure_and_write", broken)
    with (
        pytest.warns(RuntimeWarning, match="round 1 is not recorded: there is no more paper"),
        pytest.warns(RuntimeWarning, match="4 of 4 rounds are not recorded"),
        recorder(tmp_path / "kind", measure=when, strict=False) as one,
    ):
        watch(one)
    log = read_round_log(tmp_path / "kind")
    assert ["there is no more paper" in entry.note for entry in log] == [True] * ROUNDS
    with (
        pytest.raises(BadInput, match="round 1 could not be measured: there is no more paper"),
        recorder(tmp_path / "strict", measure=when) as one,
    ):
        watch(one)


def test_a_damaged_queued_round_does_not_affect_others(tmp_path: Path) -> None:
    recording = recorder(tmp_path, measure="after", strict=False)
    watch(recording)
    waiting_rounds(tmp_path)[1][1].write_bytes(b"\x08" + bytes(40))
    with (
        pytest.warns(RuntimeWarning, match="round 2 is not recorded"),
        pytest.warns(RuntimeWarning, match="1 of 4 rounds are not recorded"),
    ):
        recording.close()
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 3, 4]
    assert not waiting_rounds(tmp_path)


def test_a_misspelt_measure_setting_raises_and_creates_no_folder(tmp_path: Path) -> None:
    # The function itself: in tests its arguments' types are looked at before it is called.
    unchecked: Callable[..., Recorder] = inspect.unwrap(record)
    with pytest.raises(BadInput, match="measure is 'backgrounds'; give 'now', 'background'"):
        unchecked(tmp_path / "recording", network, data().split.audit, measure="backgrounds")
    assert not (tmp_path / "recording").exists()


def test_background_measurement_without_fork_raises_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(BadInput, match="a system with fork"):
        recorder(tmp_path, measure="background")


def test_the_printed_cost_depends_on_the_measuring_time(tmp_path: Path) -> None:
    lines: list[str] = []
    for when in ("background", "after"):
        recorder(tmp_path / when, measure=when, log=lines.append).close()
    assert "At most 4 rounds that are not yet measured are kept on disk" in lines[0]
    assert "Until then, each round is kept on disk" in lines[1]
