"""Contents of a section of a report."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.formatting.grid import Grid
from fedaudit.report.figures.charts import Figures


@dataclass(frozen=True)
class Section:
    """Section of a report below its first screen; ``folded`` tables start collapsed."""

    ident: str
    title: str
    texts: Sequence[str] = ()
    points: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    figure: Figures | None = None
    folded: Sequence[Grid] = ()


def table_section(ident: str, title: str, table: Grid | None, *texts: str) -> Section | None:
    """Return a section with one table; None if the table is None."""
    return None if table is None else Section(ident, title, texts, tables=[table])
