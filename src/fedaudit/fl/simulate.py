"""The round loop: federated learning as a stream of rounds, with a checkpoint after each."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from fedaudit.core.devices import CPU, refuse_several_workers
from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.modules import frozen_digest, in_model_dtype, refuse_unfit
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Model, Params, Samples
from fedaudit.engines.base import Counted, Engine, SharedByKey
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import (
    HONEST,
    Algorithm,
    ChoosesModels,
    Done,
    Job,
    KeepsModels,
    Server,
    StoredUploads,
    TurnContext,
    cohort_of,
    visited,
)
from fedaudit.fl.hooks import UNDEFENDED, Defense, Visit
from fedaudit.observe.round import Round, Sent, Upload
from fedaudit.observe.tensors import read_tensors, write_tensors


@dataclass(frozen=True)
class Standing:
    """All that a run carries from one round to the next.

    Attributes:
        round: The last whole round.
        server: The algorithm's state.
        memories: What each client keeps to itself.
        defenses: Each client's defense state.
    """

    round: int
    server: Params
    memories: Mapping[ClientId, Params] = field(default_factory=dict)
    defenses: Mapping[ClientId, Params] = field(default_factory=dict)


class _Plan(NamedTuple):
    rounds: int
    seed: int
    participation: float
    device: torch.device


class _Asked(NamedTuple):
    """Participants of a round, their shares of the average, and each one's message."""

    cohort: tuple[ClientId, ...]
    shares: Mapping[ClientId, float]
    sent: Mapping[ClientId, Sent]


class _Answers(NamedTuple):
    """What came of a round's turns, by client."""

    uploads: Mapping[ClientId, Upload]
    memories: Mapping[ClientId, Params]
    defenses: Mapping[ClientId, Params]
    facts: Mapping[ClientId, Params]
    seconds: Mapping[ClientId, float]


def simulate(
    algorithm: Algorithm,
    clients: Mapping[ClientId, Samples],
    *,
    rounds: int,
    seed: int,
    defenses: Mapping[ClientId, Defense] | None = None,
    server: Server = HONEST,
    engine: Engine = LOCAL,
    participation: float = 1.0,
    checkpoint: Path | None = None,
    device: torch.device = CPU,
) -> Iterator[Round]:
    """Train round by round and yield each round when it is complete.

    The consumer decides what to do with a round: measure it, record it, stop. With a checkpoint,
    the state of the run is saved when the consumer asks for the *next* round. A run that is killed
    at any moment and called again resumes with the first round that the consumer had not finished
    with, bit for bit as if it had never stopped.

    Args:
        algorithm: FedAvg or another.
        clients: Each client's training data.
        rounds: How many rounds there will be in all.
        seed: Root of every random draw.
        defenses: By client; the rest are undefended. The run works on copies of them.
        server: May tamper with what a client is sent.
        engine: Where clients train; changes no result.
        participation: Share of the clients asked in each round, in (0, 1].
        checkpoint: File that keeps the run's standing.
        device: Where clients train; draws are the same on all, the last digits are not.

    Returns:
        The rounds, from the first that is not in the checkpoint; nothing is trained before the
        first is asked for.

    Raises:
        BadInput: No clients, an empty client, no rounds, a network that is no classifier of the
            clients' samples, a server that tampers with what never comes, or a checkpoint of
            another run or kind of device.
        Damaged: The checkpoint cannot be read, or is no standing that this run can have.
        Unsupported: A defense does not accept the algorithm's uploads, or several workers are
            to share a GPU.

    Examples:
        >>> import torch
        >>> from fedaudit.core.values import Samples
        >>> from fedaudit.fl.algorithms.fedavg import FedAvg
        >>> from fedaudit.fl.training.local import LocalTraining
        >>> from fedaudit.models import architecture
        >>> algorithm = FedAvg(architecture("mlp", shape=(2,), classes=2), LocalTraining())
        >>> clients = {0: Samples(torch.randn(20, 2), torch.arange(20) % 2)}
        >>> [round.index for round in simulate(algorithm, clients, rounds=2, seed=1)]
        [1, 2]
    """
    guards = deepcopy(dict(defenses or {}))
    _refuse_unusable(algorithm, clients, guards, rounds, participation)
    server.refuse_misfit(clients.keys(), rounds)
    if device.type != "cpu":
        refuse_several_workers(device, engine.count if isinstance(engine, Counted) else 1)
    plan = _Plan(rounds, seed, participation, device)
    clients = _fitting(algorithm, clients)
    return _rounds(TurnContext(algorithm, clients, guards), server, engine, plan, checkpoint)


