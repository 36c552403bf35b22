"""Data sets in NumPy's ``.npz`` files: arrays, and tables of people with a grouping column."""

import math
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from io import BufferedReader, BytesIO
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from re import finditer
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Num, Shaped, UInt8
from numpy import ndarray
from numpy.lib import format as npy
from torch import Tensor

from fedaudit.core.arguments import Count, ProperShare, dataclass
from fedaudit.core.errors import BadInput, Damaged, unknown_name
from fedaudit.core.files import open_regular, parsed_json, refuse_oversized
from fedaudit.core.pretrained import read_minilm_file
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import (
    AnyArray,
    Arrays,
    Scaled,
    assembled,
    checked_labels,
    count_classes,
    from_arrays,
    scaled_columns,
    split_arrays,
)
from fedaudit.datasets.dataset import DataFile, Dataset, with_subjects

_MOST_OF_NOTHING = 2**24
_MOST_ARRAYS = 1000
_NPY = b"\x93NUMPY"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_HEADERS = {
    (1, 0): ("<H", npy.read_array_header_1_0),
    (2, 0): ("<I", npy.read_array_header_2_0),
}
"""For each version of NumPy's format, the packing of a header's length and the reader of
headers."""
_LONGEST_HEADER = 8192
"""Limit of a header in bytes; that of a plain array has 128."""


@dataclass(frozen=True)
class npz(DataFile):
    """Data set in a NumPy file.

    The file contains ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``, of
    which a random part is held out for testing. If it also contains ``columns`` and ``vocab_json``,
    the features are a table of codes.

    Attributes:
        path: Path of the file, or its name in the data directory.
        test_share: Share of each class in the test part, for ``x`` and ``y`` only.
        standardise: Whether features are scaled to mean 0 and standard deviation 1.
        first_label: Label of the first class in the file.
        labels: Name of the array of classes or targets of ``x``.
        distinct: Whether only the first of equal samples is kept, for ``x`` only. The membership of
            a duplicated sample is undefined.
        longest: Number of leading columns of ``x`` that are kept; 0 for all.
        tokenizer: "minilm" if ``x`` contains texts as bytes, padded with zeros: features are their
            tokens, at most ``longest`` of them (64 if that is 0).
        group: Column that divides people into groups, for coded tables; empty for none.
        subject: Array of the person (patient, author, device) that each sample of ``x`` is from, by
            number or name. A file with a test part has it twice, with ``_train`` and ``_test``
            after its name. Empty if it is unknown.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.npz("data/tumours.npz", standardise=False).part().what
        'npz:tumours'
    """

    looks_for: ClassVar[str] = "NAME.npz"
    suffix: ClassVar[str] = ".npz"

    _: KW_ONLY
    test_share: ProperShare = 0.2
    standardise: bool = True
    first_label: int = 0
    labels: str = "y"
    distinct: bool = False
    longest: Count = 0
    tokenizer: Literal["", "minilm"] = ""
    group: str = ""
    subject: str = ""

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return ``NAME.npz`` in the folder if it exists."""
        path = folder / f"{name}.npz"
        return path if path.is_file() else None

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the test samples of ``x`` and ``y``.

        Raises:
            Damaged: The file is truncated or no ``.npz``.
            BadInput: Arrays are missing or unusable.
        """
        stored = read_npz(self.file)
        if self.tokenizer:
            longest = self.longest or 64
            stored = {
                name: tokens_of(value, self.tokenizer, longest) if name.startswith("x") else value
                for name, value in stored.items()
            }
        elif self.longest and "x" in stored and stored["x"].ndim == 2:
            stored["x"] = stored["x"][:, : self.longest]
        arrays, positions = self._parts(stored, seed)
        dataset = self._dataset(arrays, stored)
        return (
            with_subjects(dataset, self._subjects(stored, positions)) if self.subject else dataset
        )

    def _dataset(self, arrays: Arrays, stored: Mapping[str, AnyArray]) -> Dataset:
        path = self.file
        if "columns" in stored and "vocab_json" in stored:
            if stored["columns"].ndim != 1:
                raise BadInput(
                    f"columns in {path.name} must be a list of names, got shape "
                    f"{stored['columns'].shape}; store one name for each column of x"
                )
            return coded_table(
                path.stem,
                arrays,
                columns=[str(column) for column in stored["columns"]],
                vocabulary=stored["vocab_json"].tobytes(),
                group=self.group,
                on_disk=path.stat().st_size,
            )
        if self.group:
            raise BadInput(
                f"{path.name} has no named columns, so there is no group {self.group!r}; leave "
                "group empty, or store 'columns' and 'vocab_json' in the file"
            )
        return from_arrays(
            path.stem,
            arrays,
            standardise=self.standardise,
            first_label=self.first_label,
            tokens=self.tokenizer,
        )

    def _parts(
        self, stored: Mapping[str, AnyArray], seed: int
    ) -> tuple[Arrays, Int[ndarray, " samples"] | None]:
        """Return the two parts, and each sample's position if one block was split."""
        path, labels = self.file, self.labels
        for name in ("x_train", "y_train", "x_test", "y_test", "x", labels):
            if name in stored and not stored[name].ndim:
                raise BadInput(
                    f"{name} in {path.name} is a single value; store one row for each sample"
                )
        if {"x_train", "y_train", "x_test", "y_test"} <= stored.keys():
            parts = (stored[name] for name in ("x_train", "y_train", "x_test", "y_test"))
            return Arrays(*parts), None
        if {"x", labels} <= stored.keys():
            rng, x, y = seeded_numpy(seed, "split", path.stem), stored["x"], stored[labels]
            first = np.arange(len(x))
            if self.distinct and len(x) == len(y):
                first = np.sort(np.unique(x, axis=0, return_index=True)[1])
                x, y = x[first], y[first]
            arrays, positions = split_arrays(x, y, test_share=self.test_share, rng=rng)
            return arrays, first[np.concatenate(positions)]
        raise BadInput(
            f"{path.name} contains {', '.join(sorted(stored)) or 'nothing'}; it must contain "
            f"x_train, y_train, x_test and y_test, or x and {labels}"
        )

    def _subjects(
        self, stored: Mapping[str, AnyArray], positions: Int[ndarray, " samples"] | None
    ) -> Shaped[ndarray, " samples"]:
        """Return the person of each sample of both parts."""
        subject, is_split = self.subject, positions is not None
        names = [subject] if is_split else [f"{subject}_train", f"{subject}_test"]
        missing = [name for name in names if name not in stored]
        if missing:
            raise unknown_name("array of people", missing[0], stored)
        people = [stored[name] for name in names]
        too_short = positions is not None and len(people[0]) <= positions.max()
        if any(part.ndim != 1 for part in people) or too_short:
            raise BadInput(
                f"{' and '.join(names)} in {self.file.name} must name one person for each sample, "
                f"got shape {people[0].shape}; store one entry for each row of x"
            )
        return np.concatenate(people) if positions is None else people[0][positions]


