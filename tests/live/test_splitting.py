"""Fair splits of torch data sets, loaders and tables."""

import doctest
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT

pd = pytest.importorskip("pandas")

X, Y = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
TABLE = pd.DataFrame(X.numpy(), columns=list("abcd")).assign(label=Y.numpy())


class Items(Dataset[Any]):
    """Pictures as some libraries have them."""

    def __init__(self, form: str = "pair", transform: Any = None) -> None:
        self.form, self.transform = form, transform

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> object:
        x = X[index].numpy() if self.transform is None else self.transform(X[index].numpy())
        if self.form == "dictionary":
            return {"img": x, "label": int(Y[index])}
        if self.form == "tokens":
            ids = torch.arange(index, index + 4)
            return {"input_ids": ids, "attention_mask": ids > 0, "labels": int(Y[index])}
        return (x, int(Y[index]), "file") if self.form == "triple" else (x, int(Y[index]))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[object]:
        return iter(zip(X, Y, strict=True))


class HalfSampler(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(30))


class Longer(Items):
    """Items that claim to be more than there are."""

    def __len__(self) -> int:
        return 80


def flipped(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x.copy()).flip(0) if torch.rand(()) < 0.5 else torch.from_numpy(x)


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X, Y),
        Items(),
        Items("dictionary"),
        Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(60)),
        ConcatDataset([TensorDataset(X[:20], Y[:20]), TensorDataset(X[20:], Y[20:])]),
        DataLoader(Items(), batch_size=7, shuffle=True),
        TABLE,
    ],
    ids=["tensors", "items", "dictionary", "subset", "concat", "loader", "table"],
)
def test_data_sets_loaders_and_tables_are_split_like_arrays(data: Any) -> None:
    arrays = fedaudit.fair_split({0: (X, Y)}, audited=20)
    train, split = fedaudit.split_dataset(data, 20)
    assert split.train[0].tolist() == arrays.train[0].tolist()
    assert torch.equal(split.audit.samples.features, arrays.audit.samples.features)
    assert torch.equal(split.audit.samples.targets, arrays.audit.samples.targets)
    assert split.audit.owner.tolist() == arrays.audit.owner.tolist()
    n_samples = sum(len(y) for _, y in train) if isinstance(train, DataLoader) else len(train)
    assert n_samples == 60 - int((split.audit.owner == NO_CLIENT).sum())


def test_split_data_keep_their_type() -> None:
    loader, split = fedaudit.split_dataset(DataLoader(Items(), batch_size=7, shuffle=True), 20)
    assert isinstance(loader, DataLoader)
    assert loader.batch_size == 7
    assert sum(len(y) for _, y in loader) == len(split.train[0])
    assert isinstance(fedaudit.split_dataset(Items(), 20).train, Subset)
    table = fedaudit.split_dataset(TABLE, 20).train
    assert list(table.columns) == list(TABLE.columns)
    assert table.equals(TABLE.loc[table.index])


def test_a_loader_keeps_its_settings() -> None:
    original = DataLoader(
        Items(),
        sampler=RandomSampler(Items()),
        batch_size=7,
        drop_last=True,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=5,
        multiprocessing_context="spawn",
    )
    loader = fedaudit.split_dataset(original, 20).train
    names = ["drop_last", "prefetch_factor", "persistent_workers", "timeout", "num_workers"]
    assert [getattr(loader, name) for name in names] == [getattr(original, name) for name in names]
    assert loader.multiprocessing_context is original.multiprocessing_context
    assert isinstance(loader.sampler, RandomSampler)


def test_duplicate_column_names_raise_if_used() -> None:
    twice = pd.concat([TABLE, TABLE[["a"]]], axis=1)
    assert len(fedaudit.split_dataset(twice, 20, features=["b", "c"]).split.audit) == 20
    for features in (["b", "b"], ["b", "label"]):
        with pytest.raises(BadInput, match="name the column twice"):
            fedaudit.split_dataset(TABLE, 20, features=features)


def test_clients_audit_at_most_half_of_their_data() -> None:
    sets = {"a": Subset(Items(), range(10)), "b": Subset(Items(), range(10, 60))}
    train, split = fedaudit.split_dataset(sets, 20)
    assert sorted(np.unique(split.audit.fair_target, return_counts=True)[1].tolist()) == [5, 20]
    assert set(train) == {"a", "b"}
    split = fedaudit.split_dataset(sets, {"a": 3, "b": 100}).split
    assert sorted(np.unique(split.audit.fair_target, return_counts=True)[1].tolist()) == [3, 25]


