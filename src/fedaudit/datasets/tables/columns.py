"""Columns of a table: numbers, or texts as codes."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """Numbers of a column.

    Attributes:
        values: One number for each row; NaN if it is missing.
    """

    values: Float[ndarray, " rows"]

    @property
    def missing(self) -> Bool[ndarray, " rows"]:
        """Mask of the rows without a value."""
        mask: Bool[ndarray, " rows"] = np.isnan(self.values)
        return mask


class TextColumn(NamedTuple):
    """Texts of a column.

    Attributes:
        codes: For each row, the index of its text; ``MISSING`` if it has none.
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
    """Columns of equal length.

    Attributes:
        name: Name of the table, for messages.
        columns: The columns by name, in order.
        source: Description of how the table was read.
        on_disk: Size in bytes, which limits the memory of its features.
        lines: Line of each row in its file; None if the table is in memory.
        decimal: Decimal mark of numbers in texts.
        unread: Further columns, which are ignored and may have any type.
        is_typed: Whether the source states the type of each column; texts are then never numbers.
    """

    name: str
    columns: Mapping[str, Column]
    source: str
    on_disk: int
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
        """Return where the first row of a mask is: "line 7" of a file, or "row 5"."""
        row = int(mask.argmax())
        return f"row {row}" if self.lines is None else f"line {self.lines[row]}"


def text_column(codes: Int[ndarray, " rows"], texts: Sequence[str]) -> TextColumn:
    """Return a column with sorted texts from codes in any order; empty texts are missing.

    A code is the index of a row's text, or negative for a missing text.
    """
    order = sorted({text for text in texts if text})
    new_code = {text: code for code, text in enumerate(order)}
    # The last entry is the code of missing texts.
    new_codes = np.array(
        [*(new_code.get(text, MISSING) for text in texts), MISSING], dtype=np.int64
    )
    return TextColumn(new_codes[np.where(codes < 0, len(texts), codes)], tuple(order))


def boolean_column(values: Float[ndarray, " rows"]) -> TextColumn:
    """Return a column of 1 (true), 0 (false) and NaN (missing) as texts."""
    codes = np.where(np.isnan(values), MISSING, np.nan_to_num(values)).astype(np.int64)
    return text_column(codes, ["False", "True"])


def joined(table: str, name: str, parts: Sequence[Column]) -> Column:
    """Return a column with the rows of several parts of a table.

    Raises:
        BadInput: One part has numbers and another texts.
    """
    numbers = [part.values for part in parts if isinstance(part, NumberColumn)]
    texts = [part for part in parts if isinstance(part, TextColumn)]
    if numbers and texts:
        raise BadInput(
            f"column {name!r} of {table!r} has numbers in one part and texts in another; store one "
            f"kind in both, or set ignore = ['{name}']"
        )
    if numbers:
        return NumberColumn(np.concatenate(numbers))
    starts = np.cumsum([0, *(len(part.texts) for part in texts[:-1])])
    codes = [
        np.where(part.missing, MISSING, part.codes + start)
        for part, start in zip(texts, starts, strict=True)
    ]
    return text_column(np.concatenate(codes), [text for part in texts for text in part.texts])


def without_texts(column: TextColumn, missing: Iterable[str]) -> TextColumn:
    """Return the column in which some texts count as missing."""
    absent = set(missing)
    return text_column(column.codes, ["" if word in absent else word for word in column.texts])


def as_texts(column: Column) -> TextColumn:
    """Return a column as texts; whole numbers have no decimal point."""
    if isinstance(column, TextColumn):
        return column
    present = ~column.missing
    values, inverse = np.unique(column.values[present], return_inverse=True)
    codes = np.full(len(column.values), MISSING, dtype=np.int64)
    codes[present] = inverse
    return text_column(codes, [f"{value:.15g}" for value in values])


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_MARKERS = frozenset(
    {"?", "-", "--", ".", "*", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing"}
    | {"unknown", "not available"}
)
"""Texts that usually mark missing values, in lower case."""


def parse_number(word: str, decimal: Decimal) -> float | None:
    """Parse a text as a number; return None for other texts and for codes such as 007."""
    if decimal == ",":
        word = word.replace(".", "_").replace(",", ".")
    if not _NUMBER.fullmatch(word.lower()) or is_code(word):
        return None
    return float(word)


def is_code(word: str) -> bool:
    """Return True for digits with leading zeros, such as 007, which are a code and no number."""
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
    swapped = [
        value is None and parse_number(word, other) is not None
        for word, value in zip(column.texts, parsed, strict=True)
    ]
    if counts[np.array(swapped)].sum() > counts.sum() / 2:
        raise BadInput(
            f"column {name!r} of {table.name!r} has numbers with {other!r}, and the decimal mark "
            f"is {table.decimal!r}; set decimal = {other!r} if {other!r} is the decimal mark, or "
            "write numbers without separators of thousands"
        )
    if not is_number.any():
        return None
    non_numbers = [word for word, value in zip(column.texts, parsed, strict=True) if value is None]
    markers = [word for word in non_numbers if word.lower() in _MARKERS]
    share = counts[is_number].sum() / counts.sum()
    if share > 0.5 or len(markers) == len(non_numbers):
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


def refuse_infinite(table: Table, name: str, column: NumberColumn) -> None:
    """Raise if a column has infinite numbers."""
    infinite = np.isinf(column.values)
    if infinite.any():
        raise BadInput(
            f"column {name!r} of {table.name!r} has {int(infinite.sum())} infinite numbers (the "
            f"first in {table.first(infinite)}); leave these cells empty, or ignore = ['{name}']"
        )


def refuse_names(table: str, names: Sequence[str]) -> None:
    """Raise if the name of a column is empty or used twice."""
    empty = [number for number, name in enumerate(names, 1) if not name]
    if empty:
        raise BadInput(
            f"column {empty[0]} of {table!r} has no name; name it, or write the table without an "
            "index"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise BadInput(f"{table!r} has two columns named {repeated[0]!r}; rename or remove one")
