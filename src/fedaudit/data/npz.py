"""Data sets in numpy's ``.npz`` files."""

import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedaudit.data.arrays import MAX_VALUES, AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.data.dataset import Dataset
from fedaudit.data.table import coded_table
from fedaudit.errors import BadInput, Damaged
from fedaudit.seeds import seeded_numpy

_MAX_BYTES = 4 * MAX_VALUES
_MOST_OF_NOTHING = 2**24
_SMALL = 2**28
"""Bytes that every machine has room for."""


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
        )
    if group:
        raise BadInput(
            f"{path.name} has no named columns, so there is no group {group!r}; leave group "
            "empty, or store 'columns' and 'vocab_json' in the file"
        )
    return from_arrays(path.stem, arrays, standardise=standardise, first_label=first_label)


def _stored(path: Path) -> dict[str, AnyArray]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        size = _size_of_entries(path, entries)
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except BadInput:
        raise
    except MemoryError as error:
        if size > _SMALL:
            raise
        # NumPy sets aside what an array announces before it looks for it.
        raise BadInput(
            f"{path.name} announces more values than its {size} bytes hold ({error}); fetch it "
            "again"
        ) from error
    except ValueError as error:
        raise BadInput(
            f"{path.name} holds something other than plain arrays ({error}); save numbers only, "
            "never objects"
        ) from error
    # A damaged file makes zipfile, zlib, tokenize and numpy raise whatever they please.
    except Exception as error:
        raise Damaged(f"{path.name} cannot be read as .npz ({error}); fetch it again") from error
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


def _size_of_entries(path: Path, entries: Sequence[zipfile.ZipInfo]) -> int:
    """What they unpack to, in bytes, if that is not too much and no name stands there twice."""
    size = sum(entry.file_size for entry in entries)
    if size > _MAX_BYTES:
        raise BadInput(
            f"{path.name} unpacks to {size} bytes and at most {_MAX_BYTES} are read; "
            "store fewer samples"
        )
    for name, count in Counter(entry.filename for entry in entries).items():
        if count > 1:
            raise BadInput(f"{path.name} holds two arrays named {name!r}; store each once")
    return size


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
