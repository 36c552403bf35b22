"""Simulation of federated learning as a stream of rounds, with a checkpoint after each round."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from fedaudit.core.devices import CPU, raise_if_several_workers
from fedaudit.core.errors import BadInput, Damaged, Unsupported, type_of
from fedaudit.core.modules import frozen_digest, in_model_dtype, raise_if_unusable_model
from fedaudit.core.objects import canonical_repr
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId, Model, Params, Samples
from fedaudit.engines.base import CountedEngine, Engine, SharedByKey
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.base import (
    HONEST_SERVER,
    Algorithm,
    ChoosesModels,
    ClientResult,
    ClientTask,
    CorrectsDrift,
    KeepsModels,
    Participants,
    SendsControlVariates,
    Server,
    StoredUploads,
    draw_cohort,
    run_client,
)
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, checked_return
from fedaudit.observe.round import ObservedModels, Round, Sent, Upload, map_clients
from fedaudit.observe.tensors import read_tensors, write_tensors


@dataclass(frozen=True)
class RunState:
    """State of a run between two rounds.

    Attributes:
        round: The last complete round.
        server: The server's state.
        client_states: The state of each client.
        defenses: The state of each client's defense.
    """

    round: int
    server: Params
    client_states: Mapping[ClientId, Params] = field(default_factory=dict)
    defenses: Mapping[ClientId, Params] = field(default_factory=dict)


class _RunSettings(NamedTuple):
    rounds: int
    seed: int
    participation: float
    device: torch.device


class _RoundRequest(NamedTuple):
    """Participants of a round, their weights in the average, and the server's messages to them."""

    cohort: tuple[ClientId, ...]
    weights: Mapping[ClientId, float]
    sent: Mapping[ClientId, Sent]


