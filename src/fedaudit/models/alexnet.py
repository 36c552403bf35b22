"""AlexNet for small images."""

from torch import nn

from fedaudit.core.arguments import dataclass
from fedaudit.models.base import ConfiguredModel, image, too_small


@dataclass(frozen=True, kw_only=True)
class AlexNet(ConfiguredModel):
    """AlexNet's five convolutions with one linear layer, for images of 29x29 and larger.

    It has 2,495,396 parameters on CIFAR-100.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.AlexNet().build(shape=(3, 32, 32), classes=100)[-1]
        Linear(in_features=256, out_features=100, bias=True)

    Source: FedMIA, section 4.1 and its code (32x32 images: an 11x11 first convolution of
        stride 4, and 256 features into the linear layer).
    Differs: Larger images keep their last feature map (2x2 at 64x64) instead of failing; ReLU
        acts after a pooling, not before: same values and gradients, less work.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: The image is too small for the strides and poolings.
        """
        features = image("alexnet", shape)
        pooled = {"kernel": 2, "stride": 2}
        last = (
            features.after(11, channels=64, stride=4, padding=5)
            .after(**pooled, channels=192)
            .after(**pooled, channels=256)
            .after(**pooled, channels=256)
        )
        if last.size == 0:
            remedy = "it needs at least 29 x 29: pad or enlarge the images, or use 'cnn'"
            raise too_small("alexnet", shape, remedy)
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
