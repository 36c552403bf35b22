"""Signals from a model's outputs: what anybody who can query the model could measure."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import Sees
from fedaudit.signals.base import Seen


@dataclass(frozen=True)
class Loss:
    """Minus the loss of the client's model after training.

    Source: Yeom et al. 2018 (threshold on the loss); FedMIA section 3.2 takes it as one of its
        two measurements.
    """

    name = "loss"
    needs = Sees.PREDICTIONS

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.signals.base.Signal`."""
        return torch.stack(
            [
                -model.architecture.loss(outputs, seen.samples.labels).double()
                for model, outputs in zip(seen.local_models, seen.outputs, strict=True)
            ]
        )


@dataclass(frozen=True)
class Confidence:
    """Probability that the client's model after training gives to the true class.

    Source: CoFedMID section 5.1 (FTA-C follows it over rounds).
    """

    name = "confidence"
    needs = Sees.PREDICTIONS

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.signals.base.Signal`."""
        labels = seen.samples.labels[:, None]
        return torch.stack(
            [out.double().softmax(1).gather(1, labels).squeeze(1) for out in seen.outputs]
        )
