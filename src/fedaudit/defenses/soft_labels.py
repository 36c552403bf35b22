"""Labels that admit doubt, and the losses by which a client is kept from being too sure."""

from functools import cache
from math import log

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import Batch
from fedaudit.fl.hooks import Turn


def entropy(outputs: Float[Tensor, "samples classes"]) -> Float[Tensor, " samples"]:
    """Entropy of each sample's prediction in nats; 0 for a certain one, ln(classes) at most."""
    logs = functional.log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(dim=1)


def divergence_per_class(
    outputs: Float[Tensor, "samples classes"], targets: Float[Tensor, "samples classes"]
) -> Float[Tensor, " samples"]:
    """KL(target || prediction) of each sample in nats, divided by the number of classes.

    Its mean is the Kullback-Leibler loss of published code, whose default reduction divides by
    samples times classes; weights of other terms were chosen beside that scale.

    Args:
        outputs: Before the softmax.
        targets: One row of class probabilities a sample.

    Source: HAMP, published code (``kl_div`` with reduction "mean").
    """
    logs = functional.log_softmax(outputs, dim=1)
    return functional.kl_div(logs, targets, reduction="none").mean(dim=1)


def slope_of_doubt(
    outputs: Float[Tensor, "samples classes"],
    targets: Float[Tensor, "samples classes"],
    *,
    entropy_weight: float,
) -> Float[Tensor, "samples classes"]:
    """The derivative by the outputs of a divergence from soft labels with entropy rewarded.

    That is, of ``divergence_per_class(outputs, targets) - entropy_weight * entropy(outputs)``.

    Args:
        outputs: Before the softmax.
        targets: One row of class probabilities a sample, which do not depend on the outputs.
        entropy_weight: Of the prediction's entropy.

    Returns:
        Of each sample's value by its own outputs.
    """
    logs = outputs.log_softmax(1)
    sure = logs.exp()
    # d divergence = (p - target) / classes, since targets add up to 1; d entropy = -p (log p + H).
    doubt = (sure * logs).sum(1, keepdim=True)
    slope = sure * (logs - doubt)
    return slope.mul_(entropy_weight).add_(sure - targets, alpha=1 / outputs.shape[1])


def true_probability(
    outputs: Float[Tensor, "samples classes"], labels: Int[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """The probability that the model gives to each sample's own class, with its graph."""
    return functional.softmax(outputs, dim=1).gather(1, labels[:, None].long())[:, 0]


def class_count(turn: Turn, features: Shaped[Tensor, "samples ..."]) -> int:
    """Number of classes of the model: from its settings, or else from an output."""
    named = dict(turn.received.architecture.settings).get("classes")
    # One output stands for two classes.
    if isinstance(named, int) and named > 1:
        return named
    return outputs_of(turn.received, features[:1], turn.device).shape[1]


def hard_target(
    labels: Int[Tensor, " samples"], *, classes: int
) -> Float[Tensor, "samples classes"]:
    """Class probabilities that are 1 for each sample's own class; a label beyond is an error."""
    nothing = torch.zeros(len(labels), classes, device=labels.device)
    return nothing.scatter(1, labels[:, None].long(), 1.0)


def soft_target(
    probability: Float[Tensor, " samples"], labels: Int[Tensor, " samples"], *, classes: int
) -> Float[Tensor, "samples classes"]:
    """Class probabilities with the given one for the own class and equal ones for the rest.

    Args:
        probability: Of each sample's own class; gradients flow through it unless it is detached.
        labels: Each sample's own class.
        classes: How many there are, at least 2.
    """
    if classes < 2:
        raise BadInput(f"a soft label needs at least 2 classes, got {classes}")
    rest = ((1 - probability) / (classes - 1))[:, None].expand(-1, classes)
    return rest.scatter(1, labels[:, None].long(), probability[:, None])


def label_of_entropy(classes: int, threshold: float) -> Float[Tensor, " classes"]:
    """The surest soft label, own class first, whose entropy reaches a share of the largest one.

    The own class's probability falls from 1 in steps of 0.01, the rest being equal, until the
    entropy is at least ``threshold * ln(classes)``; it never falls below that of the rest.

    Args:
        classes: How many there are, at least 2.
        threshold: Share of the largest entropy, in [0, 1]: 0 is a hard label, 1 a uniform one.

    Source: HAMP (Chen and Pattabiraman 2024), high-entropy soft labels, as in its published code.
    Differs: Where no step of 0.01 reaches the threshold, the label is uniform; the published
        code does not end.
    """
    own = torch.tensor([_surest(classes, threshold)])
    return soft_target(own, torch.tensor([0]), classes=classes)[0]


@cache
def _surest(classes: int, threshold: float) -> float:
    """The own class's probability in :func:`label_of_entropy`; kept, since every step asks."""
    if classes < 2 or not 0 <= threshold <= 1:
        raise BadInput(
            f"a soft label needs at least 2 classes and a threshold in [0, 1], got {classes} "
            f"and {threshold}"
        )
    for hundredths in range(100, 100 // classes, -1):
        own, rest = hundredths / 100, (1 - hundredths / 100) / (classes - 1)
        reached = -own * log(own) - (rest and (1 - own) * log(rest))
        if reached >= threshold * log(classes):
            return own
    return 1 / classes


def hard_labels(batch: Batch, defense: str) -> Int[Tensor, " samples"]:
    """The batch's labels as classes.

    Args:
        batch: Whose labels may have been mixed by another defense.
        defense: Which defense asks, for the refusal.

    Raises:
        Unsupported: They are class probabilities.
    """
    if batch.y.is_floating_point():
        raise Unsupported(
            f"the defense {defense!r} needs to know each sample's class, but another defense "
            "has made the labels class probabilities; leave out the one that mixes labels"
        )
    return batch.y
