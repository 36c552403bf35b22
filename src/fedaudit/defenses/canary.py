"""A canary client: it trains on nothing and sends a random direction of a known length."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, Params, Samples, norm, scaled
from fedaudit.fl.hooks import Defense, Turn
from fedaudit.observe.round import Update, Upload


def canary_direction(like: Params, seed: int, number: int) -> Params:
    """The direction of length 1 that a canary client sends, the same in every round.

    Args:
        like: Parameters of the model; they give names and shapes.
        seed: Of the audit; whoever has it knows all directions.
        number: Of the canary.
    """
    rng = seeded(seed, "canary", number)
    drawn = {
        name: torch.randn(value.shape, dtype=value.dtype, generator=rng)
        for name, value in like.items()
    }
    return scaled(drawn, 1 / norm(drawn))


@dataclass(frozen=True)
class CanaryUpload(Defense):
    """Sends a direction in the place of what training would give.

    Attributes:
        seed: Of the directions.
        number: Of this canary.
        length: Of its upload.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning,
        Algorithm 1.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update,)

    seed: int
    number: int
    length: float

    def batches(self, data: Samples, batch_size: int, turn: Turn) -> Iterator[Batch]:
        """Each epoch: nothing is trained on."""
        return iter(())

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: the direction, at its length."""
        if not self.length:
            return replace(upload, values=scaled(upload.values, 0.0))
        direction = canary_direction(upload.values, self.seed, self.number)
        return replace(upload, values=scaled(direction, self.length))
