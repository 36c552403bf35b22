"""Gradient noise: independent Gaussian noise on every entry of the upload."""

from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, dataclass
from fedaudit.core.values import Params
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext
from fedaudit.observe.round import Upload


def with_noise(values: Params, std: float, rng: torch.Generator) -> Params:
    """Add independent Gaussian noise to every entry, in the entry's precision."""

    def noise(template: Tensor) -> Tensor:
        return std * torch.randn(template.shape, dtype=template.dtype, generator=rng)

    return {name: value + noise(value) for name, value in values.items()}


@dataclass(frozen=True)
class GradientNoise(ConfiguredDefense):
    """Noise from N(0, sigma^2) on every entry of the upload.

    The upload is not clipped, so there is no differential privacy. Use :class:`ClientDP` if you
    need it.

    Attributes:
        sigma: Standard deviation of the noise, at least 0; with 0, the defense is off. Published:
            0.01 to 0.5 (FedMIA), 0.01 and 0.1 (CoFedMID).

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientNoise(sigma=0.01, clients=[0]).sigma
        0.01

    Source: Zhu et al. 2024 (FedMIA), appendix A.2 (gradient perturbation); Bai et al. 2026
        (CoFedMID), appendix E (GradNoise).
    Differs: All attacks see the noisy upload, including attacks on losses.
    """

    sigma: AtLeastZero

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        if self.sigma == 0:
            return upload
        noisy = with_noise(upload.values, self.sigma, context.rng("gradient noise"))
        return replace(upload, values=noisy)
