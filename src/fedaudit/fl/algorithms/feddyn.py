"""FedDyn: dynamic regularisation of local training by tensors that clients keep."""

from collections.abc import Mapping
from dataclasses import field, replace

import torch

from fedaudit.core import arguments
from fedaudit.core.arguments import AtLeastZero
from fedaudit.core.values import (
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    difference,
    scaled,
    weighted_sum,
    with_prefix,
)
from fedaudit.fl.algorithms.base import LocalResult
from fedaudit.fl.algorithms.fedavg import FedAvg, participating_share, update_of
from fedaudit.fl.hooks import ClientContext, Defense, apply_upload_hook
from fedaudit.fl.training.local import AddedTerms, train
from fedaudit.observe.round import Sent, Upload

_GRADIENT, _H = "gradient/", "h/"


@arguments.dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedAvg with a regulariser that each client updates after its rounds.

    A client minimises its loss minus <g, w>, plus alpha / 2 times the squared distance of w from
    the received model. It keeps g, which starts at zero and decreases by alpha times the client's
    update in each of its rounds. The server keeps the mean h of all clients' g, and subtracts
    h / alpha from the mean model. Clients send only updates.

    Attributes:
        alpha: Weight of the regulariser, at least 0; 0 gives FedAvg, without the server's
            correction.
        sizes: Data sizes of all clients, so that the server can weight the updates of those that
            take part in a round. Empty if all clients take part in each round.

    Source: Acar et al. 2021 ("Federated Learning Based on Dynamic Regularization"), Algorithm 1.
    Differs: Clients take a fixed number of steps instead of minimising the objective, and are
        weighted by data size, as in FedAvg. Buffers are averaged.
    """

    alpha: AtLeastZero = 0.01
    sizes: Mapping[ClientId, int] = field(default_factory=dict)

    def with_sizes(self, sizes: Mapping[ClientId, int]) -> "FedDyn":
        return replace(self, sizes=sizes)

    def start(self, seed: int) -> Params:
        model = super().start(seed)
        params = Model.from_tensors(self.architecture, model).params
        return model | {f"{_H}{name}": torch.zeros_like(v) for name, v in params.items()}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return super().send(_model_state(state), client, round)

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train with the regulariser, and upload the change of the model."""
        context = client_context.with_model(sent.model)
        gradient = with_prefix(client_state, _GRADIENT)
        if not gradient:
            gradient = {name: torch.zeros_like(v) for name, v in sent.model.params.items()}
        terms = AddedTerms(self.alpha, correction=scaled(gradient, -1.0))
        trained = train(sent.model, data, self.training, defense, context, terms=terms)
        change = difference(trained.params, sent.model.params)
        client_state = {
            f"{_GRADIENT}{n}": v for n, v in add_scaled(gradient, change, -self.alpha).items()
        }
        update = update_of(sent.model, trained, samples=len(data))
        return LocalResult(apply_upload_hook(defense, update, context), client_state)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Average the models, and subtract the updated h / alpha."""
        clients = sorted(uploads)
        share = participating_share(clients, self.sizes)
        mean = Model.from_tensors(
            self.architecture, super().aggregate(_model_state(state), uploads, weights)
        )
        change = weighted_sum(
            (uploads[client].values for client in clients),
            [share * weights[client] for client in clients],
        )
        h = add_scaled(with_prefix(state, _H), change, -self.alpha)
        if self.alpha:
            mean = replace(mean, params=add_scaled(mean.params, h, -1 / self.alpha))
        return mean.tensors() | {f"{_H}{name}": value for name, value in h.items()}

    def models(self, state: Params) -> Mapping[str, Model]:
        return super().models(_model_state(state))


def _model_state(state: Params) -> Params:
    return {name: value for name, value in state.items() if not name.startswith(_H)}
