"""RelaxLoss: training towards a target loss above zero, similar to the loss of held-out samples."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

from fedaudit.core.arguments import AtLeastZero, Fraction, dataclass
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import require_class_indices, soft_target, true_probability
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext


@dataclass(frozen=True)
class RelaxLoss(ConfiguredDefense):
    """Training that alternates between a target loss and flattened predictions.

    In rounds 1, 3, 5, ..., each step minimises the distance of the batch's mean loss from the
    target. In rounds 2, 4, 6, ..., a step minimises the loss if it is above the target. Otherwise,
    the step flattens predictions: it trains with soft labels that keep the predicted probability of
    the true class, and divide the rest evenly among the other classes.

    Attributes:
        target_loss: Target of the mean loss in nats, at least 0; with 0, the defense is off.
            Published: 1 for CIFAR-10, 3 for CIFAR-100, 0.8 for Purchase.
        upper: Largest probability of the true class in a soft label, in [0, 1]. Published: 1, 1 and
            0.3 for these three data sets.
        form: Which samples are flattened: "images" flattens only misclassified samples, and also
            raises the loss of all samples; "tables" flattens all samples, and does not raise the
            loss.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.RelaxLoss(target_loss=1.0).target_loss
        1.0

    Source: RelaxLoss (Chen et al. 2022), algorithm 1 and its published code (with separate variants
        for images and tables); Bai et al. 2026 (CoFedMID), appendix E.
    Differs: The two objectives alternate by round. In the original, which is for central training,
        they alternate by epoch, so a client with one epoch per round would only use the first one.
        Gradients are also propagated through the soft label, as in the published code.
    """

    target_loss: AtLeastZero
    upper: Fraction = 1.0
    form: Literal["images", "tables"] = "images"

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and self.target_loss > 0

    @property
    def needs_class_labels(self) -> bool:
        return self.acts_in("loss")

    @property
    def acts_unconditionally(self) -> bool:
        # The defense acts only if a batch's mean loss is at most the target.
        return False

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        if self.target_loss == 0:
            return super().loss(outputs, batch, context)
        labels = require_class_indices(batch, "relaxloss")
        losses = context.received.architecture.loss(outputs, labels)
        mean = losses.mean()
        # Above the target, both objectives minimise the loss, as without a defense.
        context.note("acted", (mean.detach() <= self.target_loss).long().reshape(1))
        if context.round % 2 == 1:
            return (mean - self.target_loss).abs()
        if mean > self.target_loss:
            return mean
        # The cross-entropy with soft labels.
        probability = true_probability(outputs, labels).clamp(0, self.upper)
        targets = soft_target(probability, labels, classes=outputs.shape[1])
        soft_losses = -(targets * functional.log_softmax(outputs, dim=1)).sum(dim=1)
        if self.form == "tables":
            return soft_losses.mean()
        is_wrong = outputs.argmax(dim=1) != labels
        return (is_wrong * soft_losses - losses).mean()
