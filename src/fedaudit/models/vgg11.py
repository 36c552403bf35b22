"""VGG for small images."""

from torch import nn

from fedaudit.core.arguments import dataclass
from fedaudit.models.base import (
    ConfiguredModel,
    Widths,
    dense_stack,
    parse_image_shape,
    parse_widths,
    too_small_error,
)

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@dataclass(frozen=True, kw_only=True)
class VGG11(ConfiguredModel):
    """VGG-11 with batch normalisation, for images of 32x32 and larger.

    It has 9,756,426 parameters on CIFAR-10.

    Attributes:
        hidden: Widths of the fully connected hidden layers; empty for none, as is usual with 32x32
            images (9,231,114 parameters).

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.VGG11(hidden="").build(shape=(3, 32, 32), classes=10)[-1]
        Linear(in_features=512, out_features=10, bias=True)

    Source: Jung et al. 2025 (IFCA-MIR), appendix A.1 (VGG for CIFAR-10 with batch normalisation,
        then two hidden layers of 512; the depth is not stated).
    Differs: ReLU is applied after the pooling layers and not before, which gives the same values
        and gradients with less computation.
    """

    hidden: Widths = "512,512"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: The image is too small for five pooling layers.
        """
        features = parse_image_shape("vgg11", shape)
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for outputs in stage:
                layers += [
                    nn.Conv2d(features.channels, outputs, 3, padding=1),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                ]
                features = features._replace(channels=outputs)
            layers[-1:] = [nn.MaxPool2d(2), nn.ReLU()]
            features = features.after(2, channels=features.channels, stride=2)
        if features.size == 0:
            remedy = "it needs at least 32 x 32: pad or enlarge the images, or use 'cnn'"
            raise too_small_error("vgg11", shape, remedy)
        sizes = (features.size, *parse_widths(self.hidden))
        return nn.Sequential(*layers, nn.Flatten(), *dense_stack(sizes, classes))
