import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedaudit.core import pretrained
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.pretrained import raise_if_costly_header
from fedaudit.observe import tensors
from fedaudit.observe.tensors import has_hash, read_notes, read_tensors, write_tensors

SOME = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1, 2]), "c": torch.tensor(0.5)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.safetensors"


def test_tensors_are_restored_in_order_with_notes(path: Path) -> None:
    write_tensors(SOME, path, {"round": "3"})
    restored, notes = read_tensors(path)
    assert list(restored) == ["b", "a", "c"]
    assert all(torch.equal(restored[name], SOME[name]) for name in SOME)
    assert all(restored[name].dtype == SOME[name].dtype for name in SOME)
    assert notes == {"round": "3"}


def test_writing_leaves_no_temporary_files(path: Path) -> None:
    write_tensors(SOME, path)
    assert list(path.parent.iterdir()) == [path]


def test_shared_and_strided_tensors_are_written(path: Path) -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    views = {"whole": matrix, "same": matrix, "across": matrix.t(), "part": matrix[1]}
    write_tensors(views, path)
    restored, _ = read_tensors(path)
    assert all(torch.equal(restored[name], views[name]) for name in views)


def test_tensors_with_gradients_are_written(path: Path) -> None:
    write_tensors({"w": torch.ones(2, requires_grad=True) * 2}, path)
    assert read_tensors(path)[0]["w"].tolist() == [2.0, 2.0]


def test_an_empty_set_of_tensors_can_be_written(path: Path) -> None:
    write_tensors({}, path, {"round": "0"})
    assert read_tensors(path) == ({}, {"round": "0"})


def test_a_safetensors_file_without_order_is_read(path: Path) -> None:
    save_file(SOME, path)
    restored, notes = read_tensors(path)
    assert set(restored) == set(SOME)
    assert notes == {}


@pytest.mark.parametrize(
    ("error", "ended", "message"),
    [
        (OSError(28, "No space left on device"), BadInput, "could not be written.*free some space"),
        (SafetensorError("full"), BadInput, "could not be written.*free some space"),
        (KeyboardInterrupt("killed"), KeyboardInterrupt, "killed"),
    ],
)
def test_failed_writes_keep_the_old_file(
    path: Path,
    error: BaseException,
    ended: type[BaseException],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_tensors(SOME, path)
    before = path.read_bytes()

    def full(parts: object, partial: Path, notes: object) -> None:
        partial.write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full)
        with pytest.raises(ended, match=message):
            write_tensors({"other": torch.zeros(1)}, path)
    assert path.read_bytes() == before
    write_tensors({"other": torch.zeros(1)}, path)
    assert list(path.parent.iterdir()) == [path]


def test_writing_to_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="could not be written"):
        write_tensors(SOME, tmp_path / "nowhere" / "x.safetensors")


def test_reading_a_missing_file_raises(path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist; check the path"):
        read_tensors(path)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 40, -1])
def test_a_truncated_file_raises_and_is_not_changed(path: Path, length: int) -> None:
    write_tensors(SOME, path)
    cut = path.read_bytes()[:length]
    path.write_bytes(cut)
    with pytest.raises(Damaged, match="damaged or not a safetensors file"):
        read_tensors(path)
    assert path.read_bytes() == cut


