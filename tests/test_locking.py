"""A folder for one process at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit.errors import BadInput
from fedaudit.locking import Lock, kept_to_this_process


def test_another_process_is_refused_until_the_last_holder_lets_go(tmp_path: Path) -> None:
    code = "from pathlib import Path; from fedaudit.locking import kept_to_this_process as k; "
    command = [sys.executable, "-c", code + "k(Path('.'))"]

    def refused() -> bool:
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0 or "another process is writing to ." in run.stderr
        return run.returncode != 0

    first, second = kept_to_this_process(tmp_path), kept_to_this_process(tmp_path / ".")
    assert first is second
    assert refused()
    del first
    assert refused()
    del second
    assert not refused()


def test_two_locks_are_taken_one_after_the_other(tmp_path: Path) -> None:
    one, other = Lock(tmp_path), Lock(tmp_path)
    assert one.taken()
    assert not other.taken()
    one.close()
    assert other.taken(wait=True)
    other.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        kept_to_this_process(tmp_path / "nowhere")
