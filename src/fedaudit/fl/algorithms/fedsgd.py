"""FedSGD: clients send the gradient of all their data, the server takes the step."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedaudit.core import ClientId, Model, Params, Samples
from fedaudit.defenses.base import Defense, Visit, Workload
from fedaudit.errors import BadInput, unknown_name
from fedaudit.fl.algorithms.base import Local
from fedaudit.fl.algorithms.fedavg import rebuilt
from fedaudit.fl.algorithms.one_model import OneModel
from fedaudit.fl.training.full_batch import full_gradient
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Exposed, Gradient, Sent, Update, Upload
from fedaudit.params import plus, scaled, weighted_sum

_TOGETHER = ("mean", "sum")


@dataclass(frozen=True)
class FedSGD(OneModel):
    """The server descends along the clients' gradients; nobody trains locally.

    Attributes:
        architecture: Of the one global model.
        training: The learning rate of the server's steps, and a weight decay, which the server
            adds to every gradient. There are no epochs, no batches and no schedule, and nothing
            for momentum to act on.
        together: "mean" weighs gradients by data size, "sum" adds them up as they are.

    Source: McMahan et al. 2017, section 2 (FederatedSGD); SIA, Algorithm 1.
    Differs: Gradients are averaged unless a sum is asked for, as in McMahan et al. and in SIA's
        text; line 10 of its Algorithm 1 prints a sum. The published code of SIA trains one local
        epoch in mini-batches, which is FedAvg with ``epochs = 1``, "legacy-fedsgd" in the
        catalogue.
    """

    training: LocalTraining
    together: str = "mean"

    def __post_init__(self) -> None:
        if self.together not in _TOGETHER:
            raise unknown_name("way to put gradients together", self.together, _TOGETHER)
        how = self.training
        given = (how.epochs, how.momentum, how.optimizer, how.schedule)
        if given != (1, 0.0, "sgd", "constant"):
            raise BadInput(
                "FedSGD takes one plain step a round, along the gradient of all data: epochs is 1, "
                "momentum 0, the optimizer sgd and the schedule constant, got "
                f"{', '.join(map(str, given))}; for local training use fedavg"
            )

    @property
    def upload_kind(self) -> type[Upload]:
        """Clients send gradients."""
        return Gradient

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """The gradient of the mean loss over all data at the received model."""
        turn = visit.at(sent.model)
        gradient = full_gradient(sent.model, data, defense, turn)
        return Local(defense.upload(gradient, turn), memory)

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """One step along the gradients, put together."""
        clients = sorted(uploads)
        shares = [weights[client] for client in clients]
        gradients = [received_gradient(uploads[client]) for client in clients]
        along = shares if self.together == "mean" else [1.0] * len(clients)
        before = Model.from_tensors(self.architecture, state)
        direction = weighted_sum([gradient.values for gradient in gradients], along)
        buffers = [gradient.buffers for gradient in gradients]
        return self.moved(before, self._step(before, direction), buffers, shares)

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        """The model that the server's step along one client's gradient alone would give.

        Source: SIA, Algorithm 1, line 6.
        """
        exposed = {}
        for client, upload in sorted(uploads.items()):
            base, gradient = sent[client].model, received_gradient(upload)
            update = Update(self._step(base, gradient.values), gradient.buffers)
            scale = gradient.samples / self.training.lr if gradient.samples else None
            exposed[client] = rebuilt(base, update, scale)
        return exposed

    def workload(self, rounds: int, samples: int) -> Workload:
        """One step over everything in every round."""
        return Workload(rounds=rounds, epochs=1, batch_size=samples, samples=samples)

    def _step(self, base: Model, gradient: Params) -> Params:
        decayed = plus(gradient, base.params, self.training.weight_decay)
        return scaled(decayed, -self.training.lr)


def received_gradient(upload: Upload) -> Gradient:
    """The upload as a gradient.

    Raises:
        TypeError: It is of another kind.
    """
    if not isinstance(upload, Gradient):
        raise TypeError(f"FedSGD steps along gradients, got a {type(upload).__name__}")
    return upload
