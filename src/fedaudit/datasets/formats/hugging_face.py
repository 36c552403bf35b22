"""Data sets of the Hugging Face hub or cache, by way of the optional package ``datasets``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.datasets.dataset import Dataset, with_subjects
from fedaudit.datasets.formats.image_folder import stacked

_PICTURE_COLUMNS = ("image", "img")


@runtime_checkable
class _HubTable(Protocol):
    """The used part of a ``datasets.Dataset``: named columns of equal length."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: str) -> Iterable[object]: ...


def read(
    name: str,
    *,
    seed: int,
    config: str = "",
    features: str = "",
    label: str = "label",
    size: int = 0,
    grey: bool = False,
    test_share: float = 0.2,
    standardise: bool = True,
    subject: str = "",
) -> Dataset:
    """A data set of pictures or number rows from the Hugging Face hub or its local cache.

    Args:
        name: Name on the hub, such as ``ylecun/mnist``.
        seed: Decides the split where there is no test part.
        config: Which of the data set's configurations; empty for the only one.
        features: Column of pictures or of number rows; empty for ``image`` or ``img``.
        label: Column of class indices.
        size: Side in pixels that pictures are resized to; 0 where all have one size.
        grey: Whether to keep brightness only.
        test_share: Share of each class in the test part, where there is none.
        standardise: Whether features get mean 0 and spread 1.
        subject: Column that says of which person each sample is; empty for none.

    Raises:
        BadInput: The package is not installed, the data set cannot be had, or lacks a training
            part or a column.
    """
    parts = _loaded(name, config)
    if "train" not in parts:
        raise BadInput(
            f"data set {name!r} has the parts {', '.join(sorted(parts))}; one must be 'train'"
        )
    tested = [part for part in ("test", "validation") if part in parts]
    x, y = (
        [_features(parts[part], features, size, grey) for part in ("train", *tested[:1])],
        [np.asarray(list(_column(parts[part], label))) for part in ("train", *tested[:1])],
    )
    order = np.arange(sum(map(len, y)))
    if tested:
        arrays = Arrays(x[0], y[0], x[1], y[1])
    else:
        rng = seeded_numpy(seed, "split", name)
        arrays, at = split_arrays(x[0], y[0], test_share=test_share, rng=rng)
        order = np.concatenate(at)
    dataset = from_arrays(name, arrays, standardise=standardise)
    if subject:
        of = [np.asarray(list(_column(parts[one], subject))) for one in ("train", *tested[:1])]
        dataset = with_subjects(dataset, np.concatenate(of)[order])
    if not size:
        return dataset
    return replace(dataset, normalisation=f"resized to {size} x {size}, {dataset.normalisation}")


def _loaded(name: str, config: str) -> "Mapping[str, _HubTable]":
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BadInput(
            f"data set 'hf:{name}' needs the package datasets, which is not installed; run "
            "pip install 'fedaudit[data]'"
        ) from error
    try:
        found: Mapping[str, _HubTable] = load_dataset(name, config or None)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Hugging Face data set {name!r} cannot be loaded ({error}); check name, config and "
            "network"
        ) from error
    return found


def _column(table: _HubTable, name: str) -> Iterable[object]:
    if name not in table.column_names:
        raise unknown_name("column", name, table.column_names)
    return table[name]


def _features(table: _HubTable, name: str, size: int, grey: bool) -> AnyArray:
    from PIL import Image

    usual = [column for column in _PICTURE_COLUMNS if column in table.column_names]
    if not name and not usual:
        raise BadInput(
            f"none of the columns {', '.join(table.column_names)} is called "
            f"{' or '.join(_PICTURE_COLUMNS)}; set features to the column to use"
        )
    rows = list(_column(table, name or usual[0]))
    pictures = [row for row in rows if isinstance(row, Image.Image)]
    if pictures and len(pictures) == len(rows):
        return stacked(pictures, len(pictures), size=size, grey=grey)
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise BadInput(
            f"rows of column {name!r} differ in length ({error}); give pictures, or rows of "
            "equally many numbers"
        ) from error
