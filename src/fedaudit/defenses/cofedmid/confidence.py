"""How confidence on samples that came back is held down: what their loss has beside the usual."""

from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    slope_of_doubt,
    soft_target,
    true_probability,
)


def unconfident(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, " samples"]:
    """What is added to the loss of each sample that came back.

    The prediction is drawn towards a label that has its own probability of the true class and is
    uniform elsewhere, and towards a larger entropy.

    Args:
        outputs: Before the softmax.
        labels: True classes.
        mu: Weight of the entropy.

    Source: CoFedMID, section 4.2.2.
    Differs: No gradient flows through the label; the divergence is divided by the number of
        classes (HAMP's published reduction, beside which mu was chosen).
    """
    return divergence_per_class(outputs, _doubtful(outputs, labels)) - mu * entropy(outputs)


def unconfident_slope(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"], *, mu: float
) -> Float[Tensor, "samples classes"]:
    """The derivative of each sample's :func:`unconfident` by its outputs.

    Args:
        outputs: Before the softmax.
        labels: True classes.
        mu: Weight of the entropy.
    """
    return slope_of_doubt(outputs, _doubtful(outputs, labels), entropy_weight=mu)


def _doubtful(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"]
) -> Float[Tensor, "samples classes"]:
    sure = true_probability(outputs.detach(), labels)
    return soft_target(sure, labels, classes=outputs.shape[1])
