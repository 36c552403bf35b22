"""One sample in a file: an array, a row of a table, a JSON list or a picture."""

import csv
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import (
    SHORT,
    TooLarge,
    open_regular,
    parsed_json,
    read_text,
    refuse_absent,
    regular_size,
)
from fedaudit.datasets.formats.images import PICTURE_SUFFIXES, Encoded, decoded, stacked
from fedaudit.datasets.formats.npz import read_npz

_FEATURE_NAMES, _LABEL_NAMES = ("x", "features"), ("y", "label", "labels")
FORMATS = "a .npz file with x, a .csv file with one row, a .json list of numbers or a picture"


class SingleSample(NamedTuple):
    """One sample as stored in a file.

    Attributes:
        features: Features, without an axis of samples; for a picture height x width x channels.
        label: Class of the sample; None if the file has no label.
    """

    features: Shaped[ndarray, "..."]
    label: int | None = None


def read_sample(path: Path, shape: tuple[int, ...] = ()) -> SingleSample:
    """Return the sample in a file, which is untrusted.

    Args:
        path: A ``.npz`` file with ``x`` (and ``y``); a ``.csv`` file with one row of numbers, and a
            label in a column of that name; a ``.json`` list of numbers, or an object with
            ``features`` (and ``label``); or a picture.
        shape: Shape of the features that models take, which determines size and channels of a
            picture.

    Raises:
        BadInput: The file does not exist, has another format, or has not exactly one sample.
        Damaged: The file is truncated.
    """
    refuse_absent(path, FORMATS)
    suffix = path.suffix.lower()
    try:
        if suffix == ".npz":
            return _from_arrays(path)
        if suffix in PICTURE_SUFFIXES:
            return _from_picture(path, shape)
        if suffix not in (".csv", ".json"):
            raise BadInput(f"{path} ends in {path.suffix!r}; give {FORMATS}")
        text = read_text(path, max_bytes=SHORT)
        return _from_table(path, text) if suffix == ".csv" else _from_json(path, text)
    except FedauditError:
        raise
    except TooLarge as error:
        raise BadInput(f"{error}, the limit for one sample; give one sample") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not one sample ({reason}); give {FORMATS}") from error


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
    pictures = decoded([Encoded(str(path), partial(open_regular, path))])
    size = shape[1] if shape[1] == shape[2] else 0
    images = stacked(pictures, 1, size=size, grey=shape[0] == 1, on_disk=regular_size(path))
    if images.values.dtype.kind != "u":
        raise BadInput(
            f"{path} has values that a data set scales by the range of its pictures; ask by the "
            "row in the scores"
        )
    return SingleSample(images.values[0])


def _from_table(path: Path, text: str) -> SingleSample:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    names = rows[0] if rows and not _are_numbers(rows[0]) else []
    values = rows[1:] if names else rows
    if len(values) != 1 or (names and len(names) != len(values[0])):
        raise BadInput(
            f"{path} has {len(values)} rows of values; give one row, with or without a row of "
            "column names above it"
        )
    if not _are_numbers(values[0]):
        raise BadInput(
            f"{path} has texts or empty cells, and audited samples are matched by the features "
            "that models take; give these as numbers, or ask by the row in the scores"
        )
    folded = [name.strip().lower() for name in names]
    position = next((folded.index(name) for name in _LABEL_NAMES if name in folded), None)
    label = None if position is None else int(values[0].pop(position))
    return SingleSample(np.array(values[0], dtype=np.float64), label)


def _are_numbers(row: list[str]) -> bool:
    try:
        return all(np.isfinite(float(value)) for value in row)
    except ValueError:
        return False


def _from_json(path: Path, text: str) -> SingleSample:
    document = parsed_json(text)
    label = None
    if isinstance(document, dict):
        label = next((document[name] for name in _LABEL_NAMES if name in document), None)
        document = next((document[name] for name in _FEATURE_NAMES if name in document), None)
    if not isinstance(document, list) or not (label is None or type(label) is int):
        raise BadInput(
            f'{path} has no list of numbers; give a list, or {{"features": [...], "label": 0}}'
        )
    return SingleSample(np.array(document, dtype=np.float64), label)
