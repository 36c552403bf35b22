"""How published papers choose the audited samples.

All but ``sia`` audit all of the target's samples, and some samples of other clients and of the test
part. Every function assigns the training part to ``clients`` by ``partition``; the test part is
held out. ``targets`` are the audited clients, and ``seed`` determines all choices.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import (
    Assignment,
    AuditedIds,
    build_assignment,
    check_targets,
)
from fedaudit.datasets.partitions.schemes import Partition, apportion, assign_samples


def fedmia_paper(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    share: float = 0.1,
) -> Assignment:
    """Select for the audit all of the target's data, and a fraction of all other data.

    Args:
        share: Fraction of the test part, and of each other client, that is audited, in (0, 1].

    Raises:
        BadInput: There is more than one target, or a number is out of range.

    Source: Zhu et al. 2024 (FedMIA), appendix A.1.
    Differs: Non-members are drawn once, as the paper's equations require; the published code draws
    new ones for every client and round.
    """
    _check_share(share)
    return fedmia_code(
        dataset,
        clients=clients,
        partition=partition,
        seed=seed,
        targets=targets,
        n_unseen=round(share * len(dataset.test)),
        share=share,
    )


def fedmia_code(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    n_unseen: int = 1000,
    share: float = 0.2,
) -> Assignment:
    """Select all of the target's data, 1,000 test samples and a fifth of every other client.

    Args:
        n_unseen: Number of audited test samples.
        share: Fraction of each other client's samples that is audited, in (0, 1].

    Raises:
        BadInput: There is more than one target, or the test part has fewer samples.

    Source: Zhu et al. 2024 (FedMIA), published code.
    Differs: Non-members are drawn once, not for every client and round.
    """
    _check_share(share)
    positions = _assigned_positions(dataset, clients, partition, targets, seed, single_target=True)
    return _select_audited(
        dataset,
        positions,
        target=targets[0],
        n_unseen=n_unseen,
        n_audited={client: round(share * len(assigned)) for client, assigned in positions.items()},
        seed=seed,
    )


def cofedmid(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    n_unseen: int = 1000,
    n_other: int = 9000,
) -> Assignment:
    """Select all of the target's data, 1,000 test samples and 9,000 of the other clients.

    Args:
        n_unseen: Number of audited test samples.
        n_other: Number of other clients' audited samples, in proportion to the clients' sizes.

    Raises:
        BadInput: There is more than one target, or there are fewer samples.

    Source: Bai et al. 2026 (CoFedMID), appendix D (5,000 members, 1,000 unseen samples and 9,000
        samples of other clients).
    """
    positions = _assigned_positions(dataset, clients, partition, targets, seed, single_target=True)
    sizes = np.array(
        [0 if client == targets[0] else len(assigned) for client, assigned in positions.items()]
    )
    if n_other > sizes.sum():
        raise BadInput(
            f"n_other is {n_other} and the other clients have {sizes.sum()} samples "
            f"({n_other - sizes.sum()} short); lower n_other or assign more samples"
        )
    return _select_audited(
        dataset,
        positions,
        target=targets[0],
        n_unseen=n_unseen,
        n_audited=dict(enumerate(apportion(n_other, sizes).tolist())),
        seed=seed,
    )


def sia(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    per_client: int = 100,
    n_unseen: int = 0,
) -> Assignment:
    """Select equally many samples of every client, so that guessing has an accuracy of 1 / clients.

    Args:
        targets: Clients that are the targets of membership inference.
        per_client: Audited samples per client, at most as many as the smallest client has.
        n_unseen: Number of audited test samples, for membership inference before source inference.

    Raises:
        BadInput: A target or number is out of range.

    Source: Hu et al. 2024 (SIA), section 4.2 (100 training samples of each client); published code
        (fewer if a client has fewer).
    """
    if per_client < 1:
        raise BadInput(f"per_client is {per_client}; give at least 1 (the paper audits 100)")
    positions = _assigned_positions(dataset, clients, partition, targets, seed)
    samples_per_client = min(per_client, *(len(assigned) for assigned in positions.values()))
    n_audited = dict.fromkeys(positions, samples_per_client)
    return _select_audited(
        dataset, positions, target=None, n_unseen=n_unseen, n_audited=n_audited, seed=seed
    )


def _assigned_positions(
    dataset: Dataset,
    clients: int,
    partition: Partition,
    targets: Sequence[ClientId],
    seed: int,
    *,
    single_target: bool = False,
) -> dict[ClientId, Int[ndarray, " _"]]:
    """Return the positions in the training part that the partition assigns to each client."""
    if single_target and len(targets) > 1:
        raise BadInput(
            f"the selection of audited samples of a published paper has one target, got "
            f"{len(targets)}; use the draw 'fair', which matches members and non-members, or run "
            "one study for each target"
        )
    check_targets(clients, targets)
    labels = dataset.train.labels.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    rng = seeded_numpy(seed, "partition")
    return dict(
        enumerate(assign_samples(labels, partition.quotas(counts, clients, rng=rng), rng=rng))
    )


def _select_audited(
    dataset: Dataset,
    positions: dict[ClientId, Int[ndarray, " _"]],
    *,
    target: ClientId | None,
    n_unseen: int,
    n_audited: Mapping[ClientId, int],
    seed: int,
) -> Assignment:
    """Select all of the target's samples, and ``n_audited`` samples of each other client."""
    if not 0 <= n_unseen <= len(dataset.test):
        raise BadInput(
            f"n_unseen is {n_unseen} and the test part has {len(dataset.test)} samples "
            f"({n_unseen - len(dataset.test)} short); lower n_unseen"
        )
    rng = seeded_numpy(seed, "audit records")
    audited_positions = {
        client: assigned if client == target else rng.permutation(assigned)[: n_audited[client]]
        for client, assigned in positions.items()
    }
    test = rng.permutation(len(dataset.test))[:n_unseen] + len(dataset.train)
    ids = np.concatenate([*audited_positions.values(), test])
    owners = np.repeat(
        [*audited_positions, NO_CLIENT], [*map(len, audited_positions.values()), len(test)]
    )
    return build_assignment(
        dataset, positions, AuditedIds(ids, owners, np.full(len(ids), NO_CLIENT)), seed=seed
    )


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise BadInput(f"share is {share}; give a share in (0, 1] (the paper audits a tenth)")
