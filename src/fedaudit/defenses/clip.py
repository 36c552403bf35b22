"""Client-level differential privacy: clipped uploads with noise proportional to the clip norm."""

from dataclasses import replace
from typing import ClassVar

import torch

from fedaudit.core.arguments import AboveZeroOrInfinite, AtLeastZero, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Params, norm, scaled
from fedaudit.defenses.noise import with_noise
from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.fl.hooks import ConfiguredDefense, DataUse, Guarantee, TrainingContext
from fedaudit.observe.round import Gradient, Update, Upload


def raise_if_noise_without_clip(clip: float, noise_multiplier: float) -> None:
    """Raise if there is noise but no clipping, which makes the scale of the noise infinite."""
    if clip == float("inf") and noise_multiplier > 0:
        raise BadInput(
            f"noise_multiplier is {noise_multiplier}, but clip is infinite, so the noise would be "
            "infinite too; give a finite clip, or noise_multiplier=0"
        )


def clip_norm(values: Params, limit: float) -> Params:
    """Scale all tensors by the same factor, so that their joint norm is at most ``limit``."""
    total_norm = norm(values)
    return values if total_norm <= limit else scaled(values, limit / total_norm)


@dataclass(frozen=True)
class ClientDP(ConfiguredDefense):
    """Clipping of a client's upload, and Gaussian noise proportional to the clip norm.

    Attributes:
        clip: Largest Euclidean norm of an upload, above 0; infinity turns clipping off.
        noise_multiplier: Standard deviation of the noise divided by ``clip``, at least 0; with 0,
            there is no noise.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.ClientDP(clip=1.0, noise_multiplier=1.1).clip
        1.0

    Source: McMahan et al. 2018 (DP-FedAvg), applied by the client itself.
    Differs: FedMIA's "gradient perturbation" and CoFedMID's "client-level DP" add noise without
        clipping, like :class:`fedaudit.defenses.noise.GradientNoise`.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient)

    clip: AboveZeroOrInfinite
    noise_multiplier: AtLeastZero

    def __post_init__(self) -> None:
        raise_if_noise_without_clip(self.clip, self.noise_multiplier)

    @property
    def acts_unconditionally(self) -> bool:
        """True if there is noise. Without noise, only uploads above the clip norm are changed."""
        return self.noise_multiplier > 0

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        """Return the clipped upload with noise; buffers are sent without protection."""
        values = clip_norm(upload.values, self.clip)
        if self.noise_multiplier:
            std = self.noise_multiplier * self.clip
            values = with_noise(values, std, context.rng("client-level noise"))
        else:
            context.note("acted", torch.tensor([int(values is not upload.values)]))
        return replace(upload, values=values)

    def guarantee(self, data_use: DataUse, *, delta: float) -> Guarantee:
        """Return the guarantee against an observer of all uploads of the client.

        In neighbouring inputs, the client's whole contribution is replaced by zeros, which changes
        an upload by at most the clip norm. There is no privacy amplification by sampling, since the
        server sees each upload.
        """
        return Guarantee(
            gaussian_mechanism_epsilon(self.noise_multiplier, data_use.rounds, delta=delta),
            f"a client's whole contribution to each of {data_use.rounds} uploads",
        )
