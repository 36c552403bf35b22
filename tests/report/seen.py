"""Text that tests read from pages, terminals, tables and panels."""

import re
from io import StringIO
from typing import TypeVar

from rich.console import Console

from fedaudit.formatting.grid import Cell, Grid, Tile
from fedaudit.report.figures.charts import Figures
from fedaudit.report.first import tiles_of
from fedaudit.report.page import sections_of
from fedaudit.report.terminal import print_comparison, print_record
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records

Found = TypeVar("Found")


def tiles(record: Record) -> list[Tile]:
    """The numbers of every topic, in the order of the first screen."""
    found_tiles = tiles_of(record)
    topics = ("membership", "sources", "clusters")
    return [tile for topic in topics for tile in found_tiles.get(topic, ())]


def figures_of(record: Record) -> dict[str, Figures]:
    """The charts of a record's sections, by their names."""
    return {part.figure.ident: part.figure for part in sections_of(record) if part.figure}


def must(value: Found | None) -> Found:
    """What has to be there, and is."""
    assert value is not None
    return value


def printed(*records: Record, width: int = 80) -> str:
    """Return the terminal output for a record, or for a comparison of several records."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    if len(records) == 1:
        print_record(records[0], console)
    else:
        print_comparison(compare_records(records), records, console)
    return out.getvalue()


def words(document: str) -> str:
    """The visible text of a page, on one line."""
    visible = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", document)
    return " ".join(visible.split())


def cells(grid: Grid | None, name: str) -> list[Cell]:
    """A column of a table by its heading."""
    table = must(grid)
    place = [column.text for column in table.columns].index(name)
    return [row[place] for row in table.rows]


def column(grid: Grid | None, name: str) -> list[str]:
    """The texts of a column."""
    return [cell.text for cell in cells(grid, name)]
