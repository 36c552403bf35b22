"""Data sets in NumPy's ``.npz`` files: arrays, tables with integer-coded categories, and texts."""

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

from fedaudit.core.arguments import Count, ProperFraction, dataclass
from fedaudit.core.errors import BadInput, Damaged, unknown_name
from fedaudit.core.files import open_regular, parse_json, raise_if_oversized
from fedaudit.core.pretrained import read_minilm_file
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import (
    AnyArray,
    Arrays,
    ScaledFeatures,
    build_dataset,
    count_classes,
    from_arrays,
    scale_columns,
    split_arrays,
    validate_labels,
)
from fedaudit.datasets.dataset import DataFile, Dataset, person_setting, with_people

_MAX_EMPTY_ROWS = 2**24
"""Largest number of rows of an array that contains no values, such as one of shape (rows, 0)."""
_MAX_ARRAYS = 1000
_NPY = b"\x93NUMPY"
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_HEADERS = {
    (1, 0): ("<H", npy.read_array_header_1_0),
    (2, 0): ("<I", npy.read_array_header_2_0),
}
"""For each version of NumPy's format, the ``struct`` format of a header's length, and the function
that reads a header."""
_MAX_HEADER_BYTES = 8192
"""Limit of a header; a plain array's header has 128 bytes."""


@dataclass(frozen=True)
class npz(DataFile):
    """Data set in a NumPy file.

    The file contains ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y``, of
    which a random part is held out for testing. If it also contains ``columns`` and ``vocab_json``,
    the features are a table with integer-coded categories: ``columns`` names the columns, and
    ``vocab_json`` is a JSON object with a list for each coded column. A code is an index into this
    list.

    Attributes:
        path: Path of the file, or its name in the data directory.
        test_share: Fraction of each class that is held out for testing, for ``x`` and ``y`` only.
        standardise: Whether features are scaled to mean 0 and standard deviation 1.
        first_label: Label of the first class in the file.
        labels: Name of the array of classes or targets of ``x``.
        distinct: Whether only the first of several equal samples is kept, for ``x`` only. The
            membership of a duplicated sample is undefined.
        longest: Longest sequence: only the first ``longest`` columns of ``x`` are kept; 0 for all.
        tokenizer: "minilm" if ``x`` contains texts as bytes, padded with zeros. The features of a
            text are its first ``longest`` tokens (64 if ``longest`` is 0).
        group: Coded column that divides samples into groups; empty for none.
        person: Name of the array with the person (patient, author, device) of each sample of ``x``,
            as a number or name. A file with a test part has two such arrays, with ``_train`` and
            ``_test`` after the name. Empty if people are unknown.
        subject: Another name of ``person``.

    Examples:
        >>> import fedaudit as fa
        >>> # The name and settings, as a study file states them.
        >>> fa.datasets.npz("data/tumours.npz", standardise=False).named_part().what
        'npz:tumours'
    """

    expected_layout: ClassVar[str] = "NAME.npz"
    suffix: ClassVar[str] = ".npz"

    _: KW_ONLY
    test_share: ProperFraction = 0.2
    standardise: bool = True
    first_label: int = 0
    labels: str = "y"
    distinct: bool = False
    longest: Count = 0
    tokenizer: Literal["", "minilm"] = ""
    group: str = ""
    person: str = ""
    subject: str = ""

    def read(self, seed: int) -> Dataset:
        """Return the data set; the seed selects the test samples of ``x`` and ``y``.

        Raises:
            Damaged: The file is truncated or not an ``.npz`` file.
            BadInput: Arrays are missing or unusable.
        """
        person = person_setting(self.person, self.subject)
        stored = read_npz(self.file)
        if self.tokenizer:
            for name, value in stored.items():
                if name.startswith("x"):
                    stored[name] = tokens_of(value, self.tokenizer, self.longest or 64)
        elif self.longest and "x" in stored and stored["x"].ndim == 2:
            stored["x"] = stored["x"][:, : self.longest]
        arrays, positions = self._split(stored, seed)
        dataset = self._dataset(arrays, stored)
        if person:
            return with_people(dataset, self._people(person, stored, positions))
        return dataset

    def _dataset(self, arrays: Arrays, stored: Mapping[str, AnyArray]) -> Dataset:
        path = self.file
        if "columns" in stored and "vocab_json" in stored:
            if stored["columns"].ndim != 1:
                raise BadInput(
                    f"columns in {path.name} must be a list of names, got shape "
                    f"{stored['columns'].shape}; store one name for each column of x"
                )
            return _coded_table(
                path.stem,
                arrays,
                columns=[str(column) for column in stored["columns"]],
                vocabulary_json=stored["vocab_json"].tobytes(),
                group=self.group,
                file_bytes=path.stat().st_size,
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
            tokenizer=self.tokenizer,
        )

    def _split(
        self, stored: Mapping[str, AnyArray], seed: int
    ) -> tuple[Arrays, Int[ndarray, " samples"] | None]:
        """Return both parts, and the position in ``x`` of each sample if the split is random."""
        path, labels = self.file, self.labels
        for name in (*Arrays._fields, "x", labels):
            if name in stored and not stored[name].ndim:
                raise BadInput(
                    f"{name} in {path.name} is a single value; store one row for each sample"
                )
        if {*Arrays._fields} <= stored.keys():
            return Arrays(*(stored[name] for name in Arrays._fields)), None
        if {"x", labels} <= stored.keys():
            rng = seeded_numpy(seed, "split", path.stem)
            x, y = stored["x"], stored[labels]
            kept_rows = np.arange(len(x))
            if self.distinct and len(x) == len(y):
                kept_rows = np.sort(np.unique(x, axis=0, return_index=True)[1])
                x, y = x[kept_rows], y[kept_rows]
            arrays, positions = split_arrays(x, y, test_share=self.test_share, rng=rng)
            return arrays, kept_rows[np.concatenate(positions)]
        raise BadInput(
            f"{path.name} contains {', '.join(sorted(stored)) or 'nothing'}; it must contain "
            f"x_train, y_train, x_test and y_test, or x and {labels}"
        )

    def _people(
        self,
        person: str,
        stored: Mapping[str, AnyArray],
        positions: Int[ndarray, " samples"] | None,
    ) -> Shaped[ndarray, " samples"]:
        """Return the person of each sample of both parts."""
        names = [f"{person}_train", f"{person}_test"] if positions is None else [person]
        missing = [name for name in names if name not in stored]
        if missing:
            raise unknown_name("array of people", missing[0], stored)
        people = [stored[name] for name in names]
        is_too_short = positions is not None and len(people[0]) <= positions.max()
        if any(part.ndim != 1 for part in people) or is_too_short:
            raise BadInput(
                f"{' and '.join(names)} in {self.file.name} must contain one person for each "
                f"sample, got shape {people[0].shape}; store one entry for each row of x"
            )
        return np.concatenate(people) if positions is None else people[0][positions]


