"""The end of a command on a terminal: the conclusion first, in a screen of 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from fedaudit.report.figures.forest import Forest, Picture
from fedaudit.report.first import First, first_screen
from fedaudit.report.grid import Tile, cut_within, shortened
from fedaudit.report.pictures import COMPARED, membership_rows
from fedaudit.report.text.verdict import verdict
from fedaudit.report.wording import cleaned, without_digests
from fedaudit.results.comparison import Comparison
from fedaudit.results.record import Record
from fedaudit.results.text import one_line

MOST_LINES = 28
"""Lines of a conclusion at most: with notes of a run and names of files 40 on a screen."""

WIDTH = 80
"""Columns at most, however wide the terminal is."""

_LEAST_ROWS = 3
_NARROW = 60
"""Columns below which a row's figures stand below its name."""
_MOST_POINTS = 2


def print_record(record: Record, console: Console | None = None, *, brief: bool = False) -> None:
    """Print the conclusion of a record.

    Args:
        record: Record of a study.
        console: Where to print; standard output by default.
        brief: Whether to leave out rows of figures and next steps.
    """
    record = cleaned(record, without_digests([record]))
    if record.kind == "games":
        _print_games(record, console)
        return
    first = first_screen(record, verdict(record))
    _print(first, _one_a_topic(first.picture), first.beside, console, brief=brief)


def _print_games(record: Record, console: Console | None) -> None:
    # Not at the top: few records are of games.
    from fedaudit.report.text.games import first_of_games, fit_warnings, game_verdict
    from fedaudit.report.text.points import shown_points

    said = game_verdict(record)
    first = first_of_games(record, said)
    warnings = (*said.contradictions, *first.beside, *fit_warnings(shown_points(record.games)))
    _print(first, first.picture, warnings[:_MOST_POINTS], console)


def print_comparison(
    comparison: Comparison, records: Sequence[Record], console: Console | None = None
) -> None:
    """Prints the best trade-off of a comparison and its rows; to standard output by default.

    Args:
        comparison: What was found by holding records against each other.
        records: Those that it is of.
        console: Where to print.
    """
    from fedaudit.report.comparison.screen import first_of_comparison

    speak = without_digests([comparison, *records])
    watched = all(one.watched for one in records)
    comparison = cleaned(comparison, speak, watched=watched)
    records = [cleaned(one, speak) for one in records]
    first = first_of_comparison(comparison, records, [verdict(record) for record in records])
    picture = first.picture or membership_rows(comparison, records)
    _print(first, picture, first.beside, console)


def width_of(console: Console) -> int:
    """Columns to break lines at: those broken here keep their indents, as a terminal's do not."""
    return max(min(WIDTH, console.width), 20)


def _print(
    first: First,
    picture: Picture,
    warnings: Sequence[str],
    console: Console | None,
    *,
    brief: bool = False,
) -> None:
    console = console or Console()
    width = width_of(console)
    most = MOST_LINES * WIDTH // width
    head = _head(first, warnings, width)
    lines = head if brief else head + _details(first, picture, width, most - len(head))
    for at, line in enumerate(lines[:most]):
        alarming = first.sign == "✗" and line.startswith("✗")
        style = "bold red" if alarming else "bold" if at == 0 else ""
        console.print(Text(one_line(line), style=style))


def _head(first: First, warnings: Sequence[str], width: int) -> list[str]:
    """Return the verdict, numbers and controls."""
    head = textwrap.wrap(
        f"{first.status.upper()}: {first.headline}.", width, subsequent_indent="  "
    )
    if first.warning:
        head += textwrap.wrap(f"Warning: {first.warning}", width, subsequent_indent="  ")
    for text in warnings:
        head += textwrap.wrap(f"! {text}", width, subsequent_indent="  ")[:4]
    head += ["", *(line for tile in first.numbers for line in _number(tile, width))]
    held = f"{first.sign} {first.controls}"
    return head + textwrap.wrap(held, width, subsequent_indent="  ")


def _details(first: First, picture: Picture, width: int, most: int) -> list[str]:
    """Return as many rows of figures as fit, and next steps."""
    tail = ["", *_numbered(first.next[:2], width)]
    left = most - len(tail)
    shown: list[str] = []
    for place, forest in enumerate(picture):
        share = left // (len(picture) - place)
        rows = list(_rows(forest, share - 3, width))
        if share - 3 >= _LEAST_ROWS or not place:
            shown += ["", *rows]
            left -= len(rows) + 1
    return shown + tail


def _one_a_topic(picture: Picture) -> Picture:
    return tuple({forest.title: forest for forest in picture[::-1]}.values())[::-1]


def _number(tile: Tile, width: int) -> list[str]:
    text = f"{tile.label}: {tile.value} ({tile.detail})"
    return textwrap.wrap(text, width, subsequent_indent="  ", max_lines=3, placeholder=" …")


def _numbered(steps: Sequence[str], width: int) -> Iterator[str]:
    for at, step in enumerate(steps, 1):
        lead = "Next: " if at == 1 else "      "
        yield from textwrap.wrap(step, width, initial_indent=lead, subsequent_indent="      ")


def _rows(forest: Forest, most: int, width: int) -> Iterator[str]:
    """A heading, and as many rows as fit; how many more there are is told."""
    many = len(forest.tracks)
    longest = max((len(line.label) for line in forest.lines), default=0)
    wide = min(max(22, longest + 2), 38) if many > 1 else 34
    if forest.label == COMPARED:
        wide = 36
    each = (width - wide) // many
    against = f" ({forest.label})" if forest.label.startswith("members") else ""
    yield from textwrap.wrap(f"{forest.title}{against}", width, subsequent_indent="  ")
    titles = [track.title for track in forest.tracks]
    if width >= _NARROW:
        yield _row("", titles, wide, each)
    else:
        most = max(most // (1 + many), 1)
    shown = forest.lines if len(forest.lines) <= most else forest.lines[: max(most - 1, 1)]
    for line in shown:
        texts = [" ".join(filter(None, (cell.value, cell.limits))) for cell in line.cells]
        if width >= _NARROW:
            yield _row(line.label, texts, wide, each)
            continue
        yield from textwrap.wrap(line.label, width, subsequent_indent="  ")
        for title, text in zip(titles, texts, strict=True):
            told = f"{title} {text}"
            yield from textwrap.wrap(told, width, initial_indent="  ", subsequent_indent="    ")
    if len(shown) < len(forest.lines):
        yield f"  and {len(forest.lines) - len(shown)} more in the report"


def _row(label: str, texts: Sequence[str], wide: int, each: int) -> str:
    cells = "".join(f"{shortened(text, each - 1):<{each}}" for text in texts)
    return f"{_fitting(label, wide - 2):<{wide}}{cells}".rstrip()


def _fitting(label: str, width: int) -> str:
    """Return a row's label; of "client · attack" the client's name gives way."""
    client, dot, attack = label.rpartition(" · ")
    if len(label) <= width or not dot:
        return shortened(label, width)
    return shortened(f"{cut_within(client, max(width - len(attack) - 3, 8))}{dot}{attack}", width)
