"""MixUp: a client trains on convex combinations of its samples and their labels."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, dataclass
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import class_count, one_hot
from fedaudit.fl.hooks import ConfiguredDefense, Plan, TrainingContext


@dataclass(frozen=True)
class MixUp(ConfiguredDefense):
    """Mixing of every sample of a batch with another one of the batch, in inputs and labels.

    A batch has one share and one permutation. Mixed samples keep the id of the sample that has the
    larger share in them.

    Attributes:
        alpha: The share is drawn from Beta(alpha, alpha): small values rarely mix, 1 draws all
            shares uniformly, large values mix half and half. 0, the limit, mixes nothing and trains
            as if undefended. Published: 1e-5 to 1e5 (FedMIA), 0.01 (CoFedMID).
        mixes: "inputs-and-labels", or "legacy_label_only", which mixes labels but not inputs; that
            is label noise, available for comparison.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.MixUp(alpha=1.0).alpha
        1.0

    Source: MixUp (Zhang et al. 2018), section 2; FedMIA, appendix A.2 (alpha from 1e-5 to 1e5);
        CoFedMID, appendix E (alpha 0.01); FedMIA's published code for "legacy_label_only".
    Differs: Of the two shares, the sample itself gets the larger one. With a uniform permutation
        the batch has the same distribution, and ids stay meaningful. "legacy_label_only" uses the
        shares as drawn, since a sample and its partner are not interchangeable there.
    """

    alpha: AtLeastZero
    mixes: Literal["inputs-and-labels", "legacy_label_only"] = "inputs-and-labels"

    @property
    def mixes_labels(self) -> bool:
        return self.alpha > 0

    def refuse_misfit(self, plan: Plan) -> None:
        if plan.whole and self.alpha > 0 and self.mixes == "inputs-and-labels":
            raise BadInput(
                "mixup mixes real numbers, but the features are whole numbers, such as tokens or "
                "classes; leave it out"
            )

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        if self.alpha == 0 or len(batch) == 0:
            return batch
        rng = context.rng("mixup")
        # torch's Beta has no generator argument, and underflows to 0 / 0 for small alpha.
        seed = int(torch.randint(2**62, (), generator=rng))
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        partner = torch.randperm(len(batch), generator=rng).to(batch.x.device)
        labels = _probabilities(batch, context)
        if self.mixes == "legacy_label_only":
            return Batch(batch.x, mix_rows(labels, partner, share), batch.ids)
        share = max(share, 1 - share)
        return Batch(mix_rows(batch.x, partner, share), mix_rows(labels, partner, share), batch.ids)


def mix_rows(
    values: Float[Tensor, "samples ..."], partner: Tensor, share: float
) -> Float[Tensor, "samples ..."]:
    """Mix each row, with this share, with the row of its partner."""
    return share * values + (1 - share) * values[partner]


def _probabilities(batch: Batch, context: TrainingContext) -> Float[Tensor, "samples classes"]:
    """Return the labels as class probabilities; the number of classes is that of the model."""
    if batch.y.is_floating_point():
        return batch.y
    precision = next(iter(context.received.params.values())).dtype
    return one_hot(batch.y, classes=class_count(context, batch.x)).to(precision)
