"""Records and comparisons have a digest, and results are readable by their owner only."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import SCORES_FILE, write_atomically
from fedaudit.observe.tensors import write_tensors
from fedaudit.report.page import write_page
from fedaudit.results.comparison import write_comparison_file
from fedaudit.results.read import read_comparison, read_record
from fedaudit.results.record import record_json, write_record
from fedaudit.results.text import content_digest, sealed_json, was_altered, without_digest
from fedaudit.study.comparing import compare_records
from fedaudit.study.running import planning
from fedaudit.study.running.run import run_study
from tests.live.federation import recorder
from tests.report.records import record
from tests.study.studies import quick_study

VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
OBJECTS: Final = st.dictionaries(st.text().filter(lambda key: key != "digest"), VALUES)


@settings(max_examples=20)
@given(document=OBJECTS)
def test_a_sealed_object_is_unaltered_in_any_layout(document: dict[str, object]) -> None:
    sealed = json.loads(sealed_json(document))
    shuffled = dict(sorted(json.loads(json.dumps(sealed, indent=3)).items(), reverse=True))
    assert not was_altered(shuffled)
    assert without_digest(shuffled) == document


@settings(max_examples=20)
@given(document=OBJECTS, other=OBJECTS)
def test_other_content_under_the_same_digest_is_altered(
    document: dict[str, object], other: dict[str, object]
) -> None:
    digest = content_digest(document)
    same = json.dumps(document, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert was_altered({**other, "digest": digest}) is not same


ORIGINAL: Final = record()


@settings(max_examples=40)
@given(position=st.integers(0), bit=st.integers(0, 7))
def test_no_bit_of_a_record_can_flip_unseen(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    content = bytearray(record_json(ORIGINAL).encode())
    content[position % len(content)] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "record.json"
    path.write_bytes(content)
    try:
        assert read_record(path) == ORIGINAL
    except FedauditError:
        return


def altered(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_an_edited_record_raises_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(record(), path)
    altered(path, lambda document: document.update(name="another"))
    with pytest.raises(Damaged, match=r"record\.json was altered after .* `fedaudit attack`"):
        read_record(path)
    altered(path, lambda document: document.update(digest=None))
    with pytest.raises(Damaged, match="was altered"):
        read_record(path)


def test_a_record_from_before_digests_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(record(), path)
    altered(path, lambda document: document.pop("digest"))
    assert read_record(path) == record()


def test_an_edited_comparison_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    comparison = compare_records([record(), record()])
    write_comparison_file(comparison, path)
    assert read_comparison(path) == comparison
    altered(path, lambda document: document.update(rows=[]))
    with pytest.raises(Damaged, match="`fedaudit compare`"):
        read_comparison(path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(os.name != "posix", reason="needs the permissions of POSIX")
def test_results_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("record.json", "a.html", "a.txt", SCORES_FILE)]
    paths[1].write_text("readable before")
    paths[1].chmod(0o644)
    write_record(record(), paths[0])
    write_page(paths[1], "<p>")
    write_atomically(paths[2], "a", owner_only=True)
    write_tensors({"a": torch.ones(2)}, paths[3], owner_only=True)
    assert [mode_of(path) for path in paths] == [0o600] * 4
    write_atomically(tmp_path / "shared.txt", "a")
    assert mode_of(tmp_path / "shared.txt") & 0o077 == 0o066 & ~umask()


@pytest.mark.skipif(os.name != "posix", reason="needs the permissions of POSIX")
def test_audited_samples_of_a_recording_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    recorder(tmp_path / "r").close()
    files = sorted((tmp_path / "r").glob("*.safetensors"))
    assert files
    assert {mode_of(path) for path in files} == {0o600}


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_disk_without_room_for_the_results_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "disk_needed", lambda run: 0)
    monkeypatch.setattr(planning, "results_needed", lambda runs: 2**60)
    with pytest.raises(BadInput, match=r"needs about .* free"):
        run_study(quick_study(), tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))
