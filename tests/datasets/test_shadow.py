"""Data for learned attacks are disjoint from audited samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Assignment, known_split, shadow_assignment, unused_ids
from fedaudit.datasets.draws.fair import draw
from fedaudit.datasets.draws.published import cofedmid
from fedaudit.datasets.partitions.schemes import IID, Dirichlet, Partition
from tests.datasets.by_id import by_id

CLIENTS = 4


DATA = by_id(2000, 300)


def ids_of(assignment: Assignment, client: int) -> np.ndarray:
    return assignment.clients[client].ids.numpy()


def fair(data: Dataset, seed: int, partition: Partition) -> Assignment:
    return draw(data, clients=CLIENTS, partition=partition, n_fair=150, seed=seed)


def all_ids(assignment: Assignment) -> set[int]:
    """Ids of all that a run trains on or audits."""
    parts = [*assignment.clients.values(), assignment.audit.samples]
    return set(torch.cat([part.ids for part in parts]).tolist())


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), beta=st.sampled_from([1.0, 100.0]))
def test_a_shadow_shares_no_sample_with_the_audited_run(seed: int, beta: float) -> None:
    partition = Dirichlet(beta=beta, samples_per_client=100)
    audited = fair(DATA, seed, partition)
    shadow = shadow_assignment(
        DATA, audited, lambda remaining: fair(remaining, seed + 1, partition)
    )
    assert not all_ids(audited) & all_ids(shadow)
    assert max(all_ids(shadow)) < len(DATA.train)


def test_samples_of_a_shadow_keep_ids_features_labels_and_groups() -> None:
    audited = fair(DATA, 1, IID(samples_per_client=150))
    shadow = shadow_assignment(
        DATA, audited, lambda remaining: fair(remaining, 2, IID(samples_per_client=150))
    )
    for samples in [*shadow.clients.values(), shadow.audit.samples]:
        assert samples.features[:, 0].tolist() == samples.ids.tolist()
        assert torch.equal(samples.labels, samples.ids % 5)
    assert shadow.audit.group is not None
    assert np.array_equal(shadow.audit.group, shadow.audit.samples.ids.numpy() % 2)
    for client, samples in shadow.clients.items():
        theirs = shadow.audit.samples.ids[torch.from_numpy(shadow.audit.owner == client)]
        assert bool(torch.isin(theirs, samples.ids).all())


def test_too_little_data_for_a_shadow_raises_with_advice() -> None:
    audited = fair(DATA, 1, IID(samples_per_client=300))
    need, n_left = sum(audited.sizes.values()), len(unused_ids(DATA, audited))
    message = rf"needs {need} training samples .* {n_left} of 2000 are left; lower .*known-split"
    with pytest.raises(BadInput, match=message):
        shadow_assignment(
            DATA, audited, lambda remaining: fair(remaining, 2, IID(samples_per_client=300))
        )


def test_a_known_split_is_half_members_and_never_audited() -> None:
    audited = fair(DATA, 1, IID(samples_per_client=200))
    split = known_split(DATA, audited, client=2, trained_on=ids_of(audited, 2), size=80, seed=3)
    ids = split.samples.ids.numpy()
    assert not set(ids.tolist()) & set(audited.audit.samples.ids.tolist())
    trained = {c: set(samples.ids.tolist()) for c, samples in audited.clients.items()}
    for sample, member in zip(ids.tolist(), split.is_member.tolist(), strict=True):
        holders = [client for client, theirs in trained.items() if sample in theirs]
        assert holders == ([2] if member else [])
    assert int(split.is_member.sum()) == 40
    assert split.is_member[:40].any()
    assert not split.is_member[:40].all()


def test_a_known_split_can_use_unaudited_test_samples() -> None:
    audited = cofedmid(
        DATA,
        clients=CLIENTS,
        partition=IID(samples_per_client=500),
        seed=1,
        n_unseen=100,
        n_other=600,
    )
    split = known_split(DATA, audited, client=3, trained_on=ids_of(audited, 3), size=200, seed=3)
    non_member_ids = split.samples.ids[~split.is_member].numpy()
    assert non_member_ids.min() >= len(DATA.train)
    unseen = audited.audit.samples.ids.numpy()[audited.audit.owner == NO_CLIENT]
    assert not np.isin(non_member_ids, unseen).any()


def test_too_large_known_splits_raise_with_the_available_number() -> None:
    audited = fair(DATA, 1, IID(samples_per_client=200))
    with pytest.raises(
        BadInput, match=r"needs 500 samples that client 2 trained on .* at most \d+"
    ):
        known_split(DATA, audited, client=2, trained_on=ids_of(audited, 2), size=1000, seed=3)
