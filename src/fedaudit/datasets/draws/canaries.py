"""Canary records: samples that a model learns for nobody's sake, given to a client by a coin."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet, Deal

KINDS = ("mislabelled", "noise")


def with_canaries(
    deal: Deal,
    dataset: Dataset,
    *,
    seed: int,
    targets: Sequence[ClientId],
    kind: str,
) -> Deal:
    """The deal with its audited samples turned into canaries, and a coin tossed for each.

    Args:
        deal: A draw whose audited samples nobody trains on yet.
        dataset: Where they are from.
        seed: Root seed of labels and coins.
        targets: Clients that train on canaries; each has as many coins as any other.
        kind: Of canary.

    Raises:
        BadInput: No such kind.
        Unsupported: A task without classes; noise in the place of tokens.
    """
    if kind not in KINDS:
        raise BadInput(f"canaries are 'mislabelled' or 'noise', got {kind!r}")
    audit, rng = deal.audit, seeded(seed, "canary records")
    samples = audit.samples
    if samples.targets.ndim != 1 or samples.targets.is_floating_point() or dataset.classes < 2:
        raise Unsupported(
            "a canary is a sample with a wrong label, and this task has no classes; use audit.draw "
            '= "fair"'
        )
    if kind == "noise":
        if samples.has_whole_numbers or samples.inputs is not None:
            raise Unsupported(
                "noise has no tokens and no parts by name; use canaries that are 'mislabelled'"
            )
        samples = samples.replace(features=_noise_like(samples, dataset, rng))
    step = torch.randint(1, dataset.classes, (len(samples),), generator=rng)
    samples = samples.replace(targets=(samples.targets + step) % dataset.classes)
    order = seeded_numpy(seed, "canary coins")
    panel = np.asarray(targets)[order.permutation(len(samples)) % len(targets)]
    owner = np.where(order.random(len(samples)) < 0.5, panel, NOBODY)
    clients = dict(deal.clients)
    for client in targets:
        own = samples.take(torch.from_numpy(owner == client))
        joined = Samples.joined(deal.clients[client], own)
        mixed = seeded_numpy(seed, "order with canaries", client).permutation(len(joined))
        clients[client] = joined.take(torch.from_numpy(mixed))
    return replace(deal, clients=clients, audit=AuditSet(samples, owner, panel, audit.group))


def _noise_like(samples: Samples, dataset: Dataset, rng: torch.Generator) -> Tensor:
    """Normal numbers about 0, as large as the training part's are in the root mean square.

    About 0, so that two canaries, and a first layer's gradients by them, are all but orthogonal.
    """
    train = dataset.train.features
    size = train.double().square().mean().sqrt().to(train.dtype)
    drawn = torch.randn(samples.features.shape, generator=rng, dtype=train.dtype)
    return size * drawn.to(train.device)
