"""Interface of federated algorithms, a client's part of a round, and storage of uploads."""

import pickle
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from time import perf_counter, process_time
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU, params_on
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.seeds import seeded
from fedaudit.core.values import (
    Architecture,
    ClientId,
    Model,
    Params,
    Samples,
    add_scaled,
    weighted_sum,
)
from fedaudit.engines.base import pickled
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, DataUse, Defense
from fedaudit.observe.round import Gradient, ObservedModels, Sent, Update, Upload


class LocalResult(NamedTuple):
    """Result of a client's round.

    Attributes:
        upload: The (defended) upload to the server.
        client_state: Tensors that stay with the client until its next round, such as FedMD's
            private network.
    """

    upload: Upload
    client_state: Params


@runtime_checkable
class Algorithm(Protocol):
    """Federated algorithm: messages, local training, aggregation, and what an observer sees.

    The server's state and a client's state are tensors by name, so that a run can be stopped
    after any round and resumed elsewhere. Implementations are frozen dataclasses that can be
    pickled, for training in several processes.
    """

    @property
    def architecture(self) -> Architecture:
        """Architecture of the clients' models that an observer of uploads can reconstruct."""
        ...

    @property
    def nets(self) -> tuple[Architecture, ...]:
        """The networks that clients train."""
        ...

    @property
    def upload_kind(self) -> type[Upload]:
        """Type of the clients' uploads (Update, Gradient or Logits), which defenses must accept."""
        ...

    def start(self, seed: int) -> Params:
        """Return the server's state before the first round."""
        ...

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        """Return the server's message to a client."""
        ...

    def run_client(
        self,
        sent: Sent,
        data: Samples,
        client_state: Params,
        defense: Defense,
        client_context: ClientContext,
    ) -> LocalResult:
        """Run one client's round; an engine may call this in another process."""
        ...

    def aggregate(
        self, state: Params, uploads: Mapping[ClientId, Upload], weights: Mapping[ClientId, float]
    ) -> Params:
        """Aggregate the uploads into the server's next state; weights sum to 1 over the uploads."""
        ...

    def reconstruct_models(
        self,
        sent: Mapping[ClientId, Sent],
        uploads: Mapping[ClientId, Upload],
        round: int,
        rounds: int,
        seed: int,
    ) -> Mapping[ClientId, ObservedModels]:
        """Return the models that an observer of all uploads can reconstruct."""
        ...

    def models(self, state: Params) -> Mapping[str, Model]:
        """Return the server's models, by name."""
        ...

    def data_use(self, rounds: int, samples: int) -> DataUse:
        """Return the number and size of steps of a client with this number of samples."""
        ...


@runtime_checkable
class KeepsModels(Protocol):
    """Algorithm whose clients have private models that are never sent."""

    def models_of_clients(
        self, client_states: Mapping[ClientId, Params]
    ) -> Mapping[ClientId, Model]:
        """Return the clients' models, from the clients' states."""
        ...


@runtime_checkable
class ChoosesModels(Protocol):
    """Algorithm with several global models, of which each client chooses one per round."""

    def choices_of_clients(
        self, client_states: Mapping[ClientId, Params]
    ) -> Mapping[ClientId, str]:
        """Return the name of each client's model, from the clients' states."""
        ...

    def rounds_trained(self, state: Params) -> Mapping[str, int]:
        """Return the number of rounds in which each model was trained so far, by its name."""
        ...


@runtime_checkable
class SendsExtra(Protocol):
    """Algorithm whose clients send further tensors with their updates (``Update.extra``)."""

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Hooks of defenses that do not change these tensors; see :class:`DataUse`."""
        ...


@runtime_checkable
class SendsControlVariates(SendsExtra, Protocol):
    """Algorithm whose clients send changes of their control variates, which are mean gradients."""

    def control_variate(self, client_state: Params) -> Params:
        """Return the control variate in a client's state, by parameter.

        It is the sum of all changes that the client has sent, so an observer of all uploads knows
        it.
        """
        ...


@runtime_checkable
class CorrectsDrift(Protocol):
    """Algorithm whose clients correct their updates by tensors that they keep between rounds."""

    def with_sizes(self, sizes: Mapping[ClientId, int]) -> "Algorithm":
        """Return the algorithm for clients of these data sizes.

        The server then knows the share of the data whose clients do not take part in a round.
        """
        ...


@runtime_checkable
class HoldsOut(Protocol):
    """Algorithm whose clients hold some of their samples out of training."""

    def held_out(self, ids: Int[Tensor, " samples"], *, seed: int) -> Bool[Tensor, " samples"]:
        """Return whether each sample is held out, independently of all other samples.

        Args:
            ids: Ids of the samples.
            seed: Seed of the federation.
        """
        ...


class Server:
    """Honest server, which sends the algorithm's messages. Subclasses may change messages."""

    def raise_if_misfit(self, clients: Collection[ClientId], rounds: int) -> None:
        """Raise before training if the server targets clients or rounds that do not exist.

        Args:
            clients: All clients of the federation.
            rounds: Number of rounds of the run.
        """

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        """Return the message that the client receives instead of the algorithm's message."""
        return sent


