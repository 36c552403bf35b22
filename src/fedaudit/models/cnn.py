"""Small convolutional networks."""

from torch import nn

from fedaudit.core.arguments import Count, Decay, Positive, dataclass
from fedaudit.models.base import (
    ConfiguredModel,
    Widths,
    dense_stack,
    parse_image_shape,
    parse_widths,
    too_small_error,
)


@dataclass(frozen=True, kw_only=True)
class CNN(ConfiguredModel):
    """Convolutions, each with 2x2 max-pooling and ReLU, then fully connected layers.

    With default settings, it has 643,850 parameters on 28x28 grey images with ten classes. Images
    of 8x8 pixels need ``padding=2``, so that a 5x5 convolution preserves the size of the image.

    Attributes:
        channels: Output channels of each convolution, such as "32,64"; empty for no convolution.
        hidden: Widths of the fully connected hidden layers, such as "512,128"; empty for none.
        kernel: Height and width of the convolution kernels, at least 1.
        padding: Width of the border of zeros around the image before each convolution, at least 0.
        dropout: Fraction of hidden units that are dropped in each training step, in [0, 1).

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.CNN(channels="16,32", padding=2).padding
        2

    Source: Hu et al. 2024 (SIA), Table II(a), whose number of parameters implies that there is no
        padding.
    Differs: ReLU is applied after the pooling layer and not before, which gives the same values and
        gradients with a quarter of the computation.
    """

    channels: Widths = "32,64"
    hidden: Widths = "512,128"
    kernel: Positive = 5
    padding: Count = 0
    dropout: Decay = 0.0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network.

        Raises:
            BadInput: The image is too small for the pooling layers.
        """
        kernel, padding = self.kernel, self.padding
        features = parse_image_shape("cnn", shape)
        layers: list[nn.Module] = []
        for outputs in parse_widths(self.channels):
            layers += [
                nn.Conv2d(features.channels, outputs, kernel, padding=padding),
                nn.MaxPool2d(2),
                nn.ReLU(),
            ]
            features = features.after(kernel, channels=outputs, padding=padding).after(
                2, channels=outputs, stride=2
            )
        if features.size == 0:
            remedy = f"set padding to {kernel // 2}, give fewer entries in channels, or use 'mlp'"
            raise too_small_error("cnn", shape, remedy)
        sizes = (features.size, *parse_widths(self.hidden))
        return nn.Sequential(*layers, nn.Flatten(), *dense_stack(sizes, classes, self.dropout))
