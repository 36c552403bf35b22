"""Files are written whole or not at all, and never through a link."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedaudit.errors import BadInput
from fedaudit.files import write_whole


def test_a_text_is_written_as_it_stands(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "ä\r\nb\n".encode()
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_a_full_disk_leaves_what_was_there_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"a\.txt could not be written \(No space left on device\)"):
        write_whole(tmp_path / "a.txt", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


def test_links_are_replaced_and_what_they_lead_to_is_not_touched(tmp_path: Path) -> None:
    folder, foreign = tmp_path / "out", tmp_path / "foreign.txt"
    folder.mkdir()
    foreign.write_text("precious")
    for name in ("a.txt", "a.txt.partial"):
        (folder / name).symlink_to(foreign)
    write_whole(folder / "a.txt", "new")
    assert foreign.read_text() == "precious"
    assert not (folder / "a.txt").is_symlink()
    assert (folder / "a.txt").read_text() == "new"


def test_several_may_write_one_file_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_whole(tmp_path / "a.txt", str(n) * 1000), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert len(set((tmp_path / "a.txt").read_text())) == 1


def test_a_folder_that_is_not_there_is_named_with_the_file_that_was_asked_for(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match=r"gone/a\.txt could not be written \(No such file"):
        write_whole(tmp_path / "gone" / "a.txt", "new")
