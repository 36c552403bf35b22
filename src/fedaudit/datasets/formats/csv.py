"""Tables in text files: comma-separated values, and other separators."""

import codecs
import io
import os
from array import array
from collections.abc import Sequence
from csv import Error, reader
from dataclasses import KW_ONLY
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.files import open_regular
from fedaudit.datasets.dataset import DataFile, Dataset
from fedaudit.datasets.tables.columns import Decimal, Table, number_of, refuse_names, text_column
from fedaudit.datasets.tables.settings import TableSettings
from fedaudit.datasets.tables.table import dataset_of

if TYPE_CHECKING:
    from _csv import Reader

_SEPARATORS = (",", ";", "\t", "|")
_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".data")
_SAMPLE = 2**16
"""Bytes from which the separator is recognised."""
_SAMPLED_ROWS = 100
_MOST_COLUMNS = 10_000
_OTHER_FILES = {
    b"PK\x03\x04": "an Excel or zip file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a compressed file",
    b"\xff\xfe": "UTF-16 text (encoding = 'utf-16')",
    b"\xfe\xff": "UTF-16 text (encoding = 'utf-16')",
}
"""First bytes of files that are no UTF-8 text."""

Encoding: TypeAlias = Literal[
    "utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "cp1251", "shift_jis", "gb18030"
]


@dataclass(frozen=True)
class csv(TableSettings, DataFile):
    """Data set in a table of comma-separated values.

    The first line has the names of the columns. Spaces around cells are removed. Columns of numbers
    and of categories are recognised, and the run prints what was read.

    Attributes:
        path: Path of the file, or its name in the data directory.
        separator: Character between cells: "," or ";" or "|" or a tabulator; recognised if empty.
        decimal: Decimal mark of numbers: "." or ",".
        encoding: Encoding of the text, such as "latin-1"; UTF-8 with or without byte order mark by
            default.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.csv("hospitals.csv", label="readmitted", client="hospital").part().what
        'csv:hospitals'
    """

    looks_for: ClassVar[str] = "NAME.csv"
    suffix: ClassVar[str] = ".csv"

    _: KW_ONLY
    separator: Literal["", ",", ";", "\t", "|"] = ""
    decimal: Decimal = "."
    encoding: Encoding = "utf-8"

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return ``NAME.csv``, or ``NAME`` with another suffix of texts, if it exists."""
        names = [f"{name}.csv", *([name] if Path(name).suffix in _SUFFIXES else [])]
        return next((path for path in map(folder.joinpath, names) if path.is_file()), None)

    @property
    def file(self) -> Path:
        """The path with its suffix."""
        path = Path(self.path)
        return path if path.suffix in _SUFFIXES else super().file

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the test rows.

        Raises:
            BadInput: The file is no table, or a column cannot be used.
        """
        return dataset_of(self._table(), self, seed)

    def _table(self) -> Table:
        path, encoding = self.file, _codec(self.encoding)
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                start = file.read(_SAMPLE)
                _refuse_binary(path, start, self.encoding)
                decoder = codecs.getincrementaldecoder(encoding)("strict")
                is_whole = len(start) == size
                _refuse_utf8(path, start, self.encoding, is_whole=is_whole)
                sample = decoder.decode(start, final=is_whole)
                separator = self.separator or _recognised(path, sample, is_whole)
                file.seek(0)
                with io.TextIOWrapper(file, encoding, "strict", newline="") as text:
                    return _read(path, reader(text, delimiter=separator, strict=True), self, size)
        except UnicodeError as error:
            raise BadInput(
                f"{path.name} is not {self.encoding} text; set encoding to that of the file, such "
                "as encoding = 'latin-1' or 'cp1252', or save it as UTF-8"
            ) from error
        except Error as error:
            raise BadInput(
                f"{path.name} is not a table of separated values ({error}); check the quotation "
                "marks and the separator"
            ) from error
        except OSError as error:
            raise BadInput(
                f"{path} cannot be read ({error.strerror}); give the path of a regular file"
            ) from error


def _codec(encoding: str) -> str:
    return "utf-8-sig" if encoding == "utf-8" else encoding


