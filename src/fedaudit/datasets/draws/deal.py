"""A deal: the training samples of every client together with what is audited."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core import ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.errors import BadInput
from fedaudit.seeds import seeded_numpy


@dataclass(frozen=True)
class Deal:
    """Who trains on what, and what is audited.

    Attributes:
        clients: Training samples of each client, audited and background together, in an order
            that does not tell them apart.
        audit: The audited samples with their owners.
        told: Number of training samples of clients of whom others than these are not known.
    """

    clients: dict[ClientId, Samples]
    audit: AuditSet
    told: Mapping[ClientId, int] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[ClientId, int]:
        """Number of training samples of each client."""
        return {c: self.told.get(c, len(samples)) for c, samples in self.clients.items()}

    @property
    def audited(self) -> dict[ClientId, int]:
        """Number of audited samples that each client trains on."""
        return {client: int((self.audit.owner == client).sum()) for client in self.clients}

    def class_counts(self, classes: int) -> dict[ClientId, list[int]]:
        """Number of samples of each class that each client trains on."""
        return {
            client: torch.bincount(samples.labels, minlength=classes).tolist()
            for client, samples in self.clients.items()
        }


class Audited(NamedTuple):
    """Audited samples by id, who owns each and for which target that was a fair draw."""

    ids: Int[ndarray, " audited"]
    owner: Int[ndarray, " audited"]
    panel: Int[ndarray, " audited"]


def dealt(
    dataset: Dataset,
    held: Mapping[ClientId, Int[ndarray, " _"]],
    audited: Audited,
    *,
    seed: int,
) -> Deal:
    """Looks the samples up, in orders that give nothing away.

    Args:
        dataset: Where the samples are.
        held: Ids of the samples that each client trains on.
        audited: What is audited.
        seed: Root seed; decides the orders.

    Raises:
        BadInput: A client has no samples.
    """
    for client, mine in held.items():
        if not len(mine):
            raise BadInput(
                f"client {client} is left without samples; give more samples per client, "
                "fewer clients or a smaller audit"
            )
    clients = {
        client: dataset.samples(
            torch.from_numpy(seeded_numpy(seed, "order", client).permutation(mine))
        )
        for client, mine in held.items()
    }
    order = seeded_numpy(seed, "audit order").permutation(len(audited.ids))
    samples = dataset.samples(torch.from_numpy(audited.ids[order]))
    group = None if dataset.group is None else dataset.group[samples.ids].numpy()
    return Deal(clients, AuditSet(samples, audited.owner[order], audited.panel[order], group))


def check_targets(clients: int, targets: Sequence[ClientId]) -> None:
    """Refuses fewer than two clients, and targets that are none of them or named twice."""
    if clients < 2:
        raise BadInput(
            f"an audit compares the target with other clients and so needs at least 2 clients, "
            f"got {clients}; raise clients"
        )
    if not targets or len(set(targets)) != len(targets):
        raise BadInput(f"targets must name at least one client, each once, got {tuple(targets)}")
    for target in targets:
        if not 0 <= target < clients:
            raise BadInput(f"target {target} is no client; clients are numbered 0 to {clients - 1}")
