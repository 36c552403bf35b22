"""AlexNet for small images."""

from torch import nn

from fedaudit.core.arguments import dataclass
from fedaudit.models.base import ConfiguredModel, parse_image_shape, too_small_error


@dataclass(frozen=True, kw_only=True)
class AlexNet(ConfiguredModel):
    """AlexNet with five convolutions and one linear layer, for images of 29x29 and larger.

    It has 2,495,396 parameters on CIFAR-100.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.AlexNet().build(shape=(3, 32, 32), classes=100)[-1]
        Linear(in_features=256, out_features=100, bias=True)

    Source: Zhu et al. 2024 (FedMIA), section 4.1 and its code (for 32x32 images: an 11x11 first
        convolution of stride 4, and a linear layer of 256 features).
    Differs: Images can be larger; the linear layer then has more features (1,024 at 64x64). ReLU
        is applied after the pooling layers and not before, which gives the same values and
        gradients with less computation.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: The image is too small for the strides and pooling layers.
        """
        features = parse_image_shape("alexnet", shape)
        pooled = {"kernel": 2, "stride": 2}
        last = (
            features.after(11, channels=64, stride=4, padding=5)
            .after(**pooled, channels=192)
            .after(**pooled, channels=256)
            .after(**pooled, channels=256)
        )
        if last.size == 0:
            remedy = "it needs at least 29 x 29: pad or enlarge the images, or use 'cnn'"
            raise too_small_error("alexnet", shape, remedy)
        return nn.Sequential(
            nn.Conv2d(features.channels, 64, 11, stride=4, padding=5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(last.size, classes),
        )
