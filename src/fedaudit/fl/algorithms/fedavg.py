"""Federated averaging (FedAvg) and its variants FedProx, FedAdam and FedEmbedding."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AtLeastZero, Decay
from fedaudit.core.errors import type_of
from fedaudit.core.values import (
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    difference,
    weighted_sum,
)
from fedaudit.fl.algorithms.base import LocalResult, SingleModelServer
from fedaudit.fl.hooks import ClientContext, DataUse, Defense, TrainingContext, apply_upload_hook
from fedaudit.fl.training.local import AddedTerms, LocalTraining, train
from fedaudit.observe.round import ObservedModels, Sent, Update, Upload, map_clients


@dataclass(frozen=True)
class FedAvg(SingleModelServer):
    """Federated averaging of updates, weighted by data size.

    Attributes:
        architecture: Architecture of the global model.
        training: Local training of each client.

    Source: McMahan et al. 2017, Algorithm 1 (FederatedAveraging).
    Differs: Floating-point buffers (running statistics) are averaged too, but integer buffers are
        not. The published FedMIA code averages every entry of the state dictionary.
    """

    training: LocalTraining

    @property
    def upload_kind(self) -> type[Upload]:
        return Update

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Train the received model and upload the change."""
        context = client_context.with_model(sent.model)
        trained = self.train_locally(data, defense, context)
        update = update_of(sent.model, trained, samples=len(data))
        return LocalResult(apply_upload_hook(defense, update, context), client_state)

    def train_locally(self, data: Samples, defense: Defense, context: TrainingContext) -> Model:
        """Return the client's model after local training."""
        return train(context.received, data, self.training, defense, context)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Add the weighted mean of the updates to the global model."""
        clients = sorted(uploads)
        client_weights = [weights[client] for client in clients]
        before = Model.from_tensors(self.architecture, state)
        mean = weighted_sum((uploads[client].values for client in clients), client_weights)
        buffers = (as_update(uploads[client]).buffers for client in clients)
        return self.apply_step(before, mean, buffers, client_weights)

    def reconstruct_models(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, ObservedModels]:
        """Reconstruct each local model as the received model plus the (defended) update."""

        def observed(client: ClientId, upload: Upload) -> ObservedModels:
            update = as_update(upload)
            scale = self.training.gradient_scale(round, rounds, samples=update.samples)
            return reconstruct(sent[client].model, update, scale)

        return map_clients(uploads, observed)

    def data_use(self, rounds: int, samples: int) -> DataUse:
        """Return the number and size of the local training steps of one client."""
        epochs, batch_size = self.training.epochs, self.training.batch_size
        return DataUse(rounds=rounds, epochs=epochs, batch_size=batch_size, samples=samples)


def update_of(
    received: Model, trained: Model, *, samples: int, extra: Params | None = None
) -> Update:
    """Return the update of a client that has trained the received model."""
    change = difference(trained.params, received.params)
    return Update(change, trained.buffers, samples=samples, extra=extra or {})


def participating_share(clients: Collection[ClientId], sizes: Mapping[ClientId, int]) -> float:
    """Return the fraction of all samples that these clients hold; 1 if no sizes are known."""
    return sum(sizes[client] for client in clients) / sum(sizes.values()) if sizes else 1.0


def as_update(upload: Upload) -> Update:
    """Return an upload after a check that it is an update.

    Raises:
        TypeError: The upload is of another type.
    """
    if not isinstance(upload, Update):
        raise TypeError(f"FedAvg averages updates, got {type_of(upload)}")
    return upload


def reconstruct(base: Model, update: Update, gradient_scale: float | None) -> ObservedModels:
    """Return the local model and update that an observer reconstructs."""
    local = Model(base.architecture, add_scaled(base.params, update.values), update.buffers)
    return ObservedModels(base, local, update.values, gradient_scale)


@arguments.dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term: mu / 2 times the squared distance from the received model.

    Attributes:
        mu: Weight of the proximal term, at least 0; 0 gives FedAvg, bit for bit.

    Source: Li et al. 2020 ("Federated Optimization in Heterogeneous Networks"), Algorithm 2.
    Differs: Every client trains for a fixed number of epochs, instead of until its solution has a
        required accuracy.
    """

    mu: AtLeastZero = 0.01

    def train_locally(self, data: Samples, defense: Defense, context: TrainingContext) -> Model:
        return train(
            context.received, data, self.training, defense, context, terms=AddedTerms(self.mu)
        )


