"""Federated averaging: clients train the global model, the server averages their changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedaudit.core import ClientId, Model, Params, Samples
from fedaudit.defenses.base import Defense, Turn, Visit, Workload
from fedaudit.fl.algorithms.base import Local
from fedaudit.fl.algorithms.one_model import OneModel
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.observe.round import Exposed, Sent, Update, Upload
from fedaudit.params import difference, plus, weighted_sum


@dataclass(frozen=True)
class FedAvg(OneModel):
    """Averages the clients' updates by data size.

    Attributes:
        architecture: Of the one global model.
        training: Each client's local training.

    Source: McMahan et al. 2017, Algorithm 1 (FederatedAveraging).
    Differs: Floating-point buffers (running statistics) are averaged too, integer ones are
        not; the published FedMIA code averages every entry of the state dictionary.
    """

    training: LocalTraining

    @property
    def upload_kind(self) -> type[Upload]:
        """Clients send updates."""
        return Update

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """Trains the received model and uploads the change."""
        turn = visit.at(sent.model)
        trained = self.trained(data, defense, turn)
        update = Update(
            difference(trained.params, sent.model.params), trained.buffers, samples=len(data)
        )
        return Local(defense.upload(update, turn), memory)

    def trained(self, data: Samples, defense: Defense, turn: Turn) -> Model:
        """The client's model after its local training."""
        return train(turn.received, data, self.training, defense, turn)

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Global model plus the weighted mean of the updates."""
        clients = sorted(uploads)
        shares = [weights[client] for client in clients]
        before = Model.from_tensors(self.architecture, state)
        mean = weighted_sum([uploads[client].values for client in clients], shares)
        buffers = [received_update(uploads[client]).buffers for client in clients]
        return self.moved(before, mean, buffers, shares)

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        """The local model is the model sent plus the (defended) update."""
        exposed = {}
        for client, upload in sorted(uploads.items()):
            update = received_update(upload)
            scale = self.training.gradient_scale(round, rounds, samples=update.samples)
            exposed[client] = rebuilt(sent[client].model, update, scale)
        return exposed

    def workload(self, rounds: int, samples: int) -> Workload:
        """Epochs of batches in every round."""
        how = self.training
        return Workload(
            rounds=rounds, epochs=how.epochs, batch_size=how.batch_size, samples=samples
        )


def received_update(upload: Upload) -> Update:
    """The upload as an update.

    Raises:
        TypeError: It is of another kind.
    """
    if not isinstance(upload, Update):
        raise TypeError(f"FedAvg averages updates, got a {type(upload).__name__}")
    return upload


def rebuilt(base: Model, update: Update, gradient_scale: float | None) -> Exposed:
    """What base model and update together show."""
    local = Model(base.architecture, plus(base.params, update.values), update.buffers)
    return Exposed(base, local, update.values, gradient_scale)
