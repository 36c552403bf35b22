"""Exact copies among audited samples."""

import warnings
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import Tensor

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT, Samples
from fedaudit.datasets.dataset import number_rows

RNG = torch.Generator().manual_seed(0)


def pair(count: int) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 6, generator=RNG), torch.arange(count) % 2


def joined(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def first(part: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    return part[0][:count], part[1][:count]


MEMBERS, UNSEEN, OTHERS = pair(30), pair(30), pair(30)


def test_held_out_copies_of_members_raise_with_their_number() -> None:
    with pytest.raises(BadInput, match=r"20 of 70 .* \(10 held-out samples among them\)"):
        fedaudit.audit_samples({0: MEMBERS}, joined(UNSEEN, first(MEMBERS, 10)))


def test_members_given_as_held_out_samples_raise() -> None:
    with pytest.raises(BadInput, match=r"60 of 60 audited samples have an exact copy"):
        fedaudit.audit_samples({0: MEMBERS}, MEMBERS)


def test_samples_that_are_members_of_two_clients_raise() -> None:
    with pytest.raises(BadInput, match=r"10 of 95 audited samples have an exact copy"):
        fedaudit.audit_samples({0: MEMBERS, 1: joined(OTHERS, first(MEMBERS, 5))}, UNSEEN)


def test_duplicate_audited_samples_raise() -> None:
    with pytest.raises(BadInput, match=r"0 of 63 .* and 3 are further copies"):
        fedaudit.audit_samples({0: joined(MEMBERS, first(MEMBERS, 3))}, UNSEEN)


def test_dropped_copies_are_counted_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="20 of 70 audited samples"):
        audit = fedaudit.audit_samples(
            {0: MEMBERS}, joined(UNSEEN, first(MEMBERS, 10)), copies="drop"
        )
    assert ((audit.owner == 0).sum(), (audit.owner == NO_CLIENT).sum()) == (20, 30)
    with pytest.warns(UserWarning, match="3 are further copies"):
        audit = fedaudit.audit_samples(
            {0: joined(MEMBERS, first(MEMBERS, 3))}, UNSEEN, copies="drop"
        )
    assert ((audit.owner == 0).sum(), (audit.owner == NO_CLIENT).sum()) == (30, 30)


def test_a_copy_with_another_label_or_a_changed_value_is_no_copy() -> None:
    x, y = MEMBERS
    moved = x.clone()
    moved[:, 0] += 1e-3
    assert len(fedaudit.audit_samples({0: MEMBERS}, (x, 1 - y))) == 60
    assert len(fedaudit.audit_samples({0: MEMBERS}, (moved, y))) == 60


def test_copies_are_found_across_dtypes() -> None:
    x, y = MEMBERS
    with pytest.raises(BadInput, match="60 of 60"):
        fedaudit.audit_samples({0: MEMBERS}, (x.double().numpy(), y.to(torch.uint8)))


def test_held_out_samples_in_training_data_raise() -> None:
    training = {0: joined(MEMBERS, pair(50)), 1: joined(OTHERS, first(UNSEEN, 4))}
    with pytest.raises(BadInput, match="4 of 30 unseen samples are exact copies"):
        fedaudit.audit_samples({0: MEMBERS}, UNSEEN, training=training)
    with pytest.raises(BadInput, match="30 of 30 members of client 1 are not among"):
        fedaudit.audit_samples({1: MEMBERS}, UNSEEN, training={1: OTHERS})
    with pytest.raises(BadInput, match="training has no samples of client 1"):
        fedaudit.audit_samples({1: MEMBERS}, UNSEEN, training={0: OTHERS})
    sound = {0: joined(MEMBERS, OTHERS)}
    assert len(fedaudit.audit_samples({0: MEMBERS}, UNSEEN, training=sound)) == 60


def test_one_coin_decides_for_all_copies_within_a_client() -> None:
    x, y = joined(MEMBERS, MEMBERS, MEMBERS)
    split = fedaudit.fair_split({0: (x, y)}, audited=20)
    assert len(split.audit) == 20
    trained_rows = {tuple(row.tolist()) for row in x[split.train[0]]}
    features = split.audit.samples.features
    unseen = {
        tuple(row.tolist()) for row in features[torch.from_numpy(split.audit.owner) == NO_CLIENT]
    }
    members = {tuple(row.tolist()) for row in features[torch.from_numpy(split.audit.owner) == 0]}
    assert unseen
    assert not unseen & trained_rows
    assert members <= trained_rows
    assert len(split.train[0]) == 90 - 3 * len(unseen)


def test_too_few_distinct_samples_raise() -> None:
    with pytest.raises(BadInput, match="it has 90 samples, of which 30 differ"):
        fedaudit.fair_split({0: joined(MEMBERS, MEMBERS, MEMBERS)}, audited=40)


def test_audited_copies_at_other_clients_are_excluded_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="an exact copy in another client's data") as warned:
        split = fedaudit.fair_split({0: MEMBERS, 1: joined(OTHERS, first(MEMBERS, 15))}, audited=15)
    features = {tuple(row.tolist()) for row in split.audit.samples.features}
    assert not features & {tuple(row.tolist()) for row in MEMBERS[0][:15]}
    assert str(30 - len(split.audit)) in str(warned[0].message)


