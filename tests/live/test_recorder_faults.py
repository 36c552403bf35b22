"""Errors next to a recorder."""

import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import RECORDING_FILE, open_to_append
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import LOG_FILE, RoundEntry, append_round, read_round_log
from tests.live.federation import data, network, rounds
from tests.programs import exit_code
from tests.study.studies import SMALL

FEW = ("blackbox-loss", "avg-cosine")
AUDIT = data().split.audit


def recorded(folder: Path) -> Path:
    with record(folder, network, AUDIT, attacks=FEW, strict=True) as recorder:
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    return folder


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"answered": [-1]}, "a client has the number -1"),
        ({"selected": [10**16]}, "nobody came"),
        ({"unnamed": -1}, "got round 1 and clients"),
    ],
)
def test_a_missed_round_with_invalid_clients_does_not_stop_the_loop(
    clients: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with record(tmp_path, network, AUDIT, attacks=FEW) as recorder:
        with pytest.warns(RuntimeWarning, match=rf"round 1 is not recorded: {message}"):
            recorder.missed(1, "nobody came", **clients)
        with pytest.warns(RuntimeWarning, match="round 2 is not recorded: nobody answered"):
            recorder.missed(2, "nobody answered")
        with pytest.warns(RuntimeWarning, match=rf"2 of 2 rounds are not recorded.*{message}"):
            recorder.close()


def test_recorder_warnings_never_become_errors(tmp_path: Path) -> None:
    lines: list[str] = []
    with catch_warnings():
        simplefilter("error")
        with record(tmp_path, network, AUDIT, attacks=FEW, log=lines.append) as recorder:
            recorder.missed(1, "nobody came")
            recorder.round(2, sent=network(), uploads={0: "no model"})  # type: ignore[arg-type]
    assert [entry.note.partition(";")[0] for entry in read_round_log(tmp_path)] == [
        "round 1 is not recorded: nobody came",
        "round 2 is not recorded: no upload can be measured",
    ]
    assert any("warning: round 1 is not recorded: nobody came" in line for line in lines)


@pytest.mark.parametrize("weight", [math.inf, math.nan, -1.0, 1e308])
def test_invalid_weights_warn(weight: float, tmp_path: Path) -> None:
    live_round = next(rounds())
    with (
        record(tmp_path, network, AUDIT, attacks=FEW) as recorder,
        pytest.warns(RuntimeWarning, match="pass a finite number of at least 0"),
    ):
        recorder.round(
            1,
            sent=live_round.sent,
            uploads=live_round.uploads,
            weights=dict.fromkeys(live_round.uploads, weight),
        )


def test_complex_parameters_warn(tmp_path: Path) -> None:
    live_round = next(rounds())
    turned = {n: v.to(torch.complex64) for n, v in live_round.sent.items()}
    with (
        record(tmp_path, network, AUDIT, attacks=FEW) as recorder,
        pytest.warns(RuntimeWarning, match="the model sent has '.*', which holds complex num"),
    ):
        recorder.round(1, sent=turned, uploads=live_round.uploads)


def test_a_late_round_in_the_globals_view_warns(tmp_path: Path) -> None:
    first, second, third, last = rounds()
    with record(tmp_path, network, AUDIT, view="globals") as recorder:
        recorder.round(1, sent=first.sent)
        recorder.round(3, sent=third.sent)
        with pytest.warns(RuntimeWarning, match="2 is not recorded: it was passed after round 3"):
            recorder.round(2, sent=second.sent)
        recorder.round(4, sent=last.sent, after=last.after)
    assert [(entry.round, entry.measured) for entry in read_round_log(tmp_path)] == [
        (1, True),
        (2, False),
        (3, True),
        (4, True),
    ]


def test_a_recording_without_rounds_can_be_resumed(
    tmp_path: Path,
) -> None:
    record(tmp_path / "x", network, AUDIT, attacks=FEW).close()
    folder = recorded(tmp_path / "x")
    assert attack_recording(folder, (), tmp_path / "out", figures=SMALL["figures"]).watched


def test_a_full_disk_leaves_no_partial_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = RoundEntry(round=1, selected=(0,), answered=(0,), measured=False)
    append_round(entry, tmp_path)
    opened = open_to_append

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            return int(self.file.write(data[:5]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    with monkeypatch.context() as patch:
        patch.setattr("fedaudit.core.files.open_to_append", lambda path: Full(opened(path)))
        with pytest.raises(OSError, match="No space left"):
            append_round(entry, tmp_path)
    append_round(entry.model_copy(update={"round": 2}), tmp_path)
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 2]


@pytest.mark.parametrize(("folder", "name"), [("my rün", "my-r-n"), ("...", "recording")])
def test_a_recording_is_named_after_its_folder(folder: str, name: str, tmp_path: Path) -> None:
    with record(tmp_path / folder, network, AUDIT, attacks=FEW) as recorder:
        assert recorder.recording.name == name


def test_a_misspelt_kind_of_uploads_gets_the_nearest_name(tmp_path: Path) -> None:
    # The function itself: in tests its arguments' types are looked at before it is called.
    unchecked: Callable[..., Recorder] = inspect.unwrap(record)
    with pytest.raises(BadInput, match="no kind of uploads named 'model'; did you mean 'models'"):
        unchecked(tmp_path, network, AUDIT, uploads="model")


@pytest.mark.parametrize("how", [{"every": 0}, {"name": "a b"}, {"sizes": {0: -1}}])
def test_invalid_recording_settings_raise(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=rf"^{next(iter(how))}[.0-9]*: it should (be|consist) .*, got "
    ):
        record(tmp_path, network, AUDIT, attacks=FEW, **how)


@pytest.mark.parametrize("file", [RECORDING_FILE, LOG_FILE])
def test_duplicate_json_keys_raise(file: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recording")
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace("{", '{"round": 1, "name": "x", ', 1))
    with pytest.raises(Damaged, match="occurs twice"):
        attack_recording(folder, (), tmp_path / "out")


@pytest.mark.parametrize("name", ["measured", "rounds", LOG_FILE, "lock", "untrained-1"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_an_unusable_folder_raises_before_training(name: str, kind: str, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "recording", tmp_path / "elsewhere"
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir()
    with pytest.raises(BadInput, match=rf"{name}.*(remove it|choose another folder)"):
        record(folder, network, AUDIT, attacks=FEW, keep="full", log=lambda text: None)
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "name", ["audit.safetensors", "samples.safetensors", "measured/round-000001.safetensors"]
)
def test_files_without_a_recording_are_not_replaced(name: str, tmp_path: Path) -> None:
    path = tmp_path / "recording" / name
    path.parent.mkdir(parents=True)
    path.write_text("MINE")
    with pytest.raises(BadInput, match=rf"has {name} but no recording\.json"):
        record(tmp_path / "recording", network, AUDIT, attacks=FEW, log=lambda text: None)
    assert path.read_text() == "MINE"


@pytest.mark.parametrize("name", ["measured", "untrained-1", "attacked"])
def test_a_recording_is_not_attacked_through_a_link(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = recorded(tmp_path / "recording"), tmp_path / "elsewhere"
    (folder / "attacked").mkdir()
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    assert exit_code("attack", folder) == 2
    assert f"{name} is a link" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
