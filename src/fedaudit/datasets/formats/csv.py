"""Tables in text files with commas or other separators between cells."""

import codecs
import io
import os
from array import array
from collections.abc import Sequence
from csv import Error, reader
from dataclasses import KW_ONLY
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.files import open_regular
from fedaudit.datasets.dataset import DataFile
from fedaudit.datasets.tables.columns import (
    Decimal,
    Table,
    parse_number,
    raise_if_names_invalid,
    text_column,
)
from fedaudit.datasets.tables.table import StoredTable, TableSource

if TYPE_CHECKING:
    from _csv import Reader

_SEPARATORS = (",", ";", "\t", "|")
_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".data")
_SAMPLE_BYTES = 2**16
"""Number of leading bytes of a file from which the separator is recognised."""
_BYTE_ORDER_MARK = "\ufeff"
_CHUNK_BYTES = 2**20
_SAMPLE_ROWS = 100
_MAX_COLUMNS = 10_000
_UTF_32 = "UTF-32 text"
_FORMAT_BY_START = {
    b"PK\x03\x04": "an Excel or zip file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a compressed file",
    # These begin like UTF-16 text, or contain zeros like a binary file.
    b"\xff\xfe\0\0": _UTF_32,
    b"\0\0\xfe\xff": _UTF_32,
    b"\xff\xfe": "UTF-16 text (encoding = 'utf-16')",
    b"\xfe\xff": "UTF-16 text (encoding = 'utf-16')",
}
"""First bytes of files that are not UTF-8 text."""

Encoding: TypeAlias = Literal[
    "utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "cp1251", "shift_jis", "gb18030"
]


@dataclass(frozen=True)
class csv(TableSource, DataFile):
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
        >>> hospitals = fa.datasets.csv("hospitals.csv", label="readmitted", client="hospital")
        >>> hospitals.named_part().what
        'csv:hospitals'
    """

    expected_layout: ClassVar[str] = "NAME.csv"
    suffix: ClassVar[str] = ".csv"

    _: KW_ONLY
    separator: Literal["", ",", ";", "\t", "|"] = ""
    decimal: Decimal = "."
    encoding: Encoding = "utf-8"

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return ``NAME.csv``, or ``NAME`` with another suffix of texts, if it exists."""
        path = folder / name
        return super().find(folder, name) or (
            path if path.suffix in _SUFFIXES and path.is_file() else None
        )

    @property
    def _path_with_suffix(self) -> Path:
        path = Path(self.path)
        return path if path.suffix in _SUFFIXES else super()._path_with_suffix

    def load_table(self) -> StoredTable:
        """Read the table."""
        return StoredTable(self._table(), self)

    def _table(self) -> Table:
        path = self.file
        codec = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                _raise_if_misread_bytes(path, file, self.encoding)
                file.seek(0)
                start = file.read(_SAMPLE_BYTES)
                is_whole = len(start) == size
                sample = codecs.getincrementaldecoder(codec)("strict").decode(start, final=is_whole)
                if sample.startswith(_BYTE_ORDER_MARK):
                    raise BadInput(
                        f"{path.name} begins with two byte order marks; save the table with one or "
                        "none"
                    )
                separator = self.separator or _recognised_separator(path, sample, is_whole)
                file.seek(0)
                with io.TextIOWrapper(file, codec, "strict", newline="") as text:
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


