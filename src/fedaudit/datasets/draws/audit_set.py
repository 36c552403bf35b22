"""Audited samples with their owners, clients' training samples, and data to train attacks on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT, ClientId, Samples, short_repr
from fedaudit.datasets.dataset import Dataset, with_parts


@short_repr
@dataclass(frozen=True)
class AuditSet:
    """Audited samples, the same for every client and round, and their true owners.

    Attributes:
        samples: The audited samples, in random order.
        owner: The client that trains on each sample; ``NO_CLIENT`` (-1) for a held-out sample.
        fair_target: The target for which a fair draw decided the owner of each sample;
            ``NO_CLIENT`` if no fair draw decided it.
        group: Group of each sample (a protected attribute), if the data set has one.
        person: Person of each sample, if fair draws chose people with all their samples; None if
            they chose single samples.
        drawn_for: The target with whose label distribution each sample was drawn, or
            ``NO_CLIENT``. It differs from ``fair_target`` for additional audited non-members
            (``extra_other``, ``extra_unseen``), which are not part of a fair draw. None if there
            are no such samples.
        unaudited: Clients that declined the audit or sent unusable samples, with the reason.
        names: Names of the clients that have names. The number of such a client is a hash of its
            name.
    """

    samples: Samples
    owner: Int[ndarray, " samples"]
    fair_target: Int[ndarray, " samples"]
    group: Int[ndarray, " samples"] | None = None
    person: Int[ndarray, " samples"] | None = None
    unaudited: Mapping[str, str] = field(default_factory=dict, repr=False)
    drawn_for: Int[ndarray, " samples"] | None = None
    names: tuple[str, ...] = field(default=(), repr=False)

    _repr_html_ = repr_html

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def fair(self) -> Bool[ndarray, " samples"]:
        """Mask of the samples whose owner a fair draw for any target decided."""
        is_fair: Bool[ndarray, " samples"] = self.fair_target != NO_CLIENT
        return is_fair

    def fair_for(self, target: ClientId) -> Bool[ndarray, " samples"]:
        """Return a mask of the samples whose owner a fair draw for this target decided.

        Bounds that require independent inclusion use these samples only.
        """
        is_fair: Bool[ndarray, " samples"] = self.fair_target == target
        return is_fair

    def drawn_with(self, target: ClientId) -> Bool[ndarray, " samples"]:
        """Return a mask of the samples that were drawn with this target's label distribution.

        These are the samples of the target's fair draw and its extra samples.
        """
        drawn_for = self.fair_target if self.drawn_for is None else self.drawn_for
        is_drawn: Bool[ndarray, " samples"] = drawn_for == target
        return is_drawn

    def origin(self, target: ClientId) -> Int[ndarray, " samples"]:
        """Return for each sample whether it is a member for the target (:class:`Origin`)."""
        of_non_members = np.where(self.owner == NO_CLIENT, Origin.UNSEEN, Origin.OTHER_CLIENT)
        return np.where(self.owner == target, Origin.MEMBER, of_non_members).astype(np.int64)

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields except the features, for storage with a run."""
        stored = {
            "ids": self.samples.ids,
            "labels": self.samples.labels,
            "owner": torch.from_numpy(self.owner.astype(np.int64)),
            # An older name of the field, which stored runs have.
            "panel": torch.from_numpy(self.fair_target.astype(np.int64)),
        }
        if len(self.samples.parts) > 3:
            stored["targets"] = self.samples.targets
        for name, codes in (("group", self.group), ("subject", self.person)):
            if codes is not None:
                stored[name] = torch.from_numpy(codes.astype(np.int64))
        return stored


class SourceSamples(NamedTuple):
    """Random samples of each client's training data for source inference, equally many per client.

    Membership inference does not use these samples. Their signals are measured after those of the
    audited samples.

    Attributes:
        unaudited: Samples for source inference that are not in the audit set.
        position: Position of each sample among the audited samples followed by ``unaudited``.
        owner: The client of each sample.
    """

    unaudited: Samples
    position: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]