class _ClientResults(NamedTuple):
    """Uploads, new states, notes and computing times of the clients of a round."""

    uploads: Mapping[ClientId, Upload]
    client_states: Mapping[ClientId, Params]
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
    server: Server = HONEST_SERVER,
    engine: Engine = LOCAL,
    participation: float = 1.0,
    checkpoint: Path | None = None,
    device: torch.device = CPU,
) -> Iterator[Round]:
    """Train round by round and yield each round when it is complete.

    With a checkpoint, the state of the run is saved when the caller requests the *next* round. If a
    run is killed and started again, it resumes with the first round that the caller had not
    completed. Results are bitwise the same as without the interruption.

    Args:
        algorithm: The federated algorithm.
        clients: Training data of each client.
        rounds: Number of rounds of the whole run.
        seed: Root seed of every random draw.
        defenses: Defenses by client; clients without an entry are undefended. The run copies them.
        server: The server, which may tamper with messages.
        engine: Engine that runs the clients; it does not change results.
        participation: Fraction of the clients that take part in each round, in (0, 1].
        checkpoint: File for the state of the run.
        device: Device to train on. Random draws are the same on all devices; results differ by
            rounding.

    Returns:
        The rounds after the checkpoint. Training starts with the first iteration.

    Raises:
        BadInput: There are no clients or rounds, or a client has no samples. The network cannot
            classify the clients' samples. The server targets clients or rounds that do not exist.
            The checkpoint belongs to another run or type of device.
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
    defenses = {} if defenses is None else defenses
    _raise_if_unusable(algorithm, clients, defenses, rounds, participation)
    server.raise_if_misfit(clients.keys(), rounds)
    if device.type != "cpu":
        raise_if_several_workers(device, engine.count if isinstance(engine, CountedEngine) else 1)
    settings = _RunSettings(rounds, seed, participation, device)
    if isinstance(algorithm, CorrectsDrift):
        algorithm = algorithm.with_sizes({client: len(data) for client, data in clients.items()})
    clients = _convert_features(algorithm, clients)
    return _rounds(
        Participants(algorithm, clients, deepcopy(dict(defenses))),
        server,
        engine,
        settings,
        checkpoint,
    )


def _rounds(
    federation: Participants,
    server: Server,
    engine: Engine,
    settings: _RunSettings,
    checkpoint: Path | None,
) -> Iterator[Round]:
    algorithm, rounds, seed = federation.algorithm, settings.rounds, settings.seed
    # The fingerprint is computed first, because preparing data may change attributes of defenses.
    fingerprint = _fingerprint(federation, server, settings) if checkpoint else ""
    data = prepare_data(federation.data, federation.defenses, rounds, seed)
    state = RunState(
        0,
        algorithm.start(seed_for(seed, "initial model")),
        defenses={client: defense.state() for client, defense in federation.defenses.items()},
    )
    if checkpoint:
        saved = resume_checkpoint(checkpoint, fingerprint, rounds, state, federation.data)
        state = saved or state
    with engine.session(run_client, federation._replace(data=SharedByKey(data))) as run:
        for index in range(state.round + 1, rounds + 1):
            request = _request(federation, server, settings, state, index)
            results = _collect(
                zip(request.cohort, run(_tasks(request, settings, state, index)), strict=True),
                checkpoint.parent if checkpoint else None,
            )
            state = RunState(
                index,
                algorithm.aggregate(state.server, results.uploads, request.weights),
                # Clients that did not take part keep their state and their defense's state.
                {**state.client_states, **results.client_states},
                {**state.defenses, **results.defenses},
            )
            private_models: Mapping[ClientId, Model] = {}
            model_choices: Mapping[ClientId, str] = {}
            trained: Mapping[str, int] = {}
            if isinstance(algorithm, KeepsModels):
                private_models = algorithm.models_of_clients(state.client_states)
            if isinstance(algorithm, ChoosesModels):
                model_choices = algorithm.choices_of_clients(state.client_states)
                trained = algorithm.rounds_trained(state.server)
            observed = algorithm.reconstruct_models(
                request.sent, results.uploads, index, rounds, seed
            )
            if isinstance(algorithm, SendsControlVariates):
                observed = _with_control_variates(observed, algorithm, state.client_states)
            yield Round(
                index=index,
                observed=observed,
                sent=request.sent,
                uploads=results.uploads,
                weights=request.weights,
                selected=request.cohort,
                answered=request.cohort,
                after=algorithm.models(state.server),
                client_notes=results.facts,
                private_models=private_models,
                chosen=model_choices,
                trained=trained,
                seconds=results.seconds,
            )
            # Free this round's models before the models of the next round are received.
            del request, results, private_models, observed
            if checkpoint:
                save_checkpoint(state, checkpoint, fingerprint)


def _with_control_variates(
    observed: Mapping[ClientId, ObservedModels],
    algorithm: SendsControlVariates,
    client_states: Mapping[ClientId, Params],
) -> Mapping[ClientId, ObservedModels]:
    return map_clients(
        observed,
        lambda client, models: replace(
            models, control_variate=algorithm.control_variate(client_states[client])
        ),
    )


def _collect(
    results: Iterable[tuple[ClientId, ClientResult]], folder: Path | None
) -> _ClientResults:
    """Gather results one by one, so that uploads of many clients are never in memory together."""
    uploads = StoredUploads(folder)
    client_states, defenses = dict[ClientId, Params](), dict[ClientId, Params]()
    facts, seconds = dict[ClientId, Params](), dict[ClientId, float]()
    for client, result in results:
        uploads.add(client, result.upload)
        client_states[client], defenses[client] = result.client_state, result.defense
        facts[client], seconds[client] = result.facts, result.seconds
        del result  # Frees its upload before the next result is received.
    return _ClientResults(uploads.as_dict_if_in_memory(), client_states, defenses, facts, seconds)


def _fingerprint(federation: Participants, server: Server, settings: _RunSettings) -> str:
    # Optional parts are left out at their defaults, so that checkpoints of older versions stay
    # valid.
    device = () if settings.device.type == "cpu" else (settings.device.type,)
    schedule = (settings.rounds, settings.seed, settings.participation)
    digest = frozen_digest(federation.algorithm.nets)
    frozen = (digest,) if digest else ()
    parts = (federation.algorithm, type(server), vars(server), *schedule, *device, *frozen)
    return run_fingerprint(parts, federation.data, federation.defenses)


def _request(
    federation: Participants, server: Server, settings: _RunSettings, state: RunState, index: int
) -> _RoundRequest:
    data = federation.data
    cohort = draw_cohort(sorted(data), settings.participation, settings.seed, index)
    total = sum(len(data[client]) for client in cohort)
    sent = {}
    for client in cohort:
        message = federation.algorithm.send(state.server, client, index)
        sent[client] = server.tamper(message, client, index)
    return _RoundRequest(cohort, {client: len(data[client]) / total for client in cohort}, sent)


def _tasks(
    request: _RoundRequest, settings: _RunSettings, state: RunState, index: int
) -> list[ClientTask]:
    tasks = []
    for client in request.cohort:
        client_context = ClientContext(
            round=index,
            rounds=settings.rounds,
            client=client,
            cohort=request.cohort,
            weights=request.weights,
            seed=settings.seed,
            device=settings.device,
        )
        client_state, defense = state.client_states.get(client, {}), state.defenses.get(client, {})
        tasks.append(ClientTask(request.sent[client], client_state, defense, client_context))
    return tasks


def prepare_data(
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    seed: int,
) -> dict[ClientId, Samples]:
    """Return each client's training samples after its defense has prepared them.

    Args:
        clients: Each client's data.
        defenses: Defenses by client. Pass copies, because defenses may store held-out samples.
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
    # A model with too few outputs fails on the data with the highest class.
    data_with_highest_class = max(clients.values(), key=lambda data: int(data.labels.max()))
    for model in models:
        raise_if_unusable_model(model, data_with_highest_class)
    return {
        client: data.replace(features=in_model_dtype(data.features, models[0]))
        for client, data in clients.items()
    }


