"""Hugging Face data sets with several columns, and texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.formats import npz
from fedaudit.datasets.hubs import hf
from tests.datasets.tables import features_of, patients, written
from tests.datasets.test_sources import as_stored, columns

Reads = Callable[..., Dataset]
ROLES: dict[str, Any] = {"label": "readmitted", "client": "hospital"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Reads a data set with these parts, as the package would have loaded it."""

    def read(parts: Any, *, name: str = "patients.csv", **options: Any) -> Dataset:
        monkeypatch.setattr(hf, "_load", lambda name, config: hf.UndecodedDataset(parts, 10_000))
        return hf.hf(name, **options).read(1)

    return read


def table(rows: int = 60, start: int = 0, **further: list[Any]) -> dict[str, Any]:
    """Patients as a data set of the package has them: numbers, texts and missing values."""
    cells = {name: values[start : start + rows] for name, values in patients(60 + start).items()}
    age: list[object] = [int(cell) for cell in cells["age"]]
    pressure: list[object] = [float(cell or "nan") for cell in cells["pressure"]]
    texts: dict[str, list[object]] = {
        name: [cell or None for cell in cells[name]] for name in ("ward", "hospital", "readmitted")
    }
    return dict(columns(age=age, pressure=pressure, **texts, **further))


def test_a_table_has_the_features_of_the_file_with_the_same_cells(
    read: Reads, tmp_path: Path
) -> None:
    file = fa.datasets.csv(written(tmp_path, patients()), **ROLES).read(seed=1)
    hub = read({"train": table()}, **ROLES)
    assert torch.equal(features_of(hub), features_of(file))
    assert torch.equal(hub.client, file.client)  # type: ignore[arg-type]
    assert hub.statement[1:] == file.statement[1:]
    assert hub.statement[0].startswith(
        "data patients.csv: 60 rows, 5 columns, Hugging Face (train)"
    )


def test_rows_of_a_test_part_stay_in_it_and_do_not_change_the_scaling(read: Reads) -> None:
    train = table(40)
    dataset = read({"train": train, "test": table(20, start=40)}, **ROLES)
    assert (len(dataset.train), len(dataset.test)) == (40, 20)
    aged = {**table(20, start=40), **columns(age=[10_000 + row for row in range(20)])}
    other = read({"train": train, "validation": aged}, **ROLES)
    assert torch.equal(dataset.train.features, other.train.features)
    assert other.test.features.abs().max() > 100


def test_a_test_part_without_labels_is_left_out(read: Reads) -> None:
    hidden = {**table(20, start=40), **columns(readmitted=[None] * 20)}
    parts = {"train": table(40), "test": hidden, "validation": table(20, start=40)}
    dataset = read(parts, **ROLES)
    assert "Hugging Face (train, validation)" in dataset.statement[0]
    coded = columns(row=[[float(row)] for row in range(12)], label=[row % 2 for row in range(12)])
    hidden = {**coded, **columns(label=[-1] * 12)}
    dataset = read({"train": coded, "test": hidden}, features="row", test_share=0.25)
    assert (len(dataset.train), len(dataset.test)) == (8, 4)


def test_listed_features_person_and_group_are_read_and_nothing_else(read: Reads) -> None:
    person: list[object] = [f"person {row // 2}" for row in range(60)]
    part = table(person=person, mixed=[[1]] * 60)
    options = {"features": ["age"], "person": "person", "group": "ward", **ROLES}
    dataset = read({"train": part}, **options)
    # The number and an indicator of gaps; the group is not listed.
    assert dataset.train.features.shape[1] == 2
    assert dataset.group_names == ("maternity", "oncology", "surgery", "(missing)")
    assert dataset.person is not None
    assert len(set(dataset.person.tolist())) == 30
    assert "ignored without reading: pressure, mixed" in dataset.statement
    listed = read({"train": part}, **{**options, "features": ["age", "ward"]})
    assert listed.train.features.shape[1] == 2 + 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["agee"]}, "no column named 'agee'; did you mean 'age'"),
        ({"features": ["age", "readmitted"]}, "list 'readmitted', which is the label"),
        ({"client": "site"}, "client of 'patients.csv': there is no column named 'site'"),
        ({"label": "label"}, "label of 'patients.csv': there is no column named 'label'"),
        ({"size": 8}, "read as a table, to which size does not apply"),
        ({"person": "ward", "subject": "ward"}, "two names of one setting; give person only"),
        ({"features": "age"}, r"one value per row; set features = \['age'\]"),
        ({"features": "age", "hash_width": 8}, "to which hash_width does not apply"),
        ({"tokenizer": "minilm"}, "takes a column of texts or two, and features of"),
        ({"tokenizer": "minilm", "features": "age"}, "no text in row 0 of the split 'train'"),
        ({"tokenizer": "minilm", "features": "ward"}, "no text in row 3 of the split 'train'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    options: dict[str, Any], message: str, read: Reads
) -> None:
    with pytest.raises(BadInput, match=message):
        read({"train": table()}, **{"label": "readmitted", **options})


