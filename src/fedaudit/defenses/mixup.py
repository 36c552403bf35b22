"""MixUp: training on weighted means of two samples and of their labels."""

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
    """Training on weighted means of every sample of a batch with another sample of the batch.

    Inputs and labels are mixed. For each batch, one mixing weight and one permutation of the
    samples are drawn. A mixed sample keeps the id of the sample with the larger weight.

    Attributes:
        alpha: Parameter of the distribution Beta(alpha, alpha) of the mixing weight. With small
            values, the weight is mostly near 0 or 1; with 1, it is uniform; with large values, it
            is near one half. With 0, the defense is off. Published: 1e-5 to 1e5 (FedMIA), 0.01
            (CoFedMID).
        mixes: "inputs-and-labels", or "legacy_label_only", which mixes labels but not inputs. This
            amounts to label noise, and reproduces FedMIA's published code.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.MixUp(alpha=1.0).alpha
        1.0

    Source: MixUp (Zhang et al. 2018), section 2; Zhu et al. 2024 (FedMIA), appendix A.2 (alpha from
        1e-5 to 1e5); Bai et al. 2026 (CoFedMID), appendix E (alpha 0.01); FedMIA's published code
        for "legacy_label_only".
    Differs: The sample itself gets the larger of the two weights, because the mixed sample keeps
        its id. Since the permutation is uniform, this does not change the distribution of the
        batch. With "legacy_label_only", the weights stay as drawn, since only labels are mixed.
    """

    alpha: AtLeastZero
    mixes: Literal["inputs-and-labels", "legacy_label_only"] = "inputs-and-labels"

    @property
    def mixes_labels(self) -> bool:
        return self.alpha > 0

    def raise_if_misfit(self, plan: Plan) -> None:
        if plan.has_integer_features and self.alpha > 0 and self.mixes == "inputs-and-labels":
            raise BadInput(
                "mixup needs real-valued features, but the features are whole numbers, such as "
                "tokens or classes; remove this defense"
            )

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        if self.alpha == 0 or len(batch) == 0:
            return batch
        rng = context.rng("mixup")
        # Use NumPy, because torch's Beta distribution accepts no generator, and gives 0 / 0 for
        # small alpha.
        seed = int(torch.randint(2**62, (), generator=rng))
        weight = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        partner = torch.randperm(len(batch), generator=rng).to(batch.x.device)
        labels = _probabilities(batch, context)
        if self.mixes == "legacy_label_only":
            return Batch(batch.x, mix_rows(labels, partner, weight), batch.ids)
        weight = max(weight, 1 - weight)
        return Batch(
            mix_rows(batch.x, partner, weight), mix_rows(labels, partner, weight), batch.ids
        )


def mix_rows(
    values: Float[Tensor, "samples ..."], partner: Tensor, weight: float
) -> Float[Tensor, "samples ..."]:
    """Mix each row with the row of its partner; ``weight`` is the weight of the row itself."""
    return weight * values + (1 - weight) * values[partner]


def _probabilities(batch: Batch, context: TrainingContext) -> Float[Tensor, "samples classes"]:
    """Return the labels as class probabilities."""
    if batch.y.is_floating_point():
        return batch.y
    precision = next(iter(context.received.params.values())).dtype
    return one_hot(batch.y, classes=class_count(context, batch.x)).to(precision)