def _raise_if_unusable(
    algorithm: Algorithm,
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    participation: float,
) -> None:
    if not isinstance(algorithm, Algorithm):
        raise BadInput(
            "the algorithm of simulate must have a network, such as "
            "fedaudit.fl.algorithms.fedavg.FedAvg(architecture, LocalTraining()); objects of "
            f"fedaudit.algorithms are for fedaudit.Federation; got {type_of(algorithm)}"
        )
    for name, value in (("clients", clients), ("defenses", defenses)):
        if not isinstance(value, Mapping):
            raise BadInput(f"{name} must be a dictionary by client, got {type_of(value)}")
    for client, samples in clients.items():
        if not isinstance(samples, Samples):
            raise BadInput(
                f"the data of client {client} must be fedaudit.Samples(features, targets), got "
                f"{type_of(samples)}"
            )
    for client, defense in defenses.items():
        if not isinstance(defense, Defense):
            raise BadInput(
                f"the defense of client {client} must be an object of fedaudit.defenses, got "
                f"{type_of(defense)}"
            )
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
            f"there are defenses for clients {unknown}, but the federation has no such clients; "
            "leave these defenses out"
        )
    for client, defense in defenses.items():
        if algorithm.upload_kind not in defense.accepts:
            kinds = ", ".join(kind.__name__ for kind in defense.accepts)
            raise Unsupported(
                f"{type(defense).__name__} (client {client}) accepts uploads of type {kinds}, but "
                f"{type(algorithm).__name__} sends {algorithm.upload_kind.__name__}; use another "
                "defense"
            )
        if defense.cancels and isinstance(algorithm, ChoosesModels):
            raise Unsupported(
                f"the noise of {type(defense).__name__} (client {client}) cancels between clients "
                f"that are averaged together, but {type(algorithm).__name__} averages the clients "
                "of each model separately; use another algorithm"
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
        # Earlier versions called clients "coalition", and only coalitions had them. The digest
        # keeps that name, so that their checkpoints stay valid.
        settings_of_defense = {
            "coalition" if name == "clients" else name: value
            for name, value in vars(defense).items()
            if not (name == "clients" and value is None)
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
    for kind, by_client in (("memory", state.client_states), ("defense", state.defenses)):
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
            f"the checkpoint {path} belongs to a run with other settings, or on another type of "
            "device; delete it to start again, or choose another folder"
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
    """Describe why this run cannot have a saved state; empty if it can."""
    if not 1 <= saved.round <= rounds:
        return f"it is of round {str(saved.round)[:20]}, but the run has {rounds} rounds"
    unknown = sorted({*saved.client_states, *saved.defenses} - set(clients))
    if unknown:
        return f"it has client {str(unknown[0])[:20]}, but the run has no such client"
    fault = _find_mismatch(saved.server, initial.server, "the model's")
    for client in clients:
        fault = fault or _find_mismatch(
            saved.defenses.get(client, {}),
            initial.defenses.get(client, {}),
            f"those of client {client}'s defense",
            may_grow=True,
        )
    return fault


def _find_mismatch(saved: Params, initial: Params, owner: str, *, may_grow: bool = False) -> str:
    """Describe a difference in name, shape or type from the initial tensors; empty if all agree."""
    names = sorted(saved.keys() ^ initial.keys())
    if names:
        return f"tensors are missing or too many, such as {names[0][:80]!r}"
    for name, first in initial.items():
        value = saved[name]
        is_same = (value.shape, value.dtype) == (first.shape, first.dtype)
        has_grown = may_grow and first.numel() == 0 and value.shape[1:] == first.shape[1:]
        if not (is_same or has_grown):
            return f"the tensor {name!r} has another shape or type than {owner}"
    return ""


def _damaged_error(path: Path, reason: str) -> Damaged:
    return Damaged(
        f"the checkpoint {path} was not written by this run ({reason}); delete it to start again"
    )
