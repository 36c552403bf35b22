"""The interface of federated algorithms, a client's turn in a round, and the uploads of a round."""

import pickle
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from time import perf_counter, process_time
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU, params_on
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, Params, Samples, plus, weighted_sum
from fedaudit.engines.base import pickled
from fedaudit.fl.hooks import UNDEFENDED, Defense, Visit, Workload
from fedaudit.observe.round import Exposed, Gradient, LazyByClient, Sent, Update, Upload


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


@dataclass(frozen=True)
class Tampering(Server):
    """Changes the model that a client is sent.

    Attributes:
        change: For each client that is lied to, what becomes of an honest model.
        rounds: In which rounds; empty for all.
    """

    change: Mapping[ClientId, Callable[[Model], Model]]
    rounds: frozenset[int] = frozenset()

    def refuse_misfit(self, clients: Collection[ClientId], rounds: int) -> None:
        """Before anything is trained: refuses clients that there are not, and rounds.

        Raises:
            BadInput: A client or a round that is named will never come.
        """
        strangers = sorted(set(self.change) - set(clients))
        never = sorted(round for round in self.rounds if not 1 <= round <= rounds)
        if strangers or never:
            named = f"clients {strangers}" if strangers else f"rounds {never}"
            raise BadInput(
                f"the server is to tamper with {named}, which never come: there are "
                f"{len(clients)} clients and rounds 1 to {rounds}"
            )

    def tamper(self, sent: Sent, client: ClientId, round: int) -> Sent:
        """The message that this client is really sent."""
        if client not in self.change or (self.rounds and round not in self.rounds):
            return sent
        return replace(sent, models=tuple(self.change[client](model) for model in sent.models))


HELD_BYTES = 2**27
"""Bytes of a round's uploads that are held in memory, whatever the number of clients."""

HELD_CLIENTS = 16
"""Clients whose uploads are held in memory however large they are: cross-silo federations train
few large models, which are faster in memory."""

Value = TypeVar("Value")


class StoredUploads(Mapping[ClientId, Upload]):
    """Uploads of a round, the first of them in memory and the others in a file without a name.

    What is read back is what was added, to the bit. In another process it is a dictionary.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Start without uploads.

        Args:
            folder: Where the file lies; None for the system's folder of temporary files.
        """
        self._folder = folder
        self._held, self._room = dict[ClientId, Upload](), HELD_BYTES
        self._places = dict[ClientId, tuple[int, int]]()
        self._end, self._lock = 0, Lock()

    def add(self, client: ClientId, upload: Upload) -> None:
        """Keep a client's upload.

        Raises:
            BadInput: The disk is full.
        """
        size = _size(upload)
        if size <= self._room or len(self._held) < HELD_CLIENTS:
            self._held[client], self._room = upload, self._room - size
            return
        # No later one is held either, so that memory depends on the clients' order alone.
        self._room = 0
        content = pickled(upload)
        try:
            if not self._places:
                self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                # A file that is left to the garbage collector is a warning.
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            view = memoryview(content)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise BadInput(
                f"a round's updates of {len(self) + 1} clients take more memory than "
                f"{HELD_BYTES >> 20} MB and cannot be written to the disk: {error}; free some "
                f"space, or lower {setting('training.participation')}"
            ) from error
        self._places[client] = self._end, len(content)
        self._end += len(content)

    @property
    def all_held(self) -> bool:
        """True if every upload is in memory."""
        return not self._places

    def __getitem__(self, client: ClientId) -> Upload:
        if client in self._held:
            return self._held[client]
        start, size = self._places[client]
        with self._lock:
            self._file.seek(start)
            content = bytearray(size)
            view = memoryview(content)
            while view:
                view = view[self._file.readinto(view) :]
        # The file has no name, so that nobody but this process ever wrote to it.
        upload: Upload = pickle.loads(content)
        return upload

    def __contains__(self, client: object) -> bool:
        return client in self._held or client in self._places

    def __iter__(self) -> Iterator[ClientId]:
        yield from self._held
        yield from self._places

    def __len__(self) -> int:
        return len(self._held) + len(self._places)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[dict[ClientId, Upload]]]:
        return dict, (dict(self),)

    def settled(self) -> Mapping[ClientId, Upload]:
        """Return a dictionary if every upload is in memory, else these."""
        return self._held if self.all_held else self


