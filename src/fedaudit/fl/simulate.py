"""Simulation of federated learning as a stream of rounds, with a checkpoint after each."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from fedaudit.core.devices import CPU, refuse_several_workers
from fedaudit.core.errors import BadInput, Damaged, Unsupported
from fedaudit.core.modules import frozen_digest, in_model_dtype, refuse_unusable_model
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.engines.base import CountedEngine, Engine, SharedByKey
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import (
    HONEST,
    Algorithm,
    ChoosesModels,
    ClientResult,
    ClientTask,
    KeepsModels,
    Participants,
    Server,
    StoredUploads,
    draw_cohort,
    run_client,
)
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, checked_return
from fedaudit.observe.round import Round, Sent, Upload
from fedaudit.observe.tensors import read_tensors, write_tensors


@dataclass(frozen=True)
class RunState:
    """State of a run between two rounds.

    Attributes:
        round: The last complete round.
        server: The server's state.
        memories: The memory of each client.
        defenses: The state of each client's defense.
    """

    round: int
    server: Params
    memories: Mapping[ClientId, Params] = field(default_factory=dict)
    defenses: Mapping[ClientId, Params] = field(default_factory=dict)


class _Plan(NamedTuple):
    """Settings that all rounds of a run share."""

    rounds: int
    seed: int
    participation: float
    device: torch.device


class _Request(NamedTuple):
    """Participants of a round, their weights in the average, and their messages."""

    cohort: tuple[ClientId, ...]
    weights: Mapping[ClientId, float]
    sent: Mapping[ClientId, Sent]


class _ClientResults(NamedTuple):
    """Uploads, new states, notes and computing times of the clients of a round."""

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

    The caller decides what to do with a round: measure it, record it, stop. With a checkpoint, the
    state of the run is saved when the caller requests the *next* round. If a run is killed and
    started again, it resumes with the first round that the caller had not completed. Results are
    bitwise the same as without the interruption.

    Args:
        algorithm: The federated algorithm.
        clients: Training data of each client.
        rounds: Number of rounds of the whole run.
        seed: Root seed of every random draw.
        defenses: Defenses by client; clients without one are undefended. The run copies them.
        server: The server, which may tamper with messages.
        engine: Engine that runs the clients; it does not change results.
        participation: Fraction of the clients that take part in each round, in (0, 1].
        checkpoint: File for the state of the run.
        device: Device to train on. Random draws are the same on all devices; results differ by
            rounding.

    Returns:
        The rounds after the checkpoint. Training starts with the first iteration.

    Raises:
        BadInput: No clients, an empty client, no rounds, a network that is not a classifier of the
            clients' samples, a server that targets clients or rounds that do not exist, or a
            checkpoint of another run or type of device.
        Damaged: The checkpoint cannot be read, or has a state that this run cannot have.
        Unsupported: A defense does not accept the algorithm's uploads, or several workers would
            share a GPU.

    Examples:
        >>> import torch
        >>> import fedaudit as fa
        >>> from fedaudit.fl.algorithms.fedavg import FedAvg
        >>> from fedaudit.fl.training.local import LocalTraining
        >>> mlp = fa.models.architecture("mlp", shape=(2,), classes=2)
        >>> algorithm = FedAvg(mlp, LocalTraining())
        >>> clients = {0: fa.Samples(torch.randn(20, 2), torch.arange(20) % 2)}
        >>> [round.index for round in fa.simulate(algorithm, clients, rounds=2, seed=1)]
        [1, 2]
    """
    copies = deepcopy(dict(defenses or {}))
    _refuse_unusable(algorithm, clients, copies, rounds, participation)
    server.refuse_misfit(clients.keys(), rounds)
    if device.type != "cpu":
        refuse_several_workers(device, engine.count if isinstance(engine, CountedEngine) else 1)
    plan = _Plan(rounds, seed, participation, device)
    clients = _convert_features(algorithm, clients)
    return _rounds(Participants(algorithm, clients, copies), server, engine, plan, checkpoint)


