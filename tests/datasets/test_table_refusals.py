"""Malformed tables are refused in one sentence that says what to do."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput
from tests.datasets.tables import patients, text_of, written

Columns = dict[str, list[str]]

ROLES: dict[str, Any] = {"label": "readmitted", "client": "hospital"}


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as raised:
        fa.datasets.csv(path, **{**ROLES, **options}).read(seed=1)
    message = str(raised.value)
    assert "\n" not in message
    assert path.stem in message
    return message


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "patients.csv is empty"),
        ("\n\n", {}, "patients.csv is empty"),
        ("a,b\n", {}, "has a header and no rows"),
        ("a,b\n1,2\n3\n", {}, "line 3 of patients.csv has 1 cells, and the header has 2"),
        ("a,b\n1,2,3\n3,4\n", {}, "line 2 of patients.csv has 3 cells"),
        ("a,b,a\n1,2,3\n", {}, "two columns named 'a'"),
        (",b\n0,2\n1,3\n", {}, "column 1 of 'patients.csv' has no name"),
        ("a\n1\n", {}, "a single column with the separator"),
        ("3,4\n1,2\n", {}, "numbers only, and should name the columns"),
        ('a,b\n"1,2\n3,4\n', {}, "check the quotation marks"),
        ('a,b\n"1"x,2\n', {}, "check the quotation marks"),
        ("a;b\n1,5;2,5\n", {"separator": ","}, "set separator = ';'"),
        ("a,b;c\n1,2;3\n", {}, "separators ',' and ';'; set separator"),
    ],
)
def test_files_that_are_no_tables_are_refused(
    tmp_path: Path, text: str, options: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "patients.csv"
    path.write_text(text, encoding="utf-8")
    assert expected in refused(path, **options)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (text_of(patients()).replace("surgery", "Chirurgie für alle").encode("latin-1"), "latin-1"),
        (text_of(patients()).encode("utf-16"), "encoding = 'utf-16'"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "a compressed file"),
        (b"PK\x03\x04" + bytes(99), "an Excel or zip file"),
        (b"a,b\n1,\0\n", "a binary file"),
    ],
)
def test_files_of_other_kinds_and_encodings_are_refused(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "patients.csv"
    path.write_bytes(content)
    message = refused(path)
    assert expected in message
    assert "encoding" in message


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize("codec", ["utf-32", "utf-32-be"])
def test_utf_32_text_is_refused_by_its_name(tmp_path: Path, codec: str, encoding: str) -> None:
    path = tmp_path / "patients.csv"
    path.write_bytes(("\ufeff" * (codec == "utf-32-be") + text_of(patients())).encode(codec))
    message = refused(path, encoding=encoding)
    assert message == (
        f"patients.csv is UTF-32 text, and not {encoding} text; save the table as CSV in UTF-8"
    )


@pytest.mark.parametrize(("codec", "encoding"), [("utf-8-sig", "utf-8"), ("utf-16", "utf-16")])
def test_a_second_byte_order_mark_is_refused(tmp_path: Path, codec: str, encoding: str) -> None:
    path = tmp_path / "patients.csv"
    path.write_bytes(("\ufeff" + text_of(patients())).encode(codec))
    assert refused(path, encoding=encoding) == (
        "patients.csv begins with two byte order marks; save the table with one or none"
    )


@pytest.mark.parametrize("character", ["\u200b", "\u00ad", "\u2060", "\ufeff", "\x07"])
def test_a_name_with_an_invisible_character_is_refused(tmp_path: Path, character: str) -> None:
    path = tmp_path / "patients.csv"
    path.write_text(f"age,re{character}admitted\n1,yes\n2,no\n", encoding="utf-8")
    says = (
        f"the name of column 2 of 'patients.csv', {f're{character}admitted'!r}, has the invisible"
    )
    assert refused(path).startswith(f"{says} character U+{ord(character):04X}; remove")


def test_visible_names_in_other_scripts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    names = ("می\u200cرود", '"Age\n(years)"')
    path.write_text(f"{','.join(names)},readmitted\n1,2,yes\n2,3,no\n", encoding="utf-8")
    table = fa.datasets.csv(path, label="readmitted").load_table().table
    assert [*table.columns] == ["می\u200cرود", "Age\n(years)", "readmitted"]


def test_every_encoding_and_a_byte_order_mark_give_the_same_rows(tmp_path: Path) -> None:
    text = text_of(patients()).replace("surgery", "Chirurgie für alle")
    path, features = tmp_path / "patients.csv", []
    for encoding in ("utf-8", "utf-8-sig", "latin-1", "utf-16", "cp1252"):
        path.write_text(text, encoding=encoding)
        stated: Any = "utf-8" if encoding == "utf-8-sig" else encoding
        dataset = fa.datasets.csv(path, **ROLES, encoding=stated).read(seed=1)
        features.append(dataset.train.features)
    assert all(bool((part == features[0]).all()) for part in features)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_same_table_is_read_with_every_separator(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "patients.csv"
    path.write_text(text_of(patients(), separator), encoding="utf-8")
    expected = fa.datasets.csv(written(tmp_path, patients(), "other.csv"), **ROLES)
    dataset = fa.datasets.csv(path, **ROLES).read(seed=1)
    assert len(dataset) == len(expected.read(seed=1))
    # The choice of test rows depends on the name.
    total = dataset.train.features.sum() + dataset.test.features.sum()
    other = expected.read(seed=1)
    assert float(total) != 0
    assert dataset.train.features.shape == other.train.features.shape


def test_decimal_commas_are_refused_until_they_are_declared(tmp_path: Path) -> None:
    columns = patients()
    columns["pressure"] = [cell.replace(".", ",") for cell in columns["pressure"]]
    path = tmp_path / "patients.csv"
    path.write_text(text_of(columns, ";"), encoding="utf-8")
    assert "set decimal = ','" in refused(path)
    assert "set separator = ';'" in refused(path, separator=",")
    dataset = fa.datasets.csv(path, **ROLES, decimal=",").read(seed=1)
    plain = fa.datasets.csv(written(tmp_path, patients()), **ROLES)
    assert dataset.train.features.equal(plain.read(seed=1).train.features)
    assert "set decimal = '.'" in refused(written(tmp_path, patients()), decimal=",")


def set_cell(name: str, row: int, text: str) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[name][row] = text

    return change


def set_column(name: str, cells: list[str]) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[name] = cells

    return change


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (set_cell("readmitted", 0, "no"), {"label": "readmited"}, "did you mean 'readmitted'?"),
        (set_cell("age", 0, "20"), {"client": "hospitl"}, "did you mean 'hospital'?"),
        (set_cell("age", 0, "20"), {"ignore": ["agee"]}, "ignore of 'patients.csv': there is no"),
        (set_cell("readmitted", 4, ""), {}, "missing in 1 of 60 rows (the first is line 6)"),
        (set_cell("hospital", 4, ""), {}, "client 'hospital' of 'patients.csv' is missing in 1"),
        (set_cell("hospital", 4, "new"), {}, "client 'new' of 'patients.csv' has 1 rows"),
        (set_column("hospital", ["h"] * 60), {}, "the same value in all 60 rows; leave client out"),
        (
            set_cell("age", 7, "?"),
            {},
            '1 of 60 cells are no numbers (the first in line 9); set missing = ["?"]',
        ),
        (set_cell("age", 7, "old"), {}, 'set missing = ["?", "NA"] if they mark missing'),
        (set_column("age", ["NA"] * 50 + ["7", "8"] * 5), {}, 'set missing = ["NA"]'),
        (set_cell("age", 7, "inf"), {}, "1 infinite numbers (the first in line 9)"),
        (set_cell("age", 7, "1e999"), {}, "1 infinite numbers (the first in line 9)"),
        (set_column("age", ["7"] * 60), {}, "column 'age' of 'patients.csv' has the same value"),
        (set_column("ward", ["a"] * 60), {}, "column 'ward' of 'patients.csv' has the same value"),
        (set_column("ward", [""] * 60), {}, "column 'ward' of 'patients.csv' has the same value"),
        (set_column("name", [f"n{row}" for row in range(60)]), {}, "set ignore = ['name']"),
        (set_column("row", [str(row) for row in range(60)]), {}, "numbers the rows"),
        (set_column("row", [str(row * 7 % 60) for row in range(60)]), {}, "numbers the rows"),
        (
            set_column("readmitted", [f"r{row}" for row in range(60)]),
            {},
            "60 distinct values in 60 rows, too many for classes",
        ),
        (set_column("readmitted", ["no"] * 60), {}, "a classifier needs two classes"),
        (
            set_column("readmitted", ["0.5", "1"] * 30),
            {},
            "numbers that are not whole; set regression = true",
        ),
        (set_cell("age", 0, "20"), {"regression": True}, "a regression predicts numbers"),
        (set_cell("age", 0, "20"), {"numeric": ["ward"]}, "is declared as numbers and has texts"),
        (
            set_cell("age", 0, "20"),
            {"numeric": ["age"], "categorical": ["age"]},
            "declared as numbers and as categories",
        ),
        (set_cell("age", 0, "20"), {"categories": {"ward": ["x"]}}, "values of 'ward' that no row"),
        (set_cell("age", 0, "20"), {"categorical": ["readmitted"]}, "is no feature"),
        (set_cell("age", 0, "20"), {"person": "hospital"}, "client and person of"),
        (
            set_cell("age", 0, "20"),
            {"ignore": ["age", "ward", "pressure"]},
            "has no column of features",
        ),
        (set_cell("age", 3, "1e300"), {}, "column 'age' of 'patients.csv' reaches 1e+300"),
        (
            set_cell("age", 3, "1e30"),
            {"scaling": {"age": [0, 1e-30]}},
            "exceed the range of 32-bit numbers",
        ),
    ],
)
def test_unusable_columns_are_refused(
    tmp_path: Path, change: Callable[[Columns], None], options: dict[str, Any], expected: str
) -> None:
    columns = patients()
    change(columns)
    assert expected in refused(written(tmp_path, columns), **options)


def test_declared_markers_of_missing_values_are_gaps(tmp_path: Path) -> None:
    columns = patients()
    marked = {**columns, "pressure": [cell or "?" for cell in columns["pressure"]]}
    expected = fa.datasets.csv(written(tmp_path, columns), **ROLES).read(seed=1)
    path = written(tmp_path, marked)
    dataset = fa.datasets.csv(path, **ROLES, missing=["?", "NA"]).read(seed=1)
    assert dataset.train.features.equal(expected.train.features)


def test_codes_with_leading_zeros_are_categories(tmp_path: Path) -> None:
    columns = patients()
    columns["code"] = [f"{row % 4:03d}" for row in range(60)]
    dataset = fa.datasets.csv(written(tmp_path, columns), **ROLES).read(seed=1)
    assert any("column code: category, 4 values" in line for line in dataset.statement)


def test_a_table_with_far_more_features_than_bytes_is_refused(tmp_path: Path) -> None:
    columns = patients(3000)
    with pytest.raises(BadInput, match="FEDAUDIT_MAX_GIB"):
        fa.datasets.csv(written(tmp_path, columns), **ROLES, hash_width=2**16).read(seed=1)


def test_a_pipe_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    assert "there is no file or folder" in refused(tmp_path / "patients.csv")


def repeated(*cells: str) -> list[str]:
    return [*cells] * (60 // len(cells))


@pytest.mark.parametrize(
    "cells",
    [
        repeated("2024-01-31", "2024-02-01"),
        repeated("31.01.2024", "1.2.2024"),
        repeated("01/31/24 10:15", "2/1/24 9:00"),
        repeated("2024-01-31T10:15:00Z", "2024-02-01T00:00:00.5+01:00"),
        repeated("10:15", "9:30 am"),
        repeated("20240131", "20240201", "19991231"),
    ],
)
def test_dates_and_times_are_no_categories(tmp_path: Path, cells: list[str]) -> None:
    path = written(tmp_path, {**patients(), "seen": cells})
    assert "dates" in refused(path)
    for option in ("categorical", "ignore"):
        options: dict[str, Any] = {**ROLES, option: ["seen"]}
        assert fa.datasets.csv(path, **options).read(seed=1).train


@pytest.mark.parametrize(
    "cells",
    [
        repeated("1 234", "950"),
        repeated("1.234.567", "950"),
        repeated("1'234", "950"),
        repeated("$7", "$8"),
        repeated("7 €", "8.50 €"),
        repeated("5%", "12.5%"),
        repeated("(3.5)", "4.5"),
        repeated("\u22123", "4"),
    ],
)
def test_numbers_in_other_formats_are_no_categories(tmp_path: Path, cells: list[str]) -> None:
    path = written(tmp_path, {**patients(), "cost": cells})
    assert "are no numbers" in (message := refused(path)) or "further characters" in message
    assert fa.datasets.csv(path, **ROLES, categorical=["cost"]).read(seed=1).train


@pytest.mark.parametrize("cell", ["{}kg", "{}.5 mg", "<{}", "~ {}"])
def test_numbers_with_a_unit_are_no_categories(tmp_path: Path, cell: str) -> None:
    many = {**patients(), "weight": repeated(*(cell.format(number) for number in range(40, 52)))}
    message = refused(written(tmp_path, many))
    assert "numbers with a unit or sign (the first in line 2)" in message
    assert "set categorical = ['weight']" in message


@pytest.mark.parametrize("cells", [["5mg", "10mg", "20mg"], [f"{n}A" for n in range(4)] + ["x"]])
def test_few_numbers_with_a_unit_are_categories(tmp_path: Path, cells: list[str]) -> None:
    path = written(tmp_path, {**patients(), "dose": repeated(*cells)})
    assert fa.datasets.csv(path, **ROLES).read(seed=1).train


def test_marks_of_thousands_are_no_decimal_marks(tmp_path: Path) -> None:
    costs = repeated("950", "1.234", "12.345", "1.000", "7")
    path = written(tmp_path, {**patients(), "cost": costs})
    assert "may be thousands; remove the separators, or set numeric = ['cost']" in refused(path)
    assert fa.datasets.csv(path, **ROLES, numeric=["cost"]).read(seed=1).train
    for cells in (repeated("1.234", "2.345", "3.456"), repeated("1.234", "2.5", "3", "0.125")):
        path = written(tmp_path, {**patients(), "cost": cells})
        assert fa.datasets.csv(path, **ROLES).read(seed=1).train


@pytest.mark.parametrize(
    "cells",
    [
        repeated("10-20", "20-30"),
        repeated("007", "008"),
        repeated("(20, 30]", "(30, 40]"),
        repeated("A1", "B2"),
        repeated("1.2.3", "1.2.4"),
    ],
)
def test_ranges_and_codes_are_categories(tmp_path: Path, cells: list[str]) -> None:
    path = tmp_path / "patients.csv"
    path.write_text(text_of({**patients(), "code": cells}, ";"), encoding="utf-8")
    statement = fa.datasets.csv(path, **ROLES).read(seed=1).statement
    assert any("column code: category, 2 values" in line for line in statement)


@pytest.mark.parametrize("column", ["hospital", "readmitted"])
@pytest.mark.parametrize(
    ("first", "second"),
    [("East", "EAST"), ("East side", "East  side"), ("7", "07"), ("7", "7.0"), ("é", "e\u0301")],
)
def test_names_that_may_be_the_same_are_refused(
    tmp_path: Path, column: str, first: str, second: str
) -> None:
    path = written(tmp_path, {**patients(), column: repeated(first, second, "other")})
    names = " and ".join(map(repr, sorted([first, second])))
    assert f"the values {names}, which may be the same" in refused(path)


def test_a_marker_of_missing_values_is_no_class(tmp_path: Path) -> None:
    path = written(tmp_path, {**patients(), "readmitted": repeated("0", "1", "NA")})
    assert 'set missing = ["NA"]' in refused(path)
    assert "is missing in 20 of 60 rows" in refused(path, missing=["NA"])


def test_utf8_is_not_read_as_another_encoding(tmp_path: Path) -> None:
    text = text_of(patients()).replace("surgery", "Chirurgie für alle")
    path = tmp_path / "patients.csv"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(text, encoding=encoding)
        assert "is UTF-8 text" in refused(path, encoding="latin-1")
    path.write_text(text_of(patients()), encoding="utf-8")
    assert fa.datasets.csv(path, **ROLES, encoding="latin-1").read(seed=1).train


def long_table() -> list[bytes]:
    """Return the lines of a table of more than 64 KB."""
    rows = [f"{i},{i % 7},name {i % 11},{'yes' if i % 2 else 'no'}" for i in range(8000)]
    return [b"age,group,town,label", *(row.encode() for row in rows)]


@pytest.mark.parametrize(
    ("line", "content", "encoding", "reason"),
    [
        (7000, b"1,2,na\0me,yes", "utf-8", "is a binary file"),
        (7000, "1,2,Z\u00fcrich,yes".encode(), "latin-1", "is UTF-8 text"),
        (7000, b"1,2,Z\xfcrich,yes", "utf-8", "is not utf-8 text"),
    ],
)
def test_misread_bytes_far_from_the_start_are_refused(
    line: int, content: bytes, encoding: str, reason: str, tmp_path: Path
) -> None:
    lines = long_table()
    lines[line] = content
    path = tmp_path / "long.csv"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert path.stat().st_size > 2**17
    assert reason in refused(path, encoding=encoding)


def test_stray_quotes_that_hide_rows_are_refused(tmp_path: Path) -> None:
    lines = long_table()[:400]
    lines[50] = b'50,1,"name 6,no'
    lines[350] = b'350,0",no'
    path = tmp_path / "quotes.csv"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert "begins in line 51 contains 299 lines that look like rows" in refused(path)


def test_notes_of_several_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    rows = [f'{i},"seen, twice\nnext line\n\nand, after, that\nend",yes' for i in range(20)]
    path.write_text("\n".join(["age,note,label", *rows]) + "\n")
    assert fa.datasets.csv(path, label="label").load_table().table.rows == 20
