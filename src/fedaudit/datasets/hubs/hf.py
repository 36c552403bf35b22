"""Data sets from the Hugging Face hub or its cache, with the optional package ``datasets``."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core import arguments
from fedaudit.core.arguments import Count
from fedaudit.core.errors import BadInput, Damaged, FedauditError, unknown_name
from fedaudit.core.files import open_regular, refuse_oversized, resolved
from fedaudit.core.naming import DataPart, changed_fields
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.datasets.dataset import Dataset, DataSource, person_setting, with_subjects
from fedaudit.datasets.formats.images import (
    Encoded,
    Pictures,
    decode_pictures,
    picture_statement,
    stack_pictures,
)
from fedaudit.datasets.formats.npz import encoded_texts
from fedaudit.datasets.tables.arrow import ArrowColumn, unpacked_sizes
from fedaudit.datasets.tables.columns import Column, Table, joined
from fedaudit.datasets.tables.roles import clients_of, groups_of
from fedaudit.datasets.tables.settings import Names
from fedaudit.datasets.tables.table import StoredTable, TableSource, dataset_of

_PICTURE_COLUMNS = ("image", "img")


@runtime_checkable
class Values(Protocol):
    """Values of one column, not decoded yet."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[object]: ...

    def array(self) -> AnyArray:
        """Return the values as an array, if they are numbers or texts, or rows of these.

        Raises:
            BadInput: Rows differ in length, or the values exceed the memory limit.
        """
        ...

    def column(self) -> Column:
        """Return the values as a column of a table, if they are numbers or texts.

        Raises:
            BadInput: They are neither.
        """
        ...


class Source(NamedTuple):
    """Data set that is not decoded yet.

    Attributes:
        parts: Columns by name, for each part by name.
        on_disk: Size in bytes of its files.
        folders: Folders that pictures may be read from, if a column contains paths.
    """

    parts: Mapping[str, Mapping[str, Values]]
    on_disk: int
    folders: Sequence[Path] = ()


