"""Columns of signal tables, read from data frames, mappings of arrays and CSV files."""

import csv
import io
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import TypeAlias, cast

import numpy as np
from numpy import ndarray

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.files import MAX_RESULT_BYTES, TooLarge, read_text
from fedaudit.live.tables.signals import CLASS_COLUMNS, SIGNAL_COLUMNS

SignalTable: TypeAlias = Mapping[str, object] | Path | str
"""A pandas data frame, a mapping from column names to arrays, or a CSV file."""

_REQUIRED = ("round", "client", "sample")
_MEMBERSHIP = ("label", "owner", "member", "drawn_for")
_TEXT_COLUMNS = ("client", "sample", "owner", "drawn_for", "model")
"""Columns of names, which are compared as texts."""
_WHOLE_NUMBER_COLUMNS = ("round", "label", "member", "trained")
_MISSING = ("", "-1", "nan", "None", "<NA>")
"""Texts that stand for a missing name, such as the owner of a held-out sample."""

_MAX_NUMBER = 10**7
"""Largest round number, and largest class index."""

_MAX_ROWS = 20_000_000
_MAX_COLUMNS = 10_000


class Columns(dict[str, ndarray]):
    """Columns by name, all with the same number of rows.

    A column is an array of numbers, or of texts for clients and samples.
    """

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self["sample"])


def columns_of(
    table: SignalTable,
    table_name: str,
    *,
    required: Sequence[str] = _REQUIRED,
    optional: Sequence[str] = (*_MEMBERSHIP, *SIGNAL_COLUMNS),
) -> Columns:
    """Return the columns of a table.

    Args:
        table: The table.
        table_name: What error messages call the table.
        required: Columns that the table must have.
        optional: Columns that the table may have, in addition to logits or probabilities.

    Raises:
        BadInput: A column is unknown or missing, has another length than the others, or has values
            that are not finite numbers.
    """
    if isinstance(table, str | Path):
        raw_columns = _read_csv(Path(table), table_name)
    else:
        raw_columns = _as_mapping(table, table_name)
    columns = Columns()
    for raw_name, raw_values in raw_columns.items():
        for name, values in _split_classes(raw_name, raw_values, table_name):
            if name in columns:
                raise BadInput(f"{table_name} has the column {name!r} twice; remove one")
            columns[name] = _checked(name, values, table_name, (*required, *optional))
    if missing := [name for name in required if name not in columns]:
        signals = [name for name in SIGNAL_COLUMNS if name in optional]
        raise BadInput(
            f"{table_name} has no column {missing[0]!r}; give {' and '.join(required)}, and "
            f"signals such as {', '.join(signals[:3])}"
        )
    lengths = {name: len(values) for name, values in columns.items()}
    length = lengths[required[0]]
    if different := [name for name in lengths if lengths[name] != length]:
        raise BadInput(
            f"{table_name} has {lengths[different[0]]} values in {different[0]!r} and {length} in "
            f"{required[0]!r}; give columns of one length"
        )
    if not 0 < columns.n_rows <= _MAX_ROWS:
        raise BadInput(f"{table_name} has {columns.n_rows:,} rows; give 1 to {_MAX_ROWS:,}")
    return columns


def concatenate(tables: Sequence[Columns]) -> Columns:
    """Return one table with the rows of all tables.

    Raises:
        BadInput: Tables have different columns, or rows of the same client.
    """
    first, table_of = tables[0], dict[str, int]()
    for number, table in enumerate(tables[1:], 2):
        if different := sorted(first.keys() ^ table.keys()):
            raise BadInput(
                f"the column {different[0]!r} is in only one of the tables 1 and {number}; give "
                "all tables the same columns"
            )
    for number, table in enumerate(tables, 1):
        for client in sorted({*table["client"].tolist()}):
            other = table_of.setdefault(client, number)
            if other != number:
                raise BadInput(
                    f"client {client} is in the tables {other} and {number}; give "
                    "different clients different names, and put all rows of a client into one table"
                )
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in first})


def _as_mapping(table: object, table_name: str) -> dict[str, object]:
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise BadInput(
            f"{table_name} is {type_of(table)}; give a pandas data frame, a mapping from names to "
            "arrays, or a CSV file"
        )
    return {
        str(name): values for name, values in dict(cast(Mapping[object, object], table)).items()
    }


