"""HAMP: soft labels and a reward for doubt keep a model from being too sure of its data."""

from torch import Tensor

from fedaudit.core.arguments import AtLeastZero, Fraction, dataclass
from fedaudit.core.values import Batch
from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    hard_labels,
    label_of_entropy,
    slope_of_doubt,
    soft_target,
)
from fedaudit.fl.hooks import ConfiguredDefense, Turn


@dataclass(frozen=True)
class Hamp(ConfiguredDefense):
    """Trains towards soft labels of a given entropy and rewards entropy in predictions.

    The published loss is smaller than a cross-entropy by the number of classes and was used
    with learning rates of 0.5 to 1. Where defended and undefended clients share one learning
    rate, set ``divide_by_classes`` to false, or defended clients hardly train.

    With both numbers 0 and without that division, clients train as if undefended.

    Attributes:
        entropy_threshold: Entropy of the labels as a share of the largest one, in [0, 1];
            0 leaves labels hard. Published: 0.5 for CIFAR-100, 0.95 for CIFAR-10, 0.8 for
            Purchase.
        entropy_weight: Weight of the prediction's entropy, in nats, beside the published
            divergence; 0 for none. Published: 0.005, 0.001 and 0.01 for the same three.
        divide_by_classes: Whether the loss has the published scale; false multiplies all of it
            by the number of classes, so that both terms keep their ratio.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.Hamp(entropy_threshold=0.5, entropy_weight=0.005).divide_by_classes
        True

    Source: HAMP (Chen and Pattabiraman, NDSS 2024), training part and its published code;
        CoFedMID, appendix E, which uses that part alone.
    Differs: Outputs at test time are left as they are, since attacks read the model.
    """

    entropy_threshold: Fraction
    entropy_weight: AtLeastZero
    divide_by_classes: bool = True

    @property
    def neutral(self) -> bool:
        """True if clients train as if undefended."""
        return self.entropy_threshold == self.entropy_weight == 0 and not self.divide_by_classes

    def acts_in(self, hook: str) -> bool:
        """True if the named hook does more than the neutral one."""
        return super().acts_in(hook) and not self.neutral

    @property
    def needs_classes(self) -> bool:
        """Wherever it acts."""
        return not self.neutral

    def loss(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor:
        """Each step: the divergence from the soft labels, minus the weighted entropy."""
        if self.neutral:
            return super().loss(outputs, batch, turn)
        divergence = divergence_per_class(outputs, self._targets(outputs, batch)).mean()
        return self._scale(outputs) * (divergence - self.entropy_weight * entropy(outputs).mean())

    def slope(self, outputs: Tensor, batch: Batch, turn: Turn) -> Tensor | None:
        """Each step: the derivative of the loss, times the number of samples."""
        if self.neutral:
            return None
        targets = self._targets(outputs, batch)
        slope = slope_of_doubt(outputs, targets, entropy_weight=self.entropy_weight)
        return slope.mul_(self._scale(outputs))

    def _scale(self, outputs: Tensor) -> int:
        return 1 if self.divide_by_classes else outputs.shape[1]

    def _targets(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels, classes = hard_labels(batch, "hamp"), outputs.shape[1]
        own = label_of_entropy(classes, self.entropy_threshold)[0].to(outputs)
        return soft_target(own.expand(len(labels)), labels, classes=classes)
