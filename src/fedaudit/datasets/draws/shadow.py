"""Data with known membership for attacks that learn, disjoint from the audited samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, setting
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import Deal


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
    remaining = Dataset(
        dataset.name,
        dataset.train.take(free_ids).replace(ids=torch.arange(available)),
        dataset.test.replace(ids=torch.arange(available, available + len(dataset.test))),
        dataset.classes,
        dataset.normalisation,
        None if dataset.group is None else dataset.group[ids],
        dataset.group_names,
        None if dataset.subject is None else dataset.subject[ids],
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
