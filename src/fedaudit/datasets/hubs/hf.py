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
from fedaudit.core.errors import BadInput, Damaged, FedauditError, format_option, unknown_name
from fedaudit.core.files import open_regular, raise_if_oversized, resolve_links
from fedaudit.core.naming import DataPart, changed_fields
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.datasets.dataset import Dataset, DataSource, person_setting, with_people
from fedaudit.datasets.formats.images import (
    EncodedPicture,
    Pictures,
    decode_pictures,
    picture_statement,
    stack_pictures,
)
from fedaudit.datasets.formats.npz import encoded_texts
from fedaudit.datasets.tables.arrow import ArrowColumn, unpacked_sizes
from fedaudit.datasets.tables.columns import Column, Table, join_columns
from fedaudit.datasets.tables.roles import clients_of, groups_of
from fedaudit.datasets.tables.settings import Names
from fedaudit.datasets.tables.table import StoredTable, TableSource, dataset_of

_PICTURE_COLUMNS = ("image", "img")


@runtime_checkable
class LazyColumn(Protocol):
    """Column of a data set, whose values are decoded when they are used."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[object]: ...

    def array(self) -> AnyArray:
        """Return numbers, texts, or lists of these as an array with one row per sample.

        Raises:
            BadInput: Lists differ in length, or the values exceed the memory limit.
        """
        ...

    def column(self) -> Column:
        """Return numbers or texts as a column of a table.

        Raises:
            BadInput: The values are neither numbers nor texts.
        """
        ...


class UndecodedDataset(NamedTuple):
    """Data set before decoding.

    Attributes:
        splits: Columns of each split, by the names of the split and the column.
        file_bytes: Size in bytes of the data set's files.
        folders: Folders from which pictures may be read, if a column contains paths.
    """

    splits: Mapping[str, Mapping[str, LazyColumn]]
    file_bytes: int
    folders: Sequence[Path] = ()


@arguments.dataclass(frozen=True)
class hf(TableSource, DataSource):
    """Data set from Hugging Face or its local cache: pictures, rows of numbers, texts or a table.

    The data set is read as a table if ``features`` is a list, or if ``features`` is empty and there
    is no column ``image`` or ``img``. A table is encoded like a CSV file, and class indices are
    replaced by the names of the classes. The split ``test``, or else ``validation``, is the test
    part, unless all of its labels are missing or -1.

    Attributes:
        name: Name on the hub, such as "ylecun/mnist".
        config: Name of the data set's configuration; empty for the only one.
        features: Column of pictures or of lists of numbers, or a list of a table's columns. By
            default ``image`` or ``img``; without these, all columns that have no other role.
        label: Column of class indices; in a table also of texts, or of numbers to predict.
        size: Height and width in pixels to which pictures are resized; 0 if all have one size.
        grey: Whether pictures are converted to one channel, their brightness.
        tokenizer: "minilm" if ``features`` names a column of texts, or two columns for pairs of
            texts. The features of a sample are then its tokens.
        longest: Maximum number of tokens per sample; 0 for 64. Longer texts are cut.
        test_share: Fraction of each class in the test part, if the data set has no split for it.
        standardise: Whether features are scaled to mean 0 and standard deviation 1.
        subject: Another name of ``person``.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.hf("ylecun/mnist", grey=True).named_part().what
        'hf:ylecun/mnist'
        >>> fa.datasets.hf("scikit-learn/adult-census-income", label="income").named_part().options
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

    def named_part(self) -> DataPart:
        """Return name and settings as in a study file, without settings at their defaults."""
        settings = changed_fields(self)
        return DataPart(f"hf:{settings.pop('name')}", settings)

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: The package is not installed, the data set cannot be loaded, lacks a training
                split or a column, has a column that cannot be used, or takes far more memory than
                its files.
            Damaged: A picture or a file cannot be read.
        """
        source, settings = self._open()
        if settings._is_table(source):
            return dataset_of(_stored_table(source, settings), seed)
        if self.tokenizer:
            settings._raise_if_settings_inapplicable(("size", "grey"), "texts")
        else:
            settings._raise_if_settings_inapplicable(("longest",), "pictures or lists")
        settings._raise_if_settings_inapplicable(_TABLE_SETTINGS, "one column")
        return _read_features(source, settings, seed)

    def load_table(self) -> StoredTable:
        """Return the table."""
        source, settings = self._open()
        if not settings._is_table(source):
            raise BadInput(
                f"lines and column values select rows of a table, but the data set {self.name!r} "
                f"is not read as a table; select the sample with {format_option('row')}"
            )
        return _stored_table(source, settings)

    def _open(self) -> "tuple[UndecodedDataset, hf]":
        """Load the training and the test split, and move the setting ``subject`` to ``person``."""
        source = _load(self.name, self.config)
        splits = source.splits
        if "train" not in splits:
            raise BadInput(
                f"data set {self.name!r} has the splits {', '.join(sorted(splits))}; one must be "
                "'train'"
            )
        used_splits = {"train": splits["train"]}
        for split in ("test", "validation"):
            if split in splits and _has_labels(splits[split], self.label):
                used_splits[split] = splits[split]
                break
        person = person_setting(self.person, self.subject)
        return source._replace(splits=used_splits), replace(self, person=person, subject="")

    def _is_table(self, source: UndecodedDataset) -> bool:
        has_pictures = any(name in source.splits["train"] for name in _PICTURE_COLUMNS)
        is_list = not isinstance(self.features, str)
        return not self.tokenizer and (is_list or not (self.features or has_pictures))

    def _raise_if_settings_inapplicable(self, names: Collection[str], kind: str) -> None:
        """Raise if one of these settings is given, which do not apply to this kind of features."""
        unused = [name for name in changed_fields(self) if name in names]
        if unused:
            raise BadInput(
                f"{self.name!r} is read as {kind}, to which {unused[0]} does not apply; leave "
                "it out, or set features to the columns to use"
            )


_TABLE_SETTINGS = (
    *("regression", "numeric", "categorical", "ignore", "missing", "categories", "scaling"),
    "hash_width",
)


def _has_labels(split: Mapping[str, LazyColumn], label: str) -> bool:
    """Return False if the labels of a split are withheld, as in benchmarks with hidden labels."""
    return label not in split or any(value not in (None, -1) for value in split[label])


def _read_features(source: UndecodedDataset, settings: hf, seed: int) -> Dataset:
    """Return a data set of pictures, lists of numbers or texts."""
    splits, size = source.splits, settings.size
    read_split = _tokens if settings.tokenizer else _features
    y = [_column(split, settings.label).array() for split in splits.values()]
    features = [read_split(source, split, settings) for split in splits]
    pictures = [values for values in features if isinstance(values, Pictures)]
    x = [values.values if isinstance(values, Pictures) else values for values in features]
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
        tokenizer=settings.tokenizer,
        are_images=bool(pictures),
    )
    if pictures:
        dataset = replace(dataset, statement=(picture_statement(settings.name, *pictures),))
    if settings.person:
        people = [_column(split, settings.person).array() for split in splits.values()]
        dataset = with_people(dataset, np.concatenate(people)[order])
    dataset = _with_clients_and_groups(dataset, source, settings, order)
    if not size:
        return dataset
    return replace(dataset, normalisation=f"resized to {size} x {size}, {dataset.normalisation}")


def _with_clients_and_groups(
    dataset: Dataset, source: UndecodedDataset, settings: hf, order: Int[ndarray, " samples"]
) -> Dataset:
    """Add the client and the group of each sample; ``order`` contains the row of each sample."""
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


def _stored_table(source: UndecodedDataset, settings: hf) -> StoredTable:
    """Return the table of all splits of the source."""
    settings._raise_if_settings_inapplicable(("size", "grey", "longest"), "a table")
    train, *test = source.splits.values()
    roles = [settings.label, settings.client, settings.person, settings.group]
    listed_features = list(settings.features)
    for name in listed_features:
        _column(train, name)
        if name in (settings.label, settings.client, settings.person):
            raise BadInput(
                f"features of {settings.name!r} list {name!r}, which is the label, client or "
                "person; leave it out"
            )
    requested = {*(listed_features or train), *roles}
    used_columns = [name for name in train if name in requested and settings.reads(name)]
    for name in used_columns:
        if isinstance(next(islice(train[name], 1), None), Mapping | list):
            raise BadInput(
                f"column {name!r} of {settings.name!r} has pictures or lists; set features = "
                f"{name!r} to learn from it alone, or ignore = ['{name}']"
            )
    table = _table(
        source, settings.name, used_columns, [name for name in train if name not in used_columns]
    )
    if settings.group and listed_features and settings.group not in listed_features:
        # By default, the column of groups is a feature, too.
        settings = replace(settings, ignore=[*settings.ignore, settings.group])
    is_test = (
        np.arange(table.rows) >= len(train[used_columns[0]]) if test and used_columns else None
    )
    return StoredTable(table, settings, is_test)


def _table(
    source: UndecodedDataset, name: str, columns: Sequence[str], unread: Sequence[str]
) -> Table:
    """Return the rows of all splits."""
    splits = source.splits
    rows = sum(len(next(iter(split.values()))) for split in splits.values())
    # Numbers become 64-bit numbers.
    raise_if_oversized(name, 8 * rows * len(columns), file_bytes=source.file_bytes)
    values = {
        column: join_columns(
            name, column, [_column(split, column).column() for split in splits.values()]
        )
        for column in columns
    }
    description = f"Hugging Face ({', '.join(splits)})"
    return Table(name, values, description, source.file_bytes, unread=tuple(unread), is_typed=True)


def _load(name: str, config: str) -> UndecodedDataset:
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
        splits = datasets.load_dataset(name, config or None)
    except FedauditError:
        raise
    # The package, and the file readers that it calls, can raise any exception.
    except Exception as error:
        cause = error.__cause__ or error
        raise BadInput(
            f"Hugging Face data set {name!r} cannot be loaded ({str(cause)[:300]}); check name, "
            "config and network, and that its files are complete"
        ) from error
    # Every split states the size of all files.
    file_bytes = next(iter(splits.values())).info.download_size or 0 if splits else 0
    folders = [Path(datasets.config.HF_CACHE_HOME), Path(datasets.config.HF_DATASETS_CACHE)]
    folders += [Path(name)] if Path(name).is_dir() else []
    columns = {
        split: {
            column: ArrowColumn(
                name,
                column,
                table.data.column(column),
                file_bytes,
                getattr(table.features[column], "names", None),
            )
            for column in table.column_names
        }
        for split, table in splits.items()
    }
    return UndecodedDataset(columns, file_bytes, folders)


def _check_parquet(name: str, files: Mapping[str, Sequence[str]]) -> None:
    """Raise if Parquet files of a data set would exceed the memory limit when they are unpacked.

    The check precedes loading, because the package unpacks many rows at once, and a few bytes can
    encode millions of rows with the same value.
    """
    addresses = [str(file) for split in files.values() for file in split]
    parquet = [address for address in addresses if address.endswith(".parquet")]
    if not parquet:
        return
    from datasets import DownloadManager

    paths = [Path(path) for path in DownloadManager(dataset_name=name).download(parquet)]
    file_bytes = sum(path.stat().st_size for path in paths)
    unpacked = 0
    for path in paths:
        try:
            for size in unpacked_sizes(path):
                unpacked += size
                raise_if_oversized(f"{name} ({path.name})", unpacked, file_bytes=file_bytes)
        except FedauditError:
            raise
        # pyarrow raises a dozen kinds of errors on damaged files.
        except Exception as error:
            raise Damaged(
                f"{path.name} of {name!r} cannot be read as Parquet ({str(error)[:300]}); fetch it "
                "again"
            ) from error


def _column(table: Mapping[str, LazyColumn], name: str) -> LazyColumn:
    if name not in table:
        raise unknown_name("column", name, table)
    return table[name]


def _features(source: UndecodedDataset, split: str, settings: hf) -> AnyArray | Pictures:
    """Return pictures, or lists of numbers as rows."""
    table = source.splits[split]
    # Without an image column and without the setting, the data set is read as a table.
    name = str(settings.features) or next(name for name in _PICTURE_COLUMNS if name in table)
    column = _column(table, name)
    first = next(islice(column, 1), None)
    if isinstance(first, Mapping):
        pictures = (_encoded(row, index, split, source.folders) for index, row in enumerate(column))
        return stack_pictures(
            decode_pictures(pictures),
            len(column),
            size=settings.size,
            grey=settings.grey,
            file_bytes=source.file_bytes,
        )
    rows = column.array()
    if rows.ndim == 1:
        raise BadInput(
            f"column {name!r} of {settings.name!r} has one value per row; set features = "
            f"['{name}'] for a table of this column, or tokenizer if it has texts"
        )
    return rows


def _tokens(source: UndecodedDataset, split: str, settings: hf) -> AnyArray:
    """Return the tokens of texts or of pairs of texts."""
    features = settings.features
    names = [features] if isinstance(features, str) else list(features)
    if not all(names) or len(names) not in (1, 2):
        raise BadInput(
            f"the tokenizer takes a column of texts or two, and features of {settings.name!r} are "
            f"{features!r}; set features to one column, or to a list of two"
        )
    columns = [_column(source.splits[split], name) for name in names]
    longest = settings.longest or 64
    # Tokens become 64-bit numbers.
    raise_if_oversized(settings.name, 8 * longest * len(columns[0]), file_bytes=source.file_bytes)
    texts = list[tuple[str, ...]]()
    for row, values in enumerate(zip(*columns, strict=True)):
        missing = [name for name, text in zip(names, values, strict=True) if type(text) is not str]
        if missing:
            raise BadInput(
                f"column {missing[0]!r} of {settings.name!r} has no text in row {row} of the split "
                f"{split!r}; remove the row, or leave tokenizer out"
            )
        texts.append(tuple(map(str, values)))
    return encoded_texts(texts, settings.tokenizer, longest)


def _encoded(row: object, index: int, split: str, folders: Sequence[Path]) -> EncodedPicture:
    """Return a picture, for which a row has the bytes or the path of a file."""
    name = f"picture {index} of the split {split!r}"
    fields = row if isinstance(row, Mapping) else {}
    content, path = fields.get("bytes"), fields.get("path")
    if isinstance(content, bytes):
        return EncodedPicture(name, partial(BytesIO, content))
    file = Path(path if isinstance(path, str) else "")
    roots: list[Path] = []
    # A malformed path is in no folder.
    with suppress(ValueError, OSError):
        roots = [
            root for root in folders if resolve_links(file).is_relative_to(resolve_links(root))
        ]
    if not path or not roots:
        raise Damaged(
            f"{name} has no bytes, and no path within the data set ({str(path)[:200]}); fetch the "
            "data set again"
        )
    return EncodedPicture(f"{name} ({path})", partial(open_regular, file, within=roots[0]))
