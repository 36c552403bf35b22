"""Images in the IDX files of MNIST, Fashion-MNIST and EMNIST."""

import math
import zlib
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import hold_to_budget, open_regular
from fedaudit.datasets.arrays import Arrays, from_arrays
from fedaudit.datasets.dataset import Dataset

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
    try:
        with open_regular(path, within=folder) as packed:
            return _values(path, GzipFile(fileobj=packed) if path.suffix == ".gz" else packed)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(f"{path.name} cannot be unpacked ({error}); fetch it again") from error


def _values(path: Path, file: GzipFile | BufferedReader) -> UInt8[ndarray, "..."]:
    """Values of the file, if they are as many as its first bytes announce and no bomb."""
    head = file.read(4)
    sizes = file.read(4 * head[3]) if len(head) == 4 else b""
    if len(head) < 4 or head[:3] != bytes([0, 0, _BYTES_TYPE]) or len(sizes) < 4 * head[3]:
        raise Damaged(f"{path.name} is no IDX file of bytes; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    values = math.prod(shape)
    # As 32-bit numbers, which features become.
    hold_to_budget(path.name, 4 * values, on_disk=path.stat().st_size)
    data = file.read(values + 1)
    if len(data) != values or not values:
        raise Damaged(
            f"{path.name} announces {values} bytes of shape {shape} and holds "
            f"{'more' if len(data) > values else len(data)}; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