def made_of(
    uploads: Mapping[ClientId, Upload], make: Callable[[ClientId, Upload], Value]
) -> Mapping[ClientId, Value]:
    """Return what is made of each client's upload, by client, ascending.

    Args:
        uploads: Of a dictionary all are made now; of :class:`StoredUploads` one at a time, when
            it is asked for.
        make: Of client and upload.
    """
    clients = sorted(uploads)
    if isinstance(uploads, dict):
        return {client: make(client, uploads[client]) for client in clients}
    return LazyByClient(clients, lambda client: make(client, uploads[client]))


def _size(upload: Upload) -> int:
    tensors: list[Tensor] = [*upload.values.values()]
    if isinstance(upload, Update | Gradient):
        tensors += upload.buffers.values()
    return sum(tensor.nbytes for tensor in tensors)


class TurnContext(NamedTuple):
    """Data, defenses and algorithm that all turns share.

    Attributes:
        algorithm: FedAvg or another.
        data: Each client's.
        defenses: By client; the rest are undefended.
    """

    algorithm: Algorithm
    data: Mapping[ClientId, Samples]
    defenses: Mapping[ClientId, Defense]


class Job(NamedTuple):
    """Inputs of one turn beside the federation.

    Attributes:
        sent: By the server.
        memory: What has stayed with the client.
        defense: The state of its defense.
        visit: Whose turn it is, and in which round.
    """

    sent: Sent
    memory: Params
    defense: Params
    visit: Visit


class Done(NamedTuple):
    """The result of a turn.

    Attributes:
        upload: What goes to the server, defended.
        memory: What stays with the client.
        defense: The state of its defense.
        facts: What was noted of the turn for whoever studies the run.
        seconds: What it cost.
    """

    upload: Upload
    memory: Params
    defense: Params
    facts: Params
    seconds: float


def visited(federation: TurnContext, job: Job) -> Done:
    """One client's turn: the function that an engine runs."""
    client = job.visit.client
    defense = federation.defenses.get(client, UNDEFENDED)
    defense.restore(job.defense)
    # Processor time, as other programs should not count; a GPU works while the processor waits.
    clock = process_time if job.visit.device.type == "cpu" else perf_counter
    start = clock()
    upload, memory = federation.algorithm.local(
        job.sent, federation.data[client], job.memory, defense, job.visit
    )
    seconds = clock() - start
    facts = job.visit.facts
    if defense.always_acts:
        # One part of a chain may not have acted while another did.
        facts.pop("acted", None)
    return Done(upload, memory, params_on(defense.state(), CPU), facts, seconds)


def cohort_of(
    clients: list[ClientId], participation: float, seed: int, index: int
) -> tuple[ClientId, ...]:
    """The clients that are asked in a round.

    Args:
        clients: All of them, ascending.
        participation: Share of them that is asked, at least one.
        seed: That the federation is simulated with.
        index: Of the round, counted from 1.
    """
    size = max(1, round(participation * len(clients)))
    if size == len(clients):
        return tuple(clients)
    drawn = torch.randperm(len(clients), generator=seeded(seed, "cohort", index))[:size]
    return tuple(sorted(clients[i] for i in drawn.tolist()))


PreferenceName = Literal["threshold", "fixed", "hard"]
"""How clients of IFCA-MIR weigh a model's loss against its membership risk."""


class Cluster(NamedTuple):
    """A cluster's model with the amount of data and training that it has had.

    Attributes:
        model: Model after the round.
        samples: Number of samples of the clients that trained it in the round; 0 if none did.
        clients: Number of these clients, at least 1.
        rounds: Number of rounds in which the model was trained so far, at least 1.
        share: Share of these clients that train it in each round, in (0, 1].
    """

    model: Model
    samples: int
    clients: int = 1
    rounds: int = 1
    share: float = 1.0


@runtime_checkable
class Risk(Protocol):
    """A server's measure of its models' membership risk; a frozen dataclass."""

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """Return the membership risk of each model: balanced accuracy of an attack, in [0, 1]."""
        ...


@runtime_checkable
class OwnRisk(Protocol):
    """A client's own measure of a model's membership risk, by its losses."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """Return the loss that best separates the model's training samples from others."""
        ...

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """Return the balanced accuracy of this threshold on a model that the client was sent."""
        ...