@arguments.dataclass(frozen=True)
class hf(TableSource, DataSource):
    """Data set from Hugging Face or its local cache: pictures, rows of numbers, texts or a table.

    ``features`` as a list, or a data set without ``image`` or ``img``, is a table, which is encoded
    like a CSV file. Names of class indices are then the texts of a column. The part ``test``, or
    else ``validation``, is the test part, unless all of its labels are missing or -1.

    Attributes:
        name: Name on the hub, such as "ylecun/mnist".
        config: Name of the data set's configuration; empty for the only one.
        features: Column of pictures or of rows of numbers, or a list of a table's columns. If
            empty, ``image`` or ``img``; without these, all columns that have no other role.
        label: Column of class indices; in a table also of texts, or of numbers to predict.
        size: Side in pixels that pictures are resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        tokenizer: "minilm" if ``features`` names a column of texts, or two columns of pairs of
            texts: features are their tokens, at most ``longest`` per sample (64 if it is 0).
        longest: Largest number of tokens per sample.
        test_share: Share of each class in the test part, if the data set has none.
        standardise: Whether features are scaled to mean 0 and standard deviation 1.
        subject: Another name of ``person``.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.hf("ylecun/mnist", grey=True).part().what
        'hf:ylecun/mnist'
        >>> fa.datasets.hf("scikit-learn/adult-census-income", label="income").part().options
        {'label': 'income'}
    """

    name: str
    _: KW_ONLY
    config: str = ""
    features: str | Names = ""
    size: Count = 0
    grey: bool = False
    tokenizer: Literal["", "minilm"] = ""
    longest: Count = 0
    subject: str = ""

    def part(self) -> DataPart:
        """Return name and settings as in a study file, without settings at their defaults."""
        settings = changed_fields(self)
        return DataPart(f"hf:{settings.pop('name')}", settings)

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: The package is not installed, the data set cannot be loaded, lacks a training
                part or a column, has a column that cannot be used, or takes far more memory than
                its files.
            Damaged: A picture or a file cannot be read.
        """
        source, settings = self._opened()
        if settings._is_table(source):
            return dataset_of(_stored(source, settings), seed)
        others = ("size", "grey") if self.tokenizer else ("longest",)
        settings._refuse_others("texts" if self.tokenizer else "pictures or lists", others)
        settings._refuse_others("one column", _TABLES_ONLY)
        return _of_one_kind(source, settings, seed)

    def stored(self) -> StoredTable:
        """Return the table."""
        source, settings = self._opened()
        if not settings._is_table(source):
            raise BadInput(f"the data set {self.name!r} is not read as a table; ask by row instead")
        return _stored(source, settings)

    def _opened(self) -> "tuple[Source, hf]":
        """Return the training and the test part, and the settings with one name of ``person``."""
        source = _loaded(self.name, self.config)
        parts = source.parts
        if "train" not in parts:
            raise BadInput(
                f"data set {self.name!r} has the parts {', '.join(sorted(parts))}; one must be "
                "'train'"
            )
        tests = (part for part in ("test", "validation") if part in parts)
        used = ["train", *[part for part in tests if _has_labels(parts[part], self.label)][:1]]
        person = person_setting(self.person, self.subject)
        settings = replace(self, person=person, subject="")
        return source._replace(parts={part: parts[part] for part in used}), settings

    def _is_table(self, source: Source) -> bool:
        has_pictures = any(name in source.parts["train"] for name in _PICTURE_COLUMNS)
        is_list = not isinstance(self.features, str)
        return not self.tokenizer and (is_list or not (self.features or has_pictures))

    def _refuse_others(self, kind: str, names: Collection[str]) -> None:
        """Raise if a setting is changed that does not apply to a kind of features."""
        unused = [name for name in changed_fields(self) if name in names]
        if unused:
            raise BadInput(
                f"{self.name!r} is read as {kind}, to which {unused[0]} does not apply; leave it "
                "out, or set features to the columns to use"
            )


_TABLES_ONLY = (
    *("regression", "numeric", "categorical", "ignore", "missing", "categories", "scaling"),
    "hash_width",
)


def _has_labels(part: Mapping[str, Values], label: str) -> bool:
    """Return False if the labels of a part are withheld, as in benchmarks with a hidden test."""
    return label not in part or any(value not in (None, -1) for value in part[label])


def _of_one_kind(source: Source, settings: hf, seed: int) -> Dataset:
    """Return a data set of pictures, rows of numbers or texts."""
    parts, size = source.parts, settings.size
    features = _tokens if settings.tokenizer else _features
    y = [_values(part, settings.label).array() for part in parts.values()]
    read = [features(source, part, settings) for part in parts]
    pictures = [part for part in read if isinstance(part, Pictures)]
    x = [part.values if isinstance(part, Pictures) else part for part in read]
    order = np.arange(sum(map(len, y)))
    if len(x) > 1:
        arrays = Arrays(x[0], y[0], x[1], y[1])
    else:
        rng = seeded_numpy(seed, "split", settings.name)
        arrays, positions = split_arrays(x[0], y[0], test_share=settings.test_share, rng=rng)
        order = np.concatenate(positions)
    dataset = from_arrays(
        settings.name,
        arrays,
        standardise=settings.standardise,
        tokens=settings.tokenizer,
        pictures=bool(pictures),
    )
    if pictures:
        dataset = replace(dataset, statement=(picture_statement(settings.name, *pictures),))
    if settings.person:
        people = [_values(part, settings.person).array() for part in parts.values()]
        dataset = with_subjects(dataset, np.concatenate(people)[order])
    dataset = _with_clients_and_groups(dataset, source, settings, order)
    if not size:
        return dataset
    steps = f"resized to {size} x {size}, {dataset.normalisation}"
    return replace(dataset, normalisation=steps)


def _with_clients_and_groups(
    dataset: Dataset, source: Source, settings: hf, order: Int[ndarray, " samples"]
) -> Dataset:
    names = [name for name in (settings.client, settings.group) if name]
    if not names:
        return dataset
    table = _table(source, settings.name, names, unread=())
    clients = clients_of(table, settings.client) if settings.client else None
    group = groups_of(table, settings.group) if settings.group else None
    return replace(
        dataset,
        client=None if clients is None else torch.from_numpy(clients.codes[order]),
        client_names=() if clients is None else clients.texts,
        group=None if group is None else torch.from_numpy(group.codes[order]),
        group_names=() if group is None else group.texts,
    )


def _stored(source: Source, settings: hf) -> StoredTable:
    """Return the table of all parts of the source."""
    settings._refuse_others("a table", ("size", "grey", "longest"))
    train, *test = source.parts.values()
    roles = [settings.label, settings.client, settings.person, settings.group]
    listed = list(settings.features)
    reserved = {settings.label, settings.client, settings.person}
    for name in listed:
        _values(train, name)
        if name in reserved:
            raise BadInput(
                f"features of {settings.name!r} list {name!r}, which is the label, client or "
                "person; leave it out"
            )
    used = [name for name in train if settings.reads(name) and name in (*(listed or train), *roles)]
    for name in used:
        if isinstance(next(islice(train[name], 1), None), Mapping | list):
            raise BadInput(
                f"column {name!r} of {settings.name!r} has pictures or lists; set features = "
                f"{name!r} to learn from it alone, or ignore = ['{name}']"
            )
    table = _table(source, settings.name, used, [name for name in train if name not in used])
    if settings.group and listed and settings.group not in listed:
        # A column that is not listed is not a feature.
        settings = replace(settings, ignore=[*settings.ignore, settings.group])
    is_test = np.arange(table.rows) >= len(train[used[0]]) if test and used else None
    return StoredTable(table, settings, is_test)


def _table(source: Source, name: str, columns: Sequence[str], unread: Sequence[str]) -> Table:
    """Return the rows of all parts."""
    parts = source.parts
    rows = sum(len(next(iter(part.values()))) for part in parts.values())
    # Numbers become 64-bit numbers.
    refuse_oversized(name, 8 * rows * len(columns), on_disk=source.on_disk)
    values = {
        column: joined(name, column, [_values(part, column).column() for part in parts.values()])
        for column in columns
    }
    description = f"Hugging Face ({', '.join(parts)})"
    return Table(name, values, description, source.on_disk, unread=tuple(unread), is_typed=True)


def _loaded(name: str, config: str) -> Source:
    try:
        import datasets
    except ImportError as error:
        raise BadInput(
            f"data set 'hf:{name}' needs the package datasets, which is not installed; run "
            "pip install 'fedaudit[data]'"
        ) from error
    try:
        builder = datasets.load_dataset_builder(name, config or None)
        _check_parquet(name, builder.config.data_files or {})
        parts = datasets.load_dataset(name, config or None)
    except FedauditError:
        raise
    # The package and the readers of files that it calls can raise anything.
    except Exception as error:
        cause = error.__cause__ or error
        raise BadInput(
            f"Hugging Face data set {name!r} cannot be loaded ({str(cause)[:300]}); check name, "
            "config and network, and that its files are complete"
        ) from error
    on_disk = sum(part.info.download_size or 0 for part in list(parts.values())[:1])
    folders = [Path(datasets.config.HF_CACHE_HOME), Path(datasets.config.HF_DATASETS_CACHE)]
    folders += [Path(name)] if Path(name).is_dir() else []
    columns = {
        part: {
            column: ArrowColumn(
                name,
                column,
                table.data.column(column),
                on_disk,
                getattr(table.features[column], "names", None),
            )
            for column in table.column_names
        }
        for part, table in parts.items()
    }
    return Source(columns, on_disk, folders)


def _check_parquet(name: str, files: Mapping[str, Sequence[str]]) -> None:
    """Raise if the Parquet files among a data set's files unpack to far more bytes than they have.

    Call it before loading: a few bytes can repeat one value for millions of rows, and the package
    unpacks a whole group of rows at once.
    """
    addresses = [str(file) for part in files.values() for file in part]
    parquet = [address for address in addresses if address.endswith(".parquet")]
    if not parquet:
        return
    from datasets import DownloadManager

    paths = [Path(path) for path in DownloadManager(dataset_name=name).download(parquet)]
    on_disk = sum(path.stat().st_size for path in paths)
    unpacked = 0
    for path in paths:
        try:
            for part_size in unpacked_sizes(path):
                unpacked += part_size
                refuse_oversized(f"{name} ({path.name})", unpacked, on_disk=on_disk)
        except FedauditError:
            raise
        # pyarrow raises a dozen kinds of errors on damaged files.
        except Exception as error:
            raise Damaged(
                f"{path.name} of {name!r} cannot be read as Parquet ({str(error)[:300]}); fetch it "
                "again"
            ) from error


def _values(table: Mapping[str, Values], name: str) -> Values:
    if name not in table:
        raise unknown_name("column", name, table)
    return table[name]


def _features(source: Source, part: str, settings: hf) -> AnyArray | Pictures:
    """Return pictures, or rows of numbers."""
    table = source.parts[part]
    usual = [name for name in _PICTURE_COLUMNS if name in table]
    name = str(settings.features) or usual[0]
    column = _values(table, name)
    first = next(islice(column, 1), None)
    if isinstance(first, Mapping):
        pictures = (_encoded(row, index, part, source.folders) for index, row in enumerate(column))
        return stack_pictures(
            decode_pictures(pictures),
            len(column),
            size=settings.size,
            grey=settings.grey,
            on_disk=source.on_disk,
        )
    rows = column.array()
    if rows.ndim == 1:
        raise BadInput(
            f"column {name!r} of {settings.name!r} has one value per row; set features = "
            f"['{name}'] for a table of this column, or tokenizer if it has texts"
        )
    return rows


def _tokens(source: Source, part: str, settings: hf) -> AnyArray:
    """Return the tokens of texts or of pairs of texts."""
    named = settings.features
    names = [named] if isinstance(named, str) else list(named)
    if not all(names) or len(names) not in (1, 2):
        raise BadInput(
            f"the tokenizer takes a column of texts or two, and features of {settings.name!r} are "
            f"{named!r}; set features to a name, or to a list of two"
        )
    columns = [_values(source.parts[part], name) for name in names]
    longest = settings.longest or 64
    # Tokens become 64-bit numbers.
    refuse_oversized(settings.name, 8 * longest * len(columns[0]), on_disk=source.on_disk)
    texts = list[tuple[str, ...]]()
    for row, values in enumerate(zip(*columns, strict=True)):
        other = [name for name, text in zip(names, values, strict=True) if type(text) is not str]
        if other:
            raise BadInput(
                f"column {other[0]!r} of {settings.name!r} has no text in row {row} of the part "
                f"{part!r}; remove the row, or leave tokenizer out"
            )
        texts.append(tuple(map(str, values)))
    return encoded_texts(texts, settings.tokenizer, longest)


def _encoded(row: object, index: int, part: str, folders: Sequence[Path]) -> Encoded:
    """Return a picture, of which the package stores the bytes or the path of a file."""
    name = f"picture {index} of the part {part!r}"
    content, path = (
        (row.get("bytes"), row.get("path")) if isinstance(row, Mapping) else (None, None)
    )
    if isinstance(content, bytes):
        return Encoded(name, partial(BytesIO, content))
    file, roots = Path(path if isinstance(path, str) else ""), list[Path]()
    with suppress(ValueError, OSError):  # a path that no file can have
        roots = [root for root in folders if resolved(file).is_relative_to(resolved(root))]
    if not path or not roots:
        raise Damaged(
            f"{name} has no bytes, and no path within the data set ({str(path)[:200]}); fetch the "
            "data set again"
        )
    return Encoded(f"{name} ({path})", partial(open_regular, file, within=roots[0]))