def _rounds(
    context: Participants, server: Server, engine: Engine, plan: _Plan, checkpoint: Path | None
) -> Iterator[Round]:
    algorithm = context.algorithm
    # The fingerprint is computed first, as preparing data may change attributes of defenses.
    fingerprint = _fingerprint(context, server, plan) if checkpoint else ""
    data = prepare_data(context.data, context.defenses, plan.rounds, plan.seed)
    start = algorithm.start(seed_for(plan.seed, "initial model"))
    states = {client: defense.state() for client, defense in context.defenses.items()}
    current = RunState(0, start, defenses=states)
    if checkpoint:
        current = (
            resume_checkpoint(checkpoint, fingerprint, plan.rounds, current, context.data)
            or current
        )
    with engine.session(run_client, context._replace(data=SharedByKey(data))) as run:
        for index in range(current.round + 1, plan.rounds + 1):
            request = _request(context, server, plan, current, index)
            answers = _collect(
                zip(request.cohort, run(_tasks(request, plan, current, index)), strict=True),
                checkpoint.parent if checkpoint else None,
            )
            uploads = answers.uploads
            after = RunState(
                index,
                algorithm.fold(current.server, uploads, request.weights),
                # Clients that did not take part keep their memory and their defense's state.
                {**current.memories, **answers.memories},
                {**current.defenses, **answers.defenses},
            )
            yield Round(
                index=index,
                exposed=algorithm.expose(request.sent, uploads, index, plan.rounds, plan.seed),
                sent=request.sent,
                uploads=uploads,
                weights=request.weights,
                asked=request.cohort,
                answered=request.cohort,
                after=algorithm.models(after.server),
                facts=answers.facts,
                kept=algorithm.models_of_clients(after.memories)
                if isinstance(algorithm, KeepsModels)
                else {},
                chosen=algorithm.choices_of_clients(after.memories)
                if isinstance(algorithm, ChoosesModels)
                else {},
                trained=algorithm.rounds_trained(after.server)
                if isinstance(algorithm, ChoosesModels)
                else {},
                seconds=answers.seconds,
            )
            current = after
            # Free this round's models before the next ones are received.
            del request, answers, uploads
            if checkpoint:
                save_checkpoint(current, checkpoint, fingerprint)


def _collect(
    results: Iterable[tuple[ClientId, ClientResult]], folder: Path | None
) -> _ClientResults:
    """Gather results one by one, so that uploads of many clients are never in memory together."""
    uploads = StoredUploads(folder)
    memories, defenses = dict[ClientId, Params](), dict[ClientId, Params]()
    facts, seconds = dict[ClientId, Params](), dict[ClientId, float]()
    for client, result in results:
        uploads.add(client, result.upload)
        memories[client], defenses[client] = result.memory, result.defense
        facts[client], seconds[client] = result.facts, result.seconds
        del result
    return _ClientResults(uploads.as_dict_if_in_memory(), memories, defenses, facts, seconds)


def _fingerprint(context: Participants, server: Server, plan: _Plan) -> str:
    # Optional parts are left out at their defaults, so that checkpoints of older versions stay
    # valid.
    device = () if plan.device.type == "cpu" else (plan.device.type,)
    schedule = (plan.rounds, plan.seed, plan.participation)
    digest = frozen_digest(context.algorithm.nets)
    frozen = (digest,) if digest else ()
    settings = (context.algorithm, type(server), vars(server), *schedule, *device, *frozen)
    return run_fingerprint(settings, context.data, context.defenses)


def _request(
    context: Participants, server: Server, plan: _Plan, current: RunState, index: int
) -> _Request:
    cohort = draw_cohort(sorted(context.data), plan.participation, plan.seed, index)
    total = sum(len(context.data[client]) for client in cohort)
    return _Request(
        cohort,
        {client: len(context.data[client]) / total for client in cohort},
        {
            client: server.tamper(
                context.algorithm.send(current.server, client, index), client, index
            )
            for client in cohort
        },
    )


def _tasks(request: _Request, plan: _Plan, current: RunState, index: int) -> list[ClientTask]:
    return [
        ClientTask(
            request.sent[client],
            current.memories.get(client, {}),
            current.defenses.get(client, {}),
            ClientContext(
                round=index,
                rounds=plan.rounds,
                client=client,
                cohort=request.cohort,
                weights=request.weights,
                seed=plan.seed,
                device=plan.device,
            ),
        )
        for client in request.cohort
    ]


def prepare_data(
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    seed: int,
) -> dict[ClientId, Samples]:
    """Return each client's training samples after its defense has prepared them.

    Args:
        clients: Each client's data.
        defenses: Defenses by client. Pass copies, since defenses may store held-out samples.
        rounds: Number of rounds of the run.
        seed: Seed of the run.

    Raises:
        BadInput: A defense does not return samples.
    """
    cohort = tuple(sorted(clients))

    def prepare(client: ClientId) -> Samples:
        client_context = ClientContext(
            round=0, rounds=rounds, client=client, cohort=cohort, weights={}, seed=seed
        )
        defense = defenses.get(client, UNDEFENDED)
        prepared = defense.prepare(clients[client], client_context)
        return checked_return(defense, "prepare", prepared, Samples)

    return {client: prepare(client) for client in cohort}


def _convert_features(
    algorithm: Algorithm, clients: Mapping[ClientId, Samples]
) -> Mapping[ClientId, Samples]:
    """Convert the clients' features to the models' floating-point type."""
    models = [net.initial(0) for net in algorithm.nets]
    # The data with the highest class show if a model has too few outputs.
    most_classes = max(clients.values(), key=lambda data: int(data.labels.max()))
    for model in models:
        refuse_unusable_model(model, most_classes)
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
    unknown = sorted(set(defenses) - set(clients))
    if unknown:
        raise BadInput(
            f"there are defenses for clients {unknown}, which do not exist; pass defenses of "
            "existing clients only"
        )
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
                f"that are averaged together, but {type(algorithm).__name__} averages the clients "
                "of each model separately; set sigma to 0, or use another algorithm"
            )


