"""Augmentation: random crops, flips, rotations and colour changes of training images."""

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
from fedaudit.fl.hooks import ClientContext, ConfiguredDefense, TrainingContext


class _ChannelRange(NamedTuple):
    """Smallest value of each channel of a client's images, and its distance to the largest."""

    black: Float[Tensor, "channels 1 1"]
    span: Float[Tensor, "channels 1 1"]

    @staticmethod
    def of(images: Float[Tensor, "samples channels height width"]) -> "_ChannelRange":
        black = images.amin(dim=(0, 2, 3))[:, None, None]
        white = images.amax(dim=(0, 2, 3))[:, None, None]
        # Values are divided by the range. A constant channel has a range of 0, which becomes 1.
        return _ChannelRange(black, torch.where(white > black, white - black, 1.0))


@dataclass(frozen=True)
class Augmentation(ConfiguredDefense):
    """Random crop, flips, rotation and colour jitter of every image in each training step.

    Every transformation is drawn independently for each image. Signals are measured on the original
    images. With all settings at 0, the defense is off.

    Attributes:
        padding: Width of the black border that is added to an image, before a random crop to its
            original size; 0 for none.
        horizontal_flip: Probability of a horizontal flip, in [0, 1]; 0 for none.
        vertical_flip: Probability of a vertical flip, in [0, 1]; 0 for none.
        rotation: Largest angle of a rotation in either direction, in degrees, in [0, 180]; empty
            corners become black; 0 for none.
        brightness: Strength of brightness changes, in [0, 1]; 0 for none. An image is multiplied by
            a random factor between 1 - brightness and 1 + brightness.
        contrast: Strength of contrast changes, in [0, 1]; 0 for none. Differences from the image's
            mean grey are multiplied by a random factor between 1 - contrast and 1 + contrast.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Augmentation(padding=4, horizontal_flip=0.5).padding
        4

    Source: Zhu et al. 2024 (FedMIA), appendix A.2. The defaults are the strengths in its published
        code.
    Differs: The published code augments pixels before it standardises them. Here, images are
        already standardised, so they are mapped to [0, 1] and back: black and white are the
        smallest and largest values of each channel in the client's images. The random crop replaces
        the paper's shifts. The paper's shearing is not implemented, since its strength is not
        published.
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
        """True if images are not changed."""
        colours = (self.brightness, self.contrast)
        geometry = (self.padding, self.horizontal_flip, self.vertical_flip, self.rotation)
        return not any((*colours, *geometry))

    def prepare(self, data: Samples, client_context: ClientContext) -> Samples:
        """Store the range of each channel; the data are not changed."""
        if self.neutral or len(data) == 0:
            return data
        shape = tuple(data.features.shape[1:])
        if len(shape) != 3 or shape[0] not in (1, 3) or not data.features.is_floating_point():
            raise BadInput(
                "the defense 'augmentation' works on images of shape channels x height x width "
                f"with 1 or 3 channels, got samples of shape {'x'.join(map(str, shape))}; "
                "remove it, or use 'mixup', which accepts features of any shape"
            )
        self.restore(_ChannelRange.of(data.features)._asdict())
        return data

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        if self.neutral or len(batch) == 0:
            return batch
        black, span = (self._range[name].to(batch.x) for name in _ChannelRange._fields)
        seed = int(torch.randint(2**62, (), generator=context.rng("augmentation")))
        with fork_generators(context.device):
            # kornia draws from torch's global generator; its state is restored afterwards.
            seed_globally(seed)
            images = self._transformations(batch.x)((batch.x - black) / span)
        return Batch((images * span + black).to(batch.x.dtype), batch.y, batch.ids)

    def _transformations(
        self, images: Float[Tensor, "samples channels height width"]
    ) -> nn.Sequential:
        # The transformations have the same order as in the published code.
        kornia = _kornia()
        size = (images.shape[2], images.shape[3])
        transformations: list[nn.Module] = []
        if self.padding:
            transformations.append(kornia.RandomCrop(size, padding=self.padding))
        if self.horizontal_flip:
            transformations.append(kornia.RandomHorizontalFlip(p=self.horizontal_flip))
        if self.vertical_flip:
            transformations.append(kornia.RandomVerticalFlip(p=self.vertical_flip))
        if self.rotation:
            transformations.append(kornia.RandomRotation(float(self.rotation), p=1.0))
        if self.brightness or self.contrast:
            jitter = kornia.ColorJitter(float(self.brightness), float(self.contrast))
            transformations.append(jitter)
        return nn.Sequential(*transformations)

    def state(self) -> Params:
        return dict(self._range)

    def restore(self, state: Params) -> None:
        self._range.clear()
        self._range.update(state)


def _kornia() -> ModuleType:
    # kornia is an optional dependency, and importing it takes seconds.
    try:
        from kornia import augmentation
    except ImportError as error:
        raise BadInput(
            "the defense 'augmentation' needs the package kornia, which is not installed; run "
            "pip install 'fedaudit[augment]'"
        ) from error
    return augmentation
