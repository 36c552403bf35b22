"""Data sets from tables: the roles of rows, encoding, rows of samples, and a summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.files import raise_if_oversized
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import positions_of
from fedaudit.datasets.arrays import (
    MAX_VALUES,
    ScaledFeatures,
    build_dataset,
    stratification_labels,
    stratified_split,
)
from fedaudit.datasets.dataset import Dataset, with_people
from fedaudit.datasets.tables.columns import (
    Column,
    NumberColumn,
    Table,
    TextColumn,
    as_texts,
    parse_number,
    without_texts,
)
from fedaudit.datasets.tables.encoding import Encoding, Scaling, encode_columns, max_feature_count
from fedaudit.datasets.tables.roles import clients_of, features_of, groups_of, people_of, targets_of
from fedaudit.datasets.tables.settings import TableSettings, raise_if_unknown_columns

_ROLES = ("label", "client", "person", "group")
_MAX_LISTED = 40
"""Maximum number of columns, classes or clients that are listed."""


class StoredTable(NamedTuple):
    """Table before encoding.

    Attributes:
        table: The table.
        settings: Roles and encoding of its columns.
        is_test: Mask of the test rows, if the table has a test part.
    """

    table: Table
    settings: TableSettings
    is_test: Bool[ndarray, " rows"] | None = None


class TableSource(TableSettings):
    """Base of data sets in tables."""

    def load_table(self) -> StoredTable:
        """Read the table.

        Raises:
            BadInput: The data set is not a table, or cannot be read.
        """
        raise NotImplementedError

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the test rows.

        Raises:
            BadInput: The table cannot be read, or a column cannot be used.
            Damaged: The file is truncated or has another format.
        """
        return dataset_of(self.load_table(), seed)


class _RowRoles(NamedTuple):
    """Target, client and part of each row.

    Attributes:
        targets: Class or number to predict.
        classes: Names of the classes; empty for a regression.
        clients: Client of each row; None if the table names no clients.
        is_test: Mask of the test rows.
    """

    targets: Shaped[ndarray, " rows"]
    classes: tuple[str, ...]
    clients: TextColumn | None
    is_test: Bool[ndarray, " rows"]


def dataset_of(stored: StoredTable, seed: int) -> Dataset:
    """Return the data set of a table; the seed selects the test rows.

    Raises:
        BadInput: A setting names a column that does not exist, or a column cannot be used.
    """
    stored = _with_missing_values(stored)
    table, settings, _ = stored
    targets, classes, clients, is_test = _row_roles(stored, seed)
    columns = features_of(table, settings)
    client = None if clients is None else clients.codes
    encoding = Encoding(
        settings.standardise,
        {name: Scaling(*pair) for name, pair in (settings.scaling or {}).items()},
        {name: [*map(str, listed)] for name, listed in (settings.categories or {}).items()},
        settings.hash_width,
    )
    width = max_feature_count(columns, encoding, has_clients=clients is not None)
    raise_if_oversized(
        f"{table.name} as features", 8 * width * table.rows, file_bytes=table.file_bytes
    )
    if width * table.rows > MAX_VALUES:
        raise BadInput(
            f"{table.name} has {width * table.rows:,} feature values and at most {MAX_VALUES:,} "
            "are read; ignore columns, or give fewer rows"
        )
    result = encode_columns(columns, encoding, client=client, is_train=~is_test)
    order = _row_of_id(is_test)
    n_train = int((~is_test).sum())
    features = torch.from_numpy(result.features[order])
    ordered_targets = torch.from_numpy(targets[order])
    _raise_if_beyond_range(table, result.features)
    group = groups_of(table, settings.group) if settings.group else None
    dataset = build_dataset(
        table.name,
        ScaledFeatures(
            features[:n_train], features[n_train:], "columns as the statement lists them"
        ),
        ordered_targets[:n_train],
        ordered_targets[n_train:],
        classes=max(1, len(classes)),
        group=None if group is None else torch.from_numpy(group.codes[order]),
        group_names=() if group is None else group.texts,
        client=None if client is None else torch.from_numpy(client[order]),
        client_names=() if clients is None else clients.texts,
        statement=tuple(
            _statement_of(
                table,
                settings,
                classes=classes,
                clients=clients,
                features=columns,
                descriptions=result.descriptions,
                width=result.features.shape[1],
            )
        ),
    )
    return with_people(dataset, people_of(table, settings)[order]) if settings.person else dataset


def rows_by_id(stored: StoredTable, seed: int) -> Int[ndarray, " samples"]:
    """Return the row of each sample of :func:`dataset_of`, by sample id."""
    return _row_of_id(_row_roles(_with_missing_values(stored), seed).is_test)


def _row_of_id(is_test: Bool[ndarray, " rows"]) -> Int[ndarray, " samples"]:
    return np.concatenate([np.flatnonzero(~is_test), np.flatnonzero(is_test)])


def rows_with(stored: StoredTable, cells: Mapping[str, object]) -> Bool[ndarray, " rows"]:
    """Return a mask of the rows with given values.

    Args:
        stored: The table.
        cells: A value for each column of features, and optionally for other columns. A missing
            value is None, NaN, an empty text, or a text of the setting ``missing``.

    Raises:
        BadInput: A column does not exist or has no value.
    """
    table, settings, _ = _with_missing_values(stored)
    missing_names = [name for name in features_of(table, settings) if name not in cells]
    if missing_names:
        raise BadInput(
            f"the row has no value of the column {missing_names[0]!r} of {table.name!r}; give a "
            "value for each column of features, and an empty one if it is missing"
        )
    is_equal = np.ones(table.rows, dtype=bool)
    for name, value in cells.items():
        if name not in table.unread:
            is_equal &= _equals(table, table.column(name, "the row"), value, settings.missing)
    return is_equal


