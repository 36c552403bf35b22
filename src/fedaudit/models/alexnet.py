"""AlexNet for small images."""

from torch import nn

from fedaudit.models._parts import image, too_small


def alexnet(*, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """AlexNet's five convolutions with one linear layer, 2,495,396 parameters on CIFAR-100.

    Args:
        shape: Channels, height and width of one sample; at least 29 x 29.
        classes: Number of outputs.

    Raises:
        BadInput: The image is too small for the strides and poolings.

    Source: FedMIA, section 4.1 and its code (32x32 images: an 11x11 first convolution of
        stride 4, and 256 features into the linear layer).
    Differs: Larger images keep their last feature map (2x2 at 64x64) instead of failing; ReLU
        acts after a pooling, not before: same values and gradients, less work.
    """
    seen = image("alexnet", shape)
    pooled = {"kernel": 2, "stride": 2}
    last = (
        seen.after(11, channels=64, stride=4, padding=5)
        .after(**pooled, channels=192)
        .after(**pooled, channels=256)
        .after(**pooled, channels=256)
    )
    if last.size == 0:
        raise too_small(
            "alexnet", shape, "it needs at least 29 x 29: pad or enlarge the images, or use 'cnn'"
        )
    return nn.Sequential(
        nn.Conv2d(seen.channels, 64, 11, stride=4, padding=5),
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