def run_fingerprint(
    settings: tuple[object, ...],
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
) -> str:
    """Return a digest of a run's settings and data, by which a checkpoint identifies its run."""
    digest = sha256(canonical_repr(settings).encode())
    for client in sorted(clients):
        defense = defenses.get(client, UNDEFENDED)
        # Earlier versions called members "coalition", and only coalitions had them. The digest
        # keeps that name, so that their checkpoints stay valid.
        settings_of_defense = {
            "coalition" if name == "members" else name: value
            for name, value in vars(defense).items()
            if not (name == "members" and value is None)
        }
        digest.update(
            canonical_repr((client, type(defense).__name__, settings_of_defense)).encode()
        )
        for tensor in clients[client].parts:
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_checkpoint(state: RunState, path: Path, fingerprint: str) -> None:
    """Write the state to a file, which atomically replaces the old one."""
    tensors = {f"server/{name}": value for name, value in state.server.items()}
    for kind, by_client in (("memory", state.memories), ("defense", state.defenses)):
        for client, params in by_client.items():
            tensors |= {f"{kind}/{client}/{name}": value for name, value in params.items()}
    write_tensors(tensors, path, {"round": str(state.round), "fingerprint": fingerprint})


def resume_checkpoint(
    path: Path,
    fingerprint: str,
    rounds: int,
    initial: RunState,
    clients: Collection[ClientId],
) -> RunState | None:
    """Return the state saved at a path, or None if the file does not exist.

    Args:
        path: Path of the checkpoint.
        fingerprint: Fingerprint of the run.
        rounds: Number of rounds of the whole run.
        initial: State of the run before its first round. The saved state must have the same names
            and shapes of tensors, except that an empty tensor of a defense may have grown.
        clients: Clients of the run.

    Raises:
        BadInput: The checkpoint belongs to a run with other settings, or on another type of device.
        Damaged: The file cannot be read, or has a state that this run cannot have.
    """
    if not path.exists():
        return None
    tensors, notes = read_tensors(path)
    if notes.get("fingerprint") != fingerprint:
        raise BadInput(
            f"the checkpoint {path} belongs to a run with other settings, or on "
            "another type of device; choose another folder, or delete it to start again"
        )
    server: Params = {}
    by_kind: dict[str, dict[ClientId, Params]] = {"memory": {}, "defense": {}}
    try:
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            if kind == "server":
                server[name] = value
            else:
                client, _, name = name.partition("/")
                by_kind[kind].setdefault(int(client), {})[name] = value
        saved = RunState(int(notes["round"]), server, by_kind["memory"], by_kind["defense"])
    except (KeyError, ValueError) as error:
        raise _damaged_error(path, str(error)) from error
    fault = _find_fault(saved, rounds, initial, clients)
    if fault:
        raise _damaged_error(path, fault)
    return saved


def _find_fault(
    saved: RunState, rounds: int, initial: RunState, clients: Collection[ClientId]
) -> str:
    """Return the reason why a saved state is impossible for this run, or an empty string."""
    if not 1 <= saved.round <= rounds:
        return f"it is of round {str(saved.round)[:20]}, but the run has {rounds} rounds"
    unknown = sorted({*saved.memories, *saved.defenses} - set(clients))
    if unknown:
        return f"it has client {str(unknown[0])[:20]}, but the run has no such client"
    fault = _find_mismatch(saved.server, initial.server, "the model's")
    for client in clients:
        tensors, first = (state.defenses.get(client, {}) for state in (saved, initial))
        owner = f"those of client {client}'s defense"
        fault = fault or _find_mismatch(tensors, first, owner, growing=True)
    return fault


def _find_mismatch(tensors: Params, first: Params, owner: str, *, growing: bool = False) -> str:
    """Return a difference in name, shape or type from the first tensors, or an empty string."""
    names = sorted(tensors.keys() ^ first.keys())
    if names:
        return f"tensors are missing or too many, such as {names[0][:80]!r}"
    for name, value in first.items():
        saved = tensors[name]
        is_same = (saved.shape, saved.dtype) == (value.shape, value.dtype)
        has_grown = growing and value.numel() == 0 and saved.shape[1:] == value.shape[1:]
        if not (is_same or has_grown):
            return f"the tensor {name!r} has another shape or type than {owner}"
    return ""


def _damaged_error(path: Path, reason: str) -> Damaged:
    return Damaged(
        f"the checkpoint {path} was not written by this run ({reason}); delete it to start again"
    )
