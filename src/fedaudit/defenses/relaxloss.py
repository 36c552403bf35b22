"""RelaxLoss: training aims at a loss above zero, as high as that of unseen samples."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from fedaudit.core.arguments import AtLeastZero, Fraction, dataclass
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import require_class_indices, soft_target, true_probability
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext


@dataclass(frozen=True)
class RelaxLoss(ConfiguredDefense):
    """Training towards a target loss, alternating with flattened predictions.

    In rounds 1, 3, 5, ... a step minimises the distance of the batch's mean loss from the target.
    In rounds 2, 4, 6, ... it minimises the loss if that is above the target. Otherwise it flattens
    predictions: the probability of the other classes is distributed evenly.

    Attributes:
        target_loss: Target of the mean loss in nats, at least 0; 0 trains as if undefended.
            Published: 1 for CIFAR-10, 3 for CIFAR-100, 0.8 for Purchase.
        upper: Largest probability of the true class in a flattened label, in [0, 1]. Published:
            1, 1 and 0.3 for the same three.
        form: Form of the flattening: "images" flattens misclassified samples only, and also raises
            the loss of all samples; "tables" flattens all samples and raises no loss.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.RelaxLoss(target_loss=1.0).target_loss
        1.0

    Source: RelaxLoss (Chen et al. 2022), algorithm 1 and its published code (which has one form
        for images and one for tables); CoFedMID, appendix E.
    Differs: Branches alternate by round. If they alternated by local epoch, as in the centralised
        original, a client with one epoch per round would only use the first. Gradients flow through
        the flattened label, as in the published code.
    """

    target_loss: AtLeastZero
    upper: Fraction = 1.0
    form: Literal["images", "tables"] = "images"

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and self.target_loss > 0

    @property
    def needs_classes(self) -> bool:
        return self.acts_in("loss")

    @property
    def always_acts(self) -> bool:
        return False  # only if a batch's mean loss is at most the target

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        if self.target_loss == 0:
            return super().loss(outputs, batch, context)
        labels = require_class_indices(batch, "relaxloss")
        each = context.received.architecture.loss(outputs, labels)
        mean = each.mean()
        # Above the target, both branches minimise the loss as without a defense.
        context.note("acted", (mean.detach() <= self.target_loss).long().reshape(1))
        if context.round % 2 == 1:
            return (mean - self.target_loss).abs()
        if mean > self.target_loss:
            return mean
        # The cross-entropy with the model's clipped confidence and an even remainder.
        probability = true_probability(outputs, labels).clamp(0, self.upper)
        targets = soft_target(probability, labels, classes=outputs.shape[1])
        flat = -(targets * functional.log_softmax(outputs, dim=1)).sum(dim=1)
        if self.form == "tables":
            return flat.mean()
        wrong = outputs.argmax(dim=1) != labels
        return (wrong * flat - each).mean()
