import json
from pathlib import Path

import pytest

from fedaudit.errors import BadInput, Damaged
from fedaudit.study.reading import read_record
from fedaudit.study.record import write_record
from tests.report.records import record

SMALL = record(strengths=(1.0,), defenses=(("none", 1.0),), details=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "record.json"
    path.write_text(text, encoding="utf-8")
    return path


def altered(tmp_path: Path, **changes: object) -> Path:
    return written(tmp_path, json.dumps({**SMALL.model_dump(), **changes}))


def test_what_was_written_is_read_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(SMALL, path)
    assert read_record(path) == SMALL


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.json is not there"):
        read_record(tmp_path / "nothing.json")
    with pytest.raises(BadInput, match="is a folder"):
        read_record(tmp_path)


def test_a_file_over_the_size_limit_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="larger than"):
        read_record(written(tmp_path, "{" * 200), max_bytes=100)


@pytest.mark.parametrize("text", ["", "{", '{"format": "fedaudit-record"', "[1, 2,]"])
def test_a_file_cut_short_is_called_damaged(tmp_path: Path, text: str) -> None:
    with pytest.raises(Damaged, match="not a whole JSON document"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "other"}'])
def test_other_json_is_said_not_to_be_a_record(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="is not a fedaudit record"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("version", [2, "1", None, True, 1.0])
def test_another_version_is_refused_with_what_to_do(tmp_path: Path, version: object) -> None:
    with pytest.raises(BadInput, match=r"of version .*use the fedaudit that wrote it"):
        read_record(altered(tmp_path, version=version))


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = SMALL.model_dump_json().replace('"seeds"', '"name":"twice","seeds"', 1)
    with pytest.raises(Damaged, match="'name' stands twice"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_numbers_that_no_figure_can_have_are_refused(tmp_path: Path, number: str) -> None:
    text = SMALL.model_dump_json().replace("312.4", number, 1)
    with pytest.raises(Damaged, match="not a whole JSON document"):
        read_record(written(tmp_path, text))


@pytest.mark.parametrize("depth", [40, 500_000])
def test_nesting_deeper_than_any_study_is_refused(tmp_path: Path, depth: int) -> None:
    text = SMALL.model_dump_json().replace(
        '"config":{', '"config":{"deep":' + "[" * depth + "]" * depth + ",", 1
    )
    with pytest.raises(Damaged, match="nested"):
        read_record(written(tmp_path, text))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b'{"format": "\xff\xfe"}')
    with pytest.raises(Damaged, match="not UTF-8 text"):
        read_record(path)


def test_a_field_that_does_not_fit_is_named_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Damaged) as caught:
        read_record(altered(tmp_path, seeds="one", extra=1))
    said = str(caught.value)
    assert "at 'seeds': input should be a valid list (and 1 more fault)" in said
    assert "\n" not in said
