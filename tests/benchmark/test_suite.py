import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.benchmark.croissant import CROISSANT_FILE
from fedaudit.benchmark.suite import (
    SUITE_FILE,
    Answers,
    read_answers,
    read_signals,
    read_suite,
    stored_file,
    write_answers,
    write_signals,
)
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.observe.tensors import read_tensors, write_tensors
from tests.benchmark.suites import SAMPLES, signals, write_small_suite


def test_a_suite_is_read_as_it_was_written(tmp_path: Path) -> None:
    suite = write_small_suite(tmp_path)
    assert read_suite(tmp_path) == suite
    assert [entry.name for entry in suite.of_regime("two")] == ["two-1", "two-2"]


def test_signals_are_read_as_they_were_written(tmp_path: Path) -> None:
    seen, _ = signals(1, references=2)
    write_signals(seen, tmp_path / "signals")
    read = read_signals(tmp_path / "signals")
    assert read.target == seen.target
    assert len(read.references) == 2
    for old, new in zip(
        (seen.measured, *seen.references), (read.measured, *read.references), strict=True
    ):
        assert old.keys() == new.keys()
        for name in old:
            assert torch.equal(old[name].values, new[name].values)
            assert (old[name].rounds, old[name].clients) == (new[name].rounds, new[name].clients)
            assert torch.equal(old[name].bases, new[name].bases)


def test_an_order_applies_to_all_federations() -> None:
    seen, _ = signals(1, references=1)
    order = np.arange(SAMPLES)[::-1].copy()
    turned = seen.in_order(order)
    for old, new in ((seen.measured, turned.measured), (seen.references[0], turned.references[0])):
        assert torch.equal(old["loss"].values.flip(2), new["loss"].values)


def test_signals_do_not_contain_the_membership(tmp_path: Path) -> None:
    suite = write_small_suite(tmp_path)
    for entry in suite.recordings:
        is_member = read_answers(tmp_path / entry.answers.path).is_member
        tensors, notes = read_tensors(tmp_path / entry.signals.path)
        assert not notes
        assert not any(tensor.dtype == torch.bool for tensor in tensors.values())
        assert not any(
            tensor.shape == is_member.shape and np.array_equal(tensor.numpy() > 0, is_member)
            for tensor in tensors.values()
        )


@pytest.mark.parametrize("name", ["signals/one-1.safetensors", "answers/two-2.safetensors"])
def test_a_changed_file_is_found(tmp_path: Path, name: str) -> None:
    write_small_suite(tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"is not the file that .* describes"):
        read_suite(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_small_suite(tmp_path)
    (tmp_path / "answers" / "one-2.safetensors").unlink()
    with pytest.raises(BadInput, match="one-2"):
        read_suite(tmp_path)


def test_a_link_to_another_file_is_refused(tmp_path: Path) -> None:
    write_small_suite(tmp_path)
    path = tmp_path / "answers" / "one-2.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link"):
        read_suite(tmp_path)


def test_a_changed_description_is_found(tmp_path: Path) -> None:
    write_small_suite(tmp_path)
    path = tmp_path / SUITE_FILE
    path.write_text(path.read_text().replace('"seed":1', '"seed":2', 1))
    with pytest.raises(Damaged, match="was altered"):
        read_suite(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"path":"signals/one-1.safetensors"', '"path":"signals/../../one-1.safetensors"'),
        ('"format":"fedaudit-benchmark"', '"format":"fedaudit-record"'),
        ('"name":"two-1"', '"name":"one-1"'),
        ('"regime":"two"', '"regime":"three"'),
    ],
)
def test_an_impossible_description_is_refused(tmp_path: Path, old: str, new: str) -> None:
    write_small_suite(tmp_path)
    path = tmp_path / SUITE_FILE
    values = json.loads(path.read_text().replace(old, new))
    # Without a digest, as a stranger could write it.
    del values["digest"]
    path.write_text(json.dumps(values))
    with pytest.raises(Damaged, match=r"restore it\s+from a copy"):
        read_suite(tmp_path)


def test_a_folder_without_a_suite_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fedaudit benchmark --out"):
        read_suite(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"0/bases": torch.zeros(3, 2, dtype=torch.int64)},
        {"0/rounds": torch.tensor([4, 2, 6])},
        {"0/clients": torch.tensor([0, 1, 1])},
        {"0/signal/loss": torch.zeros(3, 3, 5)},
        {"0/signal/loss": torch.full((3, 3, SAMPLES), torch.inf)},
        {"0/signal/loss": torch.zeros(3, 3, SAMPLES, dtype=torch.int64)},
        {"0/membership": torch.zeros(SAMPLES)},
        {"7/signal/loss": torch.zeros(3, 3, SAMPLES)},
        {"target": torch.tensor([9])},
        {"target": torch.tensor([0, 1])},
    ],
)
def test_signals_of_a_stranger_are_checked(tmp_path: Path, change: dict[str, torch.Tensor]) -> None:
    seen, _ = signals(1)
    path = tmp_path / "signals"
    write_signals(seen, path)
    tensors, _ = read_tensors(path)
    write_tensors({**tensors, **change}, path)
    with pytest.raises(Damaged, match="has no valid signals"):
        read_signals(path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"is_member": torch.ones(4, dtype=torch.bool)},
        {"is_member": torch.tensor([0.0, 1.0])},
        {"scores/loss": torch.zeros(4, dtype=torch.float64)},
        {
            "is_member": torch.tensor([True, False]),
            "scores/loss": torch.tensor([0.0, torch.nan], dtype=torch.float64),
        },
        {
            "is_member": torch.tensor([True, False]),
            "scores/loss": torch.zeros(3, dtype=torch.float64),
        },
    ],
)
def test_answers_of_a_stranger_are_checked(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    write_tensors(tensors, tmp_path / "answers")
    with pytest.raises(Damaged):
        read_answers(tmp_path / "answers")


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    is_member = np.array([True, False, True])
    write_answers(Answers(is_member, {"a": np.array([1.0, -np.inf, 2.0])}), tmp_path / "answers")
    read = read_answers(tmp_path / "answers")
    assert read.is_member.tolist() == is_member.tolist()
    assert read.by_attack["a"].tolist() == [1.0, -np.inf, 2.0]
    # Only the user may read who is a member.
    assert (tmp_path / "answers").stat().st_mode & 0o077 == 0


def test_metadata_have_the_digest_of_every_file(tmp_path: Path) -> None:
    suite = write_small_suite(tmp_path)
    metadata = json.loads((tmp_path / CROISSANT_FILE).read_text())
    assert metadata["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    files = {file["contentUrl"]: file["sha256"] for file in metadata["distribution"]}
    paths = [file.path for entry in suite.recordings for file in (entry.signals, entry.answers)]
    assert set(files) == {SUITE_FILE, *paths}
    for path in paths:
        assert files[path] == stored_file(tmp_path, path).sha256
    import hashlib

    assert files[SUITE_FILE] == hashlib.sha256((tmp_path / SUITE_FILE).read_bytes()).hexdigest()
    (records,) = metadata["recordSet"]
    described = json.loads((tmp_path / SUITE_FILE).read_text())
    for field in records["field"]:
        key = field["source"]["extract"]["jsonPath"].removeprefix("$.recordings[*].")
        assert all(key in recording for recording in described["recordings"])
