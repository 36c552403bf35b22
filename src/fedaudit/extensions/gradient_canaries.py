"""Canary samples with planted gradients, which a client adds to the clipped sums of DP-SGD."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedaudit.core.errors import Unsupported
from fedaudit.core.values import Batch, Params
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import Defense, Objective, TrainingContext
from fedaudit.signals.canary_gradients import canary_gradient


@dataclass(frozen=True)
class GradientCanaries(Chain):
    """Defenses of a client that trains on canary samples with planted gradients.

    DP-SGD draws a canary like any sample. The canary's gradient is a random vector with the clip
    norm (:func:`fedaudit.signals.canary_gradients.canary_gradient`). No sample has more influence.

    Attributes:
        canaries: Ids of the canary samples in the client's data.

    Source: Nasr et al. 2023, Tight Auditing of Differentially Private Machine Learning (gradient
        canaries).
    Differs: Vectors are nearly orthogonal, so that many canaries fit into one run.
    """

    canaries: tuple[int, ...] = ()

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        """Return the noisy gradient with the planted gradients of the drawn canaries."""
        canaries = torch.tensor(self.canaries, dtype=batch.ids.dtype, device=batch.ids.device)
        is_canary = torch.isin(batch.ids, canaries)
        other_samples = Batch(batch.x[~is_canary], batch.y[~is_canary], batch.ids[~is_canary])
        gradient = super().gradient(objective, other_samples, context)
        sizes = [value.numel() for value in gradient.values()]
        planted = torch.zeros(sum(sizes))
        # With a multiplicity above 1, every canary has several rows.
        for sample_id in sorted(set(batch.ids[is_canary].tolist())):
            positions, values = canary_gradient(sample_id, len(planted))
            planted[positions] += values.float()
        dp_sgd = next(part for part in self.parts if isinstance(part, DPSGD))
        planted *= dp_sgd.gradient_limit
        parts = torch.split(planted, sizes)
        return {
            name: value + part.view(value.shape).to(value)
            for (name, value), part in zip(gradient.items(), parts, strict=True)
        }


def plant_gradients(
    defense: Defense | None, canaries: Sequence[int], client: str
) -> GradientCanaries:
    """Return a client's defenses with planted gradients of its canaries.

    Args:
        defense: The client's defense, or chain of defenses.
        canaries: Ids of the canary samples in the client's data.
        client: Name of the client in the error message.

    Raises:
        Unsupported: The client does not use DP-SGD, or its clip is infinite.
    """
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    if not any(isinstance(part, DPSGD) and math.isfinite(part.clip) for part in parts):
        raise Unsupported(
            f"canaries of the kind 'gradient' replace clipped gradients, but {client} does not use "
            "dp-sgd with a finite clip; use this defense, or canaries of another kind"
        )
    return GradientCanaries(tuple(part for part in parts if part is not None), tuple(canaries))
