"""What a panel draws, for tests."""

from typing import TypeVar

from fedaudit.report.figures.drawing import Band, Bars, Heat, Panel, Series

Kind = TypeVar("Kind", Series, Band, Bars, Heat)


def of_kind(panel: Panel, kind: type[Kind]) -> list[Kind]:
    """Everything of one kind that a panel draws."""
    return [one for one in panel.series if isinstance(one, kind)]


def lines(panel: Panel) -> dict[str, Series]:
    """Lines and marks by their names; of several with one name the last."""
    return {one.name: one for one in of_kind(panel, Series)}
