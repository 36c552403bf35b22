"""One round of federated learning, as a value: what was sent, sent back, and can be rebuilt."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fedaudit.core.values import ClientId, Model, Params

EVERYBODY: ClientId = -2
"""Whom a model stands for that cannot be told to be any client's: the global model."""


@dataclass(frozen=True)
class Sent:
    """The message of the server to one client.

    Attributes:
        models: The global model; several where the client chooses (clustered FL), none where
            only ``extra`` travels (federated distillation).
        extra: Anything else, by name: consensus logits, a risk for each model.
    """

    models: tuple[Model, ...] = ()
    extra: Params = field(default_factory=dict)

    @property
    def model(self) -> Model:
        """The first (usually the only) model sent."""
        return self.models[0]


@dataclass(frozen=True)
class Update:
    """A client's change of the model it was sent: local minus received (FedAvg).

    Attributes:
        values: The change of each trainable parameter.
        buffers: Floating-point buffers after training, as they are.
        choice: Which of the models sent was trained.
        samples: How many samples it was trained on; 0 if the client does not say.
    """

    values: Params
    buffers: Params = field(default_factory=dict)
    choice: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Gradient:
    """A client's gradient at the model it was sent (FedSGD).

    Attributes:
        values: The gradient of each trainable parameter; no momentum or weight decay in it.
        buffers: Floating-point buffers after the forward pass, as they are.
        samples: Over how many samples it is the mean; 0 if the client does not say.
    """

    values: Params
    buffers: Params = field(default_factory=dict)
    samples: int = 0


@dataclass(frozen=True)
class Logits:
    """A client's outputs on the public set (FedMD), under the name "outputs"."""

    values: Params


Upload: TypeAlias = Update | Gradient | Logits


@dataclass(frozen=True)
class Exposed:
    """An observer's rebuilt models of one client's round; a hidden part is None.

    Attributes:
        base: The model the client was sent.
        local: The client's model after training, from its (defended) upload.
        update: Local minus base, trainable parameters only.
        gradient_scale: What turns minus the update into the sum of the samples' gradients
            (batch size * (1 - momentum) / (learning rate * epochs)); None if unknown.
    """

    base: Model | None = None
    local: Model | None = None
    update: Params | None = None
    gradient_scale: float | None = None


@dataclass(frozen=True)
class Round:
    """A round as an observer has it.

    Attributes:
        index: Counted from 1.
        exposed: What can be rebuilt, by client (or by the client a group is named after, or
            under ``EVERYBODY``).
        sent: What each client was sent.
        uploads: What each client sent back; empty where the view hides it.
        weights: Shares of the clients in the average; they sum to 1 over ``answered``.
        asked: Clients that were sent something.
        answered: Clients whose upload came back.
        after: The server's models after the round, by name ("global" for one).
        stands_for: For a client merged into a group, the client that the group is named after.
        facts: What clients noted of their own round (which samples they used); it is for whoever
            studies the run, and taken out before an adversary looks.
        kept: Models that stay with the clients, where the algorithm has such; for measuring how
            good the run's models are, and taken out before an adversary looks.
        chosen: For each client the name of its model in ``after``, where clients choose; for
            measuring as well, and taken out before an adversary looks.
        trained: For each model in ``after`` the rounds in which it was trained so far, where
            clients choose; likewise.
        seconds: What each client's round cost; of the machine, not of the result.
    """

    index: int
    exposed: Mapping[ClientId, Exposed]
    sent: Mapping[ClientId, Sent]
    uploads: Mapping[ClientId, Upload]
    weights: Mapping[ClientId, float]
    asked: tuple[ClientId, ...]
    answered: tuple[ClientId, ...]
    after: Mapping[str, Model] = field(default_factory=dict)
    stands_for: Mapping[ClientId, ClientId] = field(default_factory=dict)
    facts: Mapping[ClientId, Params] = field(default_factory=dict)
    kept: Mapping[ClientId, Model] = field(default_factory=dict)
    chosen: Mapping[ClientId, str] = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[ClientId, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if every client that was asked has answered."""
        return set(self.asked) == set(self.answered)


Value = TypeVar("Value")


class LazyByClient(Mapping[ClientId, Value]):
    """Mapping whose values are made each time that they are asked for, and not kept.

    In another process it is an ordinary dictionary.
    """

    def __init__(self, clients: Iterable[ClientId], make: Callable[[ClientId], Value]) -> None:
        """Describe the mapping; nothing is made yet.

        Args:
            clients: Keys, in their order.
            make: Makes the value of a client, the same at every call.
        """
        # A dictionary finds a key at once, and keeps the order.
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


def chosen(
    values: Mapping[ClientId, Value], clients: Iterable[ClientId]
) -> Mapping[ClientId, Value]:
    """Return the values of some clients, in the order given.

    Args:
        values: Of more clients. Those of a dictionary are taken now, others when asked for.
        clients: Some of them.
    """
    if isinstance(values, dict):
        return {client: values[client] for client in clients}
    return LazyByClient(clients, values.__getitem__)
