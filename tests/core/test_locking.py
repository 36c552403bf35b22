"""Folder locks between processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.core.files import LOCK_FILE, Lock, lock_folder


def test_a_folder_lock_is_held_until_the_last_reference_is_deleted(
    tmp_path: Path,
) -> None:
    code = "from pathlib import Path; from fedaudit.core.files import lock_folder as k; "
    command = [sys.executable, "-c", code + "k(Path('.'))"]

    def refused() -> bool:
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0 or "another process is writing to ." in run.stderr
        return run.returncode != 0

    first, second = lock_folder(tmp_path), lock_folder(tmp_path / ".")
    assert first is second
    assert refused()
    del first
    assert refused()
    del second
    assert not refused()


def test_two_locks_are_taken_one_after_the_other(tmp_path: Path) -> None:
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.close()
    assert second.acquire(wait=True)
    second.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        lock_folder(tmp_path / "nowhere")


def test_a_pipe_in_place_of_the_lock_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_FILE)
    with pytest.raises(BadInput, match="cannot be used"):
        Lock(tmp_path)
    # The same if a process reads the pipe, so that it could be opened.
    reader = os.open(tmp_path / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BadInput, match="not a regular file"):
        lock_folder(tmp_path)
    os.close(reader)


def test_a_link_in_place_of_the_lock_file_is_not_followed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="cannot be used"):
        Lock(folder)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").write_text("x")
    with pytest.raises(BadInput, match="cannot be used"):
        Lock(folder)
    assert (tmp_path / "elsewhere").read_text() == "x"
