"""The samples of an audit of somebody's federation, and who trains on them."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core import NOBODY, ClientId, Samples
from fedaudit.data.audit_set import AuditSet
from fedaudit.errors import BadInput
from fedaudit.seeds import seeded_numpy

Labelled: TypeAlias = tuple[Tensor | ndarray, Tensor | ndarray]
"""Features as the model takes them, and class indices, one row a sample."""


class Split(NamedTuple):
    """Who trains on what, so that an audit can tell.

    Attributes:
        train: For each client, the positions of the samples that it may train on.
        audit: The audited samples: half of them, by the toss of a coin, are among these.
    """

    train: dict[ClientId, Int[ndarray, " samples"]]
    audit: AuditSet


def audit_samples(
    members: Mapping[ClientId, Labelled], unseen: Labelled, *, seed: int = 1
) -> AuditSet:
    """Samples to be audited, where who trains on what was settled elsewhere.

    Whatever tells members from unseen samples by their looks (another hospital, another year)
    will pass for leakage; a control with a classifier that sees inputs alone warns of that. Bounds
    on epsilon rest on a fair draw, and are not given: see :func:`fair_split`.

    Args:
        members: For each client some samples that it trains on.
        unseen: Samples of the same kind that nobody trains on.
        seed: Decides the order, which says nothing about them.

    Raises:
        BadInput: There are no samples of a kind, or features and labels do not fit together.
    """
    if not members:
        raise BadInput("an audit needs members: give some samples that a client trains on")
    parts = {client: _samples(data, f"client {client}") for client, data in members.items()}
    owners = [np.full(len(part), client) for client, part in parts.items()]
    nobody = _samples(unseen, "unseen")
    owner = np.concatenate([*owners, np.full(len(nobody), NOBODY)])
    return _shuffled(
        Samples.joined(*parts.values(), nobody), owner, np.full(len(owner), NOBODY), seed
    )


def fair_split(data: Mapping[ClientId, Labelled], *, audited: int = 300, seed: int = 1) -> Split:
    """Sets samples of each client aside by the toss of a coin, before anybody trains.

    Of each client ``audited`` samples are drawn, and a fair coin decides for each whether the
    client trains on it or nobody does. Members and unseen samples then differ in nothing else, and
    bounds on epsilon can be given.

    Args:
        data: All samples of each client.
        audited: Samples drawn of each client; about half of them are lost to training.
        seed: Of the draw.

    Raises:
        BadInput: A client has too few samples.

    Source: Steinke, Nasr and Jagielski 2023 (independent inclusion).
    """
    train: dict[ClientId, Int[ndarray, " samples"]] = {}
    samples, owners, panels = [], [], []
    for client, given in data.items():
        every = _samples(given, f"client {client}")
        if not 0 < audited < len(every):
            raise BadInput(
                f"{audited} samples of client {client} cannot be audited: it has {len(every)}, and "
                "is to keep some; lower audited"
            )
        rng = seeded_numpy(seed, "fair split", client)
        drawn = rng.permutation(len(every))[:audited]
        member = rng.random(audited) < 0.5
        train[client] = np.setdiff1d(np.arange(len(every)), drawn[~member])
        samples.append(every.take(torch.from_numpy(drawn)))
        owners.append(np.where(member, client, NOBODY))
        panels.append(np.full(audited, client))
    if not samples:
        raise BadInput("an audit needs clients: give the samples of at least one")
    whole = Samples.joined(*samples)
    return Split(train, _shuffled(whole, np.concatenate(owners), np.concatenate(panels), seed))


def _samples(given: Labelled, whose: str) -> Samples:
    features, labels = (torch.as_tensor(part).detach().cpu() for part in given)
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if not len(labels) or len(features) != len(labels) or labels.ndim != 1 or not whole:
        raise BadInput(
            f"the samples of {whose} are features of shape {tuple(features.shape)} and labels of "
            f"shape {tuple(labels.shape)} ({labels.dtype}); give one row and one class index each"
        )
    if int(labels.min()) < 0:
        raise BadInput(f"class indices start at 0, and the labels of {whose} have {labels.min()}")
    if not (features.is_floating_point() and bool(features.isfinite().all())):
        raise BadInput(
            f"the features of {whose} are {features.dtype}; give finite floating-point numbers, as "
            "the model takes them"
        )
    return Samples(features.float(), labels.long(), torch.arange(len(labels)))


def _shuffled(
    samples: Samples, owner: Int[ndarray, " samples"], panel: Int[ndarray, " samples"], seed: int
) -> AuditSet:
    order = seeded_numpy(seed, "order of an audit").permutation(len(samples))
    mixed = samples.take(torch.from_numpy(order))
    numbered = Samples(mixed.features, mixed.labels, torch.arange(len(mixed)))
    return AuditSet(numbered, owner[order].astype(np.int64), panel[order].astype(np.int64))