def _equals(
    table: Table, column: Column, value: object, missing: Sequence[str]
) -> Bool[ndarray, " rows"]:
    text = "" if value is None or value != value else str(value).strip()
    if not text or text in missing:
        return column.missing
    number = parse_number(text, table.decimal if isinstance(value, str) else ".")
    if isinstance(column, NumberColumn):
        if number is None:
            return np.zeros(table.rows, dtype=bool)
        is_equal: Bool[ndarray, " rows"] = column.values == number
        return is_equal
    matches = [
        word == text or (number is not None and parse_number(word, table.decimal) == number)
        for word in column.texts
    ]
    # The code of a missing text, -1, selects the last entry.
    by_row: Bool[ndarray, " rows"] = np.array([*matches, False])[column.codes]
    return by_row


def _with_missing_values(stored: StoredTable) -> StoredTable:
    """Replace the texts of the setting ``missing`` by missing values."""
    missing = stored.settings.missing
    if not missing:
        return stored
    columns = {
        name: without_texts(column, missing) if isinstance(column, TextColumn) else column
        for name, column in stored.table.columns.items()
    }
    return stored._replace(table=replace(stored.table, columns=columns))


def _row_roles(stored: StoredTable, seed: int) -> _RowRoles:
    table, settings, is_test = stored
    raise_if_unknown_columns(table, settings)
    targets, classes = targets_of(table, settings)
    clients = clients_of(table, settings.client) if settings.client else None
    if is_test is None:
        is_test = _test_rows(table, settings, targets, clients, seed)
    elif clients is not None:
        _raise_if_untrained(table, clients, is_test)
    return _RowRoles(targets, classes, clients, is_test)


def _test_rows(
    table: Table,
    settings: TableSettings,
    targets: Shaped[ndarray, " rows"],
    clients: TextColumn | None,
    seed: int,
) -> Bool[ndarray, " rows"]:
    """Draw the test rows; those of a client do not depend on the rows of other clients."""
    is_test = np.zeros(table.rows, dtype=bool)
    groups = {0: np.arange(table.rows)} if clients is None else positions_of(clients.codes)
    for number, rows in groups.items():
        # Seed by the client's name, since its number depends on the other clients.
        name = number if clients is None else clients.texts[number]
        rng = seeded_numpy(seed, "split", table.name, name)
        parts = stratified_split(stratification_labels(targets[rows]), settings.test_share, rng=rng)
        is_test[rows[parts.test]] = True
    return is_test


def _raise_if_untrained(table: Table, clients: TextColumn, is_test: Bool[ndarray, " rows"]) -> None:
    counts = TextColumn(clients.codes[~is_test], clients.texts).counts
    if not counts.all():
        raise BadInput(
            f"client {clients.texts[int(counts.argmin())]!r} of {table.name!r} has rows in the "
            "test part only, and features are scaled by a client's training rows; remove its rows"
        )


def _raise_if_beyond_range(table: Table, features: Shaped[ndarray, "rows features"]) -> None:
    if not np.isfinite(features).all():
        raise BadInput(
            f"features of {table.name!r} exceed the range of 32-bit numbers; declare a larger "
            "standard deviation in scaling"
        )


def _statement_of(
    table: Table,
    settings: TableSettings,
    *,
    classes: Sequence[str],
    clients: TextColumn | None,
    features: Mapping[str, Column],
    descriptions: Mapping[str, str],
    width: int,
) -> Iterator[str]:
    """Yield sentences that describe to the user what was read. They reveal no single row.

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
    class_list = f" ({', '.join(classes)})" if 0 < len(classes) <= _MAX_LISTED else ""
    n_columns = len(table.columns) + len(table.unread)
    yield (
        f"data {table.name}: {table.rows:,} rows, {n_columns} columns, {table.source}; "
        f"{settings.label!r} has {label_text}{class_list}; {width} features"
    )
    for name, column in islice(table.columns.items(), _MAX_LISTED):
        described = features.get(name)
        if described is None:
            roles = [role for role in _ROLES if getattr(settings, role) == name]
            use = ", ".join(roles) or "ignored"
            # Only the number of values is stated. The column may contain identifiers of people, and
            # its minimum and maximum would be two of them. Features are no identifiers.
            described = as_texts(column)
        else:
            use = "number" if isinstance(described, NumberColumn) else "category"
        parts = [use, _value_summary(described), f"{column.missing.mean():.1%} missing"]
        if name in descriptions:
            parts.append(descriptions[name])
        yield f"column {name}: {', '.join(parts)}"
    if len(table.columns) > _MAX_LISTED:
        yield f"and {len(table.columns) - _MAX_LISTED} further columns"
    if table.unread:
        yield f"ignored without reading: {', '.join(islice(table.unread, _MAX_LISTED))}"
    if clients is None:
        yield "encoders and scalers: fitted on all training rows, as the table names no clients"
        return
    yield "encoders and scalers: fitted on the training rows of each client alone"
    sizes = zip(clients.texts, clients.counts.tolist(), strict=True)
    rows = ", ".join(f"{name}: {count:,}" for name, count in islice(sizes, _MAX_LISTED))
    ellipsis = ", ..." * (len(clients.texts) > _MAX_LISTED)
    yield f"rows of {len(clients.texts)} clients: {rows}{ellipsis}"


def _value_summary(column: Column) -> str:
    """Return the range of numbers, or the number of distinct texts."""
    if isinstance(column, TextColumn):
        return f"{len(column.texts):,} values"
    return f"{np.nanmin(column.values):.4g} to {np.nanmax(column.values):.4g}"
