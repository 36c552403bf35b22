"""IFCA: clustered federated learning, in which each client trains the model that fits its data."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, Positive
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, with_prefix
from fedaudit.fl.algorithms.base import LocalResult
from fedaudit.fl.algorithms.fedavg import FedAvg, as_update
from fedaudit.fl.hooks import ClientContext, DataUse, Defense
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import ObservedModels, Sent, Update, Upload, select_clients

CHOICE_KEY = "choice"
"""Key in a client's state: number of the model that the client last trained."""

SERVER_PREFIX = "server/"
"""Prefix of keys in the server's state that belong to no model."""

TRAINED_KEY = f"{SERVER_PREFIX}trained"
"""Key in the server's state: number of rounds in which each model was trained."""

HOW_TO_RESTART = "delete the run's checkpoint to start again"
"""Advice at the end of errors about a damaged state."""


@arguments.dataclass(frozen=True)
class Ifca:
    """Clustered federated averaging. The server averages each model over the clients that chose it.

    With one model, results equal those of FedAvg bit for bit.

    Attributes:
        architecture: Architecture of all models.
        training: Local training of each client.
        count: Number of models (clusters), s in the paper; at least 1.
        explore: Number of initial rounds in which clients choose a model at random. Without such
            rounds, all clients may choose the one model with the lowest initial loss.

    Source: Ghosh et al. 2020, Algorithm 1 (model averaging); Jung et al. 2025 (IFCA-MIR), section
        3.1.
    Differs: A cluster's mean is weighted by data size, as in FedAvg. The published code uses equal
        weights, because its clients have equally many samples. It takes ten full-batch steps of
        local training; here, the study's settings apply.
    """

    architecture: Architecture
    training: LocalTraining
    count: Positive = 2
    explore: Count = field(default=0, kw_only=True)

    @property
    def nets(self) -> tuple[Architecture, ...]:
        return (self.architecture,)

    @property
    def upload_kind(self) -> type[Upload]:
        return Update

    def start(self, seed: int) -> Params:
        """Return models with different initial parameters; the first model equals FedAvg's."""
        seeds = [seed, *(seed_for(seed, "model", j) for j in range(1, self.count))]
        models = [self.architecture.initial(seed) for seed in seeds]
        tensors = _join_models([model.tensors() for model in models])
        return tensors | {TRAINED_KEY: torch.zeros(self.count, dtype=torch.int64)}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent(self._models(state))

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        if client_context.round <= self.explore:
            rng = client_context.rng("choice")
            choice = int(torch.randint(self.count, (), generator=rng))
        else:
            choice = self.choose(sent, data, client_state, client_context)
        chosen_model = Sent((sent.models[choice],))
        upload, _ = self._fedavg.run_client(
            chosen_model, self.trained_on(data, client_context), {}, defense, client_context
        )
        update = replace(as_update(upload), choice=choice)
        return LocalResult(update, {CHOICE_KEY: torch.tensor(choice)})

    def trained_on(self, data: Samples, client_context: ClientContext) -> Samples:
        """Return the samples that a client trains on, which are all of its data."""
        return data

    def choose(
        self, sent: Sent, data: Samples, client_state: Params, client_context: ClientContext
    ) -> int:
        """Return the number of the model with the smallest mean loss on the client's data."""
        return int(losses(sent, data, client_context).argmin())

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Add to each model the weighted mean of the updates of the clients that chose it."""
        models = [model.tensors() for model in self._models(state)]
        clusters = self.clusters(uploads)
        for j, clients in enumerate(clusters):
            if clients:
                total = sum(weights[client] for client in clients)
                cluster_weights = {client: weights[client] / total for client in clients}
                cluster_uploads = select_clients(uploads, clients)
                models[j] = self._fedavg.aggregate(models[j], cluster_uploads, cluster_weights)
        was_trained = torch.tensor([*map(bool, clusters)])
        return _join_models(models) | {TRAINED_KEY: state[TRAINED_KEY] + was_trained}

    def clusters(self, uploads: Mapping[ClientId, Upload]) -> list[list[ClientId]]:
        """Return, for each model, the clients that trained it.

        Raises:
            BadInput: An upload names a model that does not exist.
        """
        choices = {client: as_update(uploads[client]).choice for client in sorted(uploads)}
        for client, choice in choices.items():
            if not 0 <= choice < self.count:
                raise BadInput(
                    f"client {client} reports that it trained model {choice}, but there are "
                    f"{self.count} models, numbered from 0; check its choice"
                )
        return [[c for c, choice in choices.items() if choice == j] for j in range(self.count)]

    def reconstruct_models(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, ObservedModels]:
        """Reconstruct clients' trained models as FedAvg does, from the model that each chose."""
        trained = {
            client: Sent((sent[client].models[j],))
            for j, clients in enumerate(self.clusters(uploads))
            for client in clients
        }
        return self._fedavg.reconstruct_models(trained, uploads, round, rounds, seed)

    def models(self, state: Params) -> Mapping[str, Model]:
        return {model_name(j): model for j, model in enumerate(self._models(state))}

    def rounds_trained(self, state: Params) -> Mapping[str, int]:
        return {model_name(j): int(rounds) for j, rounds in enumerate(state[TRAINED_KEY])}

    def choices_of_clients(
        self, client_states: Mapping[ClientId, Params]
    ) -> Mapping[ClientId, str]:
        return {
            c: model_name(self._last_choice(client_states[c], c)) for c in sorted(client_states)
        }

    def data_use(self, rounds: int, samples: int) -> DataUse:
        """Count training steps as FedAvg does, because a client trains one model per round."""
        return self._fedavg.data_use(rounds, samples)

    def _last_choice(self, client_state: Params, client: ClientId) -> int:
        stored = scalar_of_client_state(client_state, CHOICE_KEY, torch.int64, client)
        choice = None if stored is None else int(stored)
        if choice is None or not 0 <= choice < self.count:
            model = "no model" if choice is None else f"model {choice}"
            raise Damaged(
                f"the state of client {client} has {model} as its last choice, but models are "
                f"numbered 0 to {self.count - 1}; {HOW_TO_RESTART}"
            )
        return choice

    @cached_property
    def _fedavg(self) -> FedAvg:
        return FedAvg(self.architecture, self.training)

    def _models(self, state: Params) -> tuple[Model, ...]:
        return tuple(
            Model.from_tensors(self.architecture, with_prefix(state, f"{j}/"))
            for j in range(self.count)
        )


def scalar_of_client_state(
    client_state: Params, name: str, kind: torch.dtype, client: ClientId
) -> Tensor | None:
    """Return a scalar from a client's state, or None if there is no tensor of this name.

    Raises:
        Damaged: The tensor is not a scalar of this type.
    """
    value = client_state.get(name)
    if value is not None and (value.shape, value.dtype) != (torch.Size([]), kind):
        raise Damaged(
            f"the {name} in the state of client {client} has shape {tuple(value.shape)} and type "
            f"{value.dtype}, but should be one number of {kind}; {HOW_TO_RESTART}"
        )
    return value


def model_name(number: int) -> str:
    """Return the name of a model in a round."""
    return f"model-{number}"


def losses(sent: Sent, data: Samples, client_context: ClientContext) -> Float[Tensor, " models"]:
    """Compute the mean loss of every received model on a client's data, in evaluation mode."""
    means = [
        client_context.with_model(model).evaluate(data).double().mean() for model in sent.models
    ]
    return torch.stack(means)


def _join_models(models: Sequence[Params]) -> Params:
    return {f"{j}/{key}": value for j, model in enumerate(models) for key, value in model.items()}
