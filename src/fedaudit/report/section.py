"""A section of a report as data."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.report.figures.charts import Figures
from fedaudit.report.grid import Grid


@dataclass(frozen=True)
class Section:
    """A part of a report below its first screen; its texts, tables and chart are in their order.

    Attributes:
        ident: Name in the document.
        folded: Tables that a reader opens one by one.
    """

    ident: str
    title: str
    said: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    figure: Figures | None = None
    folded: Sequence[Grid] = ()


def of_table(ident: str, title: str, table: Grid | None, *said: str) -> Section | None:
    """Return a section with one table; None without it."""
    return None if table is None else Section(ident, title, said, tables=[table])
