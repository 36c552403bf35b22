"""What is played with: records of a data set, as features, dealt to clients and server."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from fedaudit.attacks.ami.game import Pools
from fedaudit.core import Samples
from fedaudit.data.classes import some_classes
from fedaudit.data.sources import load
from fedaudit.errors import BadInput, unknown_name
from fedaudit.games.embedding import efficientnet_lite0
from fedaudit.games.settings import GameStudy
from fedaudit.importing import imported
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


def dealt(study: GameStudy, data_dir: Path | None) -> Dealt:
    """Records for the games: features of the training part, shared out by the seed.

    Raises:
        BadInput: No such data or extractor, or there are too few records.
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
    samples = dataset.train.take(order)
    features = _features(asked.features, samples)
    words = (
        f"{given.name}, {asked.features}, {features.shape[1]:,} features; {clients:,} records of "
        f"the clients, {servers:,} of the server"
    )
    labels = samples.labels[:clients], samples.labels[clients:]
    return Dealt(
        Pools(features[:clients], features[clients:]), words, *labels, classes=dataset.classes
    )


def _features(name: str, samples: Samples) -> Tensor:
    if name in EXTRACTORS:
        made: object = EXTRACTORS[name](samples.features)
    elif ":" in name:
        made = imported(name, "extractor")(samples.features)
    else:
        raise unknown_name("extractor", name, [*EXTRACTORS, "package.module:function"])
    if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != len(samples):
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise BadInput(
            f"the extractor {name!r} is to give one row of features a sample, {len(samples)} "
            f"rows, got {got}"
        )
    if not bool(made.isfinite().all()):
        raise BadInput(f"the extractor {name!r} gives features that are not finite numbers")
    return made.float()
