"""Written files stay within the limits of their readers."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fedaudit.core import files
from fedaudit.core.errors import BadInput
from fedaudit.core.files import read_object, write_object
from fedaudit.live import recording as recordings
from fedaudit.live.open_recording import OpenRecording
from fedaudit.live.recording import (
    LOG_FILE,
    append_round,
    read_recording,
    read_round_log,
    round_entry,
)
from fedaudit.observe import tensors
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.pack import packing
from fedaudit.pack.packing import write_pack
from fedaudit.pack.verifying import verify
from fedaudit.plan.values import study_from
from fedaudit.results.read import read_record
from fedaudit.results.record import Record, write_record
from fedaudit.study.running.folder import STUDY_FILE, recorded_study, store_study
from tests.live.federation import recorder, rounds
from tests.report.records import record
from tests.study.compare_records import make_record


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the limit on bytes of settings."""
    monkeypatch.setattr(files, "MAX_SETTINGS_BYTES", 3000)
    return 3000


def test_objects_beyond_the_readers_limit_are_not_written(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "a.json"
    largest = json.dumps({"a": "x" * (limit - 9)})
    assert len(largest) == limit
    write_object(path, largest)
    assert read_object(path) == json.loads(largest)
    with pytest.raises(BadInput, match=r"a\.json would have 3,001 bytes, but at most 3,000"):
        write_object(path, largest.replace("x", "xx", 1))
    assert path.read_text() == largest


def test_an_object_with_more_keys_than_can_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_KEYS", 3)
    write_object(tmp_path / "a.json", '{"a": {"b": 1}, "c": {"d": 2}}')
    with pytest.raises(BadInput, match="an object has 4 keys, but at most 3 are read"):
        write_object(tmp_path / "b.json", '{"a": 1, "b": 2, "c": 3, "d": 4}')
    monkeypatch.setattr(files, "MAX_JSON_VALUES", 3)
    with pytest.raises(BadInput, match=r"it has about .* values, but at most 3 are read"):
        write_object(tmp_path / "b.json", "[1, 2, 3, 4]")
    assert not (tmp_path / "b.json").exists()


def test_a_recording_of_more_clients_than_can_be_read_is_not_started(
    tmp_path: Path, limit: int
) -> None:
    sizes = dict.fromkeys(range(500), 100)
    with pytest.raises(BadInput, match=r"recording\.json would have .* name fewer clients"):
        recorder(tmp_path / "r", sizes=sizes)
    assert not list((tmp_path / "r").rglob("*.safetensors"))


def test_later_names_cannot_make_a_recording_unreadable(tmp_path: Path, limit: int) -> None:
    with recorder(tmp_path / "r") as open_recorder:
        names = {10**8 + number: "n" * 90 for number in range(50)}
        with pytest.raises(BadInput, match="would have"):
            OpenRecording(tmp_path / "r", open_recorder.recording).update(names=names)
        assert open_recorder.recording.names == {}
    assert read_recording(tmp_path / "r").is_closed


def test_a_log_accepts_as_many_bytes_as_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [round_entry(number, (0, 1), (0, 1), 0) for number in range(1, 9)]
    append_round(entries[0], tmp_path)
    line = (tmp_path / LOG_FILE).stat().st_size
    monkeypatch.setattr(recordings, "MAX_LOG_BYTES", 3 * line)
    for entry in entries[1:3]:
        append_round(entry, tmp_path)
    with pytest.raises(BadInput, match=r"rounds\.jsonl is full"):
        append_round(entries[3], tmp_path)
    assert [entry.round for entry in read_round_log(tmp_path)] == [1, 2, 3]


def test_a_log_accepts_as_many_rounds_as_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MAX_LOG_LINES", 3)
    for number in (1, 2, 3):
        append_round(round_entry(number, (0,), (0,), 0), tmp_path)
    with pytest.raises(BadInput, match="at most 100,663,296 bytes and 3 rounds can be read"):
        append_round(round_entry(4, (0,), (0,), 0), tmp_path)
    assert len(read_round_log(tmp_path)) == 3


def test_a_full_log_warns_and_keeps_earlier_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder(tmp_path / "r", strict=False) as open_recorder:
        for number in (1, 2, 3):
            monkeypatch.setattr(recordings, "MAX_LOG_LINES", 2)
            (live,) = [live_round for live_round in rounds() if live_round.number == number]
            if number < 3:
                open_recorder.round(number, sent=live.sent, uploads=live.uploads, after=live.after)
            else:
                with pytest.warns(RuntimeWarning, match=r"round 3 is not recorded: .* is full"):
                    open_recorder.round(
                        number, sent=live.sent, uploads=live.uploads, after=live.after
                    )
    assert [entry.round for entry in read_round_log(tmp_path / "r")] == [1, 2]
    assert read_recording(tmp_path / "r").is_closed


def test_a_study_with_unreadable_settings_raises_before_training(
    tmp_path: Path, limit: int
) -> None:
    study = study_from({"name": "a", "about": "x" * 200})
    store_study(tmp_path / "small", study)
    assert recorded_study(tmp_path / "small") == study
    long = study_from(
        {"name": "a", "partition": {"clients": 600}, "audit": {"targets": [*range(600)]}}
    )
    with pytest.raises(BadInput, match=r"study\.json would have"):
        store_study(tmp_path / "large", long)
    assert not (tmp_path / "large" / STUDY_FILE).exists()


def test_a_record_with_one_figure_twice_is_refused() -> None:
    original = record(details=False)
    values = original.model_dump()
    values["estimates"] = [*original.estimates, original.estimates[0]]
    with pytest.raises(ValidationError, match=r"appears 2 times with the same coordinates"):
        Record.model_validate(values)


def test_a_record_that_could_not_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = make_record("r", {"a": {1: {0: 0.6}}}, {1: 0.5})
    write_record(written, tmp_path / "record.json")
    size = (tmp_path / "record.json").stat().st_size
    monkeypatch.setattr("fedaudit.results.record.MAX_RESULT_BYTES", size)
    write_record(written, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json", max_bytes=size).name == "r"
    monkeypatch.setattr("fedaudit.results.record.MAX_RESULT_BYTES", size - 1)
    with pytest.raises(BadInput, match=r"fewer attacks or targets; the measurements are not lost"):
        write_record(written, tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


@pytest.mark.parametrize(
    ("name", "maximum", "message"),
    [
        (files, ("MAX_SETTINGS_BYTES", 500), r"manifest\.json would have"),
        (packing, ("MAX_RESULT_BYTES", 20_000), "would have more than the 20,000 bytes"),
    ],
)
def test_a_pack_that_could_not_be_read_is_not_written(
    name: object,
    maximum: tuple[str, int],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_record(record(strengths=(0.1,), seeds=(1,)), tmp_path / "record.json")
    (tmp_path / "policy.toml").write_text('name = "x"\n[membership]\nauc = 1.0\n')
    pack = tmp_path / "pack"
    monkeypatch.setattr(name, *maximum)
    with pytest.raises(BadInput, match=message):
        write_pack(tmp_path / "record.json", tmp_path / "policy.toml", pack)
    assert not pack.exists()
    monkeypatch.undo()
    write_pack(tmp_path / "record.json", tmp_path / "policy.toml", pack)
    assert verify(pack).problems == []


def test_tensors_that_could_not_be_read_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    some = {str(number): torch.zeros(1) for number in range(5)}
    write_tensors(some, path)
    monkeypatch.setattr("fedaudit.core.pretrained.MAX_TENSORS", 5)
    write_tensors(some, path, {"again": "1"})
    message = r"a\.safetensors was not saved, because it could not be read again later .*6 tensors"
    with pytest.raises(BadInput, match=message):
        write_tensors({**some, "more": torch.zeros(1)}, path)
    monkeypatch.setattr(tensors, "MAX_BYTES", 100)
    with pytest.raises(BadInput, match="it has more than 100 bytes"):
        write_tensors(some, path)
    monkeypatch.undo()
    assert read_tensors(path)[1] == {"again": "1"}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