def test_clients_that_share_all_samples_are_refused() -> None:
    with pytest.raises(BadInput, match="so that no sample is left"):
        fedaudit.fair_split({0: MEMBERS, 1: MEMBERS}, audited=10)


def test_joined_parts_exclude_samples_audited_by_two_clients(tmp_path: Path) -> None:
    parts = [fedaudit.fair_split({client: MEMBERS}, audited=25).part for client in (0, 1)]
    with pytest.warns(UserWarning, match="have an exact copy with another membership"):
        audit = fedaudit.join_audits(parts)
    (rows,) = number_rows(audit.samples)
    assert len(set(rows.tolist())) == len(audit) == 10


def test_a_split_without_copies_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = fedaudit.fair_split({"a": MEMBERS, "b": OTHERS}, audited={"a": 5, "b": 20})
    assert sorted(np.unique(split.audit.fair_target, return_counts=True)[1].tolist()) == [5, 20]
    with pytest.raises(BadInput, match="audited has no number for client b"):
        fedaudit.fair_split({"a": MEMBERS, "b": OTHERS}, audited={"a": 5})


@pytest.mark.slow
def test_number_rows_is_exact_and_fast() -> None:
    x = torch.randint(0, 3, (20_000, 6), generator=RNG)
    expected = np.unique(x.numpy(), axis=0)
    (rows,) = number_rows(Samples(x, torch.zeros(20_000).long()))
    assert len(np.unique(rows)) == len(expected)
    pictures = torch.rand(4_000, 3072)
    pictures[3_999] = pictures[7]
    began = perf_counter()
    (rows,) = number_rows(Samples(pictures, torch.zeros(4_000).long()))
    assert perf_counter() - began < 2
    assert rows[3_999] == rows[7]
    assert len(np.unique(rows)) == 3_999


def test_signs_distinguish_rows_except_for_minus_zero() -> None:
    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.0, 1.0], [-0.0, 1.0]], dtype=torch.float64)
    (rows,) = number_rows(Samples(x, torch.zeros(4).long()))
    assert rows[0] != rows[1]
    assert rows[2] == rows[3]


def test_identical_samples_raise() -> None:
    with pytest.raises(BadInput, match="all 30 samples of client 0 have the same features"):
        fedaudit.fair_split({0: (torch.ones(30, 4), torch.arange(30) % 2)}, audited=10)


@pytest.mark.parametrize("part", ["features", "labels"])
def test_masked_samples_are_refused(part: str) -> None:
    x, y = np.arange(80.0).reshape(20, 4), np.arange(20) % 3
    hidden = np.arange(20) == 4
    if part == "features":
        x = np.ma.array(x, mask=np.broadcast_to(hidden[:, None], x.shape))
    else:
        y = np.ma.array(y, mask=hidden)
    with pytest.raises(BadInput, match="some entries are masked"):
        fedaudit.fair_split({0: (x, y)}, audited=5)


def test_members_without_clients_are_refused() -> None:
    with pytest.raises(BadInput, match=r"members are a dictionary from each client .*; got tuple"):
        fedaudit.audit_samples(MEMBERS, UNSEEN)  # type: ignore[arg-type]
