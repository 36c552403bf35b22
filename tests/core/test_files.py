"""Files are written atomically and never through a symlink."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedaudit.core import files
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import (
    TooLarge,
    create_subfolder,
    delete_partial_files,
    open_regular,
    open_to_append,
    read_bytes,
    read_object,
    read_text,
    regular_size,
    write_atomically,
)


def test_line_ends_are_written_unchanged(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "ä\r\nb\n".encode()
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_a_full_disk_leaves_the_earlier_file_and_no_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"a\.txt could not be written \(No space left on device\)"):
        write_atomically(tmp_path / "a.txt", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


def test_a_link_is_replaced_and_its_target_unchanged(tmp_path: Path) -> None:
    folder, foreign = tmp_path / "out", tmp_path / "foreign.txt"
    folder.mkdir()
    foreign.write_text("precious")
    for name in ("a.txt", "a.txt.partial"):
        (folder / name).symlink_to(foreign)
    write_atomically(folder / "a.txt", "new")
    assert foreign.read_text() == "precious"
    assert not (folder / "a.txt").is_symlink()
    assert (folder / "a.txt").read_text() == "new"


def test_several_threads_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write_atomically(tmp_path / "a.txt", str(n) * 1000), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert len(set((tmp_path / "a.txt").read_text())) == 1


def test_a_missing_folder_is_reported_with_the_file(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match=r"gone/a\.txt could not be written \(No such file"):
        write_atomically(tmp_path / "gone" / "a.txt", "new")


def test_only_regular_text_files_up_to_a_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": "ä"}')
    assert read_text(path, max_bytes=11) == '{"a": "ä"}'
    assert read_object(path) == {"a": "ä"}
    with pytest.raises(TooLarge, match=r"a\.json has more than 10 bytes"):
        read_text(path, max_bytes=10)
    with pytest.raises(OSError, match="not a regular file"):
        read_text(tmp_path, max_bytes=10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_text(tmp_path / "pipe", max_bytes=10)


def test_pipes_devices_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
        with pytest.raises(OSError, match="not a regular file"):
            regular_size(path)


def test_a_pipe_that_replaces_a_file_before_opening_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(files, "regular_size", lambda path, within: 0)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


def test_a_link_to_itself_is_an_operating_system_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for within in (None, tmp_path):
        with pytest.raises(OSError, match="loop") as raised:
            open_regular(tmp_path / "loop", within=within)
        assert raised.value.errno == errno.ELOOP


def test_a_link_that_leads_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.txt").write_text("a")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "own" / "in").symlink_to("a.txt")
    (tmp_path / "own" / "out").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "own" / "up").symlink_to("..")
    (tmp_path / "named").symlink_to("own")
    folder = tmp_path / "named"
    for name in ("a.txt", "in"):
        assert read_bytes(folder / name, max_bytes=9, within=folder) == b"a"
    for name in ("out", "up/secret.txt", "../secret.txt"):
        with pytest.raises(OSError, match="a link that points outside"):
            read_bytes(folder / name, max_bytes=9, within=folder)
    assert read_bytes(folder / "out", max_bytes=9) == b"secret"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "was not written by fedaudit"),
        (b"{", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b" " * 200_001, "more than 200000 bytes"),
    ],
)
def test_a_json_file_without_an_object_is_reported_as_damaged(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_SETTINGS_BYTES", 200_000)
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(Damaged, match=message):
        read_object(tmp_path / "a.json")


def test_only_old_partial_files_are_deleted(tmp_path: Path) -> None:
    stale, new = "record.json.0123abcd.partial", "study.json.ffffffff.partial"
    others = ["mine.partial", "record.json.0123ABCD.partial", "a.0123abcd.partial.txt", "a.json"]
    (tmp_path / "folder").mkdir()
    for name in (stale, new, *others, f"folder/{stale}"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (1000, 3000 if name == new else 1000))
    delete_partial_files(tmp_path, before=2000.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new, *others, "folder"])
    assert (tmp_path / "folder" / stale).exists()
    delete_partial_files(tmp_path / "gone", before=2000.0)


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    for link, target in (("measured", "elsewhere"), ("rounds", "gone")):
        (tmp_path / "run" / link).symlink_to(tmp_path / target)
        with pytest.raises(BadInput, match=f"{link} is a link"):
            create_subfolder(tmp_path / "run", link, "more")
    assert not (tmp_path / "gone").exists()
    assert not any((tmp_path / "elsewhere").iterdir())
    # The folder itself may be a link, since the caller named it.
    (tmp_path / "mine").symlink_to(tmp_path / "elsewhere")
    assert create_subfolder(tmp_path / "mine", "measured").is_dir()


def test_links_and_pipes_are_not_opened_to_append(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError):
            open_to_append(tmp_path / name)
    assert not (tmp_path / "gone").exists()
    for _ in range(2):
        with open_to_append(tmp_path / "file") as file:
            file.write(b"x")
    assert (tmp_path / "file").read_bytes() == b"xx"