def test_parts_that_do_not_fit_are_refused(read: Reads) -> None:
    train = table(40)
    cases = [
        (table(20, start=40) | columns(age=["old"] * 20), "'age' of .* has numbers in one part"),
        (table(20, start=40) | columns(hospital=["new"] * 20), "client 'new' .* test part only"),
        ({"readmitted": table(20)["readmitted"]}, "no column named 'age'"),
    ]
    for test, message in cases:
        with pytest.raises(BadInput, match=message):
            read({"train": train, "test": test}, **ROLES)
    for values in ([[1.0]] * 60, [{"bytes": b"", "path": None}] * 60):
        with pytest.raises(BadInput, match=r"column 'x' of .* has pictures or lists; set features"):
            read({"train": table(x=values)}, **ROLES)
        assert read({"train": table(x=values)}, ignore=["x"], **ROLES).classes == 2


def test_pictures_have_clients_groups_and_people(read: Reads) -> None:
    count, parts = 40, {}
    shades = np.arange(2 * count, dtype=np.uint8)
    for part, start in (("train", 0), ("test", count)):
        stored = [as_stored(Image.new("L", (4, 4), int(v))) for v in shades[start : start + count]]
        parts[part] = columns(
            image=list(stored),
            label=[row % 2 for row in range(count)],
            writer=[f"writer {row % 3}" for row in range(count)],
            hand=["left", "right"] * (count // 2),
        )
    options = {"grey": True, "client": "writer", "group": "hand", "person": "writer"}
    dataset = read(parts, **options)
    expected = [row % 3 for row in range(count)] * 2
    for codes in (dataset.client, dataset.person):
        assert codes is not None
        assert codes.tolist() == expected
    assert dataset.client_names == ("writer 0", "writer 1", "writer 2")
    assert dataset.group is not None
    assert dataset.group.tolist() == [0, 1] * count
    older = read(parts, grey=True, subject="writer")
    assert torch.equal(older.person, dataset.person)  # type: ignore[arg-type]
    parts["test"]["writer"][3] = None
    with pytest.raises(BadInput, match="person of 1 of 80 samples of 't' is missing"):
        read(parts, name="t", grey=True, person="writer")


def test_pairs_of_texts_become_tokens(read: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: code for code, word in enumerate(["[PAD]", "[SEP]", "a", "b", "c"])}
    encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[PAD]"))
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    encoder.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B", special_tokens=[("[SEP]", 1)]
    )
    rules = encoder.to_str().encode()
    monkeypatch.setitem(npz.TOKENIZERS, "minilm", lambda *_: rules)
    first, second = ["a b", "c", "a", "b"] * 3, ["c", "a a a a", "", "b"] * 3
    part = columns(premise=list(first), claim=list(second), label=[0, 1] * 6)
    options = {"features": ["premise", "claim"], "tokenizer": "minilm", "longest": 4}
    dataset = read({"train": part, "test": part}, **options)
    assert dataset.train.features[:3].tolist() == [[2, 3, 1, 4], [4, 1, 2, 2], [2, 1, 0, 0]]
    single = read({"train": part, "test": part}, **{**options, "features": "premise"})
    assert single.train.features[:2].tolist() == [[2, 3, 0, 0], [4, 0, 0, 0]]


def test_names_of_class_indices_are_texts_of_a_table(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from fedaudit.datasets.tables.arrow import ArrowColumn
    from fedaudit.datasets.tables.columns import TextColumn

    codes = pyarrow.chunked_array([[1, 0, None], [-1, 1]])
    column = ArrowColumn("t", "ward", codes, 100, ["surgery", "oncology"]).column()
    assert isinstance(column, TextColumn)
    assert column.texts == ("oncology", "surgery")
    assert column.codes.tolist() == [0, 1, -1, -1, 0]
    with pytest.raises(Damaged, match="has the code 1, and names for 1 codes"):
        ArrowColumn("t", "ward", codes, 100, ["surgery"]).column()


def test_a_folder_is_read_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder, patients(), "train.csv")
    dataset = fa.datasets.hf(str(folder), **ROLES).read(1)
    assert dataset.client_names == ("hospital-0", "hospital-1", "hospital-2")
