"""A diffusion model, frozen, of which clients train an embedding for each of their concepts."""

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.arguments import Positive, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import refuse_missing
from fedaudit.core.pretrained import pretrained
from fedaudit.models.base import ConfiguredModel, spelled

CONCEPTS = "concepts.weight"
"""Name of the embeddings, a row a concept: all that clients train."""

_PATCH = 2
"""Pixels that become channels, in each direction: a quarter of the work."""
_GROUPS = 16
_values = lru_cache(maxsize=2)(pretrained)


class DiffusionNetwork(nn.Module):
    """A U-Net that predicts the noise in noisy images, given an embedding of what they show."""

    def __init__(self, shape: tuple[int, ...], concepts: int, width: int, weights: str) -> None:
        super().__init__()
        refuse_missing("model 'diffusion'", "generative", "diffusers")
        from diffusers import UNet2DModel

        channels = shape[0] * _PATCH**2
        self.net = UNet2DModel(
            sample_size=(shape[1] // _PATCH, shape[2] // _PATCH),
            in_channels=channels,
            out_channels=channels,
            block_out_channels=(width, 2 * width, 3 * width),
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            norm_num_groups=_GROUPS,
            attention_head_dim=width,
            class_embed_type="identity",
        )
        self.concepts = nn.Embedding(concepts, 4 * width)
        if weights and self.concepts.weight.device.type != "meta":
            self._load(_values(weights), weights)
        self.net.requires_grad_(False)

    def _load(self, values: dict[str, Tensor], name: str) -> None:
        """Takes the network as it is, and for every concept the mean of the public ones."""
        net = {n.removeprefix("net."): v for n, v in values.items() if n != CONCEPTS}
        shapes = {n: v.shape for n, v in self.net.state_dict().items()}
        there = values.get(CONCEPTS)
        fits = there is not None and there.shape[1:] == self.concepts.weight.shape[1:]
        if not fits or {n: v.shape for n, v in net.items()} != shapes:
            raise BadInput(
                f"the pretrained values {name!r} are of another network than this 'diffusion'; "
                "give the width and the image's shape that they were trained with"
            )
        self.net.load_state_dict(net)
        assert there is not None
        self.concepts.weight.data.copy_(there.mean(0))

    def forward(
        self,
        noisy: Float[Tensor, "samples draws channels height width"],
        steps: Int[Tensor, "samples draws"],
        concept: Int[Tensor, " samples"],
    ) -> Float[Tensor, "samples draws channels height width"]:
        """The noise in each draw of each sample."""
        # Looked up once a sample: gradients by the embedding are then one backward pass for all.
        condition = self.concepts(concept)
        each = zip(noisy.unbind(1), steps.unbind(1), strict=True)
        return torch.stack([self._noise(one, step, condition) for one, step in each], 1)

    def _noise(self, noisy: Tensor, steps: Tensor, condition: Tensor) -> Tensor:
        folded = functional.pixel_unshuffle(noisy, _PATCH)
        found: Tensor = self.net(folded, steps, class_labels=condition).sample
        return functional.pixel_shuffle(found, _PATCH)


@dataclass(frozen=True, kw_only=True)
class Diffusion(ConfiguredModel):
    """A frozen diffusion model (U-Net) whose embeddings of concepts clients train.

    For the task "denoising". Samples' labels are concepts, and each has an embedding, which
    begins as the mean of those that the network was trained with. Clients train and upload the
    embeddings alone. Samples are images whose sides are multiples of 8. Needs the extra
    ``generative``.

    Attributes:
        width: Channels of the first level, a multiple of 16; the others have two and three times
            as many, and an embedding four times.
        weights: Values of the pretrained network; a study with a ``[pretraining]`` table makes and
            names them. Without them, the network is random.

    Examples:
        >>> Diffusion(width=32).width
        32

    Source: FedMIA section 4.1 (FedEmbedding with a diffusion model); Gal et al. 2023 (textual
        inversion), section 4.2; Ho et al. 2020.
    Differs: A small U-Net on pixels for a latent diffusion model; the embedding is the condition
        itself, not a word that a text encoder reads.
    """

    width: Positive = 48
    weights: str = ""

    def build(self, shape: tuple[int, ...], classes: int) -> DiffusionNetwork:
        """Return a network of which the embeddings are to be trained.

        Raises:
            BadInput: The package is not installed, or samples are no such images.
        """
        width = self.width
        if len(shape) != 3 or shape[1] % 8 or shape[2] % 8 or width % _GROUPS:
            raise BadInput(
                "model 'diffusion' takes images whose sides are multiples of 8 and a width that is "
                f"a multiple of {_GROUPS}, got samples of shape {spelled(shape)} and width {width}"
            )
        return DiffusionNetwork(shape, classes, width, self.weights)
