"""Augmentation: the model never sees a training image twice in the same form."""

from dataclasses import field
from types import ModuleType
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.arguments import Count, Fraction, Range, dataclass
from fedaudit.core.devices import fork_generators
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_globally
from fedaudit.core.values import Batch, Params, Samples
from fedaudit.fl.hooks import ConfiguredDefense, Turn, Visit


class _Range(NamedTuple):
    """Black and white in each channel of a client's (standardised) images."""

    black: Float[Tensor, "channels 1 1"]
    span: Float[Tensor, "channels 1 1"]

    @staticmethod
    def of(images: Float[Tensor, "samples channels height width"]) -> "_Range":
        black = images.amin(dim=(0, 2, 3))[:, None, None]
        white = images.amax(dim=(0, 2, 3))[:, None, None]
        # A channel without any contrast has no range to divide by.
        return _Range(black, torch.where(white > black, white - black, 1.0))


@dataclass(frozen=True)
class Augmentation(ConfiguredDefense):
    """Shows a freshly cropped, flipped, turned and recoloured image in each training step.

    Signals are measured on the images as they are. Each part draws for every image by itself,
    and has a setting at which it does nothing; with all of them there, clients train as if
    undefended.

    Attributes:
        padding: Black pixels put around an image before a window of its own size is cut out at
            random; 0 for none.
        horizontal_flip: Probability of a mirror image, in [0, 1]; 0 for none.
        vertical_flip: Probability of turning upside down, in [0, 1]; 0 for none.
        rotation: Largest angle in degrees, either way, in [0, 180], 0 for none; corners
            become black.
        brightness: Images are multiplied by a factor between 1 minus and 1 plus this, in [0, 1]; 0
            changes nothing.
        contrast: Distance from the image's mean grey is multiplied likewise, in [0, 1]; 0 changes
            nothing.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Augmentation(padding=4, horizontal_flip=0.5).padding
        4

    Source: FedMIA, appendix A.2, with the strengths of its published code (which are the
        defaults).
    Differs: The published code augments pixels before it standardises them. Here images arrive
        standardised, so that they are mapped to [0, 1] and back: black and white are the darkest
        and brightest values of each channel among the client's own images. Shifts are those of
        the crop; the paper's shearing has no published strength and is left out.
    """

    padding: Count = 4
    horizontal_flip: Fraction = 0.5
    vertical_flip: Fraction = 0.5
    rotation: Annotated[float, Range(ge=0, le=180)] = 45.0
    brightness: Fraction = 0.25
    contrast: Fraction = 0.8
    _range: dict[str, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        if not self.neutral:
            _kornia()

    @property
    def neutral(self) -> bool:
        """True if images are left as they are."""
        colours = (self.brightness, self.contrast)
        moves = (self.padding, self.horizontal_flip, self.vertical_flip, self.rotation)
        return not any((*colours, *moves))

    def prepare(self, data: Samples, visit: Visit) -> Samples:
        """Once: takes note of what is black and white; changes nothing.

        Raises:
            BadInput: The data are not images of one or three channels.
        """
        if self.neutral or len(data) == 0:
            return data
        shape = tuple(data.features.shape[1:])
        if len(shape) != 3 or shape[0] not in (1, 3) or not data.features.is_floating_point():
            raise BadInput(
                "the defense 'augmentation' works on images of shape channels x height x width "
                f"with 1 or 3 channels, got samples of shape {'x'.join(map(str, shape))}; "
                "leave it out, or use 'mixup', which works on any features"
            )
        self.restore(_Range.of(data.features)._asdict())
        return data

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: other images, same labels."""
        if self.neutral or len(batch) == 0:
            return batch
        black, span = (self._range[name].to(batch.x) for name in _Range._fields)
        seed = int(torch.randint(2**62, (), generator=turn.rng("augmentation")))
        with fork_generators(turn.device):
            # kornia draws from the global generator; the fork keeps that to this batch.
            seed_globally(seed)
            seen = self._steps(batch.x)((batch.x - black) / span)
        return Batch((seen * span + black).to(batch.x.dtype), batch.y, batch.ids)

    def _steps(self, images: Float[Tensor, "samples channels height width"]) -> nn.Sequential:
        # In the order of the published code.
        kornia = _kornia()
        size = (images.shape[2], images.shape[3])
        parts: list[nn.Module] = []
        if self.padding:
            parts.append(kornia.RandomCrop(size, padding=self.padding))
        if self.horizontal_flip:
            parts.append(kornia.RandomHorizontalFlip(p=self.horizontal_flip))
        if self.vertical_flip:
            parts.append(kornia.RandomVerticalFlip(p=self.vertical_flip))
        if self.rotation:
            parts.append(kornia.RandomRotation(float(self.rotation), p=1.0))
        if self.brightness or self.contrast:
            parts.append(kornia.ColorJitter(float(self.brightness), float(self.contrast)))
        return nn.Sequential(*parts)

    def state(self) -> Params:
        """Black and white."""
        return dict(self._range)

    def restore(self, state: Params) -> None:
        """Takes up what :meth:`state` gave."""
        self._range.clear()
        self._range.update(state)


def _kornia() -> ModuleType:
    """Only those who augment need it, and importing it takes seconds."""
    try:
        from kornia import augmentation
    except ImportError as error:
        raise BadInput(
            "the augmentations are not installed; install them with: "
            "pip install 'fedaudit[augment]'"
        ) from error
    return augmentation
