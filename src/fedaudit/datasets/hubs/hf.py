"""Data sets from the Hugging Face hub or its cache, with the optional package ``datasets``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, ProperShare
from fedaudit.core.errors import BadInput, Damaged, FedauditError, unknown_name
from fedaudit.core.files import open_regular, refuse_oversized, resolved
from fedaudit.core.naming import DataPart, changed_fields
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import AnyArray, Arrays, from_arrays, split_arrays
from fedaudit.datasets.dataset import Dataset, DataSource, with_subjects
from fedaudit.datasets.formats.images import Encoded, decoded, stacked
from fedaudit.datasets.tables.arrow import decoded_values, unpacked_sizes

if TYPE_CHECKING:
    import pyarrow

_PICTURE_COLUMNS = ("image", "img")


@runtime_checkable
class Column(Protocol):
    """Values of one column, not decoded yet."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[object]: ...

    def array(self) -> AnyArray:
        """Return the values as an array, if they are numbers or texts, or rows of these.

        Raises:
            BadInput: Rows differ in length, or the values exceed the memory limit.
        """
        ...


class Source(NamedTuple):
    """Data set that is not decoded yet.

    Attributes:
        parts: Columns by name, for each part by name.
        on_disk: Size in bytes of its files.
        folders: Folders that pictures may be read from, if a column contains paths.
    """

    parts: Mapping[str, Mapping[str, Column]]
    on_disk: int
    folders: Sequence[Path] = ()


@arguments.dataclass(frozen=True)
class hf(DataSource):
    """Data set of pictures or rows of numbers from Hugging Face or its local cache.

    Attributes:
        name: Name on the hub, such as "ylecun/mnist".
        config: Name of the data set's configuration; empty for the only one.
        features: Column of pictures or of rows of numbers; empty for ``image`` or ``img``.
        label: Column of class indices.
        size: Side in pixels that pictures are resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        test_share: Share of each class in the test part, if the data set has none.
        standardise: Whether features are scaled to mean 0 and standard deviation 1.
        subject: Column of the person that each sample is from; empty for none.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.hf("ylecun/mnist", grey=True).part().what
        'hf:ylecun/mnist'
    """

    name: str
    _: KW_ONLY
    config: str = ""
    features: str = ""
    label: str = "label"
    size: Count = 0
    grey: bool = False
    test_share: ProperShare = 0.2
    standardise: bool = True
    subject: str = ""

    def part(self) -> DataPart:
        """Return name and settings as in a study file, without settings at their defaults."""
        settings = changed_fields(self)
        return DataPart(f"hf:{settings.pop('name')}", settings)

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: The package is not installed, the data set cannot be loaded, lacks a training
                part or a column, or takes far more memory than its files.
            Damaged: A picture or a file cannot be read.
        """
        name, size = self.name, self.size
        source = _loaded(name, self.config)
        parts = source.parts
        if "train" not in parts:
            raise BadInput(
                f"data set {name!r} has the parts {', '.join(sorted(parts))}; one must be 'train'"
            )
        used = ["train", *[part for part in ("test", "validation") if part in parts][:1]]
        x = [_features(source, part, self.features, size, self.grey) for part in used]
        y = [_column(parts[part], self.label).array() for part in used]
        order = np.arange(sum(map(len, y)))
        if len(used) > 1:
            arrays = Arrays(x[0], y[0], x[1], y[1])
        else:
            rng = seeded_numpy(seed, "split", name)
            arrays, positions = split_arrays(x[0], y[0], test_share=self.test_share, rng=rng)
            order = np.concatenate(positions)
        dataset = from_arrays(name, arrays, standardise=self.standardise)
        if self.subject:
            people = [_column(parts[part], self.subject).array() for part in used]
            dataset = with_subjects(dataset, np.concatenate(people)[order])
        if not size:
            return dataset
        steps = f"resized to {size} x {size}, {dataset.normalisation}"
        return replace(dataset, normalisation=steps)


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
                f"column {column!r} of {name!r}", table.data.column(column), on_disk
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


@dataclass(frozen=True)
class ArrowColumn:
    """Column of a table that is in memory or memory-mapped.

    Attributes:
        name: Name of the column, for messages.
        values: Chunks of values.
        on_disk: Size in bytes of the data set's files.
    """

    name: str
    values: "pyarrow.ChunkedArray"
    on_disk: int

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[object]:
        # Convert rows one at a time, since one chunk may hold all rows.
        return (value.as_py() for value in self.values)

    def array(self) -> AnyArray:
        """Return the values as an array."""
        import pyarrow
        from pyarrow import compute

        values = decoded_values(self.values.combine_chunks())
        shape = [len(values)]
        try:
            # Remove one level of lists per iteration.
            while True:
                if isinstance(values, pyarrow.ExtensionArray):
                    values = values.storage
                if not hasattr(values, "flatten") or pyarrow.types.is_struct(values.type):
                    break
                lengths = compute.list_value_length(values).unique().to_pylist() or [0]
                if len(lengths) > 1 or lengths[0] is None:
                    raise BadInput(
                        f"rows of {self.name} differ in length; give pictures, or rows of equally "
                        "many numbers"
                    )
                shape.append(lengths[0])
                values = values.flatten()
            # Features become 32-bit numbers.
            memory = max(values.nbytes, 4 * len(values))
            refuse_oversized(self.name, memory, on_disk=self.on_disk)
            return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
        except pyarrow.ArrowException as error:
            raise BadInput(
                f"{self.name} contains no numbers ({error}); give pictures, or rows of equally "
                "many numbers"
            ) from error


def _column(table: Mapping[str, Column], name: str) -> Column:
    if name not in table:
        raise unknown_name("column", name, table)
    return table[name]


def _features(source: Source, part: str, name: str, size: int, grey: bool) -> AnyArray:
    table = source.parts[part]
    usual = [column for column in _PICTURE_COLUMNS if column in table]
    if not name and not usual:
        raise BadInput(
            f"none of the columns {', '.join(table)} is called "
            f"{' or '.join(_PICTURE_COLUMNS)}; set features to the column to use"
        )
    column = _column(table, name or usual[0])
    first = next(islice(column, 1), None)
    if not isinstance(first, Mapping):
        return column.array()
    pictures = (_encoded(row, index, part, source.folders) for index, row in enumerate(column))
    return stacked(decoded(pictures), len(column), size=size, grey=grey, on_disk=source.on_disk)


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
