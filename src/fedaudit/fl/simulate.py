"""The round loop: federated learning as a stream of rounds."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from fedaudit.core import ClientId, Params, Samples
from fedaudit.defenses.base import UNDEFENDED, Defense, Visit
from fedaudit.devices import CPU, params_on, refuse_several_workers
from fedaudit.engines.base import Engine
from fedaudit.engines.local import LOCAL, Workers
from fedaudit.errors import BadInput, Unsupported
from fedaudit.fl.algorithm import HONEST, Algorithm, Server
from fedaudit.fl.checkpoint import Standing, resume, save
from fedaudit.observe.round import Round, Sent, Upload
from fedaudit.seeds import seed_for, seeded


class _Federation(NamedTuple):
    algorithm: Algorithm
    data: Mapping[ClientId, Samples]
    defenses: Mapping[ClientId, Defense]


class _Job(NamedTuple):
    sent: Sent
    memory: Params
    defense: Params
    visit: Visit


class _Done(NamedTuple):
    upload: Upload
    memory: Params
    defense: Params
    facts: Params
    seconds: float


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
    """Trains round by round and yields each round when it is whole.

    The consumer decides what becomes of a round: measure it, record it, stop. With a
    checkpoint, the run's standing is saved when the consumer asks for the *next* round, so a
    run that is killed at any moment and called again goes on with the first round that the
    consumer had not finished with, bit for bit as if it had never stopped.

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
        BadInput: No clients, an empty client, no rounds, or a checkpoint of another run or kind
            of device.
        Damaged: The checkpoint cannot be read, or is no standing that this run can have.
        Unsupported: A defense does not accept the algorithm's uploads, or several workers are
            to share a GPU.
    """
    guards = deepcopy(dict(defenses or {}))
    _refuse_unusable(algorithm, clients, guards, rounds, participation)
    refuse_several_workers(device, engine.count if isinstance(engine, Workers) else 1)
    return _rounds(
        _Federation(algorithm, clients, guards),
        server,
        engine,
        rounds=rounds,
        seed=seed,
        participation=participation,
        checkpoint=checkpoint,
        device=device,
    )


def _rounds(
    given: _Federation,
    server: Server,
    engine: Engine,
    *,
    rounds: int,
    seed: int,
    participation: float,
    checkpoint: Path | None,
    device: torch.device,
) -> Iterator[Round]:
    """The loop of :func:`simulate`, whose arguments were checked."""
    algorithm, clients, guards = given
    weights = {client: len(data) for client, data in clients.items()}
    # The CPU goes without saying, so that older checkpoints stay valid.
    kind = () if device.type == "cpu" else (device.type,)
    settings = (algorithm, type(server), vars(server), rounds, seed, participation, *kind)
    fingerprint = _fingerprint(settings, clients, guards) if checkpoint else ""
    start = algorithm.start(seed_for(seed, "initial model"))
    saved = (
        resume(checkpoint, fingerprint, rounds=rounds, start=start, clients=clients)
        if checkpoint
        else None
    )
    standing = saved or Standing(0, start)
    federation = _Federation(algorithm, prepared(clients, guards, rounds, seed), guards)
    memories = dict(standing.memories)
    states = {client: defense.state() for client, defense in guards.items()}
    states |= standing.defenses
    state = standing.server
    with engine.session(_visit, federation) as run:
        for index in range(standing.round + 1, rounds + 1):
            cohort = _cohort(sorted(clients), participation, seed, index)
            total = sum(weights[client] for client in cohort)
            shares = {client: weights[client] / total for client in cohort}
            sent = {c: server.tamper(algorithm.send(state, c, index), c, index) for c in cohort}
            visits = (
                Visit(
                    round=index,
                    rounds=rounds,
                    client=client,
                    cohort=cohort,
                    weights=shares,
                    seed=seed,
                    device=device,
                )
                for client in cohort
            )
            jobs = [
                _Job(sent[v.client], memories.get(v.client, {}), states.get(v.client, {}), v)
                for v in visits
            ]
            done = dict(zip(cohort, run(jobs), strict=True))
            uploads = {client: result.upload for client, result in done.items()}
            state = algorithm.fold(state, uploads, shares)
            yield Round(
                index=index,
                exposed=algorithm.expose(sent, uploads, index, rounds, seed),
                sent=sent,
                uploads=uploads,
                weights=shares,
                asked=cohort,
                answered=cohort,
                after=algorithm.models(state),
                facts={client: result.facts for client, result in done.items()},
                seconds={client: result.seconds for client, result in done.items()},
            )
            memories |= {client: result.memory for client, result in done.items()}
            states |= {client: result.defense for client, result in done.items()}
            if checkpoint:
                save(Standing(index, state, memories, states), checkpoint, fingerprint)


def _visit(federation: _Federation, job: _Job) -> _Done:
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
    return _Done(upload, memory, params_on(defense.state(), CPU), job.visit.facts, seconds)


def _cohort(
    clients: list[ClientId], participation: float, seed: int, index: int
) -> tuple[ClientId, ...]:
    size = max(1, round(participation * len(clients)))
    if size == len(clients):
        return tuple(clients)
    drawn = torch.randperm(len(clients), generator=seeded(seed, "cohort", index))[:size]
    return tuple(sorted(clients[i] for i in drawn.tolist()))


def prepared(
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
    rounds: int,
    seed: int,
) -> dict[ClientId, Samples]:
    """What each client has left to train on, once the defenses have prepared it.

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


def _fingerprint(
    settings: tuple[object, ...],
    clients: Mapping[ClientId, Samples],
    defenses: Mapping[ClientId, Defense],
) -> str:
    """Tells one run from another, so that a checkpoint is never taken up by a stranger."""
    digest = sha256(_described(settings).encode())
    for client in sorted(clients):
        defense = defenses.get(client, UNDEFENDED)
        digest.update(_described((client, type(defense).__name__, vars(defense))).encode())
        data = clients[client]
        for part in (data.ids, data.labels, data.features):
            digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _described(value: object) -> str:
    """The value in words that are the same in every process: without places in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