def _split_classes(name: str, values: object, table_name: str) -> Iterable[tuple[str, object]]:
    """Yield the column, or one column per class for an array of logits or probabilities."""
    if name not in CLASS_COLUMNS:
        yield name, values
        return
    matrix, prefix = np.asarray(values), CLASS_COLUMNS[name]
    if matrix.ndim != 2 or not 2 <= matrix.shape[1] <= _MAX_COLUMNS:
        raise BadInput(
            f"{name} of {table_name} has the shape {matrix.shape}; give one row per sample and one "
            f"column per class, or columns {prefix}_0, {prefix}_1, ..."
        )
    for number in range(matrix.shape[1]):
        yield f"{prefix}_{number}", matrix[:, number]


def _checked(name: str, values: object, table_name: str, allowed: Sequence[str]) -> ndarray:
    """Return a column as an array of numbers, or of texts for clients and samples."""
    prefix, _, number = name.rpartition("_")
    is_class_column = number.isdecimal() and prefix in CLASS_COLUMNS.values()
    if name not in allowed and not is_class_column:
        raise unknown_name(f"column of {table_name}", name[:80], (*allowed, *CLASS_COLUMNS))
    column = np.asarray(values)
    if column.ndim != 1:
        raise BadInput(
            f"{name} of {table_name} has the shape {column.shape}; give one value per row"
        )
    if name in _TEXT_COLUMNS:
        # Equal names share one string, since a table repeats each name in many rows.
        texts: ndarray = np.array([intern(name_of(v)) for v in column.tolist()], dtype=object)
        if name not in _MEMBERSHIP and bool((texts == "").any()):
            row = int(np.flatnonzero(texts == "")[0]) + 1
            raise BadInput(
                f"{name} of {table_name} is empty in row {row}; give a name in every row"
            )
        return texts
    try:
        numbers: ndarray = column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{name} of {table_name} has values that are not numbers ({error})"
        ) from error
    if not bool(np.isfinite(numbers).all()):
        row = int(np.flatnonzero(~np.isfinite(numbers))[0]) + 1
        raise BadInput(
            f"{name} of {table_name} is not a finite number in row {row}; leave out the whole "
            "round of that client, or measure it again"
        )
    is_whole = (numbers == np.floor(numbers)) & (np.abs(numbers) <= _MAX_NUMBER)
    if name in _WHOLE_NUMBER_COLUMNS and not bool(is_whole.all()):
        raise BadInput(
            f"{name} of {table_name} has fractions or numbers above {_MAX_NUMBER:,}; give "
            "whole numbers"
        )
    return numbers


def name_of(value: object) -> str:
    """Return the name of a client or sample as text; empty for a missing value."""
    if isinstance(value, float) and value.is_integer():
        # pandas stores a column of integers with missing values as floats.
        value = int(value)
    text = str(value).strip()
    return "" if text in _MISSING else text


def _read_csv(path: Path, table_name: str) -> dict[str, object]:
    """Read a CSV file; numbers are parsed cell by cell, which needs less memory than texts."""
    try:
        text = read_text(path, max_bytes=MAX_RESULT_BYTES)
    except (TooLarge, OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{table_name}, {path}, cannot be read ({error}); give a CSV file"
        ) from error
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        if len({*header}) < len(header) or len(header) > _MAX_COLUMNS:
            raise BadInput(f"{table_name}, {path}, names a column twice, or has too many")
        if len(header) == 1:
            raise BadInput(
                f"{table_name}, {path}, has a single column, {header[0][:80]!r}; separate columns "
                "by commas, or read the file with pandas and give the data frame"
            )
        columns = [list[str]() if name in _TEXT_COLUMNS else array("d") for name in header]
        for line in reader:
            if line and len(line) != len(header):
                raise BadInput(
                    f"{table_name}, {path}, has {len(line)} values in line {reader.line_num} and "
                    f"{len(header)} columns; write every value"
                )
            for name, column, value in zip(header, columns, line, strict=False):
                if isinstance(column, list):
                    column.append(intern(value))
                else:
                    column.append(_number(value, name, path, reader.line_num))
    except csv.Error as error:
        raise BadInput(
            f"{table_name}, {path}, is not a CSV file ({error}); save it again"
        ) from error
    return dict(zip(header, columns, strict=True))


def _number(text: str, name: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(
            f"{name[:80]!r} in line {line} of {path} is {text[:40]!r}; give a number"
        ) from error
