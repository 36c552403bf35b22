"""FedNova: averaging of updates that are normalised by the amount of local training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model, Params, Samples, weighted_sum
from fedaudit.fl.algorithms.base import LocalResult
from fedaudit.fl.algorithms.fedavg import FedAvg, as_update, update_of
from fedaudit.fl.hooks import ClientContext, Defense, apply_upload_hook
from fedaudit.observe.round import Sent, Upload

STEPS = "steps"
"""Name of the number of local steps in ``Update.extra``."""


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg in which clients that take more local steps do not have more influence.

    The server divides each update by the norm of the client's step weights, and multiplies the
    average by the mean of these norms. For SGD without momentum, the norm is the number of steps.
    If all clients take the same number of steps, the algorithm is FedAvg.

    Clients send their number of steps in ``Update.extra``.

    Source: Wang et al. 2020 ("Tackling the Objective Inconsistency Problem in Heterogeneous
        Federated Optimization"), FedNova with local SGD or local momentum, and with the mean norm
        as the effective number of steps.
    Differs: Clients send the update and the number of steps instead of the normalised update, so
        that defenses change the update. The server divides it.
    """

    uncovered: ClassVar[tuple[str, ...]] = ()
    """Empty: like data sizes, which weight the average, numbers of steps are not protected."""

    def __post_init__(self) -> None:
        if self.training.optimizer != "sgd":
            raise BadInput(
                "FedNova normalises updates of SGD, with or without momentum, got the optimizer "
                f"{self.training.optimizer}; use sgd, or fedavg"
            )

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train the received model, and upload the change with the number of steps."""
        context = client_context.with_model(sent.model)
        trained = self.train_locally(data, defense, context)
        extra = {STEPS: torch.tensor(context.times_noted("used"))}
        update = update_of(sent.model, trained, samples=len(data), extra=extra)
        return LocalResult(apply_upload_hook(defense, update, context), client_state)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Add the mean of the normalised updates, times the effective number of steps."""
        clients = sorted(uploads)
        client_weights = [weights[client] for client in clients]
        norms = [
            step_weight_norm(int(as_update(uploads[client]).extra[STEPS]), self.training.momentum)
            for client in clients
        ]
        weighted_norms = zip(client_weights, norms, strict=True)
        effective = sum(weight * norm for weight, norm in weighted_norms)
        # A client without steps has an update of zero, or only a defense's noise.
        factors = [
            weight * (effective / norm) if norm else 0.0
            for weight, norm in zip(client_weights, norms, strict=True)
        ]
        before = Model.from_tensors(self.architecture, state)
        step = weighted_sum((uploads[client].values for client in clients), factors)
        buffers = (as_update(uploads[client]).buffers for client in clients)
        return self.apply_step(before, step, buffers, client_weights)


def step_weight_norm(steps: int, momentum: float) -> float:
    """Return the sum of the weights with which a client's update contains its step gradients.

    Args:
        steps: Number of local steps.
        momentum: Momentum of SGD, in [0, 1).

    Source: Wang et al. 2020: for momentum rho, the gradient of a step that is followed by k - 1
        others has the weight (1 - rho^k) / (1 - rho).
    """
    if momentum == 0:
        return float(steps)
    weights = ((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))
    return sum(weights, start=0.0)
