"""Audited samples with their owners, clients' training samples, and data for attacks that learn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, setting
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples, short_repr
from fedaudit.datasets.dataset import Dataset, with_parts


@short_repr
@dataclass(frozen=True)
class AuditSet:
    """Audited samples, the same for every client and round, and their true owners.

    Attributes:
        samples: The audited samples, in random order.
        owner: The client that trains on each sample; ``NOBODY`` (-1) for a held-out sample.
        panel: The target client for which a fair draw decided the sample's owner; ``NOBODY``
            without a fair draw.
        group: Group of each sample (a protected attribute), if the data set has one.
        subject: Person of each sample, if fair draws chose people with all their samples; None if
            they chose single samples.
        drawn_for: The target whose label distribution each sample was drawn with, or ``NOBODY``;
            None if that is the panel.
        unaudited: Clients that declined the audit or gave no part that fits, with the reason.
    """

    samples: Samples
    owner: Int[ndarray, " samples"]
    panel: Int[ndarray, " samples"]
    group: Int[ndarray, " samples"] | None = None
    subject: Int[ndarray, " samples"] | None = None
    unaudited: Mapping[str, str] = field(default_factory=dict, repr=False)
    drawn_for: Int[ndarray, " samples"] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def fair(self) -> Bool[ndarray, " samples"]:
        """Mask of the samples whose owner a fair draw for some target decided."""
        decided: Bool[ndarray, " samples"] = self.panel != NOBODY
        return decided

    def fair_for(self, target: ClientId) -> Bool[ndarray, " samples"]:
        """Return a mask of the samples whose owner a fair draw for this target decided.

        Bounds that require independent inclusion use these samples only.
        """
        decided: Bool[ndarray, " samples"] = self.panel == target
        return decided

    def drawn_with(self, target: ClientId) -> Bool[ndarray, " samples"]:
        """Return a mask of the samples that were drawn with this target's label distribution.

        They are all samples of its fair draw and the extra non-members of that draw.
        """
        drawn: Bool[ndarray, " samples"] = (
            self.panel if self.drawn_for is None else self.drawn_for
        ) == target
        return drawn

    def origin(self, target: ClientId) -> Int[ndarray, " samples"]:
        """Return the provenance of each sample for the target: values of :class:`Origin`."""
        elsewhere = np.where(self.owner == NOBODY, Origin.UNSEEN, Origin.OTHER_CLIENT)
        return np.where(self.owner == target, Origin.MEMBER, elsewhere).astype(np.int64)

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields but the features, for storage with a run."""
        stored = {
            "ids": self.samples.ids,
            "labels": self.samples.labels,
            "owner": torch.from_numpy(self.owner.astype(np.int64)),
            "panel": torch.from_numpy(self.panel.astype(np.int64)),
        }
        if len(self.samples.parts) > 3:
            stored["targets"] = self.samples.targets
        for name, codes in (("group", self.group), ("subject", self.subject)):
            if codes is not None:
                stored[name] = torch.from_numpy(codes.astype(np.int64))
        return stored


class OwnSamples(NamedTuple):
    """Random samples of each client's training data for source inference, equally many of each.

    Membership inference does not use them. They are measured after the audited samples, and are not
    part of the audit set.

    Attributes:
        added: Samples that are not audited for membership.
        place: Position of each sample among the audited samples followed by ``added``.
        owner: The client of each sample.
    """

    added: Samples
    place: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]


