"""Wide residual networks for small images."""

from collections.abc import Callable
from typing import Annotated, Literal

from torch import Tensor, nn

from fedaudit.core.arguments import Condition, Positive, dataclass
from fedaudit.models.base import ConfiguredModel, norm_factory, parse_image_shape

_GROUPS = 16
_STEM_CHANNELS = 16
_MAX_DEPTH = 1000

Depth = Annotated[
    int,
    Condition(
        f"10, 16, 22 or another number 6n + 4 up to {_MAX_DEPTH}",
        lambda depth: depth in range(10, _MAX_DEPTH + 1, 6),
    ),
]


class _Block(nn.Module):
    """Residual block of two 3x3 convolutions, each after a ReLU and a normalisation."""

    def __init__(
        self, inputs: int, outputs: int, *, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            norm(inputs),
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1),
            nn.ReLU(),
            norm(outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.ReLU(), norm(inputs), nn.Conv2d(inputs, outputs, 1, stride=stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


@dataclass(frozen=True, kw_only=True)
class WideResNet(ConfiguredModel):
    """Wide ResNet (WRN-16-4), as used with differential privacy; 2,774,692 parameters on CIFAR-100.

    The first convolution has 448 parameters, the three stages have 121,600, 525,952 and 2,100,480,
    the last normalisation has 512, and the linear layer has 25,700.

    Attributes:
        depth: Number of layers with weights, up to 1,000: 4 plus 6 times the number of blocks per
            stage.
        width: Channels of the first stage in multiples of 16, at least 1; the later two
            have 2 and 4 times as many.
        norm: "group" for group normalisation in 16 groups, "batch", or "none". With batch
            normalisation, the samples of a training batch affect each other.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.WideResNet(depth=22).depth
        22

    Source: Zagoruyko and Komodakis 2016 (WRN-depth-width); De et al. 2022, section 3 and published
        code (ReLU before normalisation, biases, a separate normalisation for the shortcut); Bai et
        al. 2026 (CoFedMID), section 5.1 ("modified WideResNet-16-4" after Aerni et al. 2024, whose
        network differs from this one only in the stride).
    Differs: Weights are not standardised, unlike in De et al., and have torch's initialisation. The
        first convolution of a block has the stride, as in De et al.; in the code of Aerni et al.,
        the second one has it. The number of parameters is the same.
    """

    depth: Depth = 16
    width: Positive = 4
    norm: Literal["group", "batch", "none"] = "group"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: Samples are not images.
        """
        depth, width = self.depth, self.width
        make_norm = norm_factory(self.norm, groups=_GROUPS)
        inputs = _STEM_CHANNELS
        layers: list[nn.Module] = [
            nn.Conv2d(parse_image_shape("wide-resnet", shape).channels, inputs, 3, padding=1)
        ]
        for stage in range(3):
            outputs = _STEM_CHANNELS * width * 2**stage
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Block(inputs, outputs, stride=stride, norm=make_norm))
                inputs = outputs
        return nn.Sequential(
            *layers,
            nn.ReLU(),
            make_norm(inputs),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(inputs, classes),
        )
