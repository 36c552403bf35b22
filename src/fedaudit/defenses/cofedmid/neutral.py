"""Aggregation-neutral noise: it hides single uploads and cancels in the coalition's average."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, Share, dataclass
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, plus_tail, tail_size
from fedaudit.defenses.cofedmid.partition import CoalitionDefense, circle, present, shared_seed
from fedaudit.fl.hooks import Turn
from fedaudit.observe.round import Gradient, Update, Upload


@dataclass(frozen=True)
class NeutralNoise(CoalitionDefense):
    """Adds noise to the last parameters of an upload that the other members' noise takes back.

    Members draw each other's noise from a seed that they share, once a round and with the
    weights that the server really uses. Members that are not in the round's cohort are left
    out, so that the noise of those present cancels; a member that is there alone adds none.
    In a chain, it is the last to change the upload; where clients choose among several models,
    it is refused, since the server averages those of each model by themselves.

    Attributes:
        sigma: Standard deviation before the projection, in units of the upload, at least 0; 0
            adds none.
        ratio: Share of the parameters, counted from the last, that get noise, in (0, 1].
        noise: "published" for one draw a client and round, which is added to all of these
            parameters, as the paper has it; a server that knows takes their mean off and has the
            rest as it was (the attacks with "centred-tail"). "vector" for
            a draw a parameter: a server that knows can only leave these parameters out
            (the attacks with "without-tail").
        independent: Whether every client draws its noise alone, so that nothing cancels.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.NeutralNoise(members=[0, 1], sigma=0.1).cancels
        True

    Source: CoFedMID, section 4.3 and algorithm 3; by its text and its costs ("two scalar values
        per round") "published" is the paper's.
    Differs: "vector" is the default; noise is drawn every round, where algorithm 4 draws it
        once; buffers are left alone.
    """

    accepts: ClassVar[tuple[type, ...]] = (Update, Gradient)

    sigma: AtLeastZero = 0.1
    ratio: Share = 0.2
    # "scalar" is an earlier name of "published".
    noise: Literal["vector", "published", "scalar"] = "vector"
    independent: bool = False

    @property
    def cancels(self) -> bool:
        """True if members add noise that depends on each other's."""
        return self.sigma > 0 and not self.independent

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: noise on the last parameters."""
        together = circle(self.coalition, turn, independent=self.independent)
        members = present(together, turn)
        if self.sigma == 0 or (len(members) < 2 and not self.independent):
            return upload
        if not self.independent:
            # As the paper counts: two numbers of a byte each (seed and weights need no more).
            turn.note("extra_bytes", torch.tensor([2]))
        size = tail_size(upload.values, self.ratio)
        weights = {member: turn.weights[member] for member in members}
        seed = shared_seed(together, turn)
        draws = {
            member: self.sigma
            * torch.randn(
                size if self.noise == "vector" else 1,
                generator=seeded(seed, "noise", member, turn.round),
            )
            for member in members
        }
        own = draws[turn.client] if self.independent else neutral(draws, weights, turn.client)
        return replace(upload, values=plus_tail(upload.values, own.expand(size)))


def neutral(
    draws: Mapping[ClientId, Float[Tensor, " entries"]],
    weights: Mapping[ClientId, float],
    client: ClientId,
) -> Float[Tensor, " entries"]:
    """One member's noise: its draw without what the average would see of all draws.

    Args:
        draws: Every member's.
        weights: Every member's share in the average; at least one is above 0.
        client: Whose noise.

    Source: CoFedMID, section 4.3: d_k = d'_k - w_k / |w|^2 * sum_j w_j d'_j.
    """
    total = torch.stack([weights[member] * draw for member, draw in draws.items()]).sum(0)
    return draws[client] - weights[client] / sum(w * w for w in weights.values()) * total