_MEANS, _SQUARES = "means/", "squares/"


@arguments.dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server applies Adam to the average update.

    Attributes:
        server_lr: Learning rate of the server (eta), above 0.
        beta1: Decay rate of the mean update, in [0, 1).
        beta2: Decay rate of the mean squared update, in [0, 1).
        adaptivity: Constant added to the root of the mean square (tau), above 0.

    Source: Reddi et al. 2021 ("Adaptive Federated Optimization"), Algorithm 2 (FedAdam), with its
        v_{-1} = tau^2 and no bias correction.
    """

    server_lr: AboveZero = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    adaptivity: AboveZero = 1e-3

    def start(self, seed: int) -> Params:
        model = super().start(seed)
        params = Model.from_tensors(self.architecture, model).params
        means = {_MEANS + name: torch.zeros_like(value) for name, value in params.items()}
        initial = self.adaptivity**2
        squares = {_SQUARES + n: torch.full_like(value, initial) for n, value in params.items()}
        return model | means | squares

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return super().send(_without_adam_state(state), client, round)

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        model_state = _without_adam_state(state)
        before = Model.from_tensors(self.architecture, model_state)
        aggregated = super().aggregate(model_state, uploads, weights)
        averaged = Model.from_tensors(self.architecture, aggregated)
        params, adam_state = {}, dict[str, torch.Tensor]()
        for name, value in before.params.items():
            update = averaged.params[name] - value
            mean = self.beta1 * state[_MEANS + name] + (1 - self.beta1) * update
            square = self.beta2 * state[_SQUARES + name] + (1 - self.beta2) * update.square()
            params[name] = value + self.server_lr * mean / (square.sqrt() + self.adaptivity)
            adam_state[_MEANS + name] = mean
            adam_state[_SQUARES + name] = square
        return replace(averaged, params=params).tensors() | adam_state

    def models(self, state: Params) -> Mapping[str, Model]:
        return super().models(_without_adam_state(state))


def _without_adam_state(state: Params) -> Params:
    return {key: value for key, value in state.items() if not key.startswith((_MEANS, _SQUARES))}


@dataclass(frozen=True)
class FedEmbedding(FedAvg):
    """FedAvg of embeddings: each row is averaged over the clients that have changed it.

    The trainable parameters are embeddings of concepts in front of a frozen diffusion model, or a
    prompt in front of a frozen language model. A client without samples of a concept does not
    change the concept's row, and is left out of the row's mean. In FedAvg, it would count as a
    change of zero. If every client changes every row, for instance by weight decay or privacy
    noise, the result equals FedAvg's.

    Attributes:
        architecture: Architecture of a model whose trainable parameters have one row (first axis)
            per concept.
        training: Local training of each client.

    Source: Zhu et al. 2024 (FedMIA), section 3.1 and table 3 (FedEmbedding, after Liang et al.
        2024, "Diffusion-Driven Data Replay").
    Differs: Neither paper specifies the weights of rows that only some clients have changed. If all
        clients have samples of all concepts, rows are averaged by data size, as in FedAvg.
    """

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Add to every row the mean of its changes, weighted by data size."""
        clients = sorted(uploads)
        client_weights = torch.tensor([weights[client] for client in clients], dtype=torch.float64)
        before = Model.from_tensors(self.architecture, state)
        step = {}
        for name in before.params:
            changes = torch.stack([uploads[client].values[name] for client in clients])
            column = client_weights.view(-1, *[1] * (changes.ndim - 1))
            row_weights = _changed_rows(changes).double() * column
            # A row that no client has changed has a sum of weights of 0.
            mean = (changes * row_weights).sum(0) / row_weights.sum(0).clamp_min(1e-30)
            step[name] = mean.to(changes.dtype)
        buffers = (as_update(uploads[client]).buffers for client in clients)
        return self.apply_step(before, step, buffers, client_weights.tolist())


def _changed_rows(changes: Tensor) -> Bool[Tensor, "clients ..."]:
    entry_axes = tuple(range(2, changes.ndim))
    is_changed = changes != 0
    return is_changed.any(entry_axes, keepdim=True) if entry_axes else is_changed
