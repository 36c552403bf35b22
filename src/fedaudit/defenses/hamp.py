"""HAMP: training with soft labels and a reward for uncertain predictions."""

from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, Fraction, dataclass
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    label_of_entropy,
    require_class_indices,
    soft_label_gradient,
    soft_target,
)
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext


@dataclass(frozen=True)
class Hamp(ConfiguredDefense):
    """Training with soft labels of a given entropy, and a reward for the predictions' entropy.

    The published loss is divided by the number of classes, and was used with learning rates of 0.5
    to 1. If defended and undefended clients have the same learning rate, set ``divide_by_classes``
    to false, since defended clients otherwise learn very slowly.

    If threshold and weight are 0 and there is no division, the defense is off.

    Attributes:
        entropy_threshold: Entropy of the labels, divided by the largest possible entropy, in
            [0, 1]; with 0, labels are not changed. Published: 0.5 for CIFAR-100, 0.95 for CIFAR-10,
            0.8 for Purchase.
        entropy_weight: Weight of the prediction's entropy, in nats, relative to the published
            divergence; 0 for none. Published: 0.005, 0.001 and 0.01 for these three data sets.
        divide_by_classes: Whether the loss is divided by the number of classes, as published.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Hamp(entropy_threshold=0.5, entropy_weight=0.005).divide_by_classes
        True

    Source: Chen and Pattabiraman 2024 (HAMP), training and its published code; Bai et al. 2026
        (CoFedMID), appendix E, which also uses only the training.
    Differs: HAMP's changes of predictions at test time are not implemented, since attacks see the
        model itself.
    """

    entropy_threshold: Fraction
    entropy_weight: AtLeastZero
    divide_by_classes: bool = True

    @property
    def neutral(self) -> bool:
        """True if the settings turn the defense off."""
        return self.entropy_threshold == self.entropy_weight == 0 and not self.divide_by_classes

    def acts_in(self, hook: str) -> bool:
        return super().acts_in(hook) and not self.neutral

    @property
    def needs_class_labels(self) -> bool:
        return not self.neutral

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        if self.neutral:
            return super().loss(outputs, batch, context)
        divergence = divergence_per_class(outputs, self._targets(outputs, batch)).mean()
        return self._scale(outputs) * (divergence - self.entropy_weight * entropy(outputs).mean())

    def slope(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor | None:
        if self.neutral:
            return None
        targets = self._targets(outputs, batch)
        slope = soft_label_gradient(outputs, targets, entropy_weight=self.entropy_weight)
        return slope.mul_(self._scale(outputs))

    def _scale(self, outputs: Tensor) -> int:
        return 1 if self.divide_by_classes else outputs.shape[1]

    def _targets(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels, classes = require_class_indices(batch, "hamp"), outputs.shape[1]
        probability = label_of_entropy(classes, self.entropy_threshold)[0].to(outputs)
        return soft_target(probability.expand(len(labels)), labels, classes=classes)
