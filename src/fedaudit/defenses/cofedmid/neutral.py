"""Aggregation-neutral noise, which hides single uploads and cancels in the coalition's average."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, PositiveFraction, dataclass
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, plus_tail, tail_size
from fedaudit.defenses.cofedmid.partition import (
    CoalitionDefense,
    cooperating_clients,
    present_clients,
    shared_seed,
)
from fedaudit.fl.hooks import TrainingContext
from fedaudit.observe.round import Gradient, Update, Upload


@dataclass(frozen=True)
class NeutralNoise(CoalitionDefense):
    """Noise on the last parameters of uploads, which cancels in the average over a coalition.

    In each round, every client draws the noise of all clients of the coalition from a shared seed,
    and corrects its noise with the server's aggregation weights. Only clients that take part in the
    round are included, so that their noise cancels. If only one client takes part, it adds no
    noise. In a chain, this must be the last defense that changes the upload. It cannot be used if
    clients choose among several models, since the server averages each model separately.

    Attributes:
        sigma: Standard deviation of the noise before the correction, at least 0; 0 adds no noise.
            It does not depend on the norm of the upload.
        ratio: Fraction of the parameters, counted from the last, that get noise, in (0, 1].
        noise: "published" draws one number per client and round, which is added to all of these
            parameters, as in the paper. A server that knows this can subtract the parameters' mean
            (attacks with "centred-tail"). "vector" draws one number per parameter. A server that
            knows this can only ignore these parameters (attacks with "without-tail").
        independent: Whether clients draw noise independently, so that it does not cancel.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.NeutralNoise(clients=[0, 1], sigma=0.1).cancels
        True

    Source: Bai et al. 2026 (CoFedMID), section 4.3 and algorithm 3. The paper's text and its costs
        ("two scalar values per round") correspond to "published".
    Differs: "vector" is the default. Noise is drawn in every round; algorithm 4 draws it once.
        Buffers are not changed.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient)

    sigma: AtLeastZero = 0.1
    ratio: PositiveFraction = 0.2
    # In earlier versions, "published" was called "scalar".
    noise: Literal["vector", "published", "scalar"] = "vector"
    independent: bool = False

    @property
    def cancels(self) -> bool:
        return self.sigma > 0 and not self.independent

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        group = cooperating_clients(self.coalition, context, independent=self.independent)
        clients = present_clients(group, context)
        if self.sigma == 0 or (len(clients) < 2 and not self.independent):
            return upload
        if not self.independent:
            # Clients of a coalition exchange two numbers of one byte each (CoFedMID).
            context.note("extra_bytes", torch.tensor([2]))
        size = tail_size(upload.values, self.ratio)
        weights = {client: context.weights[client] for client in clients}
        seed = shared_seed(group, context)
        draws = {
            client: self.sigma
            * torch.randn(
                size if self.noise == "vector" else 1,
                generator=seeded(seed, "noise", client, context.round),
            )
            for client in clients
        }
        noise = (
            draws[context.client]
            if self.independent
            else neutral_noise(draws, weights, context.client)
        )
        return replace(upload, values=plus_tail(upload.values, noise.expand(size)))


def neutral_noise(
    draws: Mapping[ClientId, Float[Tensor, " entries"]],
    weights: Mapping[ClientId, float],
    client: ClientId,
) -> Float[Tensor, " entries"]:
    """Return one client's noise: its draw, minus a multiple of the weighted sum of all draws.

    Source: Bai et al. 2026 (CoFedMID), section 4.3: d_k = d'_k - w_k / |w|^2 * sum_j w_j d'_j.
    """
    total = torch.stack([weights[client] * draw for client, draw in draws.items()]).sum(0)
    return draws[client] - weights[client] / sum(w * w for w in weights.values()) * total
