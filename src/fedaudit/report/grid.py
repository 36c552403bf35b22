"""A table as data: one description that the terminal and the HTML report both draw."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple

Tone = Literal["", "alarm", "raised", "weak", "clear", "strong", "good", "muted"]


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
        text: What the entry says.
        detail: A second, smaller line, such as the interval.
        tone: How it is coloured; the text never relies on it alone.
        mark: Footnote letter, empty without one.
        full: The whole text, or much of it, where ``text`` is shortened.
    """

    text: str
    detail: str = ""
    tone: Tone = ""
    mark: str = ""
    full: str = ""


class Heading(NamedTuple):
    """A heading over several columns, with a smaller line below it."""

    text: str
    span: int
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers are set flush right."""

    text: str
    numeric: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: the first cell of each row is the row's heading.

    Attributes:
        caption: What the table shows.
        columns: One heading a column.
        rows: One cell a column in each.
        headings: Headings above the columns; their spans add up to the number of columns.
        notes: Footnotes as (letter, text).
        remark: A sentence below the table: how intervals were made, what a sign means.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    headings: tuple[Heading, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    remark: str = ""


@dataclass
class Footnotes:
    """Letters for the notes of one table; the same note gets the same letter."""

    notes: dict[str, str] = field(default_factory=dict)

    def mark(self, note: str) -> str:
        """The letter of a note, new if it was not seen before; none for an empty note."""
        note = shortened(note, 300)
        if not note:
            return ""
        return self.notes.setdefault(note, _letters(len(self.notes)))

    def listed(self) -> tuple[tuple[str, str], ...]:
        """All notes as (letter, text), in the order of their letters."""
        return tuple((letter, note) for note, letter in self.notes.items())


def _letters(number: int) -> str:
    letters = ""
    while number >= 0:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
    return letters


def clean(text: str) -> str:
    """Text on one line without control, direction or surrogate characters."""
    if text.isprintable():  # nearly every text: no such character, and no line end
        return text
    return _on_one_line(text)


@lru_cache(maxsize=256)  # the same few names stand in thousands of places
def _on_one_line(text: str) -> str:
    # Few characters are distinct, also of a long text.
    return text.translate({ord(char): _in_place_of(char) for char in set(text)})


def _in_place_of(char: str) -> str:
    if char in "\n\r\t\u2028\u2029":
        return " "
    return "\ufffd" if unicodedata.category(char)[0] == "C" else char


def shortened(text: str, limit: int = 48) -> str:
    """Clean text cut to a length, with an ellipsis in the cut's place."""
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def cut_within(text: str, limit: int) -> str:
    """Clean text cut to a length before its last third, since names differ at the end."""
    text = clean(text)
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def named(text: str, detail: str = "", tone: Tone = "", *, limit: int = 48) -> Cell:
    """A cell with a name from outside: cleaned, shortened, more of it kept beside it."""
    short, whole = shortened(text, limit), shortened(text, MOST_KEPT)
    return Cell(short, detail, tone, full=whole if whole != short else "")


MOST_KEPT = 400
"""Characters of a name that are kept beside its short form."""


def without_constants(grid: Grid, kept: Sequence[str]) -> Grid:
    """The table without columns that say the same in every row; the remark says it once.

    Args:
        grid: A table without headings over its columns.
        kept: Columns that stay whatever they hold; the first one always stays.
    """
    if len(grid.rows) < 2:
        return grid
    same = [
        place > 0 and column.text not in kept and len({row[place].text for row in grid.rows}) == 1
        for place, column in enumerate(grid.columns)
    ]
    told = [
        _told(column.text.lower(), grid.rows[0][place].text)
        for place, column in enumerate(grid.columns)
        if same[place]
    ]
    remark = f"In every row: {', '.join(told)}. " if told else ""
    return replace(
        grid,
        columns=tuple(c for c, drop in zip(grid.columns, same, strict=True) if not drop),
        rows=tuple(
            tuple(cell for cell, drop in zip(row, same, strict=True) if not drop)
            for row in grid.rows
        ),
        remark=remark + grid.remark,
    )


def _told(column: str, text: str) -> str:
    """ "seed 1"; a text that names its column, such as "no defense", stands alone."""
    return text if column in text.split() else f"{column} {text}"


EMPTY = Cell("–", tone="muted")
"""Of what there is none of."""

Filled = Mapping[str, Cell | str | None]
"""A row by the headings of its columns; None leaves a dash."""


def tabled(
    caption: str,
    rows: Iterable[Filled],
    *,
    words: Sequence[str] = (),
    varying: Sequence[str] = (),
    headings: tuple[Heading, ...] = (),
    notes: Footnotes | None = None,
    remark: str = "",
) -> Grid:
    """A table of rows that all have the same columns, in their order.

    Args:
        caption: What the table shows.
        rows: The first column of each is its heading.
        words: Columns without numbers, beside the first; the others are set flush right.
        varying: Columns without numbers that stay only where they differ between rows; otherwise
            the remark says once what they say.
        headings: Headings above the columns.
        notes: Footnotes of the cells.
        remark: A sentence below the table.
    """
    cells = [
        {
            name: EMPTY if one is None else Cell(one) if isinstance(one, str) else one
            for name, one in row.items()
        }
        for row in rows
    ]
    names = list(cells[0]) if cells else []
    grid = Grid(
        caption,
        tuple(
            Column(shortened(name, 60), bool(place) and name not in (*words, *varying))
            for place, name in enumerate(names)
        ),
        tuple(tuple(row.values()) for row in cells),
        headings=headings,
        notes=notes.listed() if notes else (),
        remark=remark,
    )
    return without_constants(grid, [shortened(n, 60) for n in names if n not in varying])


def below(*lines: str) -> str:
    """Lines below a cell's text, without empty ones."""
    return "\n".join(line for line in lines if line)


class Tile(NamedTuple):
    """A number that stands at the top: what it is, the number, and what to read it against."""

    label: str
    value: str
    detail: str
    tone: str = ""
