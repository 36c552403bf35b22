"""Sentences on what was read from a table, without any of its rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from fedaudit.datasets.tables.columns import Column, NumberColumn, Table, TextColumn, as_texts
from fedaudit.datasets.tables.settings import TableSettings

_ROLES = ("label", "client", "person", "group")
_LISTED = 40
"""Maximum number of columns, classes or clients that are listed."""


def statement_of(
    table: Table,
    settings: TableSettings,
    *,
    classes: Sequence[str],
    clients: TextColumn | None,
    features: Mapping[str, Column],
    descriptions: Mapping[str, str],
    width: int,
) -> Iterator[str]:
    """Yield sentences on what was read.

    ``classes`` is empty for a regression, ``clients`` is None if the table names no clients,
    ``descriptions`` state how each column was encoded, and ``width`` is the number of features.
    """
    what = f"{len(classes)} classes" if classes else "numbers to predict"
    listed = f" ({', '.join(classes)})" if 0 < len(classes) <= _LISTED else ""
    n_columns = len(table.columns) + len(table.unread)
    yield (
        f"data {table.name}: {table.rows:,} rows, {n_columns} columns, {table.source}; "
        f"{settings.label!r} has {what}{listed}; {width} features"
    )
    for name, column in islice(table.columns.items(), _LISTED):
        used = features.get(name)
        if used is None:
            kind = ", ".join(role for role in _ROLES if getattr(settings, role) == name)
            kind = kind or "ignored"
            # State the number of values, because a range would show the numbers of two people.
            used = as_texts(column)
        else:
            kind = "number" if isinstance(used, NumberColumn) else "category"
        parts = [kind, _values(used), f"{column.missing.mean():.1%} missing"]
        parts += [descriptions[name]] if name in descriptions else []
        yield f"column {name}: {', '.join(parts)}"
    if len(table.columns) > _LISTED:
        yield f"and {len(table.columns) - _LISTED} further columns"
    if table.unread:
        yield f"ignored without reading: {', '.join(islice(table.unread, _LISTED))}"
    if clients is None:
        yield "encoders and scalers: fitted on all training rows, as the table names no clients"
        return
    yield "encoders and scalers: fitted on the training rows of each client alone"
    sizes = zip(clients.texts, clients.counts.tolist(), strict=True)
    rows = ", ".join(f"{name}: {count:,}" for name, count in islice(sizes, _LISTED))
    more = ", ..." * (len(clients.texts) > _LISTED)
    yield f"rows of {len(clients.texts)} clients: {rows}{more}"


def _values(column: Column) -> str:
    """Return the range of numbers, or the number of distinct texts."""
    if isinstance(column, TextColumn):
        return f"{len(column.texts):,} values"
    return f"{np.nanmin(column.values):.4g} to {np.nanmax(column.values):.4g}"
