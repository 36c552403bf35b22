"""What is played with: records of a data set, as features, dealt to clients and server."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.attacks.ami.game import Pools
from fedaudit.core import Samples
from fedaudit.datasets.catalog import load
from fedaudit.datasets.classes import some_classes
from fedaudit.errors import BadInput
from fedaudit.games.embedding import efficientnet_lite0
from fedaudit.games.settings import GameStudy
from fedaudit.importing import called, named
from fedaudit.seeds import seeded

Extractor = Callable[[Tensor], Tensor]
"""From samples of a data set, (samples, ...), to features, (samples, features)."""

EXTRACTORS: dict[str, Extractor] = {
    "pixels": lambda samples: samples.flatten(1).float(),
    "efficientnet-lite0": efficientnet_lite0,
}


class Dealt(NamedTuple):
    """Records of a study.

    Attributes:
        pools: Of clients and server.
        words: What they are, for the reader.
        labels: Classes of the clients' records.
        server_labels: Of the server's.
        classes: How many classes there are.
    """

    pools: Pools
    words: str
    labels: Int[Tensor, " clients_records"]
    server_labels: Int[Tensor, " servers_records"]
    classes: int


class Drawn(NamedTuple):
    """Samples that a study plays with, before features are made of them.

    Attributes:
        samples: The clients' first, then the server's.
        clients: How many are the clients'.
        classes: How many classes there are.
    """

    samples: Samples
    clients: int
    classes: int

    @property
    def digest(self) -> str:
        """Names these very samples: another file of the same name holds others."""
        found = hashlib.sha256()
        for part in (self.samples.features, self.samples.labels):
            found.update(part.contiguous().numpy().tobytes())
        return found.hexdigest()


def drawn(study: GameStudy, data_dir: Path | None) -> Drawn:
    """Samples of the training part, in an order that the seed draws.

    Raises:
        BadInput: No such data, or there are too few samples.
    """
    given = study.data
    whole = load(given.name, data_dir=data_dir, seed=study.seed, **given.options)
    dataset = some_classes(whole, given.classes, first=given.first_class)
    asked = study.records
    total = len(dataset.train)
    clients = asked.clients or total // 2
    servers = asked.servers or max(0, total - clients)
    if clients + servers > total:
        raise BadInput(
            f"{given.name!r} has {total} training records, which are not enough for {clients} of "
            f"the clients and {servers} of the server; lower records.clients or records.servers"
        )
    order = torch.randperm(total, generator=seeded(study.seed, "records"))[: clients + servers]
    return Drawn(dataset.train.take(order), clients, dataset.classes)


def dealt(study: GameStudy, given: Drawn) -> Dealt:
    """Records for the games: features of the samples, the clients' apart from the server's.

    Raises:
        BadInput: No such extractor, or it gives no features.
    """
    samples, clients = given.samples, given.clients
    features = _features(study.records.features, samples)
    words = (
        f"{study.data.name}, {study.records.features}, {features.shape[1]:,} features; "
        f"{clients:,} records of the clients, {len(samples) - clients:,} of the server"
    )
    labels = samples.labels[:clients], samples.labels[clients:]
    pools = Pools(features[:clients], features[clients:])
    return Dealt(pools, words, *labels, classes=given.classes)


def _features(name: str, samples: Samples) -> Tensor:
    extractor = named(
        "extractor",
        name,
        EXTRACTORS,
        wanted="a function from samples' features to a row of features each",
        fits=callable,
    )
    made = called("extractor", name, extractor, samples.features)
    if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != len(samples):
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise BadInput(
            f"the extractor {name!r} is to give one row of features a sample, {len(samples)} "
            f"rows, got {got}"
        )
    if not bool(made.isfinite().all()):
        raise BadInput(f"the extractor {name!r} gives features that are not finite numbers")
    return made.float()