@short_repr
@dataclass(frozen=True)
class Assignment:
    """Training samples of each client, and the audited samples.

    Attributes:
        clients: Training samples of each client, audited and background samples in one random
            order.
        audit: The audited samples with their owners.
        reported_sizes: Number of training samples that clients report, for clients whose
            unaudited samples are unknown.
        source_samples: Samples for source inference; None if it uses the audited samples.
    """

    clients: dict[ClientId, Samples]
    audit: AuditSet
    reported_sizes: Mapping[ClientId, int] = field(default_factory=dict)
    source_samples: SourceSamples | None = field(default=None, repr=False)

    _repr_html_ = repr_html

    @property
    def sizes(self) -> dict[ClientId, int]:
        """Number of training samples of each client."""
        return {c: self.reported_sizes.get(c, len(part)) for c, part in self.clients.items()}

    @property
    def audited(self) -> dict[ClientId, int]:
        """Number of audited samples that each client trains on."""
        owners, counts = np.unique(self.audit.owner, return_counts=True)
        count_by_owner = dict(zip(owners.tolist(), counts.tolist(), strict=True))
        return {client: count_by_owner.get(client, 0) for client in self.clients}

    @cached_property
    def measured(self) -> Samples:
        """All samples whose signals are measured: audited samples, then source samples."""
        if self.source_samples is None or not len(self.source_samples.unaudited):
            return self.audit.samples
        return Samples.concatenate(self.audit.samples, self.source_samples.unaudited)

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields of the measured samples except the features, for storage."""
        stored = self.audit.tensors()
        if self.source_samples is not None:
            stored["own/ids"] = self.source_samples.unaudited.ids
            stored["own/place"] = torch.from_numpy(self.source_samples.position)
            stored["own/owner"] = torch.from_numpy(self.source_samples.owner)
        return stored

    def with_source_samples(
        self, data: Mapping[ClientId, Samples], per_client: int, *, seed: int
    ) -> "Assignment":
        """Draw random samples of each client's training data for source inference.

        The draw uses a separate random stream, so that no other draw depends on it. If a client
        has fewer than ``per_client`` samples, equally few are drawn for every client.
        """
        per_client = min(per_client, *(len(samples) for samples in data.values()))
        owner = np.repeat(np.array(sorted(data), dtype=np.int64), per_client)
        parts = []
        for client, samples in sorted(data.items()):
            order = seeded_numpy(seed, "own samples", client).permutation(len(samples))
            parts.append(samples.take(torch.from_numpy(order[:per_client])))
        source_samples = Samples.concatenate(*parts)
        # A sample may have several owners, so that it is identified by its id and owner.
        audited_ids = zip(self.audit.samples.ids.tolist(), self.audit.owner.tolist(), strict=True)
        audited_position = {pair: index for index, pair in enumerate(audited_ids)}
        pairs = zip(source_samples.ids.tolist(), owner.tolist(), strict=True)
        position = np.array([audited_position.get(pair, -1) for pair in pairs], dtype=np.int64)
        # Shuffle, so that positions reveal no owner.
        rng = seeded_numpy(seed, "order of own samples")
        unaudited = rng.permutation(np.flatnonzero(position < 0))
        position[unaudited] = len(self.audit) + np.arange(len(unaudited))
        unaudited_samples = source_samples.take(torch.from_numpy(unaudited))
        return replace(self, source_samples=SourceSamples(unaudited_samples, position, owner))

    def class_counts(self, classes: int) -> dict[ClientId, list[int]]:
        """Return the number of samples of each class that each client trains on."""
        return {
            client: torch.bincount(samples.labels, minlength=classes).tolist()
            for client, samples in self.clients.items()
        }


class AuditedIds(NamedTuple):
    """Ids of audited samples, with the fields of :class:`AuditSet` that a draw decides."""

    ids: Int[ndarray, " audited"]
    owner: Int[ndarray, " audited"]
    fair_target: Int[ndarray, " audited"]
    person: Int[ndarray, " audited"] | None = None
    drawn_for: Int[ndarray, " audited"] | None = None


def build_assignment(
    dataset: Dataset,
    ids_by_client: Mapping[ClientId, Int[ndarray, " _"]],
    audited: AuditedIds,
    *,
    seed: int,
) -> Assignment:
    """Return the assignment of samples to clients by id, in random orders that hide the owners.

    Raises:
        BadInput: A client has no samples.
    """
    clients = {}
    for client, ids in ids_by_client.items():
        if not len(ids):
            raise BadInput(
                f"client {client} has no samples; give more samples per client, fewer clients or "
                "a smaller audit"
            )
        shuffled = seeded_numpy(seed, "order", client).permutation(ids)
        clients[client] = dataset.samples(torch.from_numpy(shuffled))
    order = seeded_numpy(seed, "audit order").permutation(len(audited.ids))
    samples = dataset.samples(torch.from_numpy(audited.ids[order]))
    audit = AuditSet(
        samples,
        audited.owner[order],
        audited.fair_target[order],
        group=None if dataset.group is None else dataset.group[samples.ids].numpy(),
        person=None if audited.person is None else audited.person[order],
        drawn_for=None if audited.drawn_for is None else audited.drawn_for[order],
    )
    return Assignment(clients, audit)


def check_targets(clients: int, targets: Sequence[ClientId]) -> None:
    """Raise if there are fewer than two clients, or a target is repeated or no client."""
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


def other_positions(count: int, used_positions: Int[ndarray, " used"]) -> Int[ndarray, " free"]:
    """Return the positions below ``count`` that are not in ``used_positions``, in ascending "
    "order."""
    is_unused = np.ones(count, dtype=bool)
    is_unused[used_positions] = False
    return np.flatnonzero(is_unused)


