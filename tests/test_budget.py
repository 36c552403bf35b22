"""Small files that unpack to gigabytes are refused before memory is allocated."""

import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import raise_if_oversized
from fedaudit.datasets.catalog import load
from tests.bombs import BOMBS

READ = ["almost"]


@pytest.mark.slow
def test_every_bomb_is_read_or_refused_under_a_gigabyte_and_ten_seconds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bombs", str(tmp_path), str(10**9)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["bomb"] for result in results] == [make.__name__ for make in BOMBS]
    for result in results:
        assert result["seconds"] < 10, result
        assert result["peak"] < 10**9, result
        assert bool(result["message"]) == (result["bomb"] not in READ), result
        assert "\n" not in result["message"]
        assert "allow_pickle" not in result["message"]


def test_the_memory_limit_error_names_a_sufficient_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(40_000) % 2
    pictures = np.zeros((40_000, 30, 30), np.uint8)
    pictures[::1000] = 1
    np.savez_compressed(tmp_path / "own.npz", x=pictures, y=labels)
    with pytest.raises(BadInput, match=r"own\.npz would take 0\.13 GiB .* set FEDAUDIT_MAX_GIB=2 "):
        load("own", data_dir=tmp_path)
    monkeypatch.setenv("FEDAUDIT_MAX_GIB", "2")
    assert load("own", data_dir=tmp_path).classes == 2
    monkeypatch.setenv("FEDAUDIT_MAX_GIB", "0.01")
    with pytest.raises(BadInput, match=r"at most 0\.01"):
        load("own", data_dir=tmp_path)


def test_larger_files_may_use_more_memory_than_small_ones() -> None:
    raise_if_oversized("it", 2**27, file_bytes=0)
    with pytest.raises(BadInput, match="would take"):
        raise_if_oversized("it", 2**27 + 1, file_bytes=2**22)
    raise_if_oversized("it", 2**30, file_bytes=2**25)
    with pytest.raises(BadInput, match="would take"):
        raise_if_oversized("it", 2**100_000, file_bytes=2**25)


@pytest.mark.parametrize("stated", ["much", "-1", "0", "nan", "inf"])
def test_a_budget_that_is_no_number_is_refused(
    stated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAUDIT_MAX_GIB", stated)
    with pytest.raises(BadInput, match="a number of GiB above 0"):
        raise_if_oversized("it", 1, file_bytes=1)


def test_no_external_program_reads_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "own" / name / f"{number}.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "own" / "a" / "0.png", format="EPS")

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Ghostscript")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", started)
    with pytest.raises(Damaged, match="cannot be read as a picture"):
        load("own", data_dir=tmp_path)


def test_sparse_labels_do_not_create_billions_of_classes(tmp_path: Path) -> None:
    labels = np.array([0, 1] * 9 + [10**9] * 2)
    words = np.frombuffer(json.dumps({"a": ["x", "y"]}).encode(), np.uint8)
    x = np.zeros((20, 1), np.int64)
    columns = np.array(["a"])
    np.savez(tmp_path / "own.npz", x=x, y=labels, columns=columns, vocab_json=words)
    with pytest.raises(FedauditError, match="must use every class"):
        load("own", data_dir=tmp_path)


def test_a_picture_of_too_many_pixels_is_refused_without_a_warning(tmp_path: Path) -> None:
    picture = BytesIO()
    Image.new("1", (13_000, 13_000)).save(picture, "PNG")
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "own" / name / f"{number}.png").write_bytes(picture.getvalue())
    with pytest.raises(BadInput, match=r"1\.png has 13000 x 13000 pixels, and at most"):
        load("own", data_dir=tmp_path)