def _rounds(
    given: TurnContext, server: Server, engine: Engine, plan: _Plan, checkpoint: Path | None
) -> Iterator[Round]:
    """The loop of :func:`simulate`, whose arguments were checked."""
    algorithm = given.algorithm
    # First of all, because a defense that has prepared data may look otherwise than it was set.
    fingerprint = _fingerprint(given, server, plan) if checkpoint else ""
    data = prepared(given.data, given.defenses, plan.rounds, plan.seed)
    standing = _beginning(given, plan)
    if checkpoint:
        standing = (
            resume_checkpoint(checkpoint, fingerprint, plan.rounds, standing, given.data)
            or standing
        )
    with engine.session(visited, given._replace(data=SharedByKey(data))) as run:
        for index in range(standing.round + 1, plan.rounds + 1):
            request = _asked(given, server, plan, standing, index)
            came = _collected(
                zip(request.cohort, run(_jobs(request, plan, standing, index)), strict=True),
                checkpoint.parent if checkpoint else None,
            )
            uploads = came.uploads
            state = algorithm.fold(standing.server, uploads, request.shares)
            yield Round(
                index=index,
                exposed=algorithm.expose(request.sent, uploads, index, plan.rounds, plan.seed),
                sent=request.sent,
                uploads=uploads,
                weights=request.shares,
                asked=request.cohort,
                answered=request.cohort,
                after=algorithm.models(state),
                facts=came.facts,
                kept=_kept(algorithm, standing, came),
                chosen=_chosen(algorithm, standing, came),
                trained=_trained(algorithm, state),
                seconds=came.seconds,
            )
            standing = _next(standing, index, state, came)
            # Free this round's models before the next ones are received.
            del request, came, uploads
            if checkpoint:
                save_checkpoint(standing, checkpoint, fingerprint)


def _collected(done: Iterable[tuple[ClientId, Done]], folder: Path | None) -> _Answers:
    """Take results as they come, so that uploads of many clients are never held together.

    Args:
        done: Client by client.
        folder: Where uploads go that do not fit into memory.
    """
    uploads = StoredUploads(folder)
    memories, defenses = dict[ClientId, Params](), dict[ClientId, Params]()
    facts, seconds = dict[ClientId, Params](), dict[ClientId, float]()
    for client, result in done:
        uploads.add(client, result.upload)
        memories[client], defenses[client] = result.memory, result.defense
        facts[client], seconds[client] = result.facts, result.seconds
        del result
    return _Answers(uploads.settled(), memories, defenses, facts, seconds)


def _kept(algorithm: Algorithm, standing: Standing, came: _Answers) -> Mapping[ClientId, Model]:
    """Return the models that stay with the clients, if the algorithm has such."""
    if not isinstance(algorithm, KeepsModels):
        return {}
    return algorithm.models_of_clients({**standing.memories, **came.memories})


def _chosen(algorithm: Algorithm, standing: Standing, came: _Answers) -> Mapping[ClientId, str]:
    """The model that each client uses, where clients choose one."""
    if not isinstance(algorithm, ChoosesModels):
        return {}
    return algorithm.choices_of_clients({**standing.memories, **came.memories})


def _trained(algorithm: Algorithm, state: Params) -> Mapping[str, int]:
    """Number of trainings of each model, where clients choose one."""
    return algorithm.rounds_trained(state) if isinstance(algorithm, ChoosesModels) else {}


def _beginning(given: TurnContext, plan: _Plan) -> Standing:
    start = given.algorithm.start(seed_for(plan.seed, "initial model"))
    states = {client: defense.state() for client, defense in given.defenses.items()}
    return Standing(0, start, defenses=states)


