"""Federated averaging (FedAvg), with a proximal term (FedProx), with Adam (FedAdam)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AtLeastZero, Decay
from fedaudit.core.errors import type_of
from fedaudit.core.values import ClientId, Model, Params, Samples, difference, plus, weighted_sum
from fedaudit.fl.algorithms.base import Local, OneModel, made_of
from fedaudit.fl.hooks import Defense, Turn, Visit, Workload
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.observe.round import Exposed, Sent, Update, Upload


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
        mean = weighted_sum((uploads[client].values for client in clients), shares)
        buffers = (received_update(uploads[client]).buffers for client in clients)
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

        def seen(client: ClientId, upload: Upload) -> Exposed:
            update = received_update(upload)
            scale = self.training.gradient_scale(round, rounds, samples=update.samples)
            return rebuilt(sent[client].model, update, scale)

        return made_of(uploads, seen)

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
        raise TypeError(f"FedAvg averages updates, got {type_of(upload)}")
    return upload


def rebuilt(base: Model, update: Update, gradient_scale: float | None) -> Exposed:
    """The model and update that an observer rebuilds from base model and update."""
    local = Model(base.architecture, plus(base.params, update.values), update.buffers)
    return Exposed(base, local, update.values, gradient_scale)


@arguments.dataclass(frozen=True)
class FedProx(FedAvg):
    """Adds mu / 2 times the squared distance from the received model to every client's loss.

    Attributes:
        mu: How hard clients are held, at least 0; at 0 it is FedAvg, bit for bit.

    Source: Li et al. 2020 ("Federated Optimization in Heterogeneous Networks"), Algorithm 2.
    Differs: Every client trains the number of epochs asked for, rather than to an inexactness.
    """

    mu: AtLeastZero = 0.01

    def trained(self, data: Samples, defense: Defense, turn: Turn) -> Model:
        """The client's model after local training that is pulled back."""
        return train(turn.received, data, self.training, defense, turn, pull=self.mu)


_MEANS, _SQUARES = "means/", "squares/"


@arguments.dataclass(frozen=True)
class FedAdam(FedAvg):
    """Averages the clients' updates and moves by Adam's rule along the average.

    Attributes:
        server_lr: eta, the server's learning rate, above 0.
        beta1: Share of the last mean change that is kept, in [0, 1).
        beta2: Share of the last mean square that is kept, in [0, 1).
        adaptivity: tau, above 0: added to the root of the mean square.

    Source: Reddi et al. 2021 ("Adaptive Federated Optimization"), Algorithm 2 (FedAdam), with its
        v_{-1} = tau^2 and no correction of the bias.
    """

    server_lr: AboveZero = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    adaptivity: AboveZero = 1e-3

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


@dataclass(frozen=True)
class FedEmbedding(FedAvg):
    """Averages embeddings row by row, each over the clients that have changed it.

    Whatever asks for a gradient is trained, uploaded and averaged: embeddings of concepts in front
    of a frozen diffusion model, or a prompt in front of a frozen language model. A client without
    samples of a concept leaves its row as it was sent, and does not count there; in FedAvg it would
    hold the row back. What changes every row in every client, such as weight decay or noise added
    for privacy, makes it the plain mean.

    Attributes:
        architecture: Of a model whose trained parameters have a row (first axis) a concept.
        training: Each client's local training.

    Source: FedMIA section 3.1 and table 3 (FedEmbedding, after Liang et al. 2024, "Diffusion-Driven
        Data Replay").
    Differs: Neither says how rows are weighed that only some clients have; where all clients have
        samples of all concepts it is the mean by data size, as there.
    """

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Every row plus the mean of its changes, weighed by data size."""
        clients = sorted(uploads)
        shares = torch.tensor([weights[client] for client in clients], dtype=torch.float64)
        before = Model.from_tensors(self.architecture, state)
        step = {}
        for name in before.params:
            changes = torch.stack([uploads[client].values[name] for client in clients])
            counted = _changed(changes).double() * shares.view(-1, *[1] * (changes.ndim - 1))
            mean = (changes * counted).sum(0) / counted.sum(0).clamp_min(1e-30)
            step[name] = mean.to(changes.dtype)
        buffers = (received_update(uploads[client]).buffers for client in clients)
        return self.moved(before, step, buffers, shares.tolist())


def _changed(changes: Tensor) -> Bool[Tensor, "clients ..."]:
    """Which rows each client has changed at all."""
    further = tuple(range(2, changes.ndim))
    there = changes != 0
    return there.any(further, keepdim=True) if further else there