TOKENIZERS: dict[str, Callable[..., bytes]] = {"minilm": read_minilm_file}
"""Functions that read ``tokenizer.json`` of a model, by its name."""


def tokens_of(
    texts: UInt8[ndarray, "samples bytes"], tokenizer: str, longest: int
) -> Int[ndarray, "samples tokens"]:
    """Return the tokens of texts, truncated or padded to a length.

    Args:
        texts: One row of bytes (UTF-8) for each text, padded with zeros.
        tokenizer: Name of the tokenizer.
        longest: Tokens of a row.

    Raises:
        BadInput: The tokenizer does not exist, its package is not installed, or rows are not texts.
    """
    if tokenizer not in TOKENIZERS:
        raise unknown_name("tokenizer", tokenizer, TOKENIZERS)
    if texts.ndim != 2 or texts.dtype != np.uint8:
        raise BadInput(
            f"texts are rows of bytes, got {texts.dtype} of shape {texts.shape}; omit tokenizer "
            "for other features"
        )
    rules = TOKENIZERS[tokenizer]("tokenizer.json", "tokenizers").decode()
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_str(rules)
    encoder.enable_truncation(longest)
    encoder.enable_padding(length=longest)
    lines = [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in texts]
    return np.array([encoding.ids for encoding in encoder.encode_batch(lines)], dtype=np.int32)


def read_npz(path: Path) -> dict[str, AnyArray]:
    """Return the arrays of an untrusted file by name.

    Raises:
        BadInput: It contains objects, too many arrays, or arrays that would take too much memory.
        Damaged: It is truncated or no ``.npz``.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            _refuse_many(path, file, size)
            with zipfile.ZipFile(file) as archive:
                _refuse_odd(path, archive.infolist())
                entries = archive.infolist()
                refuse_oversized(
                    path.name,
                    max((_dictionary(file, entry) for entry in entries), default=0),
                    on_disk=size,
                )
                needed = sum(_declared(path, archive, entry) for entry in entries)
            refuse_oversized(path.name, needed, on_disk=size)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                stored = {name: arrays[name] for name in arrays.files}
    except (BadInput, Damaged, MemoryError):
        raise
    except ValueError as error:
        raise BadInput(
            f"{path.name} contains something other than plain arrays ({_first_line(error)}); save "
            "numbers only, never objects"
        ) from error
    # With a damaged file zipfile, zlib, tokenize and numpy can raise anything.
    except Exception as error:
        raise Damaged(
            f"{path.name} cannot be read as .npz ({_first_line(error)}); fetch it again"
        ) from error
    for name, array in stored.items():
        if not isinstance(array, np.ndarray):  # the raw bytes of another file
            raise BadInput(
                f"{path.name} contains {name!r}, which is not an array; store arrays only"
            )
        # An array without bytes can have any number of rows.
        if not array.nbytes and max(array.shape, default=0) > _MOST_OF_NOTHING:
            raise BadInput(
                f"{path.name} contains {name!r} of shape {array.shape} and no bytes; store arrays "
                "with values"
            )
    return stored


def _first_line(error: Exception) -> str:
    """Return the message of an error, without NumPy's advice for trusted files."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _refuse_many(path: Path, file: BufferedReader, size: int) -> None:
    """Raise if an archive has very many entries, each of which would take a kilobyte to list."""
    if not size:
        return
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        # The signature of an entry, which occurs by chance once in four billion positions.
        entries = islice(finditer(b"PK\x01\x02", content), _MOST_ARRAYS + 1)
        if sum(1 for _ in entries) > _MOST_ARRAYS:
            raise BadInput(
                f"{path.name} contains over {_MOST_ARRAYS} arrays; store only those of the data set"
            )