TOKENIZERS: dict[str, Callable[..., bytes]] = {"minilm": read_minilm_file}
"""Functions that read a file of a model, such as ``tokenizer.json``, by the model's name."""


def tokens_of(
    texts: UInt8[ndarray, "samples bytes"], tokenizer: str, longest: int
) -> Int[ndarray, "samples tokens"]:
    """Return the tokens of each text, truncated or padded to ``longest`` tokens.

    Texts are rows of UTF-8 bytes, padded with zeros.

    Raises:
        BadInput: The tokenizer does not exist, its package is not installed, or rows are not texts.
    """
    if texts.ndim != 2 or texts.dtype != np.uint8:
        raise BadInput(
            f"texts are rows of bytes, got {texts.dtype} of shape {texts.shape}; omit tokenizer "
            "for other features"
        )
    lines = [(row.tobytes().rstrip(b"\0").decode("utf-8", "replace"),) for row in texts]
    return encoded_texts(lines, tokenizer, longest)


def encoded_texts(
    texts: Sequence[tuple[str, ...]], tokenizer: str, longest: int
) -> Int[ndarray, "samples tokens"]:
    """Return the tokens of each text or pair of texts, truncated or padded to ``longest`` tokens.

    Raises:
        BadInput: The tokenizer does not exist, or its package is not installed.
    """
    if tokenizer not in TOKENIZERS:
        raise unknown_name("tokenizer", tokenizer, TOKENIZERS)
    rules = TOKENIZERS[tokenizer]("tokenizer.json", "tokenizers").decode()
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_str(rules)
    encoder.enable_truncation(longest)
    encoder.enable_padding(length=longest)
    # The package expects a single text as str, and a pair as a tuple.
    inputs = [text[0] if len(text) == 1 else text for text in texts]
    return np.array([encoding.ids for encoding in encoder.encode_batch(inputs)], dtype=np.int32)


