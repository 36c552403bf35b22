"""Data of tables, for the terminal and the HTML report."""

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
        tone: Name of the colour. The text must be clear without it.
        mark: Letter of a footnote; empty without one.
        full: The full text if ``text`` is shortened.
    """

    text: str
    detail: str = ""
    tone: Tone = ""
    mark: str = ""
    full: str = ""


class Heading(NamedTuple):
    """Heading over several columns, with a smaller line below it."""

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

    The spans of ``headings`` add up to the number of columns. Notes are pairs (letter, text).
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    headings: tuple[Heading, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    remark: str = ""


@dataclass
class Footnotes:
    """Letters for the notes of one table; equal notes get the same letter."""

    notes: dict[str, str] = field(default_factory=dict)

    def mark(self, note: str) -> str:
        """Return the letter of a note; "" for an empty note."""
        note, count = shortened(note, 300), len(self.notes)
        letter = ascii_lowercase[count // 26 - 1] * (count >= 26) + ascii_lowercase[count % 26]
        return self.notes.setdefault(note, letter) if note else ""

    def listed(self) -> tuple[tuple[str, str], ...]:
        """Return all notes as (letter, text), in the order of their letters."""
        return tuple((letter, note) for note, letter in self.notes.items())


def clean(text: str) -> str:
    """Return text on one line without control, direction or surrogate characters."""
    return text if text.isprintable() else _on_one_line(text)


@lru_cache(maxsize=256)  # the same few names appear in thousands of places
def _on_one_line(text: str) -> str:
    # Few characters are distinct, also of a long text.
    controls = [char for char in set(text) if unicodedata.category(char)[0] == "C"]
    shown = dict.fromkeys(map(ord, controls), "\ufffd")
    return text.translate(shown | dict.fromkeys(map(ord, "\n\r\t\u2028\u2029"), " "))


def shortened(text: str, limit: int = 48) -> str:
    """Return clean text cut to a length, with an ellipsis at the cut."""
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def shorten_middle(text: str, limit: int) -> str:
    """Shorten clean text but keep the end, where names differ."""
    text = clean(text)
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


_LONGEST_FULL = 400  # largest number of characters in the ``full`` text of a cell


def name_cell(text: str, detail: str = "", *, limit: int = 48) -> Cell:
    """Return a cell with a shortened name from a record; ``full`` has the full name."""
    short, full = shortened(text, limit), shortened(text, _LONGEST_FULL)
    return Cell(short, detail, full=full if full != short else "")


EMPTY = Cell("–", tone="muted")  # placeholder for a missing value

Header = str | tuple[str, str]
"""Heading of a column, or a pair: heading over several columns, and the column's heading."""

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
        caption: Caption.
        rows: Rows; the first column is the row's heading.
        words: Columns of text; all others except the first are right-aligned.
        order: Columns that come first; columns below one heading become adjacent.
        under: Smaller lines below headings over several columns.
        remark: Sentences below the table.
    """
    cells = [{_column_key(name): as_cell(cell) for name, cell in row.items()} for row in rows]
    used = dict.fromkeys(place for row in cells for place in row)
    ordered = [place for place in dict.fromkeys((*map(_column_key, order), *used)) if place in used]
    overs = dict.fromkeys(over for over, _ in ordered)
    places = [place for over in overs for place in ordered if place[0] == over]
    names = [shortened(name, 60) for _, name in places]
    headings = [
        Heading(shortened(over, 60), sum(p[0] == over for p in places), (under or {}).get(over, ""))
        for over in overs
    ]
    return Grid(
        caption,
        tuple(Column(name, i > 0 and name not in words) for i, name in enumerate(names)),
        tuple(tuple(row.get(place, EMPTY) for place in places) for row in cells),
        tuple(headings) if any(overs) else (),
        notes.listed() if notes else (),
        remark.strip(),
    )


def _column_key(place: Header) -> tuple[str, str]:
    return ("", place) if isinstance(place, str) else place


def stack(*lines: str) -> str:
    """Join the lines below a cell's text, without empty lines."""
    return "\n".join(filter(None, lines))


class Tile(NamedTuple):
    """A number at the top of a report: its name, value, and what to compare it with."""

    label: str
    value: str
    detail: str
    tone: str = ""

    @property
    def line(self) -> str:
        """The number in one line of text."""
        return f"{self.label}: {self.value} ({self.detail})"
