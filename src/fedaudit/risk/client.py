"""Risk as a client finds it out by itself: no shadow models, no trust in the server.

A client knows its own model, and which of its samples it held out. Where losses best tell the two
apart in its own model is where it draws the line in the models that it is sent.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedaudit.risk.base import best_threshold, refuse_unusable


@dataclass(frozen=True)
class ByLoss:
    """A client's own attack, as an algorithm takes it."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """See :func:`threshold_of`."""
        return threshold_of(trained, held_out)

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """See :func:`risk_of`."""
        return risk_of(trained, held_out, line)


def threshold_of(trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]) -> float:
    """The loss up to which samples are best taken for members of the client's own model.

    Args:
        trained: Losses in that model of samples that it was trained on.
        held_out: Losses of samples of the same client that it was not trained on.

    Returns:
        One of these losses, the lowest of those with the largest balanced accuracy; minus
        infinity, at which nobody is taken for a member, if that is the best.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, section 5.7, which names the idea only; the threshold on the loss is that of
        Yeom et al. 2018.
    """
    return -best_threshold(-trained.double(), -held_out.double())


def risk_of(
    trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"], threshold: float
) -> float:
    """Balanced accuracy of a client's threshold on a model that it was sent.

    Args:
        trained: Losses in that model of samples that the client trains on.
        held_out: Losses of the samples that it holds out.
        threshold: Samples with this loss or less are taken for members; see :func:`threshold_of`.

    Returns:
        A share; 0.5 is what a guess gets right.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, Eqs. (8)-(10).
    """
    refuse_unusable(trained, held_out)
    # In 64 bits: a threshold is not rounded to the losses' precision first.
    caught = int((trained.double() <= threshold).sum())
    cleared = int((held_out.double() > threshold).sum())
    return (caught / len(trained) + cleared / len(held_out)) / 2
