"""IFCA: several global models, of which every client trains the one that suits its data."""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, Positive
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples
from fedaudit.fl.algorithms.base import Local
from fedaudit.fl.algorithms.fedavg import FedAvg, received_update
from fedaudit.fl.hooks import Defense, Visit, Workload
from fedaudit.fl.training.local import LocalTraining
from fedaudit.observe.round import Exposed, Sent, Update, Upload, select_clients

CHOICE = "choice"
"""What a client remembers: the model that it last trained."""

SERVER = "server/"
"""Begins the names of what the server keeps beside its models."""

TRAINED = f"{SERVER}trained"
"""Rounds in which each model was trained."""

AFRESH = "delete the run's checkpoint to start afresh"


@arguments.dataclass(frozen=True)
class Ifca:
    """Clustered federated averaging: the server averages each model over the clients that chose it.

    With one model it is FedAvg, to the bit.

    Attributes:
        architecture: Of all models.
        training: Each client's local training.
        count: Number of models (clusters), s in the paper; at least 1.
        explore: Rounds in the beginning in which clients choose at random. Without any, all may
            come to train the one model that happens to begin with the least loss.

    Source: Ghosh et al. 2020, Algorithm 1 (model averaging); IFCA-MIR, section 3.1.
    Differs: A cluster's mean is weighted by data size, as in FedAvg, where the published code's
        has equal weights; all clients have as much data there. Local training is the study's,
        where the published code takes ten full-batch steps.
    """

    architecture: Architecture
    training: LocalTraining
    count: Positive = 2
    explore: Count = field(default=0, kw_only=True)

    @property
    def nets(self) -> tuple[Architecture, ...]:
        """All models are of one architecture."""
        return (self.architecture,)

    @property
    def upload_kind(self) -> type[Upload]:
        """Clients send updates, and say of which model."""
        return Update

    def start(self, seed: int) -> Params:
        """Models with an initialisation each, the first one's being FedAvg's."""
        seeds = [seed, *(seed_for(seed, "model", j) for j in range(1, self.count))]
        first = {f"{j}": self.architecture.initial(own) for j, own in enumerate(seeds)}
        models = _together({name: model.tensors() for name, model in first.items()})
        return models | {TRAINED: torch.zeros(self.count, dtype=torch.int64)}

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Everybody gets all models."""
        return Sent(self._models(state))

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """Chooses a model, trains it and uploads its change."""
        exploring = visit.round <= self.explore
        choice = self._any(visit) if exploring else self.choose(sent, data, memory, visit)
        one = Sent((sent.models[choice],))
        upload, _ = self._one.local(one, self.trained_on(data, visit), {}, defense, visit)
        update = replace(received_update(upload), choice=choice)
        return Local(update, {CHOICE: torch.tensor(choice)})

    def trained_on(self, data: Samples, visit: Visit) -> Samples:
        """The part of its data that a client trains on: all of it."""
        return data

    def choose(self, sent: Sent, data: Samples, memory: Params, visit: Visit) -> int:
        """The model of least mean loss on the client's data, the first of equals."""
        return int(losses(sent, data, visit).argmin())

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Each model plus the weighted mean of its clients' updates; without clients it stays."""
        models = {str(j): model.tensors() for j, model in enumerate(self._models(state))}
        groups = self.clusters(uploads)
        for j, clients in enumerate(groups):
            if clients:
                total = sum(weights[client] for client in clients)
                shares = {client: weights[client] / total for client in clients}
                theirs = select_clients(uploads, clients)
                models[str(j)] = self._one.fold(models[str(j)], theirs, shares)
        return _together(models) | {TRAINED: state[TRAINED] + torch.tensor([*map(bool, groups)])}

    def clusters(self, uploads: Mapping[ClientId, Upload]) -> list[list[ClientId]]:
        """For each model, the clients that trained it.

        Raises:
            BadInput: An upload is of a model that there is not.
        """
        choices = {client: received_update(uploads[client]).choice for client in sorted(uploads)}
        for client, choice in choices.items():
            if not 0 <= choice < self.count:
                raise BadInput(
                    f"client {client} says that it trained model {choice}, and there are "
                    f"{self.count}, numbered from 0"
                )
        return [[c for c, choice in choices.items() if choice == j] for j in range(self.count)]

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        """As in FedAvg, from the model that the client says it trained."""
        trained = {
            client: Sent((sent[client].models[j],))
            for j, clients in enumerate(self.clusters(uploads))
            for client in clients
        }
        return self._one.expose(trained, uploads, round, rounds, seed)

    def models(self, state: Params) -> Mapping[str, Model]:
        """The models, by their names."""
        return {model_name(j): model for j, model in enumerate(self._models(state))}

    def rounds_trained(self, state: Params) -> Mapping[str, int]:
        """Number of rounds that each model was trained in, by its name."""
        return {model_name(j): int(rounds) for j, rounds in enumerate(state[TRAINED])}

    def choices_of_clients(self, memories: Mapping[ClientId, Params]) -> Mapping[ClientId, str]:
        """Name of the model that each client last trained; without those that never did.

        Raises:
            Damaged: A client remembers no model, or one that there is not.
        """
        return {c: model_name(self._remembered(memories[c], c)) for c in sorted(memories)}

    def workload(self, rounds: int, samples: int) -> Workload:
        """As in FedAvg: a client trains one model a round."""
        return self._one.workload(rounds, samples)

    def _remembered(self, memory: Params, client: ClientId) -> int:
        kept = remembered(memory, CHOICE, torch.int64, client)
        if kept is None or not 0 <= int(kept) < self.count:
            raise Damaged(
                f"client {client} remembers to have trained model "
                f"{'none' if kept is None else int(kept)}, and there are {self.count}, numbered "
                f"from 0; {AFRESH}"
            )
        return int(kept)

    def _any(self, visit: Visit) -> int:
        return int(torch.randint(self.count, (), generator=visit.rng("choice")))

    @cached_property
    def _one(self) -> FedAvg:
        return FedAvg(self.architecture, self.training)

    def _models(self, state: Params) -> tuple[Model, ...]:
        return tuple(
            Model.from_tensors(self.architecture, _part(state, str(j))) for j in range(self.count)
        )


def remembered(memory: Params, name: str, kind: torch.dtype, client: ClientId) -> Tensor | None:
    """The one number that a client remembers under a name; None if it remembers none.

    Raises:
        Damaged: It is not one number of that kind.
    """
    kept = memory.get(name)
    if kept is not None and (kept.shape, kept.dtype) != (torch.Size([]), kind):
        raise Damaged(
            f"what client {client} remembers as its {name} has shape {tuple(kept.shape)} and type "
            f"{kept.dtype}, and it is one number of {kind}; {AFRESH}"
        )
    return kept


def model_name(number: int) -> str:
    """Name of a model in a round's outcome."""
    return f"model-{number}"


def losses(sent: Sent, data: Samples, visit: Visit) -> Float[Tensor, " models"]:
    """Mean loss of every model sent on a client's data, in evaluation mode."""
    means = [visit.at(model).evaluate(data).double().mean() for model in sent.models]
    return torch.stack(means)


def _together(parts: Mapping[str, Params]) -> Params:
    return {f"{name}/{key}": value for name, part in parts.items() for key, value in part.items()}


def _part(state: Params, name: str) -> Params:
    start = f"{name}/"
    return {k.removeprefix(start): value for k, value in state.items() if k.startswith(start)}
