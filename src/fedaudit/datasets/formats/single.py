"""One sample in a file: an array, a row of a table, a JSON list or object, or a picture."""

import csv
from collections.abc import Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged, FedauditError, type_of
from fedaudit.core.files import (
    MAX_USER_FILE_BYTES,
    TooLarge,
    open_regular,
    parse_json,
    raise_if_absent,
    read_text,
    regular_size,
)
from fedaudit.datasets.formats.images import (
    PICTURE_SUFFIXES,
    EncodedPicture,
    decode_pictures,
    stack_pictures,
)
from fedaudit.datasets.formats.npz import read_npz

_FEATURE_NAMES, _LABEL_NAMES = ("x", "features"), ("y", "label", "labels")
FORMATS = (
    "a .npz file with x, a .csv file with one row, a .json list of numbers, a .json object with "
    "the value of each column, or a picture"
)


class SingleSample(NamedTuple):
    """One sample as stored in a file.

    Attributes:
        features: Features, without an axis of samples; for a picture height x width x channels.
            None for a row of a table that contains texts.
        label: Class of the sample; None if the file has no label.
        cells: Value of each column of a table, if the file names columns.
    """

    features: Shaped[ndarray, "..."] | None
    label: int | None = None
    cells: Mapping[str, object] | None = None


def read_sample(path: Path, shape: tuple[int, ...] = ()) -> SingleSample:
    """Return the sample in an untrusted file.

    Args:
        path: A ``.npz`` file with ``x`` (and ``y``); a ``.csv`` file with one row of numbers, and a
            label in a column of that name; a ``.json`` list of numbers, or an object with
            ``features`` (and ``label``); or a picture. For a table also a ``.csv`` file with its
            header and one row, or a ``.json`` object with a value for each column.
        shape: Shape of the features that models take, which determines size and channels of a
            picture.

    Raises:
        BadInput: The file does not exist, has another format, or does not have exactly one sample.
        Damaged: The file is truncated.
    """
    raise_if_absent(path, FORMATS)
    suffix = path.suffix.lower()
    try:
        if suffix == ".npz":
            return _from_arrays(path)
        if suffix in PICTURE_SUFFIXES:
            return _from_picture(path, shape)
        if suffix not in (".csv", ".json"):
            raise BadInput(f"{path} ends in {path.suffix!r}; give {FORMATS}")
        text = read_text(path, max_bytes=MAX_USER_FILE_BYTES)
        return _from_table(path, text) if suffix == ".csv" else _from_json(path, text)
    except FedauditError:
        raise
    except TooLarge as error:
        raise BadInput(f"{error}, the limit for one sample; give one sample") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        message = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not one sample ({message}); give {FORMATS}") from error


def _from_arrays(path: Path) -> SingleSample:
    arrays = read_npz(path)
    features = next((arrays[name] for name in _FEATURE_NAMES if name in arrays), None)
    label = next((arrays[name] for name in _LABEL_NAMES if name in arrays), None)
    if features is None or features.dtype.kind not in "biuf":
        raise BadInput(
            f"{path} has the arrays {', '.join(arrays)[:200]}, and no numbers in x; store the "
            "sample's features as x"
        )
    if label is not None and (label.size != 1 or label.dtype.kind not in "iu"):
        raise BadInput(
            f"{path} has a label of shape {label.shape} and type {label.dtype}; store one whole "
            "number as y, or leave it out"
        )
    return SingleSample(features, None if label is None else int(label.reshape(())))


def _from_picture(path: Path, shape: tuple[int, ...]) -> SingleSample:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BadInput(
            f"{path} is a picture, and the models take features of shape {shape}; give the sample "
            "as a .npz, .csv or .json file"
        )
    pictures = decode_pictures([EncodedPicture(str(path), partial(open_regular, path))])
    # Pictures are only resized to squares; 0 keeps the size of the file.
    size = shape[1] if shape[1] == shape[2] else 0
    images = stack_pictures(
        pictures, 1, size=size, grey=shape[0] == 1, file_bytes=regular_size(path)
    )
    if images.values.dtype.kind != "u":
        raise BadInput(
            f"{path} has more than 16 bits per value, and such values are scaled by the range of "
            "the data set's training pictures; give the sample's row number in the scores file "
            "instead"
        )
    return SingleSample(images.values[0])


def _from_table(path: Path, text: str) -> SingleSample:
    lines = text.removeprefix("\ufeff").splitlines()
    separator = max(",;\t|", key=(lines or [""])[0].count)
    rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    names = rows[0] if rows and not _are_numbers(rows[0]) else []
    values = rows[1:] if names else rows
    if len(values) != 1 or (names and len(names) != len(values[0])):
        raise BadInput(
            f"{path} has {len(values)} rows of values; give one row, with or without a row of "
            "column names above it"
        )
    stripped = [name.strip() for name in names]
    if len({*stripped}) < len(stripped):
        raise BadInput(f"{path} names a column twice; rename or remove one")
    cells = dict(zip(stripped, values[0], strict=True)) if names else None
    if not _are_numbers(values[0]):
        return SingleSample(None, None, cells)
    lower_names = [name.lower() for name in stripped]
    position = next((lower_names.index(name) for name in _LABEL_NAMES if name in lower_names), None)
    label = None
    if position is not None:
        label_text = values[0].pop(position)
        # A label that is not whole is a target of a regression, so only the columns' values are
        # returned.
        if not float(label_text).is_integer():
            return SingleSample(None, None, cells)
        label = int(float(label_text))
    return SingleSample(np.array(values[0], dtype=np.float64), label, cells)


def _are_numbers(row: list[str]) -> bool:
    try:
        return all(np.isfinite(float(value)) for value in row)
    except ValueError:
        return False


def _from_json(path: Path, text: str) -> SingleSample:
    document = parse_json(text)
    label = None
    if isinstance(document, dict):
        if not any(name in document for name in _FEATURE_NAMES) and document:
            return SingleSample(None, None, _check_cells(path, document))
        label = next((document[name] for name in _LABEL_NAMES if name in document), None)
        document = next((document[name] for name in _FEATURE_NAMES if name in document), None)
    if not isinstance(document, list) or not (label is None or type(label) is int):
        raise BadInput(
            f'{path} has no list of numbers; give a list, {{"features": [...], "label": 0}}, or '
            "an object with a value for each column of a table"
        )
    return SingleSample(np.array(document, dtype=np.float64), label)


def _check_cells(subject: object, cells: Mapping[str, object]) -> dict[str, object]:
    """Return the cells of a row; raise if one is not a number, a text, true, false or missing."""
    for name, value in cells.items():
        is_number = isinstance(value, bool | Real | np.bool_)
        if not (is_number or value is None or isinstance(value, str)):
            raise BadInput(
                f"{subject} has {type_of(value)} as the value of the column {str(name)[:40]!r}; "
                "give a number, a text, true or false, or None if it is missing"
            )
    return {str(name): value for name, value in cells.items()}


def sample_of_cells(cells: Mapping[str, object]) -> SingleSample:
    """Return a sample that is given only as the values of a table's columns.

    Raises:
        BadInput: A value is not a number, a text, true, false or None.
    """
    return SingleSample(None, None, _check_cells("the row", cells))
