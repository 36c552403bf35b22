"""Data classes for one round of federated learning: messages, uploads and reconstructed models."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

import torch

from fedaudit.core.display import repr_html
from fedaudit.core.values import ClientId, Model, Params, short_repr

ALL_CLIENTS: ClientId = -2
"""Client number of a model that belongs to all clients together, such as the global model."""


@dataclass(frozen=True)
class Sent:
    """The server's message to one client.

    Attributes:
        models: The global model; several models if the client chooses one (clustered FL), none in
            federated distillation.
        extra: Other tensors by name, such as consensus logits or the membership risk of each model.
    """

    models: tuple[Model, ...] = ()
    extra: Params = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The first model that was sent, which is usually the only one."""
        return self.models[0]


@dataclass(frozen=True)
class Update:
    """A client's model update: trained minus received parameters (FedAvg).

    Attributes:
        values: The change of each trainable parameter.
        buffers: Floating-point buffers after training (not differences).
        choice: Index of the model that the client trained, among the models that it received.
        samples: Number of the client's training samples; 0 if the client does not report it.
        extra: Other tensors that clients of the algorithm send, by name, such as the number of
            steps (FedNova) or the change of the control variate (SCAFFOLD). fedaudit's defenses of
            the upload do not change them.
    """

    values: Params
    buffers: Params = field(default_factory=dict)
    choice: int = 0
    samples: int = 0
    extra: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Gradient:
    """A client's gradient at the model that it received (FedSGD).

    Attributes:
        values: The gradient of each trainable parameter, without momentum or weight decay.
        buffers: Floating-point buffers after the forward pass.
        samples: Number of samples over which the gradient is averaged; 0 if not reported.
    """

    values: Params
    buffers: Params = field(default_factory=dict)
    samples: int = 0


@dataclass(frozen=True)
class Logits:
    """A client's outputs on the public data set (FedMD).

    Attributes:
        values: One tensor with the name "outputs".
    """

    values: Params


Upload: TypeAlias = Update | Gradient | Logits


@dataclass(frozen=True)
class ObservedModels:
    """Models of one client in a round, as an observer reconstructs them; hidden parts are None.

    Attributes:
        base: The model that the client received.
        local: The client's model after training, from its (defended) upload.
        update: Trainable parameters of ``local`` minus those of ``base``.
        gradient_scale: Factor that converts the negative update to an estimate of the sum of
            per-sample gradients: batch size * (1 - momentum) / (learning rate * epochs). None if
            unknown.
        control_variate: The client's control variate by parameter, which is the sum of the changes
            that it has sent so far (SCAFFOLD).
    """

    base: Model | None = None
    local: Model | None = None
    update: Params | None = None
    gradient_scale: float | None = None
    control_variate: Params | None = None


@short_repr
@dataclass(frozen=True)
class Round:
    """One round as an observer sees it.

    ``client_notes``, ``private_models``, ``chosen`` and ``trained`` are used only to evaluate the
    run. Attacks do not see them.

    Attributes:
        index: Number of the round, from 1.
        observed: Reconstructed models by client. Clients of which only the average is visible
            (merged clients) have one entry, under the number of one of them. In views of the global
            model, the only key is ``ALL_CLIENTS``.
        sent: The message to each client.
        uploads: The upload of each client; empty if the view hides uploads.
        weights: Weights of the clients in the average; they sum to 1 over ``answered``.
        selected: Clients that the server selected for the round and sent a message to.
        answered: Selected clients that sent an upload, without dropouts.
        after: The server's models after the round, by name ("global" for a single one).
        group_of: For each merged client, the client under whose number their average is in
            ``observed``.
        client_notes: Values that each client recorded about its training, such as the ids of the
            samples that it used.
        private_models: Models that never leave the clients (federated distillation), by client.
        chosen: In clustered FL, the name of each client's model in ``after``.
        trained: In clustered FL, the number of rounds so far in which each model in ``after`` was
            trained.
        seconds: Computing time of each client in this round.
    """

    index: int
    observed: Mapping[ClientId, ObservedModels]
    sent: Mapping[ClientId, Sent]
    uploads: Mapping[ClientId, Upload]
    weights: Mapping[ClientId, float]
    selected: tuple[ClientId, ...]
    answered: tuple[ClientId, ...]
    after: Mapping[str, Model] = field(default_factory=dict)
    group_of: Mapping[ClientId, ClientId] = field(default_factory=dict)
    client_notes: Mapping[ClientId, Params] = field(default_factory=dict)
    private_models: Mapping[ClientId, Model] = field(default_factory=dict)
    chosen: Mapping[ClientId, str] = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[ClientId, float] = field(default_factory=dict)

    _repr_html_ = repr_html

    @property
    def complete(self) -> bool:
        """True if every client that received a message sent an upload."""
        return set(self.selected) == set(self.answered)


Value = TypeVar("Value")
Mapped = TypeVar("Mapped")


class LazyByClient(Mapping[ClientId, Value]):
    """Mapping that computes a value at every access and does not store it.

    The keys have the order of ``clients``. A pickled object becomes an ordinary dictionary.
    """

    def __init__(self, clients: Iterable[ClientId], make: Callable[[ClientId], Value]) -> None:
        """Create the mapping.

        Args:
            clients: The keys.
            make: Function that computes a client's value. Every call returns the same value.
        """
        # A dictionary gives fast look-up and keeps the order.
        self._clients, self._make = dict.fromkeys(clients), make

    def __getitem__(self, client: ClientId) -> Value:
        if client not in self._clients:
            raise KeyError(client)
        return self._make(client)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[dict[ClientId, Value]]]:
        return dict, (dict(self),)


def select_clients(
    values: Mapping[ClientId, Value], clients: Iterable[ClientId]
) -> Mapping[ClientId, Value]:
    """Return the values of some clients, in the given order; a lazy mapping stays lazy."""
    if isinstance(values, dict):
        return {client: values[client] for client in clients}
    return LazyByClient(clients, values.__getitem__)


def map_clients(
    values: Mapping[ClientId, Value], function: Callable[[ClientId, Value], Mapped]
) -> Mapping[ClientId, Mapped]:
    """Apply a function of client and value to each value; the result is sorted by client.

    For a dictionary, all results are computed immediately. For other mappings, such as uploads in a
    file, a result is computed at each access, so that not all are in memory together.
    """
    clients = sorted(values)
    if isinstance(values, dict):
        return {client: function(client, values[client]) for client in clients}
    return LazyByClient(clients, lambda client: function(client, values[client]))


class DistinctModels(NamedTuple):
    """Models without duplicates.

    Attributes:
        distinct: The distinct models, in the order of first appearance.
        numbers: For each original model, the index of the equal distinct model.
    """

    distinct: list[Model]
    numbers: list[int]


def group_models(models: Iterable[Model]) -> DistinctModels:
    """Remove duplicates from models; two models are equal if they are bitwise identical."""
    unique_models: list[Model] = []
    numbers = []
    for model in models:
        equal = (i for i, other in enumerate(unique_models) if _are_equal(other, model))
        number = next(equal, len(unique_models))
        if number == len(unique_models):
            unique_models.append(model)
        numbers.append(number)
    return DistinctModels(unique_models, numbers)


def _are_equal(first: Model, second: Model) -> bool:
    if first is second or first.params is second.params:
        return True
    tensors, second_tensors = first.tensors(), second.tensors()
    return (
        first.architecture == second.architecture
        and tensors.keys() == second_tensors.keys()
        and all(torch.equal(tensors[name], second_tensors[name]) for name in tensors)
    )
