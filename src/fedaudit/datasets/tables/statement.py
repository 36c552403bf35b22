"""Sentences that describe to the user what was read from a table. They reveal no single row."""

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
    """Yield sentences that describe what was read.

    Args:
        table: The table.
        settings: Roles and encoding of its columns.
        classes: Names of the classes; empty for a regression.
        clients: Client of each row; None if the table names no clients.
        features: Columns of features.
        descriptions: Description of each column's encoding.
        width: Number of features.
    """
    label_text = f"{len(classes)} classes" if classes else "numbers to predict"
    class_list = f" ({', '.join(classes)})" if 0 < len(classes) <= _LISTED else ""
    n_columns = len(table.columns) + len(table.unread)
    yield (
        f"data {table.name}: {table.rows:,} rows, {n_columns} columns, {table.source}; "
        f"{settings.label!r} has {label_text}{class_list}; {width} features"
    )
    for name, column in islice(table.columns.items(), _LISTED):
        example = features.get(name)
        if example is None:
            roles = [role for role in _ROLES if getattr(settings, role) == name]
            use = ", ".join(roles) or "ignored"
            # State the number of values, because a range would reveal the numbers of two people.
            example = as_texts(column)
        else:
            use = "number" if isinstance(example, NumberColumn) else "category"
        parts = [use, _values(example), f"{column.missing.mean():.1%} missing"]
        if name in descriptions:
            parts.append(descriptions[name])
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
    ellipsis = ", ..." * (len(clients.texts) > _LISTED)
    yield f"rows of {len(clients.texts)} clients: {rows}{ellipsis}"


def _values(column: Column) -> str:
    """Return the range of numbers, or the number of distinct texts."""
    if isinstance(column, TextColumn):
        return f"{len(column.texts):,} values"
    return f"{np.nanmin(column.values):.4g} to {np.nanmax(column.values):.4g}"