def _fingerprint(given: TurnContext, server: Server, plan: _Plan) -> str:
    # What goes without saying is left out, so that older checkpoints stay valid.
    kind = () if plan.device.type == "cpu" else (plan.device.type,)
    drawn = (plan.rounds, plan.seed, plan.participation)
    digest = frozen_digest(given.algorithm.nets)
    frozen = (digest,) if digest else ()
    settings = (given.algorithm, type(server), vars(server), *drawn, *kind, *frozen)
    return fingerprint_of(settings, given.data, given.defenses)


def _asked(
    given: TurnContext, server: Server, plan: _Plan, standing: Standing, index: int
) -> _Asked:
    cohort = cohort_of(sorted(given.data), plan.participation, plan.seed, index)
    total = sum(len(given.data[client]) for client in cohort)
    return _Asked(
        cohort,
        {client: len(given.data[client]) / total for client in cohort},
        {
            client: server.tamper(
                given.algorithm.send(standing.server, client, index), client, index
            )
            for client in cohort
        },
    )


def _jobs(asked: _Asked, plan: _Plan, standing: Standing, index: int) -> list[Job]:
    return [
        Job(
            asked.sent[client],
            standing.memories.get(client, {}),
            standing.defenses.get(client, {}),
            Visit(
                round=index,
                rounds=plan.rounds,
                client=client,
                cohort=asked.cohort,
                weights=asked.shares,
                seed=plan.seed,
                device=plan.device,
            ),
        )
        for client in asked.cohort
    ]


def _next(standing: Standing, index: int, state: Params, came: _Answers) -> Standing:
    """State of the run after a round; clients that were not asked stay as they were."""
    return Standing(
        index,
        state,
        {**standing.memories, **came.memories},
        {**standing.defenses, **came.defenses},
    )


def prepared(
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    seed: int,
) -> dict[ClientId, Samples]:
    """Each client's training samples, once the defenses have prepared them.

    Args:
        clients: Each client's data.
        defenses: By client; they may keep what they hold back, so give copies.
        rounds: Of the run.
        seed: Of the run.
    """
    everybody = tuple(sorted(clients))

    def left(client: ClientId) -> Samples:
        visit = Visit(
            round=0, rounds=rounds, client=client, cohort=everybody, weights={}, seed=seed
        )
        return defenses.get(client, UNDEFENDED).prepare(clients[client], visit)

    return {client: left(client) for client in everybody}


def _fitting(
    algorithm: Algorithm, clients: Mapping[ClientId, Samples]
) -> Mapping[ClientId, Samples]:
    """The clients' samples in the models' floating-point type.

    Raises:
        BadInput: A network that cannot be trained on them.
    """
    models = [net.initial(0) for net in algorithm.nets]
    widest = max(clients.values(), key=lambda data: int(data.labels.max()))
    for model in models:
        refuse_unfit(model, widest)
    return {
        client: data.replace(features=in_model_dtype(data.features, models[0]))
        for client, data in clients.items()
    }


def _refuse_unusable(
    algorithm: Algorithm,
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    participation: float,
) -> None:
    if not clients or rounds < 1 or not 0 < participation <= 1:
        raise BadInput(
            "a run needs at least one client, at least one round and a participation in (0, 1], "
            f"got {len(clients)} clients, {rounds} rounds and participation {participation}"
        )
    empty = [client for client, data in clients.items() if len(data) == 0]
    if empty:
        raise BadInput(f"clients {empty} have no samples; use fewer clients or more data")
    strangers = sorted(set(defenses) - set(clients))
    if strangers:
        raise BadInput(f"there are defenses for clients {strangers}, but no such clients")
    for client, defense in defenses.items():
        if algorithm.upload_kind not in defense.accepts:
            kinds = ", ".join(kind.__name__ for kind in defense.accepts)
            raise Unsupported(
                f"{type(defense).__name__} (client {client}) acts on uploads of kind {kinds}, "
                f"but {type(algorithm).__name__} sends {algorithm.upload_kind.__name__}"
            )
        if defense.cancels and isinstance(algorithm, ChoosesModels):
            raise Unsupported(
                f"the noise of {type(defense).__name__} (client {client}) cancels between clients "
                f"that are averaged together, and {type(algorithm).__name__} averages those of "
                "each model by themselves; set sigma to 0, or use another algorithm"
            )