def _refuse_odd(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Raise for two entries of one name, and for compression methods that zip files rarely have."""
    for name, count in Counter(entry.filename for entry in entries).items():
        if count > 1:
            raise BadInput(f"{path.name} contains two arrays named {name!r}; store each once")
    if any(entry.compress_type not in _PACKINGS for entry in entries):
        raise Damaged(
            f"{path.name} cannot be read as .npz (an entry has an unknown compression method); "
            "save it with numpy.savez_compressed"
        )


def _dictionary(file: BufferedReader, entry: zipfile.ZipInfo) -> int:
    """Return the size of LZMA's dictionary, which is allocated before an entry is read."""
    if entry.compress_type != zipfile.ZIP_LZMA:
        return 0
    file.seek(entry.header_offset + 26)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    # The size follows the version, the length of the properties, and the first property.
    (size,) = struct.unpack("<5xI", file.read(9))
    return int(size)


def _declared(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Return the bytes that an array takes by its header, which NumPy allocates unchecked.

    Raises:
        BadInput: The values would take more bytes than the entry unpacks to.
        ValueError: The array contains objects, or has another version of the format.
    """
    with archive.open(entry) as file:
        if file.read(len(_NPY)) != _NPY:
            return entry.file_size
        shape, size = _header(path, cast(zipfile.ZipExtFile, file))
    values = math.prod(shape)
    if values * size > entry.file_size:
        raise BadInput(
            f"{path.name} declares more values than fit its {entry.file_size} bytes (shape "
            f"{str(shape)[:80]}); fetch it again"
        )
    # Features become 32-bit numbers.
    return values * max(size, 4) if size else 0


def _header(path: Path, file: zipfile.ZipExtFile) -> tuple[tuple[int, ...], int]:
    """Return the shape of an array, and the bytes of one value.

    Raises:
        BadInput: The declared length of the header exceeds the limit.
        ValueError: The array contains objects, or has another version of the format.
    """
    version = (*file.read(2),)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of numpy's format")
    packing, read_header = _HEADERS[version]
    packed = file.read(struct.calcsize(packing))
    (length,) = struct.unpack(packing, packed)
    if length > _LONGEST_HEADER:
        raise BadInput(
            f"{path.name} contains an array whose header has {length:,} bytes, and at most "
            f"{_LONGEST_HEADER:,} are read; save it with numpy.savez_compressed"
        )
    shape, _, kind = read_header(BytesIO(packed + file.read(length)))
    if kind.hasobject:
        raise ValueError("objects")
    return shape, kind.itemsize


def coded_table(
    name: str,
    arrays: Arrays,
    *,
    columns: Sequence[str],
    vocabulary: bytes,
    group: str = "",
    on_disk: int,
) -> Dataset:
    """Return a table of categories and numbers as features for a model.

    A column with a vocabulary contains indices into it and becomes one 0/1 feature for each value;
    the others are standardised.

    Args:
        name: Name of the data set.
        arrays: Integer codes and numbers, one row for each person.
        columns: Name of each column.
        vocabulary: JSON object: for each column of categories, the values of its codes.
        group: Column of categories whose values become the groups; empty for none. It stays a
            feature as well.
        on_disk: Size of the table in bytes, which limits the memory of its features.

    Raises:
        BadInput: Columns do not match the table, a code is outside its vocabulary, the group is no
            column of categories, or the features would take far more memory than the table.
    """
    words = _words(vocabulary)
    for part in (arrays.x_train, arrays.x_test):
        _check_table(part, columns, words)
    if group and group not in words:
        raise unknown_name("column of categories", group, words)
    width = sum(len(words[column]) if column in words else 1 for column in columns)
    rows = len(arrays.x_train) + len(arrays.x_test)
    refuse_oversized(f"the table {name!r} as features", rows * width * 4, on_disk=on_disk)
    numeric = [index for index, column in enumerate(columns) if column not in words]
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
        index = list(columns).index(group)
        both = np.concatenate([arrays.x_train[:, index], arrays.x_test[:, index]])
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
            "give one name for each column"
        )
    for index, column in enumerate(columns):
        codes = table[:, index]
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
        _one_hot(table[:, index].astype(np.int64), len(words[column]))
        for index, column in enumerate(columns)
        if column in words
    ]
    return torch.cat([numbers, *one_hot], dim=1)


def _one_hot(codes: Int[ndarray, " samples"], size: int) -> Float[Tensor, "samples values"]:
    # Not torch's one_hot, whose values take eight bytes each.
    ones = torch.zeros(len(codes), size)
    return ones.scatter_(1, torch.from_numpy(codes)[:, None], 1.0)
