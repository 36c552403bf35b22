"""Data set of a table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.files import refuse_oversized
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import positions_of
from fedaudit.datasets.arrays import MAX_VALUES, Scaled, assembled, split, strata
from fedaudit.datasets.dataset import Dataset, with_subjects
from fedaudit.datasets.tables.columns import Table, TextColumn, without_texts
from fedaudit.datasets.tables.encoding import Encoding, Scaling, encoded, width_of
from fedaudit.datasets.tables.roles import (
    clients_of,
    features_of,
    groups_of,
    people_of,
    targets_of,
)
from fedaudit.datasets.tables.settings import TableSettings, refuse_unknown_columns
from fedaudit.datasets.tables.statement import statement_of


def dataset_of(
    table: Table,
    settings: TableSettings,
    seed: int,
    is_test: Bool[ndarray, " rows"] | None = None,
) -> Dataset:
    """Return the data set of a table.

    Args:
        table: The table.
        settings: Roles and encoding of its columns.
        seed: Seed that selects the test rows.
        is_test: Mask of the test rows, if the table has them in a part of their own.

    Raises:
        BadInput: A named column does not exist, or a column cannot be used.
    """
    table = _with_missing(table, settings.missing)
    refuse_unknown_columns(table, settings)
    targets, classes = targets_of(table, settings)
    clients = clients_of(table, settings.client) if settings.client else None
    columns = features_of(table, settings)
    client = None if clients is None else clients.codes
    if is_test is None:
        is_test = _test_rows(table, settings, targets, clients, seed)
    elif clients is not None:
        _refuse_untrained(table, clients, is_test)
    encoding = Encoding(
        settings.standardise,
        {name: Scaling(*pair) for name, pair in (settings.scaling or {}).items()},
        {name: [*map(str, listed)] for name, listed in (settings.categories or {}).items()},
        settings.hash_width,
    )
    width = width_of(columns, encoding, has_clients=clients is not None)
    refuse_oversized(f"{table.name} as features", 8 * width * table.rows, on_disk=table.on_disk)
    if width * table.rows > MAX_VALUES:
        raise BadInput(
            f"{table.name} has {width * table.rows:,} feature values and at most {MAX_VALUES:,} "
            "are read; ignore columns, or give fewer rows"
        )
    result = encoded(columns, encoding, client=client, is_train=~is_test)
    order = np.concatenate([np.flatnonzero(~is_test), np.flatnonzero(is_test)])
    n_train = int((~is_test).sum())
    features, in_order = torch.from_numpy(result.features[order]), torch.from_numpy(targets[order])
    _refuse_beyond_range(table, result.features)
    group = groups_of(table, settings.group) if settings.group else None
    dataset = assembled(
        table.name,
        Scaled(features[:n_train], features[n_train:], "columns as the statement lists them"),
        in_order[:n_train],
        in_order[n_train:],
        classes=max(1, len(classes)),
        group=None if group is None else torch.from_numpy(group.codes[order]),
        group_names=() if group is None else group.texts,
        client=None if client is None else torch.from_numpy(client[order]),
        client_names=() if clients is None else clients.texts,
        statement=tuple(
            statement_of(
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
    return with_subjects(dataset, people_of(table, settings)[order]) if settings.person else dataset


def _with_missing(table: Table, missing: Sequence[str]) -> Table:
    columns = {
        name: without_texts(column, missing) if isinstance(column, TextColumn) else column
        for name, column in table.columns.items()
    }
    return replace(table, columns=columns) if missing else table


def _test_rows(
    table: Table,
    settings: TableSettings,
    targets: Shaped[ndarray, " rows"],
    clients: TextColumn | None,
    seed: int,
) -> Bool[ndarray, " rows"]:
    """Return a mask of the test rows; a client's test rows do not depend on other clients' rows."""
    is_test = np.zeros(table.rows, dtype=bool)
    groups = {0: np.arange(table.rows)} if clients is None else positions_of(clients.codes)
    for number, rows in groups.items():
        # By name, since the number of a client depends on which others there are.
        name = number if clients is None else clients.texts[number]
        rng = seeded_numpy(seed, "split", table.name, name)
        parts = split(strata(targets[rows]), settings.test_share, rng=rng)
        is_test[rows[parts.test]] = True
    return is_test


def _refuse_untrained(table: Table, clients: TextColumn, is_test: Bool[ndarray, " rows"]) -> None:
    counts = TextColumn(clients.codes[~is_test], clients.texts).counts
    if not counts.all():
        raise BadInput(
            f"client {clients.texts[int(counts.argmin())]!r} of {table.name!r} has rows in the "
            "test part only, and features are scaled by a client's training rows; remove its rows"
        )


def _refuse_beyond_range(table: Table, features: Shaped[ndarray, "rows features"]) -> None:
    if not np.isfinite(features).all():
        raise BadInput(
            f"features of {table.name!r} exceed the range of 32-bit numbers; declare a larger "
            "standard deviation in scaling"
        )
