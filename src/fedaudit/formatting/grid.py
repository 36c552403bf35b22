"""Tables and tiles as data, and shortening of texts."""

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from string import ascii_lowercase
from typing import Literal, NamedTuple

Tone = Literal["", "alarm", "raised", "weak", "clear", "strong", "good", "muted"]


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Attributes:
        detail: Smaller lines below the text, such as the interval.
        tone: Name of the colour. The text must be clear without the colour.
        mark: Letter of a footnote; empty without a footnote.
        full: The full text if ``text`` is shortened.
    """

    text: str
    detail: str = ""
    tone: Tone = ""
    mark: str = ""
    full: str = ""


class Heading(NamedTuple):
    """Common heading of several columns, with a smaller line below it."""

    text: str
    span: int
    detail: str = ""


class Column(NamedTuple):
    """Heading of a column; numeric columns are right-aligned."""

    text: str
    numeric: bool = False


@dataclass(frozen=True)
class Grid:
    """Table in which the first cell of each row is the row's heading.

    The spans of ``headings`` add up to the number of columns. ``notes`` has pairs (letter, text).
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    headings: tuple[Heading, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    remark: str = ""


@dataclass
class Footnotes:
    """Footnotes of one table with their letters; equal notes get the same letter."""

    notes: dict[str, str] = field(default_factory=dict)

    def mark(self, note: str) -> str:
        """Return the letter of a note; "" for an empty note."""
        note, count = shorten(note, 300), len(self.notes)
        letter = ascii_lowercase[count // 26 - 1] * (count >= 26) + ascii_lowercase[count % 26]
        return self.notes.setdefault(note, letter) if note else ""

    def listed(self) -> tuple[tuple[str, str], ...]:
        """Return all notes as (letter, text), in the order of their letters."""
        return tuple((letter, note) for note, letter in self.notes.items())


def as_one_line(text: str) -> str:
    """Return text on one line without control, direction or surrogate characters."""
    return text if text.isprintable() else _on_one_line(text)


@lru_cache(maxsize=256)  # the same few names appear in thousands of places
def _on_one_line(text: str) -> str:
    # Even a long text has few distinct characters.
    controls = [char for char in set(text) if unicodedata.category(char)[0] == "C"]
    replacements = dict.fromkeys(map(ord, controls), "\ufffd")
    return text.translate(replacements | dict.fromkeys(map(ord, "\n\r\t\u2028\u2029"), " "))


def shorten(text: str, limit: int = 48) -> str:
    """Return clean text cut to a length, with an ellipsis at the cut."""
    text = as_one_line(text)
    return text if len(text) <= limit else text[: limit - 1].rstrip(" …") + "…"


def shorten_middle(text: str, limit: int) -> str:
    """Return clean text cut in the middle, since names often differ at the end."""
    text = as_one_line(text)
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def name_cell(text: str, detail: str = "", *, limit: int = 48) -> Cell:
    """Return a cell with a shortened name from a record; ``full`` has the full name."""
    short, full = shorten(text, limit), shorten(text, _LONGEST_FULL)
    return Cell(short, detail, full=full if full != short else "")


_LONGEST_FULL = 400  # largest number of characters in the ``full`` text of a cell
EMPTY = Cell("–", tone="muted")  # placeholder for a missing value

Header = str | tuple[str, str]
"""Heading of a column, or a pair: common heading of several columns, and the column's heading."""

Content = Cell | str | None
"""Content of a cell; None is printed as a dash."""

Cells = Mapping[Header, Content]
"""Cells of a row by the headings of their columns."""


def as_cell(value: Content) -> Cell:
    """Return a text as a cell, and None as a cell with a dash."""
    return EMPTY if value is None else Cell(value) if isinstance(value, str) else value


def grid_of(
    caption: str,
    rows: Iterable[Cells],
    *,
    words: Collection[str] = (),
    order: Iterable[Header] = (),
    under: Mapping[str, str] | None = None,
    notes: Footnotes | None = None,
    remark: str = "",
) -> Grid:
    """Return a table of rows, with all columns that occur in a row.

    Args:
        caption: Caption of the table.
        rows: Rows; the cell of the first column is the row's heading.
        words: Columns of text. All other columns except the first are right-aligned.
        order: Columns that come first; columns below one common heading become adjacent.
        under: Smaller lines below common headings.
        notes: Footnotes of the cells.
        remark: Sentences below the table.
    """
    cells = [{_column_key(name): as_cell(cell) for name, cell in row.items()} for row in rows]
    used_columns = dict.fromkeys(key for row in cells for key in row)
    ordered = [
        key
        for key in dict.fromkeys((*map(_column_key, order), *used_columns))
        if key in used_columns
    ]
    commons = dict.fromkeys(common for common, _ in ordered)
    keys = [key for common in commons for key in ordered if key[0] == common]
    names = [shorten(name, 60) for _, name in keys]
    headings = [
        Heading(shorten(text, 60), sum(key[0] == text for key in keys), (under or {}).get(text, ""))
        for text in commons
    ]
    return Grid(
        caption,
        tuple(Column(name, i > 0 and name not in words) for i, name in enumerate(names)),
        tuple(tuple(row.get(key, EMPTY) for key in keys) for row in cells),
        tuple(headings) if any(commons) else (),
        notes.listed() if notes else (),
        remark.strip(),
    )


def _column_key(header: Header) -> tuple[str, str]:
    return ("", header) if isinstance(header, str) else header


def stack_lines(*lines: str) -> str:
    """Join the lines below a cell's text, without empty lines."""
    return "\n".join(filter(None, lines))


class Tile(NamedTuple):
    """A number at the top of a report: name, value, and details such as the interval."""

    label: str
    value: str
    details: tuple[str, ...]
    tone: str = ""

    @property
    def detail(self) -> str:
        """All details on one line."""
        return " · ".join(self.details)

    @property
    def line(self) -> str:
        """The tile as one line of text."""
        return f"{self.label}: {self.value} ({self.detail})"


def tile(label: str, value: str, *details: str, tone: str = "") -> Tile:
    """Return a tile without the empty details."""
    return Tile(label, value, tuple(filter(None, details)), tone)
