"""Terminal output of a record or a comparison: the conclusion first, in 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedaudit.formatting.grid import shorten, shorten_middle
from fedaudit.formatting.wording import join_parts, printable_record
from fedaudit.report.figures.forest import COMPARED, Forest, Picture
from fedaudit.report.first import FirstScreen, first_screen
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.record import Record
from fedaudit.results.text import one_line

if TYPE_CHECKING:
    from fedaudit.results.comparison import Comparison

MOST_LINES = 28
"""Largest number of lines of a conclusion, which must fit on 40 lines with the notes of a run."""
WIDTH = 80  # largest number of columns, also on wider terminals
_MIN_ROWS = 3  # smallest number of rows with which a further chart is printed
_NARROW = 60  # width below which a row's estimates are printed below its name
_MOST_WARNINGS = 2  # largest number of warnings about games


def print_record(record: Record, console: Console | None = None, *, brief: bool = False) -> None:
    """Print the conclusion of a record; if ``brief``, without rows of estimates and next steps."""
    record = printable_record(record)
    if record.kind == "games":
        # Not at the top: few records are of games.
        from fedaudit.report.text.games import fit_warnings, game_verdict
        from fedaudit.report.text.points import shown_points

        conclusion = game_verdict(record)
        first = conclusion.first
        fit = fit_warnings(shown_points(record.games))
        warnings = (*conclusion.contradictions, *first.caveats, *fit)[:_MOST_WARNINGS]
        _print(first, first.picture, warnings, console)
        return
    first = first_screen(record, summarise_verdict(record))
    by_title = {forest.title: forest for forest in first.picture[::-1]}
    _print(first, tuple(by_title.values())[::-1], first.caveats, console, brief=brief)


def print_comparison(
    comparison: "Comparison", records: Sequence[Record], console: Console | None = None
) -> None:
    """Print the best trade-off of a comparison and its rows."""
    from fedaudit.report.comparison.screen import (
        first_of_comparison,
        membership_rows,
        printable_comparison,
    )

    comparison, records = printable_comparison(comparison, records)
    first = first_of_comparison(
        comparison, records, [summarise_verdict(record) for record in records]
    )
    picture = first.picture or membership_rows(comparison, records)
    _print(first, picture, first.caveats, console)


def width_of(console: Console) -> int:
    """Return the width at which lines are wrapped; a terminal's own wrapping has no indents."""
    return max(min(WIDTH, console.width), 20)


def _print(
    first: FirstScreen,
    picture: Picture,
    warnings: Sequence[str],
    console: Console | None,
    *,
    brief: bool = False,
) -> None:
    console = console or Console()
    width = width_of(console)
    room = MOST_LINES * WIDTH // width
    head = _head(first, warnings, width)
    lines = head if brief else head + _details(first, picture, width, room - len(head))
    for index, line in enumerate(lines[:room]):
        alarming = first.sign == "✗" and line.startswith("✗")
        style = "bold red" if alarming else "bold" if index == 0 else ""
        console.print(Text(one_line(line), style=style))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ")


def _head(first: FirstScreen, warnings: Sequence[str], width: int) -> list[str]:
    head = _wrapped(f"{first.status.upper()}: {first.finding}.", width)
    if first.warning:
        head += _wrapped(f"Warning: {first.warning}", width)
    for text in warnings:
        head += _wrapped(f"! {text}", width)[:4]
    head.append("")
    for text in (tile.line for tile in first.numbers):
        head += textwrap.wrap(text, width, subsequent_indent="  ", max_lines=3, placeholder=" …")
    return head + _wrapped(f"{first.sign} {first.controls}", width)


def _details(first: FirstScreen, picture: Picture, width: int, room: int) -> list[str]:
    steps = [""]
    for index, step in enumerate(first.next[:2]):
        lead = " " * 6 if index else "Next: "
        steps += textwrap.wrap(step, width, initial_indent=lead, subsequent_indent=" " * 6)
    free, lines = room - len(steps), list[str]()
    for index, forest in enumerate(picture):
        # A chart gets an equal part of the free lines; three are for its title and headings.
        room_for_rows = free // (len(picture) - index) - 3
        rows = list(_rows(forest, room_for_rows, width))
        if room_for_rows >= _MIN_ROWS or not index:
            lines += ["", *rows]
            free -= len(rows) + 1
    return lines + steps


def _rows(forest: Forest, room: int, width: int) -> Iterator[str]:
    tracks = len(forest.tracks)
    longest_label = max((len(line.label) for line in forest.lines), default=0)
    label_width = min(max(22, longest_label + 2), 38) if tracks > 1 else 34
    label_width = 36 if forest.label == COMPARED else label_width
    track_width = (width - label_width) // tracks
    against = f" ({forest.label})" if forest.label.startswith("members ") else ""
    yield from _wrapped(f"{forest.title}{against}", width)
    titles = [track.title for track in forest.tracks]
    if width >= _NARROW:
        yield _row("", titles, label_width, track_width)
    else:
        room = max(room // (1 + tracks), 1)
    visible = forest.lines if len(forest.lines) <= room else forest.lines[: max(room - 1, 1)]
    for line in visible:
        texts = [join_parts(cell.value, cell.limits, by=" ") for cell in line.cells]
        if width >= _NARROW:
            yield _row(line.label, texts, label_width, track_width)
            continue
        yield from _wrapped(line.label, width)
        for cell in map(" ".join, zip(titles, texts, strict=True)):
            yield from textwrap.wrap(cell, width, initial_indent="  ", subsequent_indent="    ")
    if len(visible) < len(forest.lines):
        yield f"  and {len(forest.lines) - len(visible)} more in the report"


def _row(label: str, texts: Sequence[str], label_width: int, track_width: int) -> str:
    cells = "".join(f"{shorten(text, track_width - 1):<{track_width}}" for text in texts)
    return f"{_fitting(label, label_width - 2):<{label_width}}{cells}".rstrip()


def _fitting(label: str, width: int) -> str:
    client, dot, attack = label.rpartition(" · ")
    if len(label) <= width or not dot:
        return shorten(label, width)
    name = shorten_middle(client, max(width - len(attack) - 3, 8))
    return shorten(f"{name}{dot}{attack}", width)
