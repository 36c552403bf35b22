"""Residual networks for small images, of usual and of greater width."""

from collections.abc import Callable

from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.models._parts import image, norm_maker

_GROUPS = 32


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; no operation works in place."""

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


def resnet18(
    *, shape: tuple[int, ...], classes: int, norm: str = "group", width: int = 64
) -> nn.Sequential:
    """ResNet-18 with a 3x3 first convolution, 11,220,132 parameters on CIFAR-100.

    Args:
        shape: Channels, height and width of one sample.
        classes: Number of outputs.
        norm: ``"group"`` for group normalisation in 32 groups, or ``"batch"``. Batch
            normalisation mixes the samples of a batch while training.
        width: Channels of the first stage; the later three have 2, 4 and 8 times as many.

    Raises:
        BadInput: The normalisation is not known, or 32 groups do not divide the width.

    Source: FedMIA, section 4.1 and its code (group normalisation); CoFedMID, section 5.1.
    """
    make_norm = norm_maker("resnet18", norm, groups=_GROUPS)
    if width < 1 or (norm == "group" and width % _GROUPS):
        raise BadInput(
            f"width of model 'resnet18' is at least 1, and a multiple of {_GROUPS} for "
            f"norm='group', got {width}"
        )
    layers: list[nn.Module] = [
        nn.Conv2d(image("resnet18", shape).channels, width, 3, padding=1, bias=False),
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
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


_WIDE_GROUPS = 16
_STEM = 16
_DEEPEST = 1000


class _WideBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a ReLU and a normalisation before each one."""

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


def wide_resnet(
    *, shape: tuple[int, ...], classes: int, depth: int = 16, width: int = 4, norm: str = "group"
) -> nn.Sequential:
    """WRN-16-4 as it is trained with differential privacy, 2,774,692 parameters on CIFAR-100.

    These are 448 of the first convolution, 121,600, 525,952 and 2,100,480 of the three stages,
    512 of the last normalisation and 25,700 of the linear layer.

    Args:
        shape: Channels, height and width of one sample.
        classes: Number of outputs.
        depth: Layers with weights: 6 times the blocks of a stage, and 4; up to 1,000.
        width: Channels of the first stage in multiples of 16; the later two have 2 and 4 times
            as many.
        norm: ``"group"`` for group normalisation in 16 groups, ``"batch"``, or ``"none"``. Batch
            normalisation mixes the samples of a batch while training.

    Raises:
        BadInput: The normalisation is not known, or there is no network of that depth or width.

    Source: Zagoruyko and Komodakis 2016 (WRN-depth-width); De et al. 2022, section 3 and published
        code (ReLU before normalisation, biases, a normalisation of its own for the shortcut);
        CoFedMID, section 5.1 ("modified WideResNet-16-4" after Aerni et al. 2024, whose network
        this is but for the stride).
    Differs: Weights are not standardised, as with Aerni et al. and unlike De et al.; all start as
        torch starts them. The first convolution of a block takes the stride, as with De et al.;
        in Aerni et al.'s code the second does, at the same number of parameters.
    """
    make_norm = norm_maker("wide-resnet", norm, groups=_WIDE_GROUPS, may_be_none=True)
    if not 10 <= depth <= _DEEPEST or depth % 6 != 4 or width < 1:
        raise BadInput(
            f"depth of model 'wide-resnet' is 10, 16, 22 or another 6n + 4 up to {_DEEPEST}, and "
            f"width at least 1, got {depth}, {width}"
        )
    inputs = _STEM
    layers: list[nn.Module] = [
        nn.Conv2d(image("wide-resnet", shape).channels, inputs, 3, padding=1)
    ]
    for stage in range(3):
        outputs = _STEM * width * 2**stage
        for block in range((depth - 4) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(_WideBlock(inputs, outputs, stride=stride, norm=make_norm))
            inputs = outputs
    return nn.Sequential(
        *layers,
        nn.ReLU(),
        make_norm(inputs),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, classes),
    )
