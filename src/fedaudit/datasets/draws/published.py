"""Audit sets of published papers: all of the target's data, and fixed samples of others."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Audited, Deal, build_deal, check_targets
from fedaudit.datasets.partitions.schemes import Partition, apportion, deal


def fedmia_paper(
    dataset: Dataset,
    *,
    clients: int,
    partition: Partition,
    seed: int,
    targets: Sequence[ClientId] = (0,),
    share: float = 0.1,
) -> Deal:
    """Audit all of the target's data, and a share of the test part and of every other client.

    Args:
        dataset: Its training part is dealt to clients; its test part is held out.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one audited client.
        share: Share of the test part, and of each other client, that is audited, in (0, 1].

    Raises:
        BadInput: More than one target, or numbers out of range.

    Source: FedMIA, appendix A.1.
    Differs: Non-members are drawn once, as the paper's equations require; its code draws new ones
    for every client and round.
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
) -> Deal:
    """Audit all of the target's data, 1,000 test samples and a fifth of every other client.

    Args:
        dataset: Its training part is dealt to clients; its test part is held out.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one audited client.
        n_unseen: Number of audited test samples.
        share: Share of each other client that is audited, in (0, 1].

    Raises:
        BadInput: More than one target, or more test samples than there are.

    Source: FedMIA, published code.
    Differs: Non-members are drawn once, not for every client and round.
    """
    _check_share(share)
    hands = _hands_of_one_target(dataset, clients, partition, targets, seed)
    return _audited(
        dataset,
        hands,
        target=targets[0],
        unseen=n_unseen,
        others={client: round(share * len(hand)) for client, hand in hands.items()},
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
) -> Deal:
    """Audit all of the target's data, 1,000 test samples and 9,000 of the other clients.

    Args:
        dataset: Its training part is dealt to clients; its test part is held out.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The one audited client.
        n_unseen: Number of audited test samples.
        n_other: Number of other clients' audited samples, in proportion to the clients' sizes.

    Raises:
        BadInput: More than one target, or more samples than there are.

    Source: CoFedMID, appendix D (5,000 members, 1,000 unseen and 9,000 other clients').
    """
    hands = _hands_of_one_target(dataset, clients, partition, targets, seed)
    sizes = np.array([0 if client == targets[0] else len(hand) for client, hand in hands.items()])
    if n_other > sizes.sum():
        raise BadInput(
            f"n_other is {n_other} and the other clients have {sizes.sum()} samples "
            f"({n_other - sizes.sum()} short); lower n_other or deal more samples"
        )
    others = apportion(n_other, sizes)
    return _audited(
        dataset,
        hands,
        target=targets[0],
        unseen=n_unseen,
        others={client: int(others[client]) for client in hands},
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
) -> Deal:
    """Audit equally many samples of every client, so that guessing succeeds once in as many.

    Args:
        dataset: Its training part is dealt to clients; its test part is held out.
        clients: Number of clients, at least 2.
        partition: How the training part is dealt.
        seed: Root seed of all choices.
        targets: The clients whose members membership inference audits.
        per_client: Audited samples of each client, at most as many as the smallest client has.
        n_unseen: Number of audited test samples, for membership inference before source inference.

    Raises:
        BadInput: Targets or numbers out of range.

    Source: SIA, section 4.2 (100 training records of each client); published code (fewer where a
    client has fewer).
    """
    if per_client < 1:
        raise BadInput(f"per_client is {per_client}; give at least 1 (the paper audits 100)")
    hands = _dealt_hands(dataset, clients, partition, targets, seed)
    each = min(per_client, *(len(hand) for hand in hands.values()))
    return _audited(
        dataset,
        hands,
        target=None,
        unseen=n_unseen,
        others=dict.fromkeys(hands, each),
        seed=seed,
    )


def _hands_of_one_target(
    dataset: Dataset,
    clients: int,
    partition: Partition,
    targets: Sequence[ClientId],
    seed: int,
) -> dict[ClientId, Int[ndarray, " _"]]:
    """Return the positions in the training part that the partition deals to each client."""
    if len(targets) > 1:
        raise BadInput(
            f"a published draw audits one target, got {len(targets)}; use the fair draw for "
            "several, or run one study for each target"
        )
    return _dealt_hands(dataset, clients, partition, targets, seed)


def _dealt_hands(
    dataset: Dataset,
    clients: int,
    partition: Partition,
    targets: Sequence[ClientId],
    seed: int,
) -> dict[ClientId, Int[ndarray, " _"]]:
    check_targets(clients, targets)
    labels = dataset.train.labels.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    rng = seeded_numpy(seed, "partition")
    return dict(enumerate(deal(labels, partition.quotas(counts, clients, rng=rng), rng=rng)))


def _audited(
    dataset: Dataset,
    hands: dict[ClientId, Int[ndarray, " _"]],
    *,
    target: ClientId | None,
    unseen: int,
    others: Mapping[ClientId, int],
    seed: int,
) -> Deal:
    """Return the deal, auditing all of a target's data and samples of others and the test part."""
    if not 0 <= unseen <= len(dataset.test):
        raise BadInput(
            f"n_unseen is {unseen} and the test part has {len(dataset.test)} samples "
            f"({unseen - len(dataset.test)} short); lower n_unseen"
        )
    rng = seeded_numpy(seed, "audit records")
    chosen = {
        client: hand if client == target else rng.permutation(hand)[: others[client]]
        for client, hand in hands.items()
    }
    test = rng.permutation(len(dataset.test))[:unseen] + len(dataset.train)
    ids = np.concatenate([*chosen.values(), test])
    owners = np.repeat([*chosen, NOBODY], [*map(len, chosen.values()), len(test)])
    return build_deal(dataset, hands, Audited(ids, owners, np.full(len(ids), NOBODY)), seed=seed)


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise BadInput(f"share is {share}; give a share in (0, 1] (the paper audits a tenth)")