HONEST_SERVER = Server()


@dataclass(frozen=True)
class SingleModelServer:
    """Server of a federation with one global model: initial state, messages and aggregation.

    Attributes:
        architecture: Architecture of the global model.
    """

    architecture: Architecture

    @property
    def nets(self) -> tuple[Architecture, ...]:
        return (self.architecture,)

    def start(self, seed: int) -> Params:
        return self.architecture.initial(seed).tensors()

    def send(self, state: Params, client: ClientId, round: int) -> Sent:
        return Sent((Model.from_tensors(self.architecture, state),))

    def models(self, state: Params) -> Mapping[str, Model]:
        return {"global": Model.from_tensors(self.architecture, state)}

    def apply_step(
        self, before: Model, step: Params, buffers: Iterable[Params], weights: Sequence[float]
    ) -> Params:
        """Return the server's state after a step of the parameters, with averaged buffers.

        Args:
            before: The global model.
            step: Change of its parameters.
            buffers: Buffers of each client; not read if the model has none.
            weights: Weights of the clients in the average; they sum to 1.
        """
        averaged = weighted_sum(buffers, weights) if before.buffers else {}
        return Model(self.architecture, add_scaled(before.params, step), averaged).tensors()


@dataclass(frozen=True)
class Tampering(Server):
    """Server that changes the model it sends to some clients.

    Attributes:
        change: For each attacked client, a function that returns the changed model.
        rounds: Rounds of the attack; empty for all.
    """

    change: Mapping[ClientId, Callable[[Model], Model]]
    rounds: frozenset[int] = frozenset()

    def raise_if_misfit(self, clients: Collection[ClientId], rounds: int) -> None:
        unknown_clients = sorted(set(self.change) - set(clients))
        if unknown_clients:
            raise BadInput(
                f"the server tampers with clients {unknown_clients}, but the federation has only "
                f"clients {sorted(clients)}; leave the unknown clients out"
            )
        unknown_rounds = sorted(round for round in self.rounds if not 1 <= round <= rounds)
        if unknown_rounds:
            raise BadInput(
                f"the server tampers with rounds {unknown_rounds}, but rounds are numbered 1 to "
                f"{rounds}; leave the unknown rounds out"
            )

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        if client not in self.change or (self.rounds and round not in self.rounds):
            return sent
        return replace(sent, models=tuple(self.change[client](model) for model in sent.models))


MAX_BYTES_IN_MEMORY = 2**27
"""Size of a round's uploads up to which they are kept in memory."""

MIN_CLIENTS_IN_MEMORY = 16
"""Number of clients whose uploads are kept in memory, however large they are. Federations of few
clients with large models are faster without files."""


class StoredUploads(Mapping[ClientId, Upload]):
    """Uploads of a round: the first uploads in memory, later ones in an unnamed file.

    Reading from the file does not change any value. If this mapping is pickled, it becomes an
    ordinary dictionary.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Start without uploads.

        Args:
            folder: Folder of the file; None for the system's folder of temporary files.
        """
        self._folder = folder
        self._in_memory: dict[ClientId, Upload] = {}
        self._free_bytes = MAX_BYTES_IN_MEMORY
        self._file_ranges: dict[ClientId, tuple[int, int]] = {}
        self._file_size = 0
        self._lock = Lock()

    def add(self, client: ClientId, upload: Upload) -> None:
        """Store a client's upload.

        Raises:
            BadInput: The disk is full.
        """
        size = _size_in_bytes(upload)
        if size <= self._free_bytes or len(self._in_memory) < MIN_CLIENTS_IN_MEMORY:
            self._in_memory[client] = upload
            self._free_bytes -= size
            return
        # All later uploads are written to the file, even small ones, so that iteration follows the
        # order of the clients.
        self._free_bytes = 0
        content = pickled(upload)
        try:
            if not self._file_ranges:
                self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                # Without this, Python warns about a file that is still open.
                weakref.finalize(self, self._file.close)
            self._file.seek(self._file_size)
            view = memoryview(content)
            while view:  # An unbuffered write may write only the beginning.
                view = view[self._file.write(view) :]
        except OSError as error:
            raise BadInput(
                f"a round's updates of {len(self) + 1} clients take more memory than "
                f"{MAX_BYTES_IN_MEMORY >> 20} MB and cannot be written to the disk: {error}; free "
                f"some space, or lower {format_setting('training.participation')}"
            ) from error
        self._file_ranges[client] = self._file_size, len(content)
        self._file_size += len(content)

    @property
    def is_in_memory(self) -> bool:
        """True if every upload is in memory."""
        return not self._file_ranges

    def __getitem__(self, client: ClientId) -> Upload:
        if client in self._in_memory:
            return self._in_memory[client]
        start, size = self._file_ranges[client]
        with self._lock:
            self._file.seek(start)
            content = bytearray(size)
            view = memoryview(content)
            while view:
                view = view[self._file.readinto(view) :]
        # Unpickling is safe, because the file has no name and only this process can write to it.
        upload: Upload = pickle.loads(content)
        return upload

    def __contains__(self, client: object) -> bool:
        return client in self._in_memory or client in self._file_ranges

    def __iter__(self) -> Iterator[ClientId]:
        yield from self._in_memory
        yield from self._file_ranges

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._file_ranges)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[dict[ClientId, Upload]]]:
        return dict, (dict(self),)

    def as_dict_if_in_memory(self) -> Mapping[ClientId, Upload]:
        """Return a dictionary if every upload is in memory, else this mapping."""
        return self._in_memory if self.is_in_memory else self


