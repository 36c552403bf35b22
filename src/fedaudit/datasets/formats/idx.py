"""Images in the IDX files of MNIST, Fashion-MNIST and EMNIST."""

import math
import zlib
from dataclasses import KW_ONLY
from gzip import GzipFile
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import open_regular, raise_if_oversized
from fedaudit.datasets.arrays import Arrays, from_arrays
from fedaudit.datasets.dataset import DataFile, Dataset

_BYTES_TYPE = 8


@dataclass(frozen=True)
class idx(DataFile):
    """Data set in four IDX files, such as those of MNIST, plain or ``.gz``.

    Attributes:
        path: Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the same for
            ``t10k`` or ``test``.
        prefix: Beginning of the file names, such as ``emnist-letters-``.
        first_label: Label of the first class; 1 for EMNIST letters.
        transposed: Whether the file stores images with rows and columns exchanged, as EMNIST does.
        standardise: Whether pixels are scaled to mean 0 and standard deviation 1.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.idx("mnist", first_label=1).named_part().what
        'idx:mnist'
    """

    expected_layout: ClassVar[str] = "NAME/train-images-idx3-ubyte"

    _: KW_ONLY
    prefix: str = ""
    first_label: int = 0
    transposed: bool = False
    standardise: bool = True

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the folder ``NAME`` if it contains IDX files of training images."""
        path = folder / name
        return path if any(path.glob("*train-images-idx3-ubyte*")) else None

    def read(self, seed: int) -> Dataset:
        """Return the data set, whose split the files define.

        Raises:
            BadInput: A file is missing, or its contents are unusable.
            Damaged: A file is truncated or not an IDX file.
        """
        path, prefix = self.file, self.prefix
        test_name = "t10k" if _find_file(path, f"{prefix}t10k-images-idx3-ubyte") else "test"
        x_train, y_train, x_test, y_test = (
            _read_array(path, f"{prefix}{part}-{kind}-ubyte")
            for part in ("train", test_name)
            for kind in ("images-idx3", "labels-idx1")
        )
        if self.transposed:
            x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
        return from_arrays(
            path.name,
            Arrays(x_train, y_train, x_test, y_test),
            standardise=self.standardise,
            first_label=self.first_label,
        )


def _find_file(folder: Path, name: str) -> Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _read_array(folder: Path, name: str) -> UInt8[ndarray, "..."]:
    path = _find_file(folder, name)
    if path is None:
        raise BadInput(
            f"{folder} has neither {name} nor {name}.gz; put it there, or set prefix if the names "
            "start with something else"
        )
    try:
        with open_regular(path, within=folder) as packed:
            return _read_values(path, GzipFile(fileobj=packed) if path.suffix == ".gz" else packed)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(f"{path.name} cannot be unpacked ({error}); fetch it again") from error


def _read_values(path: Path, file: GzipFile | BufferedReader) -> UInt8[ndarray, "..."]:
    """Return the values of an IDX file; their number must match the header."""
    magic = file.read(4)
    sizes = file.read(4 * magic[3]) if len(magic) == 4 else b""
    if len(magic) < 4 or magic[:3] != bytes([0, 0, _BYTES_TYPE]) or len(sizes) < 4 * magic[3]:
        raise Damaged(f"{path.name} is not an IDX file of bytes; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    count = math.prod(shape)
    # Features become 32-bit numbers.
    raise_if_oversized(path.name, 4 * count, file_bytes=path.stat().st_size)
    # Read one byte more than declared, to detect a file that is too long.
    data = file.read(count + 1)
    if len(data) != count or not count:
        raise Damaged(
            f"{path.name} declares {count} bytes of shape {shape} and contains "
            f"{'more' if len(data) > count else len(data)}; fetch it again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
