"""Convolutional networks without shortcuts: small ones, AlexNet and VGG for small images."""

from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.models._parts import dense_stack, image, too_small, widths


def cnn(
    *,
    shape: tuple[int, ...],
    classes: int,
    channels: str = "32,64",
    hidden: str = "512,128",
    kernel: int = 5,
    padding: int = 0,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Convolutions, each with 2x2 max-pooling and ReLU, then fully connected layers.

    The defaults have 643,850 parameters on 28x28 grey images with ten classes. Eight by eight
    images need ``padding=2``, which keeps the size of the image through a convolution of 5x5.

    Args:
        shape: Channels, height and width of one sample.
        classes: Number of outputs.
        channels: Output channels of each convolution.
        hidden: Widths of the fully connected hidden layers.
        kernel: Side of the convolution windows, at least 1.
        padding: Zeros put around the image before each convolution, at least 0.
        dropout: Share of hidden units left out in each training step, in [0, 1); 0 is none.

    Raises:
        BadInput: Nothing is left of the image after the last pooling.

    Source: SIA, Table II(a); the paper names no padding, and the parameter count is the one
        without.
    Differs: ReLU acts after the pooling, not before: same values, same gradients, and a
        quarter of the work.
    """
    if kernel < 1 or padding < 0:
        raise BadInput(
            f"kernel of model 'cnn' is at least 1 and padding at least 0, got {kernel}, {padding}"
        )
    seen = image("cnn", shape)
    layers: list[nn.Module] = []
    for outputs in widths("cnn", "channels", channels):
        layers += [
            nn.Conv2d(seen.channels, outputs, kernel, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
        seen = seen.after(kernel, channels=outputs, padding=padding).after(
            2, channels=outputs, stride=2
        )
    if seen.size == 0:
        raise too_small(
            "cnn", shape, f"set padding to {kernel // 2}, use fewer channels entries, or use 'mlp'"
        )
    sizes = (seen.size, *widths("cnn", "hidden", hidden))
    return nn.Sequential(*layers, nn.Flatten(), *dense_stack(sizes, classes, dropout))


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


_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(*, shape: tuple[int, ...], classes: int, hidden: str = "512,512") -> nn.Sequential:
    """VGG-11 with batch normalisation, 9,756,426 parameters on CIFAR-10.

    Args:
        shape: Channels, height and width of one sample; at least 32 x 32.
        classes: Number of outputs.
        hidden: Widths of the fully connected hidden layers; empty is the usual VGG for 32x32
            images (9,231,114 parameters).

    Raises:
        BadInput: The image is too small for five poolings.

    Source: IFCA-MIR, appendix A.1 (VGG for CIFAR-10 with batch normalisation, then two hidden
        layers of 512; the depth is not named).
    Differs: ReLU acts after a pooling, not before: same values and gradients, less work.
    """
    seen = image("vgg11", shape)
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for outputs in stage:
            layers += [
                nn.Conv2d(seen.channels, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            seen = seen._replace(channels=outputs)
        layers[-1:] = [nn.MaxPool2d(2), nn.ReLU()]
        seen = seen.after(2, channels=seen.channels, stride=2)
    if seen.size == 0:
        raise too_small(
            "vgg11", shape, "it needs at least 32 x 32: pad or enlarge the images, or use 'cnn'"
        )
    sizes = (seen.size, *widths("vgg11", "hidden", hidden))
    return nn.Sequential(*layers, nn.Flatten(), *dense_stack(sizes, classes))