def fingerprint_of(
    settings: tuple[object, ...],
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
) -> str:
    """Return a fingerprint of a run, so that no other run resumes from its checkpoint.

    Args:
        settings: Of the run, in a fixed order.
        clients: Each client's data.
        defenses: By client, as they are before they prepare anything.
    """
    digest = sha256(canonical_repr(settings).encode())
    for client in sorted(clients):
        defense = defenses.get(client, UNDEFENDED)
        # Members of a coalition go by the name that they have in checkpoints of earlier versions,
        # which know no members of other defenses.
        settings_of_defense = {
            "coalition" if name == "members" else name: value
            for name, value in vars(defense).items()
            if not (name == "members" and value is None)
        }
        digest.update(
            canonical_repr((client, type(defense).__name__, settings_of_defense)).encode()
        )
        for part in clients[client].parts:
            digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_checkpoint(standing: Standing, path: Path, fingerprint: str) -> None:
    """Writes the standing to a temporary name and renames it over the old one."""
    tensors = {f"server/{name}": value for name, value in standing.server.items()}
    for part, by_client in (("memory", standing.memories), ("defense", standing.defenses)):
        for client, params in by_client.items():
            tensors |= {f"{part}/{client}/{name}": value for name, value in params.items()}
    write_tensors(tensors, path, {"round": str(standing.round), "fingerprint": fingerprint})


def resume_checkpoint(
    path: Path,
    fingerprint: str,
    rounds: int,
    beginning: Standing,
    clients: Collection[ClientId],
) -> Standing | None:
    """Return the state saved at a path, or None if the file does not exist.

    Args:
        path: Of the file.
        fingerprint: Of the run that asks for it.
        rounds: Of the run in all.
        beginning: State of the run before its first round. Later states have the same names and
            shapes, except that an empty tensor of a defense may grow in length.
        clients: Of the run.

    Raises:
        BadInput: It belongs to a run with other settings, or on another kind of device.
        Damaged: It cannot be read, or is no standing that this run can have.
    """
    if not path.exists():
        return None
    tensors, notes = read_tensors(path)
    if notes.get("fingerprint") != fingerprint:
        raise BadInput(
            f"the checkpoint {path} belongs to a run with other settings, or on "
            "another kind of device; choose another folder, or delete it to start afresh"
        )
    server: Params = {}
    parts: dict[str, dict[ClientId, Params]] = {"memory": {}, "defense": {}}
    try:
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            if part == "server":
                server[name] = value
            else:
                client, _, name = name.partition("/")
                parts[part].setdefault(int(client), {})[name] = value
        standing = Standing(int(notes["round"]), server, parts["memory"], parts["defense"])
    except (KeyError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    fault = _fault(standing, rounds, beginning, clients)
    if fault:
        raise _damaged(path, fault)
    return standing


def _fault(
    standing: Standing, rounds: int, beginning: Standing, clients: Collection[ClientId]
) -> str:
    """Return why a saved state is impossible for this run; empty if it is possible."""
    if not 1 <= standing.round <= rounds:
        return f"it is of round {str(standing.round)[:20]}, and the run has {rounds}"
    strangers = sorted({*standing.memories, *standing.defenses} - set(clients))
    if strangers:
        return f"it has client {str(strangers[0])[:20]}, and the run has none such"
    fault = _misfit(standing.server, beginning.server, "the model's")
    for client in clients:
        saved, first = (state.defenses.get(client, {}) for state in (standing, beginning))
        fault = fault or _misfit(saved, first, f"those of client {client}'s defense", growing=True)
    return fault


def _misfit(saved: Params, first: Params, whose: str, *, growing: bool = False) -> str:
    """Return how saved tensors differ from the first ones in name or shape; empty if they fit."""
    names = sorted(saved.keys() ^ first.keys())
    if names:
        return f"tensors are missing or too many, such as {names[0][:80]!r}"
    for name, value in first.items():
        other = saved[name]
        same = (other.shape, other.dtype) == (value.shape, value.dtype)
        grown = growing and value.numel() == 0 and other.shape[1:] == value.shape[1:]
        if not (same or grown):
            return f"the tensor {name!r} is of another shape or type than {whose}"
    return ""


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(
        f"the checkpoint {path} is not one that this run wrote ({why}); delete it to start afresh"
    )
