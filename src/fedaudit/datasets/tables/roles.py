"""Columns of a table by their role: label, client, person, group and features."""

from itertools import islice

import numpy as np
from jaxtyping import Int, Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.datasets.tables.columns import (
    Column,
    NumberColumn,
    Table,
    TextColumn,
    as_numbers,
    as_texts,
    parse_number,
    raise_if_infinite,
)
from fedaudit.datasets.tables.misread import (
    raise_if_formatted,
    raise_if_misread_numbers,
    raise_if_missing_classes,
    raise_if_similar_names,
)
from fedaudit.datasets.tables.settings import TableSettings

_MIN_ROWS = 10
"""Minimum number of rows of a client, from which its mean and standard deviation are computed."""
_MAX_NUMBER = float(np.finfo(np.float32).max)
_MAX_GROUPS = 100
_MAX_CLASSES = 1000
_MAX_LISTED = 40
"""Maximum number of columns that a message lists."""


def targets_of(
    table: Table, settings: TableSettings
) -> tuple[Shaped[ndarray, " rows"], tuple[str, ...]]:
    """Return the target of each row, and the names of the classes (none for a regression)."""
    name = settings.label
    column = _complete_column(table, name, "label")
    if settings.regression:
        numbers = as_numbers(table, name)
        if numbers is None:
            raise BadInput(
                f"label {name!r} of {table.name!r} has texts, and a regression predicts numbers; "
                "leave regression out, or name another label"
            )
        raise_if_infinite(table, name, numbers)
        if np.ptp(numbers.values) == 0:
            raise _constant_error(table, f"label {name!r}", "name another label")
        return numbers.values.astype(np.float32), ()
    texts = as_texts(column)
    parsed = [parse_number(word, table.decimal) for word in texts.texts]
    values = [value for value in parsed if value is not None]
    are_numbers = len(values) == len(parsed)
    raise_if_missing_classes(table, name, texts.texts)
    if are_numbers and any(value % 1 != 0 for value in values):
        raise BadInput(
            f"label {name!r} of {table.name!r} has numbers that are not whole; set regression = "
            "true if they are to be predicted, or name a column of classes"
        )
    count = len(texts.texts)
    if count < 2:
        raise _constant_error(table, f"label {name!r}", "a classifier needs two classes")
    if count > min(_MAX_CLASSES, table.rows // 2):
        raise BadInput(
            f"label {name!r} of {table.name!r} has {count} distinct values in {table.rows} rows, "
            "too many for classes; name another label, or set regression = true to predict numbers"
        )
    raise_if_similar_names(table, f"label {name!r}", texts.texts)
    order = np.argsort(values, kind="stable") if are_numbers else np.arange(count)
    number = np.empty(count, dtype=np.int64)
    number[order] = np.arange(count)
    return number[texts.codes], tuple(texts.texts[index] for index in order)


def _constant_error(table: Table, subject: str, remedy: str) -> BadInput:
    return BadInput(
        f"{subject} of {table.name!r} has the same value in all {table.rows} rows; {remedy}"
    )


def clients_of(table: Table, name: str) -> TextColumn:
    """Return the client of each row."""
    column = as_texts(_complete_column(table, name, "client"))
    if len(column.texts) < 2:
        raise _constant_error(table, f"client {name!r}", "leave client out, or give two clients")
    raise_if_similar_names(table, f"client {name!r}", column.texts)
    counts = column.counts
    if counts.min() < _MIN_ROWS:
        smallest = column.texts[int(counts.argmin())]
        raise BadInput(
            f"client {smallest!r} of {table.name!r} has {counts.min()} rows, and each needs at "
            f"least {_MIN_ROWS} ({int((counts < _MIN_ROWS).sum())} of {len(counts)} clients have "
            "fewer); remove or merge small clients"
        )
    return column


def groups_of(table: Table, name: str) -> TextColumn:
    """Return the group of each row; rows without a group are in the group "(missing)"."""
    column = as_texts(table.column(name, "group"))
    if len(column.texts) > _MAX_GROUPS:
        raise BadInput(
            f"group {name!r} of {table.name!r} has {len(column.texts)} distinct values, and at "
            f"most {_MAX_GROUPS} groups are compared; name a column with fewer values"
        )
    if not column.missing.any():
        return column
    codes = np.where(column.missing, len(column.texts), column.codes)
    return TextColumn(codes, (*column.texts, "(missing)"))


def people_of(table: Table, settings: TableSettings) -> Int[ndarray, " rows"]:
    """Return the number of each row's person."""
    return as_texts(_complete_column(table, settings.person, "person")).codes


def _complete_column(table: Table, name: str, role: str) -> Column:
    """Return the column with a role; raise if it does not exist or has missing values."""
    column = table.column(name, role)
    is_missing = column.missing
    if is_missing.any():
        raise BadInput(
            f"{role} {name!r} of {table.name!r} is missing in {int(is_missing.sum())} of "
            f"{table.rows} rows (the first is {table.first(is_missing)}); fill in the {role}, or "
            "remove these rows"
        )
    return column


def features_of(table: Table, settings: TableSettings) -> dict[str, Column]:
    """Return the columns of features, as numbers or as texts."""
    excluded = {settings.label, settings.client, settings.person, *settings.ignore}
    columns = {
        name: _feature(table, name, settings) for name in table.columns if name not in excluded
    }
    if not columns:
        raise BadInput(
            f"{table.name!r} has no column of features: label, client, person and ignore name all "
            f"of {', '.join(islice(table.columns, _MAX_LISTED))}; ignore fewer columns"
        )
    return columns


def _feature(table: Table, name: str, settings: TableSettings) -> Column:
    column = table.columns[name]
    is_declared_numeric = name in settings.numeric or name in (settings.scaling or {})
    is_declared_categorical = name in settings.categorical or name in (settings.categories or {})
    is_typed_text = table.is_typed and isinstance(column, TextColumn)
    is_categorical = is_declared_categorical or (is_typed_text and not is_declared_numeric)
    numbers = None if is_categorical else as_numbers(table, name)
    if numbers is not None:
        if isinstance(column, TextColumn) and not is_declared_numeric:
            raise_if_misread_numbers(table, name, column)
        _raise_if_useless_numbers(table, name, numbers)
        return numbers
    if is_declared_numeric:
        raise BadInput(
            f"column {name!r} of {table.name!r} is declared as numbers and has texts; leave it out "
            "of numeric and scaling, or set missing to the texts that mark missing values"
        )
    texts = as_texts(column)
    if not is_declared_categorical:
        raise_if_formatted(table, name, texts)
    _raise_if_useless_texts(table, name, texts)
    listed_categories = {str(value) for value in (settings.categories or {}).get(name, ())}
    if listed_categories and not listed_categories & {*texts.texts}:
        raise BadInput(
            f"categories of {table.name!r} lists values of {name!r} that no row has; give the "
            f"values as the table has them, or leave {name!r} out of categories"
        )
    return texts


def _raise_if_useless_numbers(table: Table, name: str, column: NumberColumn) -> None:
    raise_if_infinite(table, name, column)
    known_values = column.values[~column.missing]
    largest = np.abs(known_values).max(initial=0)
    # Up to this limit, the squares in a standard deviation cannot overflow in 64-bit numbers.
    if largest > _MAX_NUMBER:
        raise BadInput(
            f"column {name!r} of {table.name!r} reaches {largest:.3g}, and models compute in "
            f"32-bit numbers up to {_MAX_NUMBER:.3g}; scale it, or set ignore = ['{name}']"
        )
    # A constant column with missing values is useful, because a feature indicates missing values.
    if not len(known_values) or (np.ptp(known_values) == 0 and len(known_values) == table.rows):
        raise _constant_error(table, f"column {name!r}", f"set ignore = ['{name}']")
    if table.rows > 2 and bool((np.diff(np.sort(column.values)) == 1).all()):
        raise BadInput(
            f"column {name!r} of {table.name!r} numbers the rows, and would identify each row; set "
            f"ignore = ['{name}']"
        )


def _raise_if_useless_texts(table: Table, name: str, column: TextColumn) -> None:
    n_present, n_texts = int(column.counts.sum()), len(column.texts)
    if n_texts + bool(column.missing.any()) < 2:
        raise _constant_error(table, f"column {name!r}", f"set ignore = ['{name}']")
    if n_texts == n_present > 2:
        raise BadInput(
            f"column {name!r} of {table.name!r} has a different text in each of its {n_texts} "
            f"cells, like an identifier; set ignore = ['{name}'], or name it as person if it is one"
        )
