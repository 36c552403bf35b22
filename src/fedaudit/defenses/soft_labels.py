"""Soft labels, and loss terms that penalise confident predictions."""

from functools import cache
from math import log

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import Batch
from fedaudit.fl.hooks import TrainingContext


def entropy(outputs: Float[Tensor, "samples classes"]) -> Float[Tensor, " samples"]:
    """Compute the entropy of each sample's prediction in nats, from 0 to ln(classes)."""
    log_p = functional.log_softmax(outputs, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def divergence_per_class(
    outputs: Float[Tensor, "samples classes"], targets: Float[Tensor, "samples classes"]
) -> Float[Tensor, " samples"]:
    """Compute KL(target || prediction) of each sample in nats, divided by the number of classes.

    HAMP's code uses ``kl_div(reduction="mean")``, which divides by the number of samples times the
    number of classes. The published weights of the other loss terms assume this scale.

    Args:
        outputs: Outputs before the softmax.
        targets: One row of class probabilities per sample.

    Source: Chen and Pattabiraman 2024 (HAMP), published code (``kl_div`` with reduction "mean").
    """
    log_p = functional.log_softmax(outputs, dim=1)
    return functional.kl_div(log_p, targets, reduction="none").mean(dim=1)


def soft_label_gradient(
    outputs: Float[Tensor, "samples classes"],
    targets: Float[Tensor, "samples classes"],
    *,
    entropy_weight: float,
) -> Float[Tensor, "samples classes"]:
    """Compute the gradient of the soft-label loss with respect to the logits.

    The loss is the divergence from the soft labels minus the weighted entropy:
    ``divergence_per_class(outputs, targets) - entropy_weight * entropy(outputs)``. Targets do not
    depend on the outputs.
    """
    log_p = outputs.log_softmax(1)
    probabilities = log_p.exp()
    # With H the entropy, the derivatives are (p - target) / classes for the divergence (targets
    # add up to 1), and -p (log p + H) for the entropy.
    negative_entropy = (probabilities * log_p).sum(1, keepdim=True)
    gradient = probabilities * (log_p - negative_entropy)
    return gradient.mul_(entropy_weight).add_(probabilities - targets, alpha=1 / outputs.shape[1])


def true_probability(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """Return the predicted probability of each sample's true class; it is differentiable."""
    return functional.softmax(outputs, dim=1).gather(1, labels[:, None].long())[:, 0]


def class_count(context: TrainingContext, features: Shaped[Tensor, "samples ..."]) -> int:
    """Return the model's number of classes, from its settings or from the width of its output."""
    classes = dict(context.received.architecture.settings).get("classes")
    # A setting of 1 means one output for two classes.
    if isinstance(classes, int) and classes > 1:
        return classes
    return outputs_of(context.received, features[:1], context.device).shape[1]


def one_hot(labels: Int[Tensor, " samples"], *, classes: int) -> Float[Tensor, "samples classes"]:
    """Return one-hot class probabilities; labels out of range raise an error."""
    zeros = torch.zeros(len(labels), classes, device=labels.device)
    return zeros.scatter(1, labels[:, None].long(), 1.0)


def soft_target(
    probability: Float[Tensor, " samples"], labels: Int[Tensor, " samples"], *, classes: int
) -> Float[Tensor, "samples classes"]:
    """Return soft labels: a given probability for the true class, the rest split over the others.

    Args:
        probability: Probability of each sample's true class. Gradients flow through it unless it is
            detached.
        labels: True class of each sample.
        classes: Number of classes, at least 2.
    """
    if classes < 2:
        raise BadInput(f"a soft label needs at least 2 classes, got {classes}")
    other_probabilities = ((1 - probability) / (classes - 1))[:, None].expand(-1, classes)
    return other_probabilities.scatter(1, labels[:, None].long(), probability[:, None])


def label_of_entropy(classes: int, threshold: float) -> Float[Tensor, " classes"]:
    """Return the most confident soft label with an entropy of at least ``threshold * ln(classes)``.

    The first class is the true one. Its probability is the largest multiple of 0.01 with which the
    entropy is sufficient; all other classes have equal probabilities. The true class never has a
    lower probability than the others.

    Args:
        classes: Number of classes, at least 2.
        threshold: Smallest entropy, divided by the largest possible one, in [0, 1]: 0 gives a hard
            label, 1 a uniform label.

    Source: Chen and Pattabiraman 2024 (HAMP), high-entropy soft labels, as in its published code.
    Differs: If no step of 0.01 reaches the threshold, the label is uniform; the published code does
        not terminate.
    """
    probability = torch.tensor([_probability_for_entropy(classes, threshold)])
    return soft_target(probability, torch.tensor([0]), classes=classes)[0]


@cache
def _probability_for_entropy(classes: int, threshold: float) -> float:
    # Cached, since every training step calls this.
    if classes < 2 or not 0 <= threshold <= 1:
        raise BadInput(
            f"a soft label needs at least 2 classes and a threshold in [0, 1], got {classes} "
            f"and {threshold}"
        )
    for hundredths in range(100, 100 // classes, -1):
        p = hundredths / 100
        other = (1 - p) / (classes - 1)
        label_entropy = -p * log(p)
        if other > 0:
            label_entropy -= (1 - p) * log(other)
        if label_entropy >= threshold * log(classes):
            return p
    return 1 / classes


def require_class_indices(batch: Batch, defense: str) -> Int[Tensor, " samples"]:
    """Return the batch's labels as class indices.

    Raises:
        Unsupported: The labels are class probabilities.
    """
    if batch.y.is_floating_point():
        raise Unsupported(
            f"the defense {defense!r} needs the class of each sample, but another defense has "
            "replaced labels by class probabilities; remove the defense that mixes labels"
        )
    return batch.y
