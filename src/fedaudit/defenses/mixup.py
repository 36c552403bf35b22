"""MixUp: a client trains on blends of its samples, never on a sample as it is."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import class_count, hard_target
from fedaudit.fl.hooks import ConfiguredDefense, Plan, Turn


@dataclass(frozen=True)
class MixUp(ConfiguredDefense):
    """Blends every sample of a batch with another one of it, inputs and labels alike.

    A batch has one share and one shuffling. Blended samples keep the id of the sample that has
    the larger share in them.

    Attributes:
        alpha: The share is drawn from Beta(alpha, alpha): small values blend hardly ever, 1
            draws all shares alike, large values blend half and half. 0, the limit, blends
            nothing and trains as if undefended. Published: 1e-5 to 1e5 (FedMIA), 0.01
            (CoFedMID).
        mixes: "inputs-and-labels", or "legacy_label_only", which shows the model the samples as
            they are and blends labels alone; that is label noise, kept for comparison.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.MixUp(alpha=1.0).alpha
        1.0

    Source: MixUp (Zhang et al. 2018), section 2; FedMIA, appendix A.2 (alpha from 1e-5 to 1e5);
        CoFedMID, appendix E (alpha 0.01); FedMIA's published code for "legacy_label_only".
    Differs: Of the two shares, the sample itself gets the larger one: with a uniform shuffling,
        the batch has the same distribution, and ids stay meaningful. "legacy_label_only" keeps
        shares as drawn, since there a sample does not change places with its partner.
    """

    alpha: AtLeastZero
    mixes: Literal["inputs-and-labels", "legacy_label_only"] = "inputs-and-labels"

    @property
    def mixes_labels(self) -> bool:
        """Unless it is set to blend nothing."""
        return self.alpha > 0

    def refuse_misfit(self, plan: Plan) -> None:
        """Before anything is trained: samples of whole numbers, which cannot be blended.

        Raises:
            BadInput: They hold tokens, or classes beside numbers.
        """
        if plan.whole and self.alpha > 0 and self.mixes == "inputs-and-labels":
            raise BadInput(
                "mixup blends real numbers, and samples hold whole ones, such as tokens or "
                "classes; leave it out"
            )

    def batch(self, batch: Batch, turn: Turn) -> Batch:
        """Each step: the blended batch, with class probabilities as labels."""
        if self.alpha == 0 or len(batch) == 0:
            return batch
        rng = turn.rng("mixup")
        share = _share(self.alpha, rng)
        partner = torch.randperm(len(batch), generator=rng).to(batch.x.device)
        labels = _probabilities(batch, turn)
        if self.mixes == "legacy_label_only":
            return Batch(batch.x, blended(labels, partner, share), batch.ids)
        share = max(share, 1 - share)
        return Batch(blended(batch.x, partner, share), blended(labels, partner, share), batch.ids)


def blended(
    values: Float[Tensor, "samples ..."], partner: Tensor, share: float
) -> Float[Tensor, "samples ..."]:
    """Each row times the share, plus its partner's row times the rest.

    Args:
        values: One row a sample.
        partner: For each row, the position of the one that it is blended with.
        share: Of the row itself, in [0, 1].
    """
    return share * values + (1 - share) * values[partner]


def _share(alpha: float, rng: torch.Generator) -> float:
    # torch's Beta takes no generator, and underflows to 0 / 0 where alpha is small.
    seed = int(torch.randint(2**62, (), generator=rng))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def _probabilities(batch: Batch, turn: Turn) -> Float[Tensor, "samples classes"]:
    """The labels as class probabilities; only the model knows how many classes there are."""
    if batch.y.is_floating_point():
        return batch.y
    precision = next(iter(turn.received.params.values())).dtype
    return hard_target(batch.y, classes=class_count(turn, batch.x)).to(precision)
