"""Source inference in several records side by side, and what changes against each row's base."""

from collections.abc import Mapping, Sequence

from fedaudit.results.aggregate import Value, Values, difference
from fedaudit.results.comparison import OwnerEntry, Row
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import Record
from fedaudit.results.source_figures import SourceFigure


def owner_entries(rows: Sequence[Row], records: Sequence[Record]) -> list[OwnerEntry]:
    """Each source attack's figure in each row; of several views of a record the first.

    Args:
        rows: Of the comparison.
        records: Its records.
    """
    figures = [_figures(records[row.source], row) for row in rows]
    values = [_values(records[row.source], row) for row in rows]
    found = []
    for at, row in enumerate(rows):
        base: Mapping[str, Values] = {} if row.base is None else values[row.base]
        for attack, figure in figures[at].items():
            change = difference(values[at][attack], base.get(attack, {}))
            found.append(OwnerEntry(row=at, figure=figure, change=change))
    return found


def _figures(record: Record, row: Row) -> dict[str, SourceFigure]:
    first: dict[str, SourceFigure] = {}
    for figure in record.source_figures:
        if (figure.defense or NO_DEFENSE) == row.family:
            first.setdefault(figure.attack, figure)
    return first


def _values(record: Record, row: Row) -> dict[str, Values]:
    """Success by seed; the one target is None."""
    views = {attack: figure.view for attack, figure in _figures(record, row).items()}
    found: dict[str, dict[int | None, dict[int | None, Value]]] = {}
    for run in record.sources:
        if (run.defense or NO_DEFENSE) == row.family and views.get(run.attack) == run.view:
            value = Value(run.success, run.low, run.high, "Clopper-Pearson 95%", cancels=True)
            found.setdefault(run.attack, {})[run.seed] = {None: value}
    return dict(found)
