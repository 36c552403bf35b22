"""FedAdam: clients train as in FedAvg, the server takes an Adam step along their mean change."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedaudit.core import ClientId, Model, Params
from fedaudit.errors import BadInput
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.observe.round import Sent, Upload

_MEANS, _SQUARES = "means/", "squares/"


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Averages the clients' updates and moves by Adam's rule along the average.

    Attributes:
        architecture: Of the one global model.
        training: Each client's local training.
        server_lr: eta, the server's learning rate, above 0.
        beta1: Share of the last mean change that is kept, in [0, 1).
        beta2: Share of the last mean square that is kept, in [0, 1).
        adaptivity: tau, above 0: added to the root of the mean square.

    Source: Reddi et al. 2021 ("Adaptive Federated Optimization"), Algorithm 2 (FedAdam), with its
        v_{-1} = tau^2 and no correction of the bias.
    """

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        shares = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if not (shares and self.server_lr > 0 and self.adaptivity > 0):
            raise BadInput(
                "FedAdam needs server_lr and adaptivity above 0, beta1 and beta2 in [0, 1), got "
                f"{self.server_lr}, {self.adaptivity}, {self.beta1} and {self.beta2}"
            )

    def start(self, seed: int) -> Params:
        """A freshly initialised global model, and Adam's means."""
        model = super().start(seed)
        params = Model.from_tensors(self.architecture, model).params
        means = {_MEANS + name: torch.zeros_like(value) for name, value in params.items()}
        least = self.adaptivity**2
        squares = {_SQUARES + n: torch.full_like(value, least) for n, value in params.items()}
        return model | means | squares

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Everybody gets the global model, without the means."""
        return super().send(_model(state), client, round)

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """One step of Adam along the weighted mean of the updates."""
        averaged = Model.from_tensors(
            self.architecture, super().fold(_model(state), uploads, weights)
        )
        before = Model.from_tensors(self.architecture, _model(state))
        params, after = {}, dict[str, torch.Tensor]()
        for name, value in before.params.items():
            change = averaged.params[name] - value
            mean = self.beta1 * state[_MEANS + name] + (1 - self.beta1) * change
            square = self.beta2 * state[_SQUARES + name] + (1 - self.beta2) * change.square()
            params[name] = value + self.server_lr * mean / (square.sqrt() + self.adaptivity)
            after |= {_MEANS + name: mean, _SQUARES + name: square}
        return Model(self.architecture, params, averaged.buffers).tensors() | after

    def models(self, state: Params) -> Mapping[str, Model]:
        """The one global model."""
        return super().models(_model(state))


def _model(state: Params) -> Params:
    return {n: value for n, value in state.items() if not n.startswith((_MEANS, _SQUARES))}
