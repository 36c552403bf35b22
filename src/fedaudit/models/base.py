"""Base class of the models in the catalogue, and functions that several models use."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

from torch import nn

from fedaudit.core.arguments import Condition, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.lazy import entry_name
from fedaudit.core.naming import NamedPart, changed_fields


@dataclass(frozen=True, kw_only=True)
class ConfiguredModel:
    """Base class of the models of the catalogue; the fields of a subclass are its settings.

    Attributes:
        catalogue_name: Name in the catalogue, which is the module's name with hyphens.
    """

    catalogue_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.catalogue_name = entry_name(cls.__module__)

    def named_part(self) -> NamedPart:
        """Return the name and the settings that differ from their defaults, as in a study file."""
        return NamedPart(self.catalogue_name, changed_fields(self))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build an untrained network.

        Args:
            shape: Shape of one sample, without the sample axis.
            classes: Number of outputs.
        """
        raise NotImplementedError

    def for_samples(self, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        """Return a function that builds the network for samples of a shape."""
        # Unlike a lambda, a partial of the function can be pickled, and stays equal after it.
        return partial(type(self).build, self, shape, classes)


MAX_UNITS = 10**15
"""Maximum width of a layer, which avoids overflows of torch's 64-bit sizes."""
MAX_LAYERS = 1000
"""Maximum number of entries of a list of widths."""


class ImageShape(NamedTuple):
    """Shape of an image sample."""

    channels: int
    height: int
    width: int

    def after(
        self, kernel: int, *, channels: int, stride: int = 1, padding: int = 0
    ) -> "ImageShape":
        """Return the shape after a convolution or pooling layer with a square window."""

        def output_size(size: int) -> int:
            # If the window is larger than the image, the output is empty.
            return max((size + 2 * padding - kernel) // stride + 1, 0)

        return ImageShape(channels, output_size(self.height), output_size(self.width))

    @property
    def size(self) -> int:
        """Number of values; 0 if a window was larger than the image."""
        return self.channels * self.height * self.width


def format_shape(shape: tuple[int, ...]) -> str:
    """Format a shape as ``1x28x28``."""
    return "x".join(map(str, shape))


def parse_image_shape(model: str, shape: tuple[int, ...]) -> ImageShape:
    """Return the shape of an image sample.

    Raises:
        BadInput: The shape is not (channels, height, width).
    """
    if len(shape) != 3:
        raise BadInput(
            f"model {model!r} needs images of shape channels x height x width, got samples of "
            f"shape {format_shape(shape)}; reshape them (1x8x8 for grey 8x8 images) or use 'mlp'"
        )
    return ImageShape(*shape)


def too_small_error(model: str, shape: tuple[int, ...], remedy: str) -> BadInput:
    """Return the error for an image that is too small for a model's pooling layers."""
    return BadInput(f"samples of {format_shape(shape)} are too small for model {model!r}; {remedy}")


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse a list of layer widths such as ``"512,128"``; an empty string means no layer."""
    return tuple(map(int, _entries(text)))


def _entries(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _are_widths(text: object) -> bool:
    parts = _entries(str(text))
    return len(parts) <= MAX_LAYERS and all(map(_is_width, parts))


def _is_width(text: str) -> bool:
    # Check the length first, because int() raises an error for more than 4,300 digits.
    return text.isdecimal() and len(text) <= len(str(MAX_UNITS)) and 1 <= int(text) <= MAX_UNITS


Widths = Annotated[
    str,
    Condition(
        f"a text with at most {MAX_LAYERS} layer widths from 1 to {MAX_UNITS:,}, such as '200' "
        "or '512,128'",
        _are_widths,
    ),
]


def norm_factory(norm: str, *, groups: int) -> Callable[[int], nn.Module]:
    """Return a function that builds a normalisation layer for a number of channels.

    Args:
        norm: "group", "batch" or "none".
        groups: Number of groups of group normalisation, which must divide every number of channels.
    """
    factories: dict[str, Callable[[int], nn.Module]] = {
        "group": lambda channels: nn.GroupNorm(groups, channels),
        "batch": nn.BatchNorm2d,
        "none": lambda channels: nn.Identity(),
    }
    return factories[norm]


def dense_stack(sizes: tuple[int, ...], classes: int, dropout: float = 0.0) -> list[nn.Module]:
    """Return linear layers with ReLU between them, and dropout after each ReLU if it is above 0.

    Args:
        sizes: Number of inputs of the first layer, then the width of each hidden layer.
        classes: Number of outputs of the last layer.
        dropout: Probability of dropping a hidden unit in a training step, in [0, 1).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
    return [*layers, nn.Linear(sizes[-1], classes)]
