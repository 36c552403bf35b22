"""Columns of a table as arrays: numbers, or texts that are encoded as codes."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, unknown_name

MISSING = -1
"""Code of a missing text."""

Decimal: TypeAlias = Literal[".", ","]
"""Decimal mark of numbers."""


class NumberColumn(NamedTuple):
    """Column of numbers.

    Attributes:
        values: Number in each row; NaN if it is missing.
    """

    values: Float[ndarray, " rows"]

    @property
    def missing(self) -> Bool[ndarray, " rows"]:
        """Mask of the rows without a value."""
        mask: Bool[ndarray, " rows"] = np.isnan(self.values)
        return mask


class TextColumn(NamedTuple):
    """Column of texts.

    Attributes:
        codes: Index of each row's text in ``texts``; ``MISSING`` if it is missing.
        texts: The distinct texts, sorted.
    """

    codes: Int[ndarray, " rows"]
    texts: tuple[str, ...]

    @property
    def missing(self) -> Bool[ndarray, " rows"]:
        """Mask of the rows without a value."""
        mask: Bool[ndarray, " rows"] = self.codes == MISSING
        return mask

    @property
    def counts(self) -> Int[ndarray, " texts"]:
        """Number of rows of each text."""
        return np.bincount(self.codes[~self.missing], minlength=len(self.texts))


Column: TypeAlias = NumberColumn | TextColumn


@dataclass(frozen=True)
class Table:
    """Table with columns of equal length.

    Attributes:
        name: Name of the table, for messages.
        columns: The columns by name, in order.
        source: Description of how the table was read.
        file_bytes: Size in bytes on disk, which limits the memory of features.
        lines: Line number of each row in its file; None if the table is in memory.
        decimal: Decimal mark of numbers in texts.
        unread: Names of columns that are ignored, which may have any type.
        is_typed: Whether the source states the type of each column. Texts are then never parsed as
            numbers.
    """

    name: str
    columns: Mapping[str, Column]
    source: str
    file_bytes: int
    lines: Int[ndarray, " rows"] | None = None
    decimal: Decimal = "."
    unread: tuple[str, ...] = ()
    is_typed: bool = False

    @property
    def rows(self) -> int:
        """Number of rows."""
        column = next(iter(self.columns.values()))
        return len(column.missing)

    def column(self, name: str, argument: str) -> Column:
        """Return the column that an argument names, or raise if it does not exist."""
        if name not in self.columns:
            unknown = unknown_name("column", name, self.columns, list_command="")
            raise BadInput(f"{argument} of {self.name!r}: {unknown}")
        return self.columns[name]

    def first(self, mask: Bool[ndarray, " rows"]) -> str:
        """Describe the first row of a mask for a message: "line 7" of a file, or "row 5"."""
        row = int(mask.argmax())
        return f"row {row}" if self.lines is None else f"line {self.lines[row]}"


def text_column(codes: Int[ndarray, " rows"], texts: Sequence[str]) -> TextColumn:
    """Return a column from texts in any order, which may be repeated or empty (missing).

    A code is the index of a row's text, or negative for a missing text.
    """
    unique_texts = sorted({text for text in texts if text})
    new_code = {text: code for code, text in enumerate(unique_texts)}
    # Negative codes select the last entry.
    new_codes = np.array(
        [*(new_code.get(text, MISSING) for text in texts), MISSING], dtype=np.int64
    )
    return TextColumn(new_codes[np.where(codes < 0, len(texts), codes)], tuple(unique_texts))


def boolean_column(values: Float[ndarray, " rows"]) -> TextColumn:
    """Return booleans, given as 1, 0 and NaN (missing), as a column of the texts True and False."""
    codes = np.where(np.isnan(values), MISSING, np.nan_to_num(values)).astype(np.int64)
    return text_column(codes, ["False", "True"])


def join_columns(table: str, name: str, parts: Sequence[Column]) -> Column:
    """Concatenate the rows of a column in several parts of a table.

    Raises:
        BadInput: One part has numbers and another texts.
    """
    numbers = [part.values for part in parts if isinstance(part, NumberColumn)]
    texts = [part for part in parts if isinstance(part, TextColumn)]
    if numbers and texts:
        raise BadInput(
            f"column {name!r} of {table!r} has numbers in one part and texts in another; store one "
            f"type in both, or set ignore = ['{name}']"
        )
    if numbers:
        return NumberColumn(np.concatenate(numbers))
    starts = np.cumsum([0, *(len(part.texts) for part in texts[:-1])])
    codes = [
        np.where(part.missing, MISSING, part.codes + start)
        for part, start in zip(texts, starts, strict=True)
    ]
    return text_column(np.concatenate(codes), [text for part in texts for text in part.texts])


def without_texts(column: TextColumn, missing: Collection[str]) -> TextColumn:
    """Return the column with some of its texts replaced by missing values."""
    return text_column(column.codes, ["" if text in missing else text for text in column.texts])


def as_texts(column: Column) -> TextColumn:
    """Return a column as texts; whole numbers have no decimal point."""
    if isinstance(column, TextColumn):
        return column
    is_present = ~column.missing
    values, inverse = np.unique(column.values[is_present], return_inverse=True)
    codes = np.full(len(column.values), MISSING, dtype=np.int64)
    codes[is_present] = inverse
    return text_column(codes, [f"{value:.15g}" for value in values])


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_MISSING_MARKERS = frozenset(
    {"?", "-", "--", ".", "*", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing"}
    | {"unknown", "not available"}
)
"""Texts that usually mark missing values, in lower case."""


def parse_number(word: str, decimal: Decimal) -> float | None:
    """Parse a text as a number; return None for other texts and for codes such as 007."""
    if decimal == ",":
        # A point is then a mark of thousands, and such numbers are not parsed.
        word = word.replace(".", "_").replace(",", ".")
    if not _NUMBER.fullmatch(word.lower()) or is_code(word):
        return None
    return float(word)


def is_code(word: str) -> bool:
    """Return whether a text has leading zeros, such as 007, and is a code instead of a number."""
    return _LEADING_ZERO.match(word) is not None


def as_numbers(table: Table, name: str) -> NumberColumn | None:
    """Return the numbers of a column; None if its texts are categories.

    Raises:
        BadInput: Numbers have another decimal mark, or the column has numbers and texts that seem
            to be errors or to mark missing values.
    """
    column = table.columns[name]
    if isinstance(column, NumberColumn):
        return column
    parsed = [parse_number(word, table.decimal) for word in column.texts]
    is_number = np.array([value is not None for value in parsed], dtype=bool)
    if is_number.all():
        # The code of a missing text, -1, selects the last entry.
        values = np.array([*parsed, np.nan], dtype=np.float64)
        return NumberColumn(values[column.codes])
    counts = column.counts
    other: Decimal = "," if table.decimal == "." else "."
    has_other_mark = [
        value is None and parse_number(text, other) is not None
        for text, value in zip(column.texts, parsed, strict=True)
    ]
    if counts[np.array(has_other_mark)].sum() > counts.sum() / 2:
        raise BadInput(
            f"column {name!r} of {table.name!r} has numbers with {other!r}, and the decimal mark "
            f"is {table.decimal!r}; set decimal = {other!r} if {other!r} is the decimal mark, or "
            "write numbers without separators of thousands"
        )
    if not is_number.any():
        return None
    non_numbers = list(compress(column.texts, ~is_number))
    markers = [text for text in non_numbers if text.lower() in _MISSING_MARKERS]
    are_mostly_numbers = counts[is_number].sum() > counts.sum() / 2
    if are_mostly_numbers or len(markers) == len(non_numbers):
        raise _mixed_column_error(table, name, column, is_number, markers)
    return None


def _mixed_column_error(
    table: Table,
    name: str,
    column: TextColumn,
    is_number: Bool[ndarray, " texts"],
    markers: Sequence[str],
) -> BadInput:
    is_text = np.append(~is_number, False)[column.codes]
    suggested = ", ".join(f'"{word}"' for word in markers[:3]) or '"?", "NA"'
    return BadInput(
        f"column {name!r} of {table.name!r} has numbers, and {int(is_text.sum())} of "
        f"{table.rows} cells are no numbers (the first in {table.first(is_text)}); set missing = "
        f"[{suggested}] if they mark missing values, categorical = ['{name}'] if the column has "
        f"categories, or ignore = ['{name}']"
    )


def raise_if_infinite(table: Table, name: str, column: NumberColumn) -> None:
    """Raise if a column has infinite numbers."""
    infinite = np.isinf(column.values)
    if infinite.any():
        raise BadInput(
            f"column {name!r} of {table.name!r} has {int(infinite.sum())} infinite numbers (the "
            f"first in {table.first(infinite)}); leave these cells empty, or ignore = ['{name}']"
        )


def _is_invisible(character: str) -> bool:
    """Return whether a character has no width, so that two different names look equal."""
    is_format = unicodedata.category(character) in ("Cc", "Cf")
    # Line breaks of quoted names are visible, and joiners are part of words in Persian and Hindi.
    return is_format and character not in "\t\n\r\u200c\u200d"


def raise_if_names_invalid(table: str, names: Sequence[str]) -> None:
    """Raise if the name of a column is empty, has an invisible character, or is used twice."""
    empty = [number for number, name in enumerate(names, 1) if not name]
    if empty:
        raise BadInput(
            f"column {empty[0]} of {table!r} has no name; name it, or write the table without an "
            "index"
        )
    for number, name in enumerate(names, 1):
        if invisible := next(filter(_is_invisible, name), ""):
            raise BadInput(
                f"the name of column {number} of {table!r}, {name!r}, has the invisible character "
                f"U+{ord(invisible):04X}; remove this character from the name"
            )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise BadInput(f"{table!r} has two columns named {repeated[0]!r}; rename or remove one")
