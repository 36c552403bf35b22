"""RelaxLoss: training aims at a loss above zero, as high as that of unseen samples."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedaudit.core.arguments import AtLeastZero, Fraction, dataclass
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import hard_labels, soft_target, true_probability
from fedaudit.fl.hooks import ConfiguredDefense, Turn


@dataclass(frozen=True)
class RelaxLoss(ConfiguredDefense):
    """Keeps the training loss near a target: up where it is below, flatter predictions in turn.

    In rounds 1, 3, 5, ... a step minimises the distance of the batch's mean loss from the
    target. In rounds 2, 4, 6, ... it minimises the loss where that is above the target; below,
    predictions are flattened: what misclassified samples give to other classes is evened out.

    Attributes:
        target_loss: The mean loss aimed at, in nats, at least 0; 0 trains as if undefended.
            Published: 1 for CIFAR-10, 3 for CIFAR-100, 0.8 for Purchase.
        upper: Largest probability of the own class in a flattened label, in [0, 1]. Published:
            1, 1 and 0.3 for the same three.
        form: How predictions are flattened: "images" also raises the loss of all samples
            there and flattens misclassified ones alone, "tables" flattens all and raises none.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.RelaxLoss(target_loss=1.0).target_loss
        1.0

    Source: RelaxLoss (Chen et al. 2022), algorithm 1 and its published code (which has a form
        each for images and tables); CoFedMID, appendix E.
    Differs: Branches take turns by round. By local epoch, as in the centralised original, a
        client with one epoch a round would only ever see the first. The flattened label keeps
        its graph, as in the published code.
    """

    target_loss: AtLeastZero
    upper: Fraction = 1.0
    form: Literal["images", "tables"] = "images"

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one."""
        return super().acts_in(hook) and self.target_loss > 0

    @property
    def needs_classes(self) -> bool:
        """Wherever it acts."""
        return self.acts_in("loss")

    @property
    def always_acts(self) -> bool:
        """Acts where a batch's mean loss is at most the target."""
        return False

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: the branch of this round and of this batch's mean loss."""
        if self.target_loss == 0:
            return super().loss(outputs, batch, turn)
        labels = hard_labels(batch, "relaxloss")
        each = turn.received.architecture.loss(outputs, labels)
        mean = each.mean()
        # Above the target both branches descend as without a defense.
        turn.note("acted", (mean.detach() <= self.target_loss).long().reshape(1))
        if turn.round % 2 == 1:
            return (mean - self.target_loss).abs()
        if mean > self.target_loss:
            return mean
        flat = _flattening(outputs, labels, self.upper)
        if self.form == "tables":
            return flat.mean()
        wrong = outputs.argmax(dim=1) != labels
        return (wrong * flat - each).mean()


def _flattening(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], upper: float
) -> Float[Tensor, " samples"]:
    """Cross-entropy with the model's own (clipped) confidence and an even remainder."""
    own = true_probability(outputs, labels).clamp(0, upper)
    targets = soft_target(own, labels, classes=outputs.shape[1])
    return -(targets * functional.log_softmax(outputs, dim=1)).sum(dim=1)
