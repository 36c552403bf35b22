"""A frozen diffusion model for which clients train concept embeddings."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.arguments import Positive, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import raise_if_missing
from fedaudit.core.pretrained import cached_pretrained
from fedaudit.models.base import ConfiguredModel, format_shape

CONCEPTS = "concepts.weight"
"""Name of the only trained parameter: the embeddings, with one row per concept."""

_PATCH = 2
"""Height and width of the blocks of pixels that become channels, which makes the U-Net 4x faster.
"""
_GROUPS = 16


class DiffusionNetwork(nn.Module):
    """A U-Net that predicts the noise in noisy images, given an embedding of their concept."""

    def __init__(self, shape: tuple[int, ...], concepts: int, width: int, weights: str) -> None:
        super().__init__()
        raise_if_missing("diffusers", needed_by="model 'diffusion'", extra="generative")
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
            self._load(cached_pretrained(weights), weights)
        self.net.requires_grad_(False)

    def _load(self, values: dict[str, Tensor], name: str) -> None:
        net = {n.removeprefix("net."): v for n, v in values.items() if n != CONCEPTS}
        shapes = {n: v.shape for n, v in self.net.state_dict().items()}
        concepts = values.get(CONCEPTS)
        stored_shapes = {n: v.shape for n, v in net.items()}
        own_width = self.concepts.weight.shape[1:]
        if concepts is None or concepts.shape[1:] != own_width or stored_shapes != shapes:
            raise BadInput(
                f"the pretrained weights {name!r} do not fit this 'diffusion' model; use the width "
                "and the shape of images with which they were trained"
            )
        self.net.load_state_dict(net)
        self.concepts.weight.data.copy_(concepts.mean(0))

    def forward(
        self,
        noisy: Float[Tensor, "samples draws channels height width"],
        steps: Int[Tensor, "samples draws"],
        concept: Int[Tensor, " samples"],
    ) -> Float[Tensor, "samples draws channels height width"]:
        """Predict the noise in each draw of each sample."""
        # With one look-up for all draws, one backward pass computes the embeddings' gradient.
        condition = self.concepts(concept)
        draws = zip(noisy.unbind(1), steps.unbind(1), strict=True)
        return torch.stack(
            [self._noise(noisy_draw, step, condition) for noisy_draw, step in draws], 1
        )

    def _noise(self, noisy: Tensor, steps: Tensor, condition: Tensor) -> Tensor:
        folded = functional.pixel_unshuffle(noisy, _PATCH)
        noise: Tensor = self.net(folded, steps, class_labels=condition).sample
        return functional.pixel_shuffle(noise, _PATCH)


@dataclass(frozen=True, kw_only=True)
class Diffusion(ConfiguredModel):
    """A frozen diffusion model (U-Net) for which clients train embeddings of concepts.

    Use it with the task "denoising", in which the label of a sample is its concept. Each concept
    has an embedding, which is initialised with the mean of the pretrained embeddings. Clients train
    and upload only the embeddings. Samples are images with a height and a width that are multiples
    of 8. The model needs ``pip install 'fedaudit[generative]'``.

    Attributes:
        width: Number of channels of the first level, a multiple of 16. The next two levels have two
            and three times as many. An embedding has four times as many entries.
        weights: File with the weights of a pretrained network. A study with a ``[pretraining]``
            table creates this file and sets its name. Without weights, the network is random.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.Diffusion(width=32).width
        32

    Source: Zhu et al. 2024 (FedMIA), section 4.1 (FedEmbedding with a diffusion model); Gal et al.
        2023 (textual inversion), section 4.2; Ho et al. 2020.
    Differs: The network is a small U-Net on pixels instead of a latent diffusion model. It is
        conditioned on the embedding itself, and not on the embedding of a text.
    """

    width: Positive = 48
    weights: str = ""

    def build(self, shape: tuple[int, ...], classes: int) -> DiffusionNetwork:
        """Return a network with untrained embeddings.

        Raises:
            BadInput: The package is not installed, or samples are not images of allowed sizes.
        """
        width = self.width
        if len(shape) != 3 or shape[1] % 8 or shape[2] % 8 or width % _GROUPS:
            raise BadInput(
                "model 'diffusion' needs images with a height and a width that are multiples of 8, "
                f"and its setting width must be a multiple of {_GROUPS}; got samples of shape "
                f"{format_shape(shape)} and width {width}"
            )
        return DiffusionNetwork(shape, classes, width, self.weights)
