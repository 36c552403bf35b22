"""Tables whose columns have types: data frames and Parquet files."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged
from tests.datasets.tables import features_of, patients, written

pandas = pytest.importorskip("pandas")

ROLES: dict[str, Any] = {"label": "readmitted", "client": "hospital"}


def frame_of(columns: dict[str, list[str]]) -> Any:
    typed = dict(columns)
    numbers = {
        "age": [int(cell) for cell in columns["age"]],
        "pressure": [float(cell or "nan") for cell in columns["pressure"]],
    }
    texts = {"ward": [cell or None for cell in columns["ward"]]}
    return pandas.DataFrame({**typed, **numbers, **texts})


def test_a_frame_has_the_features_of_the_file_with_the_same_cells(tmp_path: Path) -> None:
    columns = patients()
    file = fa.datasets.csv(written(tmp_path, columns), **ROLES).read(seed=1)
    # The choice of the test rows depends on the name.
    frame = fa.datasets.dataframe(frame_of(columns), name="patients.csv", **ROLES)(seed=1)
    assert torch.equal(features_of(frame), features_of(file))
    assert frame.client_names == file.client_names
    assert frame.statement[1:] == file.statement[1:]


def test_columns_of_other_types_are_read_or_refused_by_name() -> None:
    frame = frame_of(patients())
    frame["insured"] = [row % 2 == 0 for row in range(60)]
    frame["code"] = pandas.Categorical([row % 3 for row in range(60)])
    frame["count"] = pandas.array([None, *range(59)], dtype="Int64") // 7
    lines = "\n".join(fa.datasets.dataframe(frame, **ROLES)(seed=1).statement)
    assert "column insured: category, 2 values" in lines
    assert "column code: category, 3 values" in lines
    assert "column count: number, 0 to 8, 1.7% missing" in lines
    frame["admitted"] = [date(2026, 1, 1 + row % 20) for row in range(60)]
    with pytest.raises(BadInput, match="column 'admitted' of 'table' has values of the type"):
        fa.datasets.dataframe(frame, **ROLES)
    ignoring = fa.datasets.dataframe(frame, **ROLES, ignore=["admitted"])(seed=1)
    assert "ignored without reading: admitted" in ignoring.statement


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([[1, 2]], "must be a pandas.DataFrame, got a list"),
        (pandas.DataFrame(), "has no rows or no columns"),
        (pandas.DataFrame(np.ones((2, 2)), columns=["a", "a"]), "two columns named 'a'"),
    ],
)
def test_other_objects_are_refused(frame: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fa.datasets.dataframe(frame)


def test_data_frames_with_different_values_have_different_names() -> None:
    from fedaudit.api.references import data_reference

    frame = frame_of(patients())
    names = [data_reference(fa.datasets.dataframe(frame, **ROLES))[0].name]
    names.append(data_reference(fa.datasets.dataframe(frame.copy(), **ROLES))[0].name)
    frame.loc[30, "age"] += 1
    names.append(data_reference(fa.datasets.dataframe(frame, **ROLES))[0].name)
    assert names[0] == names[1] != names[2]


def test_a_parquet_file_has_the_features_of_the_frame(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = frame_of(patients())
    path = tmp_path / "patients.parquet"
    frame.to_parquet(path)
    file = fa.datasets.parquet(path, **ROLES).read(seed=1)
    expected = fa.datasets.dataframe(frame, name="patients.parquet", **ROLES)(seed=1)
    assert torch.equal(features_of(file), features_of(expected))
    assert file.statement[1:] == expected.statement[1:]
    assert fa.datasets.catalog.load("parquet:patients", data_dir=tmp_path, **ROLES).classes == 2


def test_parquet_columns_of_other_types_are_refused_unless_ignored(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    frame = frame_of(patients())
    full_table = pyarrow.Table.from_pandas(frame)
    path = tmp_path / "patients.parquet"
    others = {
        "list": pyarrow.array([[row, 1] for row in range(60)]),
        "date": pyarrow.array([date(2026, 1, 1 + row % 20) for row in range(60)]),
        "struct": pyarrow.array([{"a": row} for row in range(60)]),
        "bytes": pyarrow.array([b"\x80\x04N."] * 60),
        "uuid": pyarrow.ExtensionArray.from_storage(
            pyarrow.uuid(), pyarrow.array([bytes(16)] * 60, pyarrow.binary(16))
        ),
    }
    for name, values in others.items():
        parquet.write_table(full_table.append_column(name, values), path)
        with pytest.raises(BadInput, match=f"column '{name}' of 'patients.parquet' has the type"):
            fa.datasets.parquet(path, **ROLES).read(seed=1)
        assert fa.datasets.parquet(path, **ROLES, ignore=[name]).read(seed=1).classes == 2


def test_damaged_and_oversized_parquet_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "patients.parquet"
    frame_of(patients()).to_parquet(path)
    content = path.read_bytes()
    for damaged in (b"", content[:-9], content[: len(content) // 2] + content[-200:]):
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"patients.parquet cannot be read as Parquet"):
            fa.datasets.parquet(path, **ROLES).read(seed=1)
    # Equal values take a few bytes of the file, one byte each when unpacked, and eight as numbers.
    rows = 20_000_000
    pandas.DataFrame({"a": np.zeros(rows, dtype=np.int8)}).to_parquet(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(BadInput, match=r"would take 0\.15 GiB"):
        fa.datasets.parquet(path, **ROLES).read(seed=1)


def test_packages_that_are_absent_are_named_with_their_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = frame_of(patients())
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(BadInput, match=r"pip install 'fedaudit\[tables\]'"):
        fa.datasets.dataframe(frame, **ROLES)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "patients.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"pip install 'fedaudit\[tables\]'"):
        fa.datasets.parquet(tmp_path / "patients.parquet", **ROLES).read(seed=1)
