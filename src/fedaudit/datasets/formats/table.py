"""Tables of people: categories as codes, numbers as they are, and a column that groups them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from numpy import ndarray
from torch import Tensor

from fedaudit.datasets.arrays import Arrays, assembled, checked_labels, count_classes
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.scaling import Scaled, scaled_columns
from fedaudit.errors import BadInput, unknown_name
from fedaudit.files import hold_to_budget, parsed_json


def coded_table(
    name: str,
    arrays: Arrays,
    *,
    columns: Sequence[str],
    vocabulary: bytes,
    group: str = "",
    on_disk: int,
) -> Dataset:
    """A table of categories and numbers, as features for a model.

    A column that has a vocabulary holds indices into it and becomes one 0/1 feature a value;
    the others are standardised.

    Args:
        name: Name of the data set.
        arrays: Integer codes and numbers, one row a person.
        columns: Name of each column.
        vocabulary: JSON object: for each column of categories, the values its codes stand for.
        group: Column of categories whose values become the groups; empty for none. It stays a
            feature as well.
        on_disk: Bytes that the table has there, which bound those that its features may take.

    Raises:
        BadInput: Columns do not match the table, a code is outside its vocabulary, or the
            group is no column of categories,
            or the features would take far more memory than the table.
    """
    words = _words(vocabulary)
    for part in (arrays.x_train, arrays.x_test):
        _check_table(part, columns, words)
    if group and group not in words:
        raise unknown_name("column of categories", group, words)
    width = sum(len(words[column]) if column in words else 1 for column in columns)
    rows = len(arrays.x_train) + len(arrays.x_test)
    hold_to_budget(f"the table {name!r} as features", rows * width * 4, on_disk=on_disk)
    numeric = [at for at, column in enumerate(columns) if column not in words]
    numbers = scaled_columns(arrays.x_train[:, numeric], arrays.x_test[:, numeric])
    scaled = Scaled(
        _features(arrays.x_train, columns, words, numbers.train),
        _features(arrays.x_test, columns, words, numbers.test),
        "categories one 0/1 feature a value; numbers minus their training mean, over their "
        "training spread",
    )
    y_train = checked_labels("training labels", arrays.y_train)
    y_test = checked_labels("test labels", arrays.y_test)
    codes = None
    if group:
        at = list(columns).index(group)
        both = np.concatenate([arrays.x_train[:, at], arrays.x_test[:, at]])
        codes = torch.from_numpy(both.astype(np.int64))
    return assembled(
        name,
        scaled,
        torch.from_numpy(y_train),
        torch.from_numpy(y_test),
        classes=count_classes(y_train, y_test),
        group=codes,
        group_names=tuple(words[group]) if group else (),
    )


def _words(vocabulary: bytes) -> dict[str, list[str]]:
    try:
        parsed = parsed_json(vocabulary.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"the vocabulary is not JSON ({error}); store an object of column name to values"
        ) from error
    if not isinstance(parsed, dict) or not all(isinstance(v, list) for v in parsed.values()):
        raise BadInput("the vocabulary must be an object of column name to a list of values")
    return {str(column): [str(value) for value in values] for column, values in parsed.items()}


def _check_table(
    table: Num[ndarray, "..."], columns: Sequence[str], words: Mapping[str, Sequence[str]]
) -> None:
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise BadInput(
            f"a table of {len(columns)} named columns cannot have shape {table.shape}; "
            "give one name a column"
        )
    for at, column in enumerate(columns):
        codes = table[:, at]
        size = len(words[column]) if column in words else None
        if size is not None and not ((codes >= 0) & (codes < size) & (codes % 1 == 0)).all():
            raise BadInput(
                f"codes of column {column!r} must be whole numbers from 0 to {size - 1}, got "
                f"{codes.min()} to {codes.max()}; make them indices into the vocabulary"
            )


def _features(
    table: Num[ndarray, "samples columns"],
    columns: Sequence[str],
    words: Mapping[str, Sequence[str]],
    numbers: Float[Tensor, "samples numeric"],
) -> Float[Tensor, "samples features"]:
    one_hot = [
        _one_hot(table[:, at].astype(np.int64), len(words[column]))
        for at, column in enumerate(columns)
        if column in words
    ]
    return torch.cat([numbers, *one_hot], dim=1)


def _one_hot(codes: Int[ndarray, " samples"], size: int) -> Float[Tensor, "samples values"]:
    # Not torch's one_hot, whose ones and zeros take eight bytes each.
    ones = torch.zeros(len(codes), size)
    return ones.scatter_(1, torch.from_numpy(codes)[:, None], 1.0)
