"""Fair splits of torch data sets, data loaders and pandas tables."""

import random
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.live.audited import Labelled, Split, fair_split, n_audited
from fedaudit.live.clients import ClientRef

Data: TypeAlias = Any
"""A torch data set or loader, or a pandas table."""
_LABELS = ("label", "labels", "target", "y")
"""Usual names of the label."""
_LOADER_SETTINGS = (
    *("batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "generator"),
    *("worker_init_fn", "timeout", "multiprocessing_context", "prefetch_factor"),
    "persistent_workers",
)
_N_READ_TWICE = 32
"""Number of items that are read twice. A random flip with probability 0.5 then gives the same items
with a probability of 1 in 4 billion."""


class DatasetSplit(NamedTuple):
    """Data sets to train on, and the audited samples.

    Attributes:
        train: Training data of each client: a Subset, a DataLoader or a table, like the data that
            was passed. Without a mapping by client, the training data of the single client.
        split: Positions and audited samples; see :class:`fedaudit.live.audited.Split`.
    """

    train: Any
    split: Split

    def _repr_html_(self) -> str:
        return repr_html(self)

    def __repr__(self) -> str:
        """Return the split only, since training data may print their samples."""
        return f"DatasetSplit(train=..., split={self.split!r})"


def split_dataset(
    dataset: Data | Mapping[ClientRef, Data],
    audited: int | Mapping[ClientRef, int] = 300,
    *,
    transform: Callable[[Any], Any] | None = None,
    features: str | list[str] | None = None,
    label: str | None = None,
    client: ClientRef = 0,
    seed: int = 1,
) -> DatasetSplit:
    """Draw members and held-out samples of data sets by fair coins; see :func:`fair_split`.

    Every item is read at least once, to find exact copies.

    Args:
        dataset: A torch Dataset, DataLoader or pandas DataFrame, or one for each client. Items are
            pairs of features and label, or dictionaries.
        audited: Number of samples that are drawn from each client, or a number for each client. At
            most half of a client's samples are drawn.
        transform: Converts features (of a table: all columns except the label) to the model's
            input, as in evaluation. Needed if the data set's own ``transform`` is random. It
            replaces that attribute only while items are read; training data keep theirs.
        features: Fields or columns of the features; None for all except the label.
        label: Field or column of the label; None for the usual names.
        client: Number or name of the client that has the data set, if no mapping is passed.
        seed: Seed of the draw.

    Raises:
        BadInput: A data set has no length or positions, items differ from one read to the next,
            columns are no numbers, or there are too few samples.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from fedaudit import split_dataset
        >>> data = TensorDataset(torch.rand(40, 3), torch.arange(40) % 2)
        >>> train, split = split_dataset(data, audited=10)
        >>> len(split.audit), type(train).__name__
        (10, 'Subset')
    """
    is_mapping = isinstance(dataset, Mapping)
    by_client = dict(cast(Mapping[ClientRef, Data], dataset)) if is_mapping else {client: dataset}
    if is_mapping and {"train", "test"} <= set(map(str, by_client)):
        raise BadInput(
            "a dictionary has one data set for each client, and this one has the parts train and "
            "test; give the training part"
        )
    data, counts = {}, {}
    for name, client_data in by_client.items():
        data[name] = _read(client_data, _Options(f"client {name}", transform, features, label))
        counts[name] = min(n_audited(name, audited), len(data[name][1]) // 2)
    split = fair_split(cast(Mapping[int, Labelled], data), audited=counts, seed=seed)
    train = {name: _subset(by_client[name], split.train[name]) for name in by_client}
    return DatasetSplit(train if is_mapping else train[client], split)


class _Options(NamedTuple):
    """Options for reading one client's data.

    Attributes:
        source: The client in error messages, such as "client 3".
        transform: See :func:`split_dataset`, as for the other options.
        features: Fields or columns of the features.
        label: Field or column of the label.
    """

    source: str
    transform: Callable[[Any], Any] | None
    features: str | list[str] | None
    label: str | None

    def columns(self, available: list[Any], kind: str) -> tuple[Any, list[Any]]:
        """Return the name of the label and the names of the features.

        Args:
            available: Names of all fields or columns.
            kind: Kind of these names in error messages.
        """
        label_names = _LABELS if self.label is None else (self.label,)
        labels = [name for name in label_names if name in available]
        if not labels:
            raise BadInput(
                f"none of {', '.join(map(str, available))} is {' or '.join(label_names)}; name the "
                "label with label="
            )
        if self.features is None:
            return labels[0], [name for name in available if name != labels[0]]
        names = [self.features] if isinstance(self.features, str) else self.features
        for name in names:
            if name not in available:
                raise unknown_name(kind, str(name), list(map(str, available)))
        return labels[0], names


def _read(data: Data, options: _Options) -> Labelled:
    source = options.source
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _read_table(data, options)
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        _raise_if_selective(data, source)
        data = data.dataset
    if isinstance(data, IterableDataset) or not (
        isinstance(data, Sized) and hasattr(data, "__getitem__")
    ):
        raise BadInput(
            f"the data of {source} are {type_of(data)}, from which single samples cannot be "
            "excluded; give a Dataset with a length and positions, a DataLoader or a DataFrame"
        )
    dataset = data if options.transform is None else _with_transform(data, options.transform)
    if not len(data):
        raise BadInput(f"the data of {source} have no items; give data with items")
    with _random_state_restored():
        pairs = [_pair(_item(dataset, index, source), options) for index in range(len(data))]
        second_pairs = [_pair(dataset[i], options) for i in range(min(_N_READ_TWICE, len(data)))]
    if not all(map(_are_equal, pairs, second_pairs)):
        raise BadInput(
            f"items of {source} differ from one read to the next, by a random transform; pass the "
            "transform of evaluation as transform="
        )
    names = pairs[0][0].keys()
    try:
        features = {name: torch.stack([x[name] for x, _ in pairs]) for name in names}
        return features.get("", features), torch.stack([y for _, y in pairs])
    except (KeyError, RuntimeError) as error:
        raise BadInput(
            f"items of {source} differ in shape or fields ({error}); pass a transform= that gives "
            "all items one shape, such as a transform that resizes or pads"
        ) from error


def _raise_if_selective(loader: DataLoader[Any], source: str) -> None:
    """Raise if a loader may skip or repeat samples within an epoch."""
    sampler, count = cast(Any, loader.sampler), len(cast(Sized, loader.dataset))
    draw = ""
    if loader.batch_size is None and loader.batch_sampler is not None:
        draw = "by a batch sampler"
    # A subclass may draw in any way.
    elif type(sampler) not in (SequentialSampler, RandomSampler):
        draw = f"by {type_of(sampler)}"
    elif getattr(sampler, "replacement", False):
        draw = "with replacement"
    elif len(sampler) != count:
        draw = f"{len(sampler)} of {count} samples an epoch"
    if draw:
        raise BadInput(
            f"the loader of {source} draws {draw}, so it may omit or repeat samples; give its data "
            "set, and create the loader from the training part of the split"
        )


def _item(data: Data, index: int, source: str) -> object:
    try:
        return data[index]
    except LookupError as error:
        raise BadInput(
            f"the data of {source} have no item {index}, or the item cannot be read ({error}); "
            "number items from 0 to len - 1"
        ) from error


class _Transformed:
    """Data set whose items are transformed when they are read."""

    def __init__(self, data: Data, transform: Callable[[Any], Any]) -> None:
        self.data, self.transform = data, transform

    def __getitem__(self, index: int) -> object:
        item = self.data[index]
        if isinstance(item, Mapping):
            return self.transform(item)
        return (self.transform(item[0]), *item[1:])


def _with_transform(data: Data, transform: Callable[[Any], Any]) -> Data:
    """Return a copy of the data set with another transform."""
    if isinstance(data, Subset):
        return Subset(_with_transform(data.dataset, transform), data.indices)
    if hasattr(data, "transform") and not callable(getattr(type(data), "transform", None)):
        replaced = copy(data)
        replaced.transform = transform
        return replaced
    return _Transformed(data, transform)


def _pair(item: Any, options: _Options) -> tuple[dict[str, Tensor], Tensor]:
    """Return features by name ("" for a single tensor) and the label of one item."""
    source = options.source
    if isinstance(item, Mapping):
        target, names = options.columns(list(item), "field of features")
        tensors = {name: _tensor(item[name], name, source) for name in names}
        x = {"": tensors[names[0]]} if len(names) == 1 else tensors
        return x, _tensor(item[target], target, source)
    if not isinstance(item, tuple | list) or len(item) != 2:
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise BadInput(
            f"items of {source} are {type_of(item)}{size}; give pairs of features and label, or "
            "dictionaries of the model's named inputs and the label"
        )
    return {"": _tensor(item[0], "features", source)}, _tensor(item[1], "label", source)


def _tensor(value: Any, name: str, source: str) -> Tensor:
    if not isinstance(value, Tensor | np.ndarray | np.generic | int | float | list | tuple):
        raise BadInput(
            f"{name} of {source} is {type_of(value)}; pass a transform= that returns a tensor, or "
            "name fields of numbers with features= and label="
        )
    try:
        # Copy, since arrays of tables and files may not be writable.
        numbers = np.array(value) if isinstance(value, np.ndarray) else value
        return torch.as_tensor(numbers).detach().cpu()
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{name} of {source} is not a number ({error}); encode it as numbers"
        ) from error


def _read_table(table: Any, options: _Options) -> Labelled:
    source, transform = options.source, options.transform
    target, names = options.columns(list(table.columns), "column")
    used_columns = [target, *names]
    if repeated := [
        n for n in used_columns if (table.columns == n).sum() > 1 or used_columns.count(n) > 1
    ]:
        raise BadInput(
            f"the table of {source} has the column {str(repeated[0])!r} twice, or features= and "
            "label= name the column twice; rename one column, or name it once"
        )
    x, y = table[names], table[target]
    columns = [y] if transform is not None else [y, *(x[name] for name in names)]
    for column in columns:
        if getattr(column.dtype, "kind", "O") not in "biuf" or column.isna().any():
            raise BadInput(
                f"column {column.name!r} of {source} has the type {column.dtype} and "
                f"{int(column.isna().sum())} missing values; encode it as numbers without gaps, "
                "or pass transform= for features"
            )
    values = x.to_numpy(dtype=np.float32) if transform is None else transform(x)
    values = values.toarray() if hasattr(values, "toarray") else values
    target_type = np.float32 if y.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.array(values)), torch.from_numpy(np.array(y, dtype=target_type))


def _subset(data: Data, positions: Any) -> Data:
    if hasattr(data, "iloc"):
        return data.iloc[positions]
    if not isinstance(data, DataLoader):
        return Subset(cast("Dataset[Any]", data), positions.tolist())
    settings = {name: getattr(data, name) for name in _LOADER_SETTINGS}
    is_shuffled = isinstance(data.sampler, RandomSampler)
    return DataLoader(Subset(data.dataset, positions.tolist()), shuffle=is_shuffled, **settings)


def _are_equal(
    first: tuple[dict[str, Tensor], Tensor], second: tuple[dict[str, Tensor], Tensor]
) -> bool:
    (features, label), (other_features, other_label) = first, second
    return (
        torch.equal(label, other_label)
        and features.keys() == other_features.keys()
        and all(torch.equal(value, other_features[name]) for name, value in features.items())
    )


@contextmanager
def _random_state_restored() -> Iterator[None]:
    """Restore the random state of torch, numpy and Python afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