def read_npz(path: Path) -> dict[str, AnyArray]:
    """Return the arrays of an untrusted file by name.

    Raises:
        BadInput: The file contains Python objects, too many arrays, or arrays that would take too
            much memory.
        Damaged: The file is truncated or not an ``.npz`` file.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            _raise_if_many_arrays(path, file, size)
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _raise_if_unusual_entries(path, entries)
                lzma_bytes = max((_lzma_dictionary_bytes(file, e) for e in entries), default=0)
                raise_if_oversized(path.name, lzma_bytes, file_bytes=size)
                needed = sum(_declared_bytes(path, archive, entry) for entry in entries)
            raise_if_oversized(path.name, needed, file_bytes=size)
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
    # On damaged files, zipfile, zlib, tokenize and NumPy can raise any exception.
    except Exception as error:
        raise Damaged(
            f"{path.name} cannot be read as .npz ({_first_line(error)}); fetch it again"
        ) from error
    for name, array in stored.items():
        # NumPy returns the bytes of files in the archive that are not arrays.
        if not isinstance(array, np.ndarray):
            raise BadInput(
                f"{path.name} contains {name!r}, which is not an array; store arrays only"
            )
        # An array without bytes passes the memory limit with any number of rows.
        if not array.nbytes and max(array.shape, default=0) > _MAX_EMPTY_ROWS:
            raise BadInput(
                f"{path.name} contains {name!r} of shape {array.shape} and no bytes; store arrays "
                "with values"
            )
    return stored


def _first_line(error: Exception) -> str:
    """Return the message of an error, without NumPy's advice for trusted files."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _raise_if_many_arrays(path: Path, file: BufferedReader, size: int) -> None:
    """Raise if an archive has too many entries; zipfile needs a kilobyte for each of them."""
    if not size:
        return
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        # Every entry has this signature. By chance, it occurs once in four billion positions.
        entries = islice(finditer(b"PK\x01\x02", content), _MAX_ARRAYS + 1)
        if sum(1 for _ in entries) > _MAX_ARRAYS:
            raise BadInput(
                f"{path.name} contains over {_MAX_ARRAYS} arrays; store only those of the data set"
            )


