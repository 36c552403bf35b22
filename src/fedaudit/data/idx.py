"""Images in the IDX files of MNIST, Fashion-MNIST and EMNIST."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from fedaudit.data.arrays import MAX_VALUES, Arrays, from_arrays
from fedaudit.data.dataset import Dataset
from fedaudit.errors import BadInput, Damaged

_BYTES_TYPE = 8


def find(folder: Path, name: str) -> Path | None:
    """The folder ``NAME``, if it holds IDX files of training images."""
    path = folder / name
    return path if any(path.glob("*train-images-idx3-ubyte*")) else None


def read(
    path: Path,
    *,
    seed: int = 0,
    prefix: str = "",
    first_label: int = 0,
    transposed: bool = False,
    standardise: bool = True,
) -> Dataset:
    """A data set from four IDX files, plain or ``.gz``.

    Args:
        path: Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the
            same for ``t10k`` or ``test``.
        seed: Not used, since the files settle the split.
        prefix: What file names start with, such as ``emnist-letters-``.
        first_label: Label of the first class; 1 for EMNIST letters.
        transposed: Whether rows and columns of the images are exchanged, as in EMNIST.
        standardise: Whether pixels get mean 0 and spread 1.

    Raises:
        BadInput: A file is missing, or its contents are unusable.
        Damaged: A file is cut off or no IDX file.
    """
    tested = "t10k" if _existing(path, f"{prefix}t10k-images-idx3-ubyte") else "test"
    parts = [
        _array(path, f"{prefix}{part}-{kind}-ubyte")
        for part in ("train", tested)
        for kind in ("images-idx3", "labels-idx1")
    ]
    x_train, y_train, x_test, y_test = parts
    if transposed:
        x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
    return from_arrays(
        path.name,
        Arrays(x_train, y_train, x_test, y_test),
        standardise=standardise,
        first_label=first_label,
    )


def _existing(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def _array(folder: Path, name: str) -> UInt8[ndarray, "..."]:
    path = _existing(folder, name)
    if path is None:
        raise BadInput(
            f"{folder} has neither {name} nor {name}.gz; put it there, or set prefix where the "
            "names start with something else"
        )
    data = _contents(path)
    if len(data) < 4 or data[:3] != bytes([0, 0, _BYTES_TYPE]) or len(data) < 4 + 4 * data[3]:
        raise Damaged(f"{path.name} is no IDX file of bytes; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", count=data[3], offset=4))
    start = 4 + 4 * len(shape)
    values = int(np.prod(shape, dtype=object))
    if len(data) - start != values or not values:
        raise Damaged(
            f"{path.name} announces {values} bytes of shape {shape} and holds "
            f"{len(data) - start}; fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _contents(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            data = file.read(MAX_VALUES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(f"{path.name} cannot be unpacked ({error}); fetch it again") from error
    if len(data) > MAX_VALUES:
        raise BadInput(f"{path.name} unpacks to more than {MAX_VALUES} bytes; store fewer samples")
    return data
