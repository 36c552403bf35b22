"""Gradient noise: every entry of what a client sends gets a normal draw added."""

from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, dataclass
from fedaudit.core.values import Params
from fedaudit.fl.hooks import ConfiguredDefense, Turn
from fedaudit.observe.round import Upload


def with_noise(values: Params, std: float, rng: torch.Generator) -> Params:
    """Adds an independent normal draw to every entry, in the entry's own precision."""

    def noise(like: Tensor) -> Tensor:
        return std * torch.randn(like.shape, dtype=like.dtype, generator=rng)

    return {name: value + noise(value) for name, value in values.items()}


@dataclass(frozen=True)
class GradientNoise(ConfiguredDefense):
    """Adds N(0, sigma^2) to every entry of the upload.

    Nothing is clipped, so that no sigma gives differential privacy; :class:`ClientDP` does.

    Attributes:
        sigma: Standard deviation in units of the upload, at least 0; 0 changes nothing.
            Published: 0.01 to 0.5 (FedMIA), 0.01 and 0.1 (CoFedMID).

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientNoise(sigma=0.01, members=[0]).sigma
        0.01

    Source: FedMIA, appendix A.2 (gradient perturbation); CoFedMID, appendix E (GradNoise).
    Differs: The noisy upload is what every attack sees, losses included.
    """

    sigma: AtLeastZero

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: noise on the upload."""
        if self.sigma == 0:
            return upload
        noisy = with_noise(upload.values, self.sigma, turn.rng("gradient noise"))
        return replace(upload, values=noisy)