def _raise_if_unusual_entries(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Raise if two entries have one name, or an entry has an unknown compression method."""
    for name, count in Counter(entry.filename for entry in entries).items():
        if count > 1:
            raise BadInput(f"{path.name} contains two arrays named {name!r}; store each once")
    if any(entry.compress_type not in _COMPRESSIONS for entry in entries):
        raise Damaged(
            f"{path.name} cannot be read as .npz (an entry has an unknown compression method); "
            "save it with numpy.savez_compressed"
        )


def _lzma_dictionary_bytes(file: BufferedReader, entry: zipfile.ZipInfo) -> int:
    """Return the size of LZMA's dictionary, which is allocated before an entry is read."""
    if entry.compress_type != zipfile.ZIP_LZMA:
        return 0
    # Skip the name and the extra field, whose lengths the local header states at byte 26.
    file.seek(entry.header_offset + 26)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    # The size follows the version, the length of the properties, and the first property.
    (size,) = struct.unpack("<5xI", file.read(9))
    return int(size)


def _declared_bytes(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Return the size that an array's header declares; NumPy would allocate it unchecked."""
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
    """Return the shape of an array and the size of one value in bytes.

    Raises:
        BadInput: The header is too long.
        ValueError: The header has an unknown version, or declares Python objects.
    """
    version = (*file.read(2),)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of numpy's format")
    packing, read_header = _HEADERS[version]
    packed = file.read(struct.calcsize(packing))
    (length,) = struct.unpack(packing, packed)
    if length > _MAX_HEADER_BYTES:
        raise BadInput(
            f"{path.name} contains an array whose header has {length:,} bytes, but at most "
            f"{_MAX_HEADER_BYTES:,} are read; save it with numpy.savez_compressed"
        )
    shape, _, dtype = read_header(BytesIO(packed + file.read(length)))
    if dtype.hasobject:
        raise ValueError("objects")
    return shape, dtype.itemsize


def _coded_table(
    name: str,
    arrays: Arrays,
    *,
    columns: Sequence[str],
    vocabulary_json: bytes,
    group: str = "",
    file_bytes: int,
) -> Dataset:
    """Return a data set from a table of integer-coded categories and numbers.

    The vocabulary, a JSON object, maps each coded column to a list of values. Codes are indices
    into this list, and become one 0/1 feature per value. All other columns are standardised. The
    column ``group`` defines groups of samples and remains a feature.
    """
    vocabulary = _parse_vocabulary(vocabulary_json)
    for part in (arrays.x_train, arrays.x_test):
        _check_table(part, columns, vocabulary)
    if group and group not in vocabulary:
        raise unknown_name("column of categories", group, vocabulary)
    width = sum(len(vocabulary[column]) if column in vocabulary else 1 for column in columns)
    rows = len(arrays.x_train) + len(arrays.x_test)
    raise_if_oversized(f"the table {name!r} as features", rows * width * 4, file_bytes=file_bytes)
    numeric = [index for index, column in enumerate(columns) if column not in vocabulary]
    numbers = scale_columns(arrays.x_train[:, numeric], arrays.x_test[:, numeric])
    scaled = ScaledFeatures(
        _features(arrays.x_train, columns, vocabulary, numbers.train),
        _features(arrays.x_test, columns, vocabulary, numbers.test),
        "categories one 0/1 feature per value; numbers minus their training mean, over their "
        "training standard deviation",
    )
    y_train = validate_labels("training labels", arrays.y_train)
    y_test = validate_labels("test labels", arrays.y_test)
    codes = None
    if group:
        index = list(columns).index(group)
        all_values = np.concatenate([arrays.x_train[:, index], arrays.x_test[:, index]])
        codes = torch.from_numpy(all_values.astype(np.int64))
    return build_dataset(
        name,
        scaled,
        torch.from_numpy(y_train),
        torch.from_numpy(y_test),
        classes=count_classes(y_train, y_test),
        group=codes,
        group_names=tuple(vocabulary[group]) if group else (),
    )


def _parse_vocabulary(vocabulary_json: bytes) -> dict[str, list[str]]:
    try:
        parsed = parse_json(vocabulary_json.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"the vocabulary is not JSON ({error}); store an object of column name to values"
        ) from error
    if not isinstance(parsed, dict) or not all(isinstance(v, list) for v in parsed.values()):
        raise BadInput("the vocabulary must be an object of column name to a list of values")
    return {str(column): [str(value) for value in values] for column, values in parsed.items()}


def _check_table(
    table: Num[ndarray, "..."], columns: Sequence[str], vocabulary: Mapping[str, Sequence[str]]
) -> None:
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise BadInput(
            f"a table of {len(columns)} named columns cannot have shape {table.shape}; "
            "give one name for each column"
        )
    for index, column in enumerate(columns):
        codes = table[:, index]
        size = len(vocabulary[column]) if column in vocabulary else None
        if size is not None and not ((codes >= 0) & (codes < size) & (codes % 1 == 0)).all():
            raise BadInput(
                f"codes of column {column!r} must be whole numbers from 0 to {size - 1}, got "
                f"{codes.min()} to {codes.max()}; make them indices into the vocabulary"
            )


def _features(
    table: Num[ndarray, "samples columns"],
    columns: Sequence[str],
    vocabulary: Mapping[str, Sequence[str]],
    numbers: Float[Tensor, "samples numeric"],
) -> Float[Tensor, "samples features"]:
    one_hot = [
        _one_hot(table[:, index].astype(np.int64), len(vocabulary[column]))
        for index, column in enumerate(columns)
        if column in vocabulary
    ]
    return torch.cat([numbers, *one_hot], dim=1)


def _one_hot(codes: Int[ndarray, " samples"], size: int) -> Float[Tensor, "samples values"]:
    # torch's one_hot would take twice as much memory, because it returns 64-bit integers.
    features = torch.zeros(len(codes), size)
    return features.scatter_(1, torch.from_numpy(codes)[:, None], 1.0)
