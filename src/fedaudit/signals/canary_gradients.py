"""Planted gradients of canary samples, and the signal that finds them in updates."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.errors import NotVisible
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Capability, flat
from fedaudit.signals.base import VisibleRound

_ENTRIES = 1024
"""Number of non-zero entries of a planted gradient. It does not matter for the cosines of planted
gradients, whose standard deviation is 1/sqrt(d) for d parameters. Few entries are fast to add."""


class CanaryGradient(NamedTuple):
    """Sparse unit vector over all trainable parameters.

    Attributes:
        positions: Positions of the non-zero entries.
        values: Non-zero entries, which have equal absolute values.
    """

    positions: Int[Tensor, " entries"]
    values: Float[Tensor, " entries"]


@lru_cache(maxsize=1024)
def canary_gradient(sample_id: int, parameters: int) -> CanaryGradient:
    """Draw the direction of a canary sample's planted gradient, which is the same in every step.

    Args:
        sample_id: Id of the canary sample. It determines the direction.
        parameters: Number of trainable parameters.
    """
    rng = seeded_numpy(0, "canary gradient", sample_id)
    entries = min(_ENTRIES, parameters)
    positions = rng.choice(parameters, entries, replace=False, shuffle=False)
    signs = 2.0 * rng.integers(0, 2, entries) - 1.0
    return CanaryGradient(torch.from_numpy(positions), torch.from_numpy(signs / math.sqrt(entries)))


@dataclass(frozen=True)
class CanaryCosine:
    """Cosine between a canary sample's planted gradient and the client's negative update.

    It replaces :class:`fedaudit.signals.updates.GradientCosine` if gradients are planted. The
    cosine of a zero update is 0.

    Source: Andrew et al. 2024, One-shot empirical privacy estimation for federated learning.
    """

    name = "canary-cosine"
    needs = Capability.GLOBAL_MODEL | Capability.UPDATE

    def __call__(self, visible: VisibleRound) -> Float[Tensor, "clients samples"]:
        cosines = torch.zeros(len(visible.clients), len(visible.samples), dtype=torch.float64)
        for row, client in enumerate(visible.clients):
            update = visible.round.observed[client].update
            if update is None:
                raise NotVisible("this view hides the clients' updates, which contain canaries")
            vector = flat(update).double().cpu()
            length = float(vector.norm())
            if length == 0:
                continue
            for column, sample_id in enumerate(visible.samples.ids.tolist()):
                positions, values = canary_gradient(sample_id, len(vector))
                cosines[row, column] = -(vector[positions] @ values) / length
        return cosines