def _refuse_binary(path: Path, start: bytes, encoding: str) -> None:
    if encoding == "utf-16":
        return
    kind = next((kind for first, kind in _OTHER_FILES.items() if start.startswith(first)), "")
    if kind or b"\0" in start:
        raise BadInput(
            f"{path.name} is {kind or 'a binary file'}, and not {encoding} text; save the table as "
            "CSV in UTF-8, or set encoding"
        )


def _refuse_utf8(path: Path, start: bytes, encoding: str, *, is_whole: bool) -> None:
    """Raise if UTF-8 text would be read in an encoding in which any bytes are text."""
    if encoding.startswith("utf") or start.isascii():
        return
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(start, final=is_whole)
    except UnicodeDecodeError:
        return
    raise BadInput(
        f"{path.name} is UTF-8 text, and would be read with wrong letters as {encoding}; leave "
        "encoding out"
    )


def _recognised(path: Path, sample: str, is_whole: bool) -> str:
    """Return the separator with which all first rows have the same number of cells.

    Raises:
        BadInput: There is none, or several.
    """
    lines = sample.splitlines(keepends=True)
    # The last line of a longer file may be cut.
    complete = lines if is_whole else lines[:-1]
    widths = {separator: _widths(complete, separator) for separator in _SEPARATORS}
    even = [s for s, counts in widths.items() if len(set(counts)) == 1 and counts[0] > 1]
    if len(even) > 1:
        raise BadInput(
            f"{path.name} can be read with the separators {' and '.join(map(repr, even))}; set "
            "separator to the right one"
        )
    if even:
        return even[0]
    # Reading with the separator of most columns states where rows differ.
    return max(widths, key=lambda separator: widths[separator][:1] or [0])


def _widths(lines: Sequence[str], separator: str) -> list[int]:
    try:
        rows = list(islice(reader(lines, delimiter=separator, strict=True), _SAMPLED_ROWS))
    except Error:
        return []
    return [len(row) for row in rows if row]


def _read(path: Path, rows: "Reader", source: csv, size: int) -> Table:
    header = _header(path, rows)
    index: list[dict[str, int]] = [{} for _ in header]
    codes = [array("q") for _ in header]
    lines = array("q")
    width = len(header)
    for row in rows:
        if len(row) != width:
            if not row:
                continue
            raise BadInput(
                f"line {rows.line_num} of {path.name} has {len(row)} cells, and the header has "
                f"{width} (separator {rows.dialect.delimiter!r}); quote cells that contain the "
                "separator, or set another separator"
            )
        lines.append(rows.line_num)
        for place, cell in enumerate(row):
            words = index[place]
            codes[place].append(words.setdefault(cell.strip(), len(words)))
    if not lines:
        raise BadInput(f"{path.name} has a header and no rows; give a table with rows")
    columns = {
        name: text_column(np.frombuffer(code, dtype=np.int64), [*words])
        for name, code, words in zip(header, codes, index, strict=True)
    }
    mark = {"\t": "tabulator"}.get(rows.dialect.delimiter, repr(rows.dialect.delimiter))
    how = f"separator {mark}, decimal mark {source.decimal!r}, {source.encoding}"
    line_of_row = np.frombuffer(lines, dtype=np.int64)
    return Table(path.name, columns, how, size, line_of_row, source.decimal)


def _header(path: Path, rows: "Reader") -> list[str]:
    """Return the names of the columns.

    Raises:
        BadInput: There is no header, or a name is empty, used twice, or a number.
    """
    separator = rows.dialect.delimiter
    header = [name.strip() for name in next((row for row in rows if row), [])]
    if not header:
        raise BadInput(f"{path.name} is empty; give a table with a header and rows")
    if len(header) == 1:
        other = [mark for mark in _SEPARATORS if mark != separator and mark in header[0]]
        hint = f"set separator = {other[0]!r}" if other else "give a label and columns of features"
        raise BadInput(f"{path.name} has a single column with the separator {separator!r}; {hint}")
    if len(header) > _MOST_COLUMNS:
        raise BadInput(
            f"{path.name} has {len(header):,} columns and at most {_MOST_COLUMNS:,} are read; "
            "give fewer columns"
        )
    if all(number_of(name, ".") is not None for name in header):
        raise BadInput(
            f"the first line of {path.name} has numbers only, and should name the columns; add a "
            "line with their names"
        )
    refuse_names(path.name, header)
    return header
