"""What tests read off a page, a table or a panel."""

import re
from typing import TypeVar

from fedaudit.report.figures.drawing import Band, Bars, Heat, Panel, Series
from fedaudit.report.grid import Cell, Grid

Kind = TypeVar("Kind", Series, Band, Bars, Heat)


def words(document: str) -> str:
    """The visible text of a page, on one line."""
    visible = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", document)
    return " ".join(visible.split())


def cells(grid: Grid | None, name: str) -> list[Cell]:
    """A column of a table by its heading."""
    assert grid is not None
    place = [one.text for one in grid.columns].index(name)
    return [row[place] for row in grid.rows]


def column(grid: Grid | None, name: str) -> list[str]:
    """The texts of a column."""
    return [cell.text for cell in cells(grid, name)]


def of_kind(panel: Panel, kind: type[Kind]) -> list[Kind]:
    """Everything of one kind that a panel draws."""
    return [one for one in panel.series if isinstance(one, kind)]


def lines(panel: Panel) -> dict[str, Series]:
    """Lines and marks by their names; of several with one name the last."""
    return {one.name: one for one in of_kind(panel, Series)}
