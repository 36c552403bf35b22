"""A client's turn in a round: who has one, its inputs and results, and the work itself."""

from collections.abc import Mapping
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from fedaudit.core.devices import CPU, params_on
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.hooks import UNDEFENDED, Defense, Visit
from fedaudit.observe.round import Sent, Upload


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