@short_repr
@dataclass(frozen=True)
class Deal:
    """Training samples of each client, and the audited samples.

    Attributes:
        clients: Training samples of each client, audited and background samples in one random
            order.
        audit: The audited samples with their owners.
        told: Reported number of training samples of clients whose other samples are unknown.
        own: Samples for source inference only; None if it uses the audited samples.
    """

    clients: dict[ClientId, Samples]
    audit: AuditSet
    told: Mapping[ClientId, int] = field(default_factory=dict)
    own: OwnSamples | None = field(default=None, repr=False)

    @property
    def sizes(self) -> dict[ClientId, int]:
        """Number of training samples of each client."""
        return {c: self.told.get(c, len(samples)) for c, samples in self.clients.items()}

    @property
    def audited(self) -> dict[ClientId, int]:
        """Number of audited samples that each client trains on."""
        owners, counts = np.unique(self.audit.owner, return_counts=True)
        count_by_owner = dict(zip(owners.tolist(), counts.tolist(), strict=True))
        return {client: count_by_owner.get(client, 0) for client in self.clients}

    @cached_property
    def measured(self) -> Samples:
        """The samples whose signals are measured: audited ones, then those for source inference."""
        if self.own is None or not len(self.own.added):
            return self.audit.samples
        return Samples.joined(self.audit.samples, self.own.added)

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields of the measured samples but the features, for storage."""
        stored = self.audit.tensors()
        if self.own is not None:
            stored["own/ids"] = self.own.added.ids
            stored["own/place"] = torch.from_numpy(self.own.place)
            stored["own/owner"] = torch.from_numpy(self.own.owner)
        return stored

    def with_own_samples(self, data: Mapping[ClientId, Samples], each: int, *, seed: int) -> "Deal":
        """Draw random samples of each client's training data for source inference.

        The draw uses a separate random stream, so that no other choice depends on it.

        Args:
            data: The samples that each client trains on.
            each: Samples of each client, at most as many as the smallest client has.
            seed: Root seed.
        """
        each = min(each, *(len(samples) for samples in data.values()))
        owner = np.repeat(np.array(sorted(data), dtype=np.int64), each)
        chosen = Samples.joined(
            *(
                samples.take(
                    torch.from_numpy(
                        seeded_numpy(seed, "own samples", client).permutation(len(samples))[:each]
                    )
                )
                for client, samples in sorted(data.items())
            )
        )
        audited = zip(self.audit.samples.ids.tolist(), self.audit.owner.tolist(), strict=True)
        place_of_pair = {pair: place for place, pair in enumerate(audited)}
        place = np.array(
            [
                place_of_pair.get(pair, -1)
                for pair in zip(chosen.ids.tolist(), owner.tolist(), strict=True)
            ],
            dtype=np.int64,
        )
        # A random order, so that positions reveal no owner.
        new = seeded_numpy(seed, "order of own samples").permutation(np.flatnonzero(place < 0))
        place[new] = len(self.audit) + np.arange(len(new))
        return replace(self, own=OwnSamples(chosen.take(torch.from_numpy(new)), place, owner))

    def class_counts(self, classes: int) -> dict[ClientId, list[int]]:
        """Return the number of samples of each class that each client trains on."""
        return {
            client: torch.bincount(samples.labels, minlength=classes).tolist()
            for client, samples in self.clients.items()
        }


class Audited(NamedTuple):
    """Audited samples by id.

    Attributes:
        ids: Ids of the samples.
        owner: The client that trains on each sample.
        panel: The target for which a fair draw decided this.
        subject: Person of each sample, if people were drawn.
        drawn_for: As in :class:`AuditSet`.
    """

    ids: Int[ndarray, " audited"]
    owner: Int[ndarray, " audited"]
    panel: Int[ndarray, " audited"]
    subject: Int[ndarray, " audited"] | None = None
    drawn_for: Int[ndarray, " audited"] | None = None


def build_deal(
    dataset: Dataset,
    ids_by_client: Mapping[ClientId, Int[ndarray, " _"]],
    audited: Audited,
    *,
    seed: int,
) -> Deal:
    """Return the deal of samples that are given by their ids, in random orders that reveal nothing.

    Args:
        dataset: The samples.
        ids_by_client: Ids of the samples that each client trains on.
        audited: The audited samples.
        seed: Root seed of the orders.

    Raises:
        BadInput: A client has no samples.
    """
    for client, ids in ids_by_client.items():
        if not len(ids):
            raise BadInput(
                f"client {client} has no samples; give more samples per client, fewer clients or "
                "a smaller audit"
            )
    clients = {
        client: dataset.samples(
            torch.from_numpy(seeded_numpy(seed, "order", client).permutation(ids))
        )
        for client, ids in ids_by_client.items()
    }
    order = seeded_numpy(seed, "audit order").permutation(len(audited.ids))
    samples = dataset.samples(torch.from_numpy(audited.ids[order]))
    group = None if dataset.group is None else dataset.group[samples.ids].numpy()
    subject = None if audited.subject is None else audited.subject[order]
    owner, panel = audited.owner[order], audited.panel[order]
    drawn_for = None if audited.drawn_for is None else audited.drawn_for[order]
    return Deal(clients, AuditSet(samples, owner, panel, group, subject, drawn_for=drawn_for))


def check_targets(clients: int, targets: Sequence[ClientId]) -> None:
    """Raise if there are fewer than two clients, or targets are unknown or repeated."""
    if clients < 2:
        raise BadInput(
            f"an audit compares the target with other clients and needs at least 2 clients, got "
            f"{clients}; raise clients"
        )
    if not targets or len(set(targets)) != len(targets):
        raise BadInput(f"targets are {tuple(targets)}; name at least one client, each once")
    for target in targets:
        if not 0 <= target < clients:
            raise BadInput(
                f"target {target} is not a client; clients are numbered 0 to {clients - 1}"
            )


def other_positions(count: int, used: Int[ndarray, " used"]) -> Int[ndarray, " free"]:
    """Return the positions below a count that are not used, in ascending order."""
    is_free = np.ones(count, dtype=bool)
    is_free[used] = False
    return np.flatnonzero(is_free)


def shadow_deal(dataset: Dataset, audited: Deal, draw: Callable[[Dataset], Deal]) -> Deal:
    """Deal a shadow federation from training samples that the audited run does not use.

    Training samples of the audited run's clients and its audited samples are not dealt. The test
    part is used for testing. Samples keep their ids in the data set.

    Args:
        dataset: Data set of the audited run.
        audited: The audited run's deal.
        draw: Function that deals a data set to the shadow's clients.

    Raises:
        BadInput: Too few samples remain for a federation of the audited one's size.
    """
    free_ids = untouched(dataset, audited)
    needed, available = sum(audited.sizes.values()), len(free_ids)
    if available < needed:
        raise BadInput(
            f"a shadow federation needs {needed} training samples that the audited run does not "
            f"use, and {available} of {len(dataset.train)} are left; lower "
            f"{setting('partition.samples_per_client')} so that the clients take less than half of "
            "the data (or, "
            'for attacks that learn, set shadow.mode = "known-split")'
        )
    ids = torch.cat([free_ids, dataset.test.ids])
    remaining = with_parts(
        dataset,
        dataset.train.take(free_ids).replace(ids=torch.arange(available)),
        dataset.test.replace(ids=torch.arange(available, available + len(dataset.test))),
        ids,
        classes=dataset.classes,
    )
    try:
        deal = draw(remaining)
    except BadInput as error:
        raise BadInput(
            f"no shadow federation can be dealt from the {available} remaining samples: {error}"
        ) from error
    return Deal(
        {client: _with_ids(samples, ids) for client, samples in deal.clients.items()},
        replace(deal.audit, samples=_with_ids(deal.audit.samples, ids)),
    )


class KnownMembers(NamedTuple):
    """Samples that are not audited, with known membership.

    Attributes:
        client: The client whose training data is known.
        samples: The samples, half of them that client's.
        is_member: Which samples are that client's.
    """

    client: ClientId
    samples: Samples
    is_member: Bool[Tensor, " samples"]


def known_split(
    dataset: Dataset,
    audited: Deal,
    *,
    client: ClientId,
    trained_on: Int[ndarray, " _"],
    size: int,
    seed: int,
) -> KnownMembers:
    """Draw samples that a client trained on and as many that no client did, none of them audited.

    Non-members are training samples that were not dealt and, if these do not suffice, test samples.

    Args:
        dataset: Data set of the run.
        audited: Deal of the run.
        client: The client whose training data is known.
        trained_on: Ids of the samples that this client trains on: its data, less those that a
            defense holds out.
        size: Size of both halves together.
        seed: Root seed of the choice.

    Raises:
        BadInput: Too few of the client's samples, or of held-out samples, are not audited.
    """
    rng = seeded_numpy(seed, "known split")
    audit, half = audited.audit.samples.ids.numpy(), size // 2
    members = np.setdiff1d(trained_on, audit)
    unused = rng.permutation(untouched(dataset, audited).numpy())
    tests = rng.permutation(np.setdiff1d(dataset.test.ids.numpy(), audit))
    non_members = np.concatenate([unused, tests])
    if min(len(members), len(non_members)) < half or not half:
        raise BadInput(
            f"a known split of {size} needs {half} samples that client {client} trained on and as "
            f"many held-out samples, none of them audited; there are {len(members)} and "
            f"{len(non_members)}; set shadow.known to at least 2 and at most "
            f"{2 * min(len(members), len(non_members))}, or audit less"
        )
    ids: Int[ndarray, " samples"] = np.concatenate(
        [rng.permutation(members)[:half], non_members[:half]]
    )
    order = rng.permutation(len(ids))
    is_member = torch.from_numpy(order < half)
    return KnownMembers(client, dataset.samples(torch.from_numpy(ids[order])), is_member)


def untouched(dataset: Dataset, audited: Deal) -> Int[Tensor, " samples"]:
    """Return ids of training samples that no client trains on and that are not audited."""
    used = [samples.ids for samples in audited.clients.values()] + [audited.audit.samples.ids]
    free = torch.ones(len(dataset), dtype=torch.bool)
    free[torch.cat(used)] = False
    return free[: len(dataset.train)].nonzero().flatten()


def _with_ids(samples: Samples, ids: Int[Tensor, " all"]) -> Samples:
    """Return the samples with their ids in the whole data set."""
    return samples.replace(ids=ids[samples.ids])
