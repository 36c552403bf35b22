"""Base of the catalogue's models, and parts that several of them share."""

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
    """A network of the catalogue with its settings. Its file has the name of the catalogue."""

    catalogue_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.catalogue_name = entry_name(cls.__module__)

    def part(self) -> NamedPart:
        """Return name and settings as a study file has them, without settings at their defaults."""
        return NamedPart(self.catalogue_name, changed_fields(self))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return an untrained network.

        Args:
            shape: Shape of one sample, without the sample axis.
            classes: Number of outputs.
        """
        raise NotImplementedError

    def for_samples(self, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        """Return a function that builds the network for samples of a shape.

        Copies of it, as they arrive in other processes, compare as equal.
        """
        return partial(type(self).build, self, shape, classes)


MOST_UNITS = 10**15
"""Width of a layer, at most, as of numbers in a study; torch takes no sizes beyond 64 bits. What no
machine holds is refused by its bytes."""
MOST_LAYERS = 1000
"""Entries of a list of widths, at most."""


class Image(NamedTuple):
    """The shape of an image sample."""

    channels: int
    height: int
    width: int

    def after(self, kernel: int, *, channels: int, stride: int = 1, padding: int = 0) -> "Image":
        """The shape behind a convolution or pooling of square windows."""
        height, width = (
            (side + 2 * padding - kernel) // stride + 1 if side + 2 * padding >= kernel else 0
            for side in (self.height, self.width)
        )
        return Image(channels, height, width)

    @property
    def size(self) -> int:
        """Number of values; 0 where nothing is left of the image."""
        return self.channels * self.height * self.width


def spelled(shape: tuple[int, ...]) -> str:
    """A shape as records show it, such as ``1x28x28``."""
    return "x".join(map(str, shape))


def image(model: str, shape: tuple[int, ...]) -> Image:
    """The shape as an image.

    Raises:
        BadInput: It is not channels, height and width.
    """
    if len(shape) != 3:
        raise BadInput(
            f"model {model!r} reads images of shape channels x height x width, got samples of "
            f"shape {spelled(shape)}; reshape them (1x8x8 for grey 8x8 images) or use 'mlp'"
        )
    return Image(*shape)


def too_small(model: str, shape: tuple[int, ...], remedy: str) -> BadInput:
    """A refusal for an image of which the model's pooling leaves nothing."""
    return BadInput(f"samples of {spelled(shape)} are too small for model {model!r}; {remedy}")


def widths(text: str) -> tuple[int, ...]:
    """Layer widths from a list such as ``"512,128"``; an empty text is no layer."""
    return tuple(map(int, _entries(text)))


def _entries(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _are_widths(text: object) -> bool:
    parts = _entries(str(text))
    return len(parts) <= MOST_LAYERS and all(map(_is_width, parts))


def _is_width(text: str) -> bool:
    # Python converts no text of over 4,300 digits.
    return text.isdecimal() and len(text) <= len(str(MOST_UNITS)) and 1 <= int(text) <= MOST_UNITS


Widths = Annotated[
    str,
    Condition(
        f"a text with at most {MOST_LAYERS} layer widths from 1 to {MOST_UNITS:,}, such as '200' "
        "or '512,128'",
        _are_widths,
    ),
]


def norm_maker(norm: str, *, groups: int) -> Callable[[int], nn.Module]:
    """Makes normalisation layers for so many channels.

    Args:
        norm: "group", "batch" or "none".
        groups: Groups of group normalisation; they divide every number of channels.
    """
    makers: dict[str, Callable[[int], nn.Module]] = {
        "group": lambda channels: nn.GroupNorm(groups, channels),
        "batch": nn.BatchNorm2d,
        "none": lambda channels: nn.Identity(),
    }
    return makers[norm]


def dense_stack(sizes: tuple[int, ...], classes: int, dropout: float = 0.0) -> list[nn.Module]:
    """Linear layers with ReLU (and dropout, where it is above 0) between them.

    Args:
        sizes: Inputs of the first layer, then the width of each hidden layer.
        classes: Outputs of the last layer.
        dropout: Share of hidden units left out in each training step, in [0, 1).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
    return [*layers, nn.Linear(sizes[-1], classes)]
