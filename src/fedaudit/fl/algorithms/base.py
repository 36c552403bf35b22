"""The interface of federated algorithms, and the server's side that those with one model share."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Int
from torch import Tensor

from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, plus, weighted_sum
from fedaudit.fl.hooks import Defense, Visit, Workload
from fedaudit.observe.round import Exposed, Sent, Upload


class Local(NamedTuple):
    """The result of a client's round.

    Attributes:
        upload: What goes to the server, defended.
        memory: What stays with the client until its next round (FedMD's private net).
    """

    upload: Upload
    memory: Params


@runtime_checkable
class Algorithm(Protocol):
    """A federated algorithm: what is sent, done locally, averaged, and thereby exposed.

    The server's state and a client's memory are tensors by name, so that a run can be stopped
    after any round and gone on with elsewhere. Implementations are frozen dataclasses that can
    be pickled, for training in several processes.

    Attributes:
        architecture: Of the models that an observer can rebuild of a client.
        nets: The networks that clients train, which defenses must fit.
        upload_kind: The kind of upload, which defenses must accept.
    """

    @property
    def architecture(self) -> Architecture:
        """See the class."""
        ...

    @property
    def nets(self) -> tuple[Architecture, ...]:
        """See the class."""
        ...

    @property
    def upload_kind(self) -> type[Upload]:
        """Update, Gradient or Logits."""
        ...

    def start(self, seed: int) -> Params:
        """The server's state before the first round."""
        ...

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """The message of the server to a client."""
        ...

    def local(
        self, sent: Sent, data: Samples, memory: Params, defense: Defense, visit: Visit
    ) -> Local:
        """One client's round; runs wherever the engine puts it."""
        ...

    def fold(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """The server's next state; weights sum to 1 over the uploads."""
        ...

    def expose(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, Exposed]:
        """The models that an observer of all uploads can rebuild; called once a round."""
        ...

    def models(self, state: Params) -> Mapping[str, Model]:
        """The server's models so far, by name."""
        ...

    def workload(self, rounds: int, samples: int) -> Workload:
        """Accesses of a whole run to the data of a client with that many samples."""
        ...


@runtime_checkable
class KeepsModels(Protocol):
    """An algorithm whose clients use models of their own, which nobody else gets to see."""

    def models_of_clients(self, memories: Mapping[ClientId, Params]) -> Mapping[ClientId, Model]:
        """The clients' models, from what stays with them."""
        ...


@runtime_checkable
class ChoosesModels(Protocol):
    """An algorithm with several models, of which each client uses the one that it chooses."""

    def choices_of_clients(self, memories: Mapping[ClientId, Params]) -> Mapping[ClientId, str]:
        """Name of each client's model, from what stays with the clients."""
        ...

    def rounds_trained(self, state: Params) -> Mapping[str, int]:
        """Number of rounds that each model was trained in so far, by its name."""
        ...


@runtime_checkable
class HoldsOut(Protocol):
    """An algorithm whose clients keep some of their samples out of training."""

    def held_out(self, ids: Int[Tensor, " samples"], *, seed: int) -> Bool[Tensor, " samples"]:
        """Which samples no client ever trains on, by a rule on each sample alone.

        Args:
            ids: Of the samples.
            seed: That the federation is simulated with.
        """
        ...


class Server:
    """A server that sends what the algorithm says. Subclasses tamper."""

    def refuse_misfit(self, clients: Collection[ClientId], rounds: int) -> None:
        """Before anything is trained: refuses plans for clients or rounds that never come.

        Args:
            clients: All clients of the federation.
            rounds: How many rounds there will be in all.
        """

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        """The message that this client is really sent."""
        return sent


HONEST = Server()


@dataclass(frozen=True)
class OneModel:
    """The server's side of a federation with one global model.

    Attributes:
        architecture: Of that model.
    """

    architecture: Architecture

    @property
    def nets(self) -> tuple[Architecture, ...]:
        """Everybody trains the one global model."""
        return (self.architecture,)

    def start(self, seed: int) -> Params:
        """A freshly initialised global model."""
        return self.architecture.initial(seed).tensors()

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Everybody gets the global model."""
        return Sent((Model.from_tensors(self.architecture, state),))

    def models(self, state: Params) -> Mapping[str, Model]:
        """The one global model."""
        return {"global": Model.from_tensors(self.architecture, state)}

    def moved(
        self, before: Model, step: Params, buffers: Iterable[Params], shares: Sequence[float]
    ) -> Params:
        """The server's state after a step of the parameters, with the clients' buffers averaged.

        Args:
            before: The global model.
            step: Added to its parameters.
            buffers: Of each client; not asked for where the model has none.
            shares: Of each client in the average; they sum to 1.
        """
        averaged = weighted_sum(buffers, shares) if before.buffers else {}
        return Model(self.architecture, plus(before.params, step), averaged).tensors()
