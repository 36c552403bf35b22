"""Clients that differ in an attribute of their samples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.dataset import Dataset, number_samples
from fedaudit.datasets.draws.fair import draw
from fedaudit.datasets.partitions.schemes import IID, Dirichlet
from fedaudit.datasets.partitions.shifts import (
    PartitionByAttribute,
    assign_held_out,
    draw_by_code,
    split_by_attribute,
)

GROUP = (0, 0, 0, 0, 1, 1)


def people() -> Dataset:
    rng = seeded_numpy(1, "people")
    features = torch.from_numpy(rng.normal(size=(700, 3))).float()
    labels = torch.from_numpy(rng.integers(0, 3, 700))
    group = torch.from_numpy(rng.choice(3, 700, p=[0.5, 0.2, 0.3]))
    return Dataset(
        "people",
        number_samples(features[:600], labels[:600]),
        number_samples(features[600:], labels[600:], first=600),
        3,
        "",
        group,
        ("a", "b", "c"),
    )


@pytest.mark.parametrize(
    "scheme", [IID(samples_per_client=40), Dirichlet(beta=0.5, samples_per_client=20)]
)
def test_clients_have_samples_of_their_group_with_unchanged_labels(scheme: object) -> None:
    data = people()
    split = split_by_attribute(data, "c")
    assert isinstance(scheme, IID | Dirichlet)
    assignment = draw_by_code(
        data,
        split.is_minority.long(),
        2,
        partial(draw, clients=6, partition=PartitionByAttribute(scheme, GROUP), n_fair=30, seed=2),
    )
    background = {
        c: s.ids[~torch.isin(s.ids, assignment.audit.samples.ids)]
        for c, s in assignment.clients.items()
    }
    for client, ids in background.items():
        assert bool((split.is_minority[ids] == bool(GROUP[client])).all())
    for samples in (*assignment.clients.values(), assignment.audit.samples):
        assert torch.equal(samples.labels, data.samples(samples.ids).labels)
    # What is audited is drawn like the target's own people.
    assert not bool(split.is_minority[assignment.audit.samples.ids].any())


def test_the_rarest_value_is_the_default_minority() -> None:
    data = people()
    assert data.group is not None
    assert split_by_attribute(data).value == "b"
    assert torch.equal(split_by_attribute(data).is_minority, data.group == 1)
    assert split_by_attribute(data, "a").value == "a"


def test_unassigned_samples_are_assigned_to_their_group_in_turn() -> None:
    split = split_by_attribute(people(), "c")
    ids = np.arange(600, 700)
    place = assign_held_out(split, np.array(GROUP), ids, rng=seeded_numpy(1, "turns"))
    for side in (0, 1):
        mine = place[split.is_minority.numpy()[ids] == bool(side)]
        counts = np.bincount(mine, minlength=6)[np.array(GROUP) == side]
        assert counts.sum() == len(mine)
        assert counts.max() - counts.min() <= 1


def test_data_without_the_attribute_raise() -> None:
    data = people()
    with pytest.raises(BadInput, match="no attribute"):
        split_by_attribute(replace(data, group=None, group_names=()))
    with pytest.raises(BadInput, match="'d'"):
        split_by_attribute(data, "d")
    alone = replace(data, group=torch.zeros(700).long())
    with pytest.raises(BadInput, match="600 of the 600"):
        split_by_attribute(alone, "a")
