"""Residual networks for small images."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from fedaudit.core.arguments import Positive, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.models.base import ConfiguredModel, norm_factory, parse_image_shape

_GROUPS = 32


class _Block(nn.Module):
    """Residual block of two 3x3 convolutions, without in-place operations."""

    def __init__(
        self, inputs: int, outputs: int, *, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


@dataclass(frozen=True, kw_only=True)
class ResNet18(ConfiguredModel):
    """ResNet-18 with a 3x3 first convolution, 11,220,132 parameters on CIFAR-100.

    Attributes:
        norm: "group" for group normalisation in 32 groups, or "batch". With batch normalisation,
            the samples of a training batch affect each other.
        width: Channels of the first stage; the later stages have 2, 4 and 8 times as many.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.ResNet18(norm="batch").norm
        'batch'

    Source: Zhu et al. 2024 (FedMIA), section 4.1 and its code (group normalisation); Bai et al.
        2026 (CoFedMID), section 5.1.
    """

    norm: Literal["group", "batch"] = "group"
    width: Positive = 64

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: 32 groups do not divide the width.
        """
        width = self.width
        make_norm = norm_factory(self.norm, groups=_GROUPS)
        if self.norm == "group" and width % _GROUPS:
            raise BadInput(
                f"width of model 'resnet18' must be a multiple of {_GROUPS} for norm='group', got "
                f"{width}; change it, or set norm='batch'"
            )
        layers: list[nn.Module] = [
            nn.Conv2d(
                parse_image_shape("resnet18", shape).channels, width, 3, padding=1, bias=False
            ),
            make_norm(width),
            nn.ReLU(),
        ]
        inputs = width
        for stage, outputs in enumerate((width, 2 * width, 4 * width, 8 * width)):
            layers += [
                _Block(inputs, outputs, stride=1 if stage == 0 else 2, norm=make_norm),
                _Block(outputs, outputs, stride=1, norm=make_norm),
            ]
            inputs = outputs
        last = nn.Linear(inputs, classes)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
