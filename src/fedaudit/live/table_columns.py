"""Columns of tables of signals: data frames, mappings of arrays, and CSV files."""

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
from fedaudit.core.files import LONGEST_RESULT, TooLarge, read_text
from fedaudit.live.table_signals import COLUMNS, PER_CLASS

SignalTable: TypeAlias = Mapping[str, object] | Path | str
"""A pandas data frame, a mapping from column names to arrays, or a CSV file."""

KEYS = ("round", "client", "sample")
OTHERS = ("label", "owner", "member", "drawn_for")
_NAMES = ("client", "sample", "owner", "drawn_for", "model")
"""Columns of texts."""
_MISSING = ("", "-1", "nan", "None", "<NA>")
"""Texts of missing values: of a sample that no client trains on."""

_LARGEST_NUMBER = 10**7
"""Largest round, and largest number of a class."""

_MOST_ROWS = 20_000_000
_MOST_COLUMNS = 10_000


class Columns(dict[str, ndarray]):
    """Columns of equal length by name: numbers, or texts for clients and samples."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self["sample"])


def columns_of(
    table: SignalTable,
    whose: str,
    *,
    keys: Sequence[str] = KEYS,
    others: Sequence[str] = (*OTHERS, *COLUMNS),
) -> Columns:
    """Return the columns of a table.

    Args:
        table: The table.
        whose: The table, for messages.
        keys: Columns that it must have.
        others: Further columns that it may have, in addition to outputs by class.

    Raises:
        BadInput: A column is unknown or missing, of another length, or has values that are not
            finite numbers.
    """
    given = (
        _from_csv(Path(table), whose) if isinstance(table, str | Path) else _arrays(table, whose)
    )
    columns = Columns()
    for name, values in given.items():
        for part_name, part in _split_classes(name, values, whose):
            if part_name in columns:
                raise BadInput(f"{whose} has the column {part_name!r} twice; remove one")
            columns[part_name] = _checked(part_name, part, whose, (*keys, *others))
    if missing := [name for name in keys if name not in columns]:
        raise BadInput(
            f"{whose} has no column {missing[0]!r}; give {' and '.join(keys)}, and signals such as "
            f"{', '.join([name for name in COLUMNS if name in others][:3])}"
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if other := [name for name in lengths if lengths[name] != lengths[keys[0]]]:
        raise BadInput(
            f"{whose} has {lengths[other[0]]} values in {other[0]!r} and {lengths[keys[0]]} in "
            f"{keys[0]!r}; give columns of one length"
        )
    if not 0 < columns.rows <= _MOST_ROWS:
        raise BadInput(f"{whose} has {columns.rows:,} rows; give 1 to {_MOST_ROWS:,}")
    return columns


def joined(tables: Sequence[Columns]) -> Columns:
    """Return the rows of several tables, which have the same columns."""
    first = tables[0]
    for number, table in enumerate(tables[1:], 2):
        if different := sorted(first.keys() ^ table.keys()):
            raise BadInput(
                f"the column {different[0]!r} is in only one of the tables 1 and {number}; give "
                "all tables the same columns"
            )
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in first})


def _arrays(table: object, whose: str) -> dict[str, object]:
    if not hasattr(table, "keys") or not hasattr(table, "__getitem__"):
        raise BadInput(
            f"{whose} is {type_of(table)}; give a pandas data frame, a mapping from names to "
            "arrays, or a CSV file"
        )
    mapping = cast("Mapping[str, object]", table)
    return {str(name): mapping[name] for name in mapping.keys()}  # noqa: SIM118, a data frame


def _split_classes(name: str, values: object, whose: str) -> Iterable[tuple[str, object]]:
    """Yield a column, or one column per class of an array with a row per sample."""
    if name not in PER_CLASS:
        yield name, values
        return
    matrix = np.asarray(values)
    if matrix.ndim != 2 or not 2 <= matrix.shape[1] <= _MOST_COLUMNS:
        raise BadInput(
            f"{name} of {whose} has the shape {matrix.shape}; give one row per sample and one "
            f"column per class, or columns {PER_CLASS[name]}_0, {PER_CLASS[name]}_1, ..."
        )
    for number in range(matrix.shape[1]):
        yield f"{PER_CLASS[name]}_{number}", matrix[:, number]


def _checked(name: str, values: object, whose: str, allowed: Sequence[str]) -> ndarray:
    """Return a column as numbers, or as texts for clients and samples."""
    stem = name.rpartition("_")[0] if name.rpartition("_")[2].isdecimal() else ""
    known = (*allowed, *PER_CLASS)
    if name not in known and stem not in PER_CLASS.values():
        raise unknown_name(f"column of {whose}", name[:80], known)
    column = np.asarray(values)
    if column.ndim != 1:
        raise BadInput(f"{name} of {whose} has the shape {column.shape}; give one value per row")
    if name in _NAMES:
        texts: ndarray = np.array(
            [intern(name_of(value)) for value in column.tolist()], dtype=object
        )
        if name not in OTHERS and bool((texts == "").any()):
            row = int(np.flatnonzero(texts == "")[0]) + 1
            raise BadInput(f"{name} of {whose} is empty in row {row}; name it in every row")
        return texts
    try:
        numbers: ndarray = column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} of {whose} has values that are not numbers ({error})") from error
    if not bool(np.isfinite(numbers).all()):
        row = int(np.flatnonzero(~np.isfinite(numbers))[0]) + 1
        raise BadInput(
            f"{name} of {whose} is not a finite number in row {row}; leave out the whole round of "
            "that client, or measure it again"
        )
    is_whole = (numbers == np.floor(numbers)) & (np.abs(numbers) <= _LARGEST_NUMBER)
    if name in ("round", "label", "member", "trained") and not bool(is_whole.all()):
        raise BadInput(
            f"{name} of {whose} has fractions or numbers above {_LARGEST_NUMBER:,}; give whole "
            "numbers"
        )
    return numbers


def name_of(value: object) -> str:
    """Return the name of a client or sample; empty for a missing value."""
    if isinstance(value, float) and value.is_integer():
        # A column with missing values holds floats in pandas.
        value = int(value)
    text = str(value).strip()
    return "" if text in _MISSING else text


def _from_csv(path: Path, whose: str) -> dict[str, object]:
    try:
        text = read_text(path, max_bytes=LONGEST_RESULT)
    except (TooLarge, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{whose}, {path}, cannot be read ({error}); give a CSV file") from error
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        if len({*header}) < len(header) or len(header) > _MOST_COLUMNS:
            raise BadInput(f"{whose}, {path}, names a column twice, or has too many")
        if len(header) == 1:
            raise BadInput(
                f"{whose}, {path}, has a single column, {header[0][:80]!r}; separate columns by "
                "commas, or read the file with pandas and give the data frame"
            )
        texts: dict[int, list[str]] = {}
        numbers: dict[int, array[float]] = {}
        for place, name in enumerate(header):
            if name in _NAMES:
                texts[place] = []
            else:
                numbers[place] = array("d")
        for line in reader:
            if not line:
                continue
            if len(line) != len(header):
                raise BadInput(
                    f"{whose}, {path}, has {len(line)} values in line {reader.line_num} and "
                    f"{len(header)} columns; write every value"
                )
            for place, names in texts.items():
                names.append(intern(line[place]))
            for place, values in numbers.items():
                values.append(_number(line[place], header[place], path, reader.line_num))
    except csv.Error as error:
        raise BadInput(f"{whose}, {path}, is not a CSV file ({error}); save it again") from error
    return {
        name: texts[place] if place in texts else np.asarray(numbers[place])
        for place, name in enumerate(header)
    }


def _number(text: str, name: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(
            f"{name[:80]!r} in line {line} of {path} is {text[:40]!r}; give a number"
        ) from error
