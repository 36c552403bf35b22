"""Data sets in numpy's ``.npz`` files."""

import math
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from re import finditer
from typing import cast

import numpy as np
from numpy.lib import format as npy

from fedaudit.datasets.arrays import AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.formats.table import coded_table
from fedaudit.errors import BadInput, Damaged
from fedaudit.files import hold_to_budget
from fedaudit.seeds import seeded_numpy

_MOST_OF_NOTHING = 2**24
_MOST_ARRAYS = 1000
_NPY = b"\x93NUMPY"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_HEADERS = {
    (1, 0): ("<H", npy.read_array_header_1_0),
    (2, 0): ("<I", npy.read_array_header_2_0),
}
"""By version of numpy's format: how a header's length is packed, and what reads both."""
_LONGEST_HEADER = 8192
"""Bytes; that of a plain array has 128."""


def find(folder: Path, name: str) -> Path | None:
    """``NAME.npz`` in the folder, if it is there."""
    path = folder / f"{name}.npz"
    return path if path.is_file() else None


def read(
    path: Path,
    *,
    seed: int,
    test_share: float = 0.2,
    standardise: bool = True,
    first_label: int = 0,
    group: str = "",
) -> Dataset:
    """A data set from one ``.npz`` file.

    The file holds ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``, of
    which a random part is then set aside for testing. Where it also holds ``columns`` and
    ``vocab_json``, the features are a table of codes; see :func:`coded_table`.

    Args:
        path: The file.
        seed: Decides the split of ``x`` and ``y``.
        test_share: Share of each class in the test part, for ``x`` and ``y`` only.
        standardise: Whether features get mean 0 and spread 1.
        first_label: Label of the first class in the file.
        group: Column that divides people into groups, for coded tables; empty for none.

    Raises:
        Damaged: The file is no ``.npz`` or cut off.
        BadInput: Arrays are missing or unusable.
    """
    stored = _stored(path)
    arrays = _parts(path, stored, seed, test_share)
    if "columns" in stored and "vocab_json" in stored:
        if stored["columns"].ndim != 1:
            raise BadInput(
                f"columns in {path.name} must be a list of names, got shape "
                f"{stored['columns'].shape}; store one name a column of x"
            )
        return coded_table(
            path.stem,
            arrays,
            columns=[str(column) for column in stored["columns"]],
            vocabulary=stored["vocab_json"].tobytes(),
            group=group,
            on_disk=path.stat().st_size,
        )
    if group:
        raise BadInput(
            f"{path.name} has no named columns, so there is no group {group!r}; leave group "
            "empty, or store 'columns' and 'vocab_json' in the file"
        )
    return from_arrays(path.stem, arrays, standardise=standardise, first_label=first_label)


def _stored(path: Path) -> dict[str, AnyArray]:
    try:
        _refuse_many(path)
        with zipfile.ZipFile(path) as archive:
            _refuse_odd(path, archive.infolist())
            entries = archive.infolist()
            hold_to_budget(
                path.name,
                max((_dictionary(path, entry) for entry in entries), default=0),
                on_disk=path.stat().st_size,
            )
            needed = sum(_announced(path, archive, entry) for entry in entries)
        hold_to_budget(path.name, needed, on_disk=path.stat().st_size)
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (BadInput, Damaged, MemoryError):
        raise
    except ValueError as error:
        raise BadInput(
            f"{path.name} holds something other than plain arrays ({_first_line(error)}); save "
            "numbers only, never objects"
        ) from error
    # A damaged file makes zipfile, zlib, tokenize and numpy raise whatever they please.
    except Exception as error:
        raise Damaged(
            f"{path.name} cannot be read as .npz ({_first_line(error)}); fetch it again"
        ) from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # the bytes of an entry that is none
            raise BadInput(f"{path.name} holds {name!r}, which is no array; store arrays only")
        # Of what takes no bytes there can be more than anybody can count.
        if not array.nbytes and max(array.shape, default=0) > _MOST_OF_NOTHING:
            raise BadInput(
                f"{path.name} holds {name!r} of shape {array.shape} and no bytes; store arrays "
                "with values"
            )
    return found


