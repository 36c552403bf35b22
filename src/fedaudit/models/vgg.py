"""VGG for small images."""

from torch import nn

from fedaudit.models._parts import dense_stack, image, too_small, widths

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