def _size_in_bytes(upload: Upload) -> int:
    tensors: list[Tensor] = [*upload.values.values()]
    if isinstance(upload, Update | Gradient):
        tensors += upload.buffers.values()
    if isinstance(upload, Update):
        tensors += upload.extra.values()
    return sum(tensor.nbytes for tensor in tensors)


class Participants(NamedTuple):
    """Algorithm, data and defenses, which are the same for all tasks of a run.

    Attributes:
        algorithm: The federated algorithm.
        data: Data of each client.
        defenses: Defenses by client; clients without an entry are undefended.
    """

    algorithm: Algorithm
    data: Mapping[ClientId, Samples]
    defenses: Mapping[ClientId, Defense]


class ClientTask(NamedTuple):
    """Inputs of one client's round.

    Attributes:
        sent: The server's message.
        client_state: The client's state.
        defense: The state of its defense.
        client_context: The client and the round.
    """

    sent: Sent
    client_state: Params
    defense: Params
    client_context: ClientContext


class ClientResult(NamedTuple):
    """Outputs of one client's round.

    Attributes:
        upload: The (defended) upload to the server.
        client_state: The client's new state.
        defense: The new state of its defense.
        facts: Values that the client noted for the audit (:meth:`ClientContext.note`).
        seconds: Computing time.
    """

    upload: Upload
    client_state: Params
    defense: Params
    facts: Params
    seconds: float


def run_client(federation: Participants, task: ClientTask) -> ClientResult:
    """Run one client's round. Engines call this function, possibly in another process."""
    client = task.client_context.client
    defense = federation.defenses.get(client, UNDEFENDED)
    defense.restore(task.defense)
    # Processor time excludes other programs. It also excludes waiting for a GPU, so wall time is
    # used there.
    clock = process_time if task.client_context.device.type == "cpu" else perf_counter
    start = clock()
    upload, client_state = federation.algorithm.run_client(
        task.sent, federation.data[client], task.client_state, defense, task.client_context
    )
    seconds = clock() - start
    facts = task.client_context.facts
    if defense.acts_unconditionally:
        # In a chain, a part may note that it did not act, although another part always acts.
        facts.pop("acted", None)
    return ClientResult(upload, client_state, params_on(defense.state(), CPU), facts, seconds)


def draw_cohort(
    clients: list[ClientId], participation: float, seed: int, index: int
) -> tuple[ClientId, ...]:
    """Draw the clients that take part in a round.

    Args:
        clients: All clients, ascending.
        participation: Fraction of clients that take part; at least one client does.
        seed: Seed of the federation.
        index: Number of the round, from 1.
    """
    size = max(1, round(participation * len(clients)))
    if size == len(clients):
        return tuple(clients)
    positions = torch.randperm(len(clients), generator=seeded(seed, "cohort", index))[:size]
    return tuple(sorted(clients[i] for i in positions.tolist()))


PreferenceName = Literal["threshold", "fixed", "hard"]
"""How clients of IFCA-MIR weigh a model's loss against its membership risk."""


class Cluster(NamedTuple):
    """A cluster's model, and the amount of its training, which its shadow models repeat.

    Attributes:
        model: Model after the round.
        samples: Number of samples of the cluster's clients; 0 if no client trained the model.
        clients: Number of the cluster's clients, at least 1.
        rounds: Number of rounds in which the model was trained so far, at least 1.
        share: Fraction of the cluster's clients that train the model in each round, in (0, 1].
    """

    model: Model
    samples: int
    clients: int = 1
    rounds: int = 1
    share: float = 1.0


@runtime_checkable
class Risk(Protocol):
    """Frozen dataclass by which a server estimates the membership risk of its models."""

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """Return the membership risk of each model: balanced accuracy of an attack, in [0, 1]."""
        ...


@runtime_checkable
class OwnRisk(Protocol):
    """Method by which a client estimates a model's membership risk from losses on its own data."""

    def threshold(
        self, members: Float[Tensor, " members"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """Return the loss threshold that best separates members from held-out samples."""
        ...

    def risk(
        self,
        members: Float[Tensor, " members"],
        held_out: Float[Tensor, " held_out"],
        threshold: float,
    ) -> float:
        """Return the balanced accuracy of the threshold on losses of a received model."""
        ...