def _raise_if_misread_bytes(path: Path, file: IO[bytes], encoding: str) -> None:
    """Raise if the file is binary, or is UTF-8 text that would be read in another encoding."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    description, is_ascii, is_utf8 = "", True, True
    while chunk := file.read(_CHUNK_BYTES):
        if file.tell() == len(chunk):
            formats = (name for first, name in _FORMAT_BY_START.items() if chunk.startswith(first))
            description = next(formats, "")
        description = description or ("a binary file" if b"\0" in chunk else "")
        is_ascii = is_ascii and chunk.isascii()
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError:
            is_utf8 = False
            decoder.reset()
    if description == _UTF_32 or (description and encoding != "utf-16"):
        other = "" if description == _UTF_32 else ", or set encoding"
        raise BadInput(
            f"{path.name} is {description}, and not {encoding} text; save the table as CSV in "
            f"UTF-8{other}"
        )
    if is_utf8 and not is_ascii and not encoding.startswith("utf"):
        raise BadInput(
            f"{path.name} is UTF-8 text, and would be read with wrong letters as {encoding}; leave "
            "encoding out"
        )


def _recognised_separator(path: Path, sample: str, is_whole: bool) -> str:
    """Return the separator with which all rows of the sample have the same number of cells.

    Raises:
        BadInput: Several separators give all rows the same number of cells.
    """
    lines = sample.splitlines(keepends=True)
    # The last line may be incomplete if the sample is not the whole file.
    complete = lines if is_whole else lines[:-1]
    widths = {separator: _row_widths(complete, separator) for separator in _SEPARATORS}
    fitting = [s for s, counts in widths.items() if len(set(counts)) == 1 and counts[0] > 1]
    if len(fitting) > 1:
        raise BadInput(
            f"{path.name} can be read with the separators {' and '.join(map(repr, fitting))}; set "
            "separator to the correct one"
        )
    if fitting:
        return fitting[0]
    # If no separator fits, use the one with the most columns. Reading then fails at a row with
    # another number of cells, and the error names this row.
    return max(widths, key=lambda separator: widths[separator][:1] or [0])


def _row_widths(lines: Sequence[str], separator: str) -> list[int]:
    try:
        rows = list(islice(reader(lines, delimiter=separator, strict=True), _SAMPLE_ROWS))
    except Error:
        return []
    return [len(row) for row in rows if row]


def _read(path: Path, rows: "Reader", source: csv, size: int) -> Table:
    header = _header(path, rows)
    codes_by_text: list[dict[str, int]] = [{} for _ in header]
    codes = [array("q") for _ in header]
    lines = array("q")
    width = len(header)
    previous_line = rows.line_num
    for row in rows:
        if rows.line_num > previous_line + 2:
            _raise_if_rows_in_a_cell(path, row, rows, previous_line + 1)
        previous_line = rows.line_num
        if not row:
            continue
        if len(row) != width:
            raise BadInput(
                f"line {rows.line_num} of {path.name} has {len(row)} cells, and the header has "
                f"{width} (separator {rows.dialect.delimiter!r}); quote cells that contain the "
                "separator, or set another separator"
            )
        lines.append(rows.line_num)
        for column_codes, code_of, cell in zip(codes, codes_by_text, row, strict=True):
            column_codes.append(code_of.setdefault(cell.strip(), len(code_of)))
    if not lines:
        raise BadInput(f"{path.name} has a header and no rows; give a table with rows")
    columns = {
        name: text_column(np.frombuffer(column_codes, dtype=np.int64), [*code_of])
        for name, column_codes, code_of in zip(header, codes, codes_by_text, strict=True)
    }
    mark = {"\t": "tabulator"}.get(rows.dialect.delimiter, repr(rows.dialect.delimiter))
    description = f"separator {mark}, decimal mark {source.decimal!r}, {source.encoding}"
    line_of_row = np.frombuffer(lines, dtype=np.int64)
    return Table(path.name, columns, description, size, line_of_row, source.decimal)


def _raise_if_rows_in_a_cell(path: Path, row: Sequence[str], rows: "Reader", line: int) -> None:
    """Raise if a quoted cell contains whole lines that look like rows: a quote is missing."""
    n_separators = len(row) - 1
    for cell in row:
        inner = cell.splitlines()[1:-1]
        if inner and all(text.count(rows.dialect.delimiter) == n_separators for text in inner):
            raise BadInput(
                f"a quoted cell of {path.name} that begins in line {line} contains {len(inner)} "
                "lines that look like rows of the table; check the quotation marks of this line"
            )


def _header(path: Path, rows: "Reader") -> list[str]:
    """Return the names of the columns."""
    separator = rows.dialect.delimiter
    header = [name.strip() for name in next((row for row in rows if row), [])]
    if not header:
        raise BadInput(f"{path.name} is empty; give a table with a header and rows")
    if len(header) == 1:
        other = [mark for mark in _SEPARATORS if mark != separator and mark in header[0]]
        hint = f"set separator = {other[0]!r}" if other else "give a label and columns of features"
        raise BadInput(f"{path.name} has a single column with the separator {separator!r}; {hint}")
    if len(header) > _MAX_COLUMNS:
        raise BadInput(
            f"{path.name} has {len(header):,} columns, but at most {_MAX_COLUMNS:,} are read; "
            "give fewer columns"
        )
    if all(parse_number(name, ".") is not None for name in header):
        raise BadInput(
            f"the first line of {path.name} has numbers only, and should name the columns; add a "
            "line with their names"
        )
    raise_if_names_invalid(path.name, header)
    return header