def test_named_inputs_are_kept_separate() -> None:
    split = fedaudit.split_dataset(Items("tokens"), 20).split
    assert split.audit.samples.inputs is not None
    assert [field.name for field in split.audit.samples.inputs.fields] == [
        "input_ids",
        "attention_mask",
    ]


def test_random_transforms_raise_without_an_evaluation_transform() -> None:
    data = Items(transform=flipped)
    with pytest.raises(BadInput, match="differ from one read to the next"):
        fedaudit.split_dataset(data, 20)
    train, split = fedaudit.split_dataset(Subset(data, range(60)), 20, transform=torch.from_numpy)
    assert data.transform is flipped
    assert train.dataset.dataset is data
    plain = fedaudit.split_dataset(Items(), 20).split
    assert torch.equal(split.audit.samples.features, plain.audit.samples.features)


def test_splitting_does_not_change_random_states() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    fedaudit.split_dataset(Items(transform=lambda x: x + 0 * torch.rand(()).item()), 20)
    assert torch.equal(torch.rand(1), expected)


def test_text_columns_need_a_transform() -> None:
    table = TABLE.assign(town=["x", "y"] * 30)
    with pytest.raises(BadInput, match="column 'town' of client 0"):
        fedaudit.split_dataset(table, 20)
    split = fedaudit.split_dataset(table, 20, features=list("abcd")).split
    assert split.audit.samples.features.shape == (20, 4)
    split = fedaudit.split_dataset(
        table, 20, transform=lambda x: x.drop(columns="town").to_numpy()
    ).split
    assert split.audit.samples.features.shape == (20, 4)
    with pytest.raises(BadInput, match="1 missing values"):
        fedaudit.split_dataset(TABLE.assign(a=TABLE["a"].mask(TABLE.index == 3)), 20)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Stream(), "from which single samples cannot be excluded"),
        (DataLoader(Stream()), "from which single samples cannot be excluded"),
        (DataLoader(Items(), sampler=SubsetRandomSampler(range(9))), "may omit or repeat samples"),
        (DataLoader(Items(), sampler=RandomSampler(Items(), num_samples=10)), "draws 10 of 60"),
        (DataLoader(Items(), sampler=RandomSampler(Items(), num_samples=90)), "draws 90 of 60"),
        (DataLoader(Items(), sampler=RandomSampler(Y, replacement=True)), "with replacement"),
        (DataLoader(Items(), sampler=SequentialSampler(Y[:30])), "draws 30 of 60 samples"),
        (DataLoader(Items(), sampler=HalfSampler(Y)), "draws by a HalfSampler"),
        (DataLoader(Items(), batch_sampler=[[0, 1], [2, 3]]), "draws by a batch sampler"),
        (
            DataLoader(Items(), batch_sampler=BatchSampler(SequentialSampler(Y), 8, False)),
            "draws by a batch sampler",
        ),
        (Longer(), "have no item 60, or the item cannot"),
        (Subset(Items(), range(70)), "have no item 60, or the item cannot"),
        (TensorDataset(X[:0], Y[:0]), "have no items"),
        (pd.concat([TABLE, TABLE[["a"]]], axis=1), "has the column 'a' twice"),
        (pd.concat([TABLE, TABLE[["label"]]], axis=1), "has the column 'label' twice"),
        (Items("triple"), "tuple of 3; give pairs"),
        (Items(transform=str), "pass a transform= that returns a tensor"),
        ({"train": Items(), "test": Items()}, "give the training part"),
        (TABLE.rename(columns={"label": "disease"}), "name the label with label="),
        (X, "give pairs"),
    ],
)
def test_unsplittable_data_raise_with_advice(data: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        fedaudit.split_dataset(data, 20)


def test_copies_in_a_data_set_share_one_coin() -> None:
    twice = TensorDataset(torch.cat([X, X]), torch.cat([Y, Y]))
    train, split = fedaudit.split_dataset(twice, 20)
    assert len(train) == 120 - 2 * int((split.audit.owner == NO_CLIENT).sum())


def test_the_example_in_the_documentation_runs() -> None:
    failed, tried = doctest.testmod(sys.modules[fedaudit.split_dataset.__module__])
    assert failed == 0
    assert tried > 2