@settings(max_examples=60)
@given(data=st.data())
def test_arbitrary_bytes_are_read_or_raise_damaged(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "some.safetensors"
    write_tensors({"a": torch.ones(2)}, path, {"round": "1"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        restored, _ = read_tensors(path)
    except Damaged:
        return
    assert all(isinstance(value, torch.Tensor) for value in restored.values())


@pytest.mark.parametrize(
    "order", ["not json", "3", '["a"]', '["a", "a"]', '["a", "b", "c"]', "[" * 100_000]
)
def test_a_wrong_tensor_order_raises(path: Path, order: str) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, path, {"fedaudit.order": order})
    with pytest.raises(Damaged):
        read_tensors(path)


@pytest.mark.parametrize(
    "shape", [[0, 2**62, 2**62], [0, 2**64 - 1], [2**33, 0, 2**33], [2**25, 0]]
)
def test_an_empty_tensor_with_an_overflowing_shape_raises(path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Damaged, match="an empty tensor has impossibly large dimensions") as refused:
        read_tensors(path)
    assert "\n" not in str(refused.value)


def test_an_empty_tensor_is_read(path: Path) -> None:
    write_tensors({"a": torch.zeros(0, 3, 224, 224), "b": torch.zeros(1000, 0)}, path)
    restored, _ = read_tensors(path)
    assert [tuple(value.shape) for value in restored.values()] == [(0, 3, 224, 224), (1000, 0)]


@pytest.mark.parametrize("axes", [64, 65])
def test_a_tensor_with_more_than_64_axes_raises(path: Path, axes: int) -> None:
    shape = [2**63] * (axes - 1) + [0] if axes > 64 else [1] * axes
    write_header(path, {"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, int(axes < 65)]}})
    if axes > 64:
        with pytest.raises(Damaged, match="more than 64 axes"):
            read_tensors(path)
    else:
        assert read_tensors(path)[0]["a"].ndim == 64


def test_notes_may_be_long_and_contain_quotes(path: Path) -> None:
    notes = {"list": str(list(range(9000))), "quoted": '"[\\"' * 400, "open": "[" * 2000}
    write_tensors(SOME, path, notes)
    assert read_tensors(path)[1] == notes


def test_tensor_headers_are_scanned_in_linear_time() -> None:
    start = time.process_time()
    for text in (b'"' + b'\\"' * 2_000_000, b'"' * 2_000_000, b"[" * 2_000_000, b'"\\'):
        raise_if_costly_header(len(text), text)
    assert time.process_time() - start < 5


def write_header(path: Path, header: dict[str, object]) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"a")


@pytest.mark.parametrize("read", [read_tensors, read_notes, has_hash])
def test_reading_a_pipe_raises_at_once(read: Callable[[Path], object], path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises((BadInput, Damaged, OSError), match="not a regular file"):
        read(path)


def test_a_pickle_raises_without_being_loaded(path: Path) -> None:
    torch.save(SOME, path)
    with pytest.raises(Damaged):
        read_tensors(path)


def test_too_large_files_raise(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(SOME, path)
    monkeypatch.setattr(pretrained, "MAX_TENSORS", 2)
    with pytest.raises(Damaged, match="lists 3 tensors"):
        read_tensors(path)
    monkeypatch.setattr(tensors, "MAX_BYTES", 10)
    with pytest.raises(Damaged, match="larger than 10 bytes"):
        read_tensors(path)


def test_a_symlink_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("precious")
    (tmp_path / "a.safetensors.partial").symlink_to(foreign)
    write_tensors({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    assert foreign.read_text() == "precious"
    assert not (tmp_path / "a.safetensors").is_symlink()


class Shuffled:
    """An open safetensors file that lists its names and notes in another order."""

    def __init__(self, stored: Any, random: Random) -> None:
        self._stored, self._random = stored, random

    def __enter__(self) -> "Shuffled":
        self._stored.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stored.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def keys(self) -> list[str]:
        names = sorted(self._stored.keys())
        return self._random.sample(names, len(names))

    def metadata(self) -> dict[str, str]:
        notes = sorted((self._stored.metadata() or {}).items())
        return dict(self._random.sample(notes, len(notes)))


def shuffle_readers(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Make safetensors list names and notes in a random order."""
    random = Random(seed)
    patch.setattr(tensors, "safe_open", lambda *a, **k: Shuffled(safe_open(*a, **k), random))


@pytest.mark.parametrize("ours", [True, False])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text("abc/1", min_size=1, max_size=4), min_size=2, unique=True))
def test_tensor_order_is_the_same_in_every_process(
    path: Path, ours: bool, names: list[str]
) -> None:
    written = {name: torch.ones(1) for name in names}
    notes = dict.fromkeys(names, "x")
    (write_tensors if ours else save_file)(written, path, notes)
    orders = set()
    for seed in range(5):
        with pytest.MonkeyPatch.context() as patch:
            shuffle_readers(patch, seed)
            restored, restored_notes = read_tensors(path)
        orders.add((tuple(restored), tuple(restored_notes)))
    assert orders == {(tuple(names if ours else sorted(names)), tuple(sorted(names)))}