def shadow_assignment(
    dataset: Dataset, audited_assignment: Assignment, draw: Callable[[Dataset], Assignment]
) -> Assignment:
    """Draw a shadow federation from training samples that the audited run does not use.

    The shadow federation has the same test part. Samples keep their ids in ``dataset``. ``draw``
    draws the shadow federation's audited samples and clients from a data set.

    Raises:
        BadInput: Too few samples remain for a federation as large as the audited one.
    """
    free_ids = unused_ids(dataset, audited_assignment)
    needed, available = sum(audited_assignment.sizes.values()), len(free_ids)
    if available < needed:
        raise BadInput(
            f"a shadow federation needs {needed} training samples that the audited run does not "
            f"use, but {available} of {len(dataset.train)} are left; lower "
            f"{format_setting('partition.samples_per_client')} so that the clients take less than "
            "half of "
            'the data (or, for attacks that train a classifier, set shadow.mode = "known-split")'
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
        assignment = draw(remaining)
    except BadInput as error:
        raise BadInput(
            f"no shadow federation can be drawn from the {available} remaining samples: {error}"
        ) from error
    return Assignment(
        {client: _with_ids(samples, ids) for client, samples in assignment.clients.items()},
        replace(assignment.audit, samples=_with_ids(assignment.audit.samples, ids)),
    )


class KnownMembers(NamedTuple):
    """Unaudited samples, half of which are known members of one client."""

    client: ClientId
    samples: Samples
    is_member: Bool[Tensor, " samples"]


def known_split(
    dataset: Dataset,
    audited_assignment: Assignment,
    *,
    client: ClientId,
    trained_on: Int[ndarray, " _"],
    size: int,
    seed: int,
) -> KnownMembers:
    """Draw unaudited members of a client and as many unaudited held-out samples.

    Non-members are training samples of no client and, if these do not suffice, test samples.

    ``trained_on`` contains the ids of the samples on which the client trains. Samples that a
    defense holds out are not among them. ``size`` counts members and non-members together.

    Raises:
        BadInput: The client has too few unaudited samples, or too few held-out samples are
            unaudited.
    """
    rng = seeded_numpy(seed, "known split")
    audited_ids = audited_assignment.audit.samples.ids.numpy()
    half = size // 2
    members = np.setdiff1d(trained_on, audited_ids)
    unused = rng.permutation(unused_ids(dataset, audited_assignment).numpy())
    test_ids = rng.permutation(np.setdiff1d(dataset.test.ids.numpy(), audited_ids))
    non_members = np.concatenate([unused, test_ids])
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


def unused_ids(dataset: Dataset, audited_assignment: Assignment) -> Int[Tensor, " samples"]:
    """Return ids of training samples that no client trains on and that are not audited."""
    used_ids = [samples.ids for samples in audited_assignment.clients.values()] + [
        audited_assignment.audit.samples.ids
    ]
    is_unused = torch.ones(len(dataset), dtype=torch.bool)
    is_unused[torch.cat(used_ids)] = False
    return is_unused[: len(dataset.train)].nonzero().flatten()


def _with_ids(samples: Samples, ids: Int[Tensor, " all"]) -> Samples:
    """Return samples of a part of the data set with their ids in the whole data set."""
    return samples.replace(ids=ids[samples.ids])