def _first_line(error: Exception) -> str:
    """What an error says, without the advice that numpy adds for files of one's own."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _refuse_many(path: Path) -> None:
    """Refuses an archive of very many entries, each of which would take a kilobyte to list."""
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        # The signature of an entry; that it stands in an array by chance is one in four billion.
        found = islice(finditer(b"PK\x01\x02", content), _MOST_ARRAYS + 1)
        if sum(1 for _ in found) > _MOST_ARRAYS:
            raise BadInput(
                f"{path.name} holds over {_MOST_ARRAYS} arrays; store those of the data set alone"
            )


def _refuse_odd(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuses two entries of one name, and ways of packing that zip files rarely have."""
    for name, count in Counter(entry.filename for entry in entries).items():
        if count > 1:
            raise BadInput(f"{path.name} holds two arrays named {name!r}; store each once")
    if any(entry.compress_type not in _PACKINGS for entry in entries):
        raise Damaged(
            f"{path.name} cannot be read as .npz (an entry is packed in a way that is not known "
            "here); save it with numpy.savez_compressed"
        )


def _dictionary(path: Path, entry: zipfile.ZipInfo) -> int:
    """Bytes that unpacking an entry sets aside before it has read anything: LZMA's dictionary."""
    if entry.compress_type != zipfile.ZIP_LZMA:
        return 0
    with path.open("rb") as file:
        file.seek(entry.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        # Version, size of the properties, and the first of them stand before the size.
        (size,) = struct.unpack("<5xI", file.read(9))
    return int(size)


def _announced(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Bytes of memory that an array takes by its header, which numpy sets aside unasked.

    Raises:
        BadInput: Its values would be more bytes than it unpacks to.
        ValueError: It is of objects, or of another version.
    """
    with archive.open(entry) as file:
        if file.read(len(_NPY)) != _NPY:
            return entry.file_size
        shape, size = _header(path, cast(zipfile.ZipExtFile, file))
    values = math.prod(shape)
    if values * size > entry.file_size:
        raise BadInput(
            f"{path.name} announces more values than its {entry.file_size} bytes hold (shape "
            f"{str(shape)[:80]}); fetch it again"
        )
    # As 32-bit numbers, which features become.
    return values * max(size, 4) if size else 0


def _header(path: Path, file: zipfile.ZipExtFile) -> tuple[tuple[int, ...], int]:
    """Shape of an array, and bytes of one value.

    Raises:
        BadInput: The header is said to be longer than any; it is not read.
        ValueError: It is of objects, or of another version.
    """
    version = (*file.read(2),)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of numpy's format")
    packing, read_header = _HEADERS[version]
    packed = file.read(struct.calcsize(packing))
    (length,) = struct.unpack(packing, packed)
    if length > _LONGEST_HEADER:
        raise BadInput(
            f"{path.name} holds an array whose header is said to have {length:,} bytes, and at "
            f"most {_LONGEST_HEADER:,} are read; save it with numpy.savez_compressed"
        )
    shape, _, kind = read_header(BytesIO(packed + file.read(length)))
    if kind.hasobject:
        raise ValueError("objects")
    return shape, kind.itemsize


def _parts(path: Path, stored: dict[str, AnyArray], seed: int, test_share: float) -> Arrays:
    if {"x_train", "y_train", "x_test", "y_test"} <= stored.keys():
        return Arrays(stored["x_train"], stored["y_train"], stored["x_test"], stored["y_test"])
    if {"x", "y"} <= stored.keys():
        rng = seeded_numpy(seed, "split", path.stem)
        return split_arrays(stored["x"], stored["y"], test_share=test_share, rng=rng)
    raise BadInput(
        f"{path.name} holds {', '.join(sorted(stored)) or 'nothing'}; it must hold x_train, "
        "y_train, x_test and y_test, or x and y"
    )
