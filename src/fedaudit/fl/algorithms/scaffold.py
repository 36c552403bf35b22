"""SCAFFOLD: local steps that are corrected by control variates, which clients send."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

import torch

from fedaudit.core import arguments
from fedaudit.core.errors import BadInput
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
from fedaudit.fl.algorithms.fedavg import FedAvg, as_update, participating_share, update_of
from fedaudit.fl.algorithms.fedsgd import full_gradient
from fedaudit.fl.hooks import (
    TRAINING_HOOKS,
    UNDEFENDED,
    ClientContext,
    DataUse,
    Defense,
    TrainingContext,
    apply_upload_hook,
)
from fedaudit.fl.training.local import AddedTerms, train
from fedaudit.observe.round import Sent, Upload

CONTROL = "control/"
"""Prefix of the names of control variates in messages, uploads and the states of clients and
server.
"""


@arguments.dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg whose clients correct each step by the difference of two control variates.

    A control variate is a mean gradient: c_i of client i, and c of all clients. Each local step
    follows the gradient plus c - c_i. Clients send the change of c_i in ``Update.extra``, and keep
    c_i until their next round.

    Defenses of the upload do not change what is sent of c_i, so their guarantees do not hold.

    Attributes:
        option: New control variate of a client. "II": mean of the gradients of its local steps.
            "I": gradient over all its samples at the received model. Defenses of training do not
            act on this gradient.
        sizes: Data sizes of all clients, so that the server can weight the changes of those that
            take part in a round. Empty if all clients take part in each round.

    Source: Karimireddy et al. 2020 ("SCAFFOLD: Stochastic Controlled Averaging for Federated
        Learning"), Algorithm 1.
    Differs: Clients are weighted by data size, as in FedAvg, and the server's learning rate is 1.
        Buffers are averaged.
    """

    option: Literal["I", "II"] = "II"
    sizes: Mapping[ClientId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.training.optimizer, self.training.momentum) != ("sgd", 0.0):
            raise BadInput(
                "SCAFFOLD's control variates are mean gradients of SGD steps without momentum, got "
                f"the optimizer {self.training.optimizer} with momentum {self.training.momentum}; "
                "use sgd with momentum 0, or another algorithm, such as feddyn"
            )

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Hooks of defenses that do not change the control variates."""
        return ("upload",) if self.option == "II" else ("upload", *TRAINING_HOOKS[1:])

    def with_sizes(self, sizes: Mapping[ClientId, int]) -> "Scaffold":
        return replace(self, sizes=sizes)

    def start(self, seed: int) -> Params:
        model = super().start(seed)
        params = Model.from_tensors(self.architecture, model).params
        return model | _named({name: torch.zeros_like(value) for name, value in params.items()})

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Send the global model and the server's control variate."""
        sent = super().send(_model_state(state), client, round)
        return replace(sent, extra=_named(with_prefix(state, CONTROL)))

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train with corrected steps, and upload the changes of model and control variate.

        The client adds the change that it has sent to its control variate. If a custom defense
        changes it, the control variates of clients and server still match.
        """
        context = client_context.with_model(sent.model)
        server_control, client_control = (
            with_prefix(sent.extra, CONTROL),
            self.control_variate(client_state),
        )
        if not client_control:
            client_control = {
                name: torch.zeros_like(value) for name, value in server_control.items()
            }
        correction = difference(server_control, client_control)
        terms = AddedTerms(correction=correction)
        trained = train(sent.model, data, self.training, defense, context, terms=terms)
        if self.option == "I":
            change = difference(self._gradient(data, context), client_control)
        else:
            change = self._mean_change(server_control, trained, context)
        update = update_of(sent.model, trained, samples=len(data), extra=_named(change))
        upload = as_update(apply_upload_hook(defense, update, context))
        # The client receives the server's control variate, and sends a tensor of the same size.
        size = sum(value.nbytes for value in client_control.values())
        context.note("extra_bytes", torch.tensor([2 * size]))
        return LocalResult(
            upload, _named(add_scaled(client_control, with_prefix(upload.extra, CONTROL)))
        )

    def _mean_change(self, of_server: Params, trained: Model, context: TrainingContext) -> Params:
        """Return the change to the mean gradient of the local steps (option II)."""
        steps = context.times_noted("used")
        if not steps:
            return scaled(of_server, 0.0)
        total_rate = steps * self.training.rate(context.round, context.rounds)
        update = difference(trained.params, context.received.params)
        return add_scaled(scaled(of_server, -1.0), update, -1 / total_rate)

    def _gradient(self, data: Samples, context: TrainingContext) -> Params:
        """Return the gradient over all samples at the received model (option I)."""
        separate = context.separate("control variate").with_model(context.received)
        gradient = full_gradient(context.received, data, UNDEFENDED, separate).values
        return add_scaled(gradient, context.received.params, self.training.weight_decay)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Add the mean change of the model, and that of the control variate over all clients."""
        clients = sorted(uploads)
        share = participating_share(clients, self.sizes)
        change = weighted_sum(
            (with_prefix(as_update(uploads[client]).extra, CONTROL) for client in clients),
            [share * weights[client] for client in clients],
        )
        control = add_scaled(with_prefix(state, CONTROL), change)
        return super().aggregate(_model_state(state), uploads, weights) | _named(control)

    def models(self, state: Params) -> Mapping[str, Model]:
        return super().models(_model_state(state))

    def control_variate(self, client_state: Params) -> Params:
        return with_prefix(client_state, CONTROL)

    def data_use(self, rounds: int, samples: int) -> DataUse:
        return replace(super().data_use(rounds, samples), uncovered=self.uncovered)


def _named(control: Params) -> Params:
    return {f"{CONTROL}{name}": value for name, value in control.items()}


def _model_state(state: Params) -> Params:
    return {name: value for name, value in state.items() if not name.startswith(CONTROL)}
