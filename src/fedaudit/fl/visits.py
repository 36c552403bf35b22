"""A client's turn in a round: who has one, its inputs and results, and the work itself."""

from collections.abc import Mapping
from math import inf
from time import perf_counter, process_time
from typing import NamedTuple

import torch
from torch import Tensor

from fedaudit.core.devices import CPU, params_on
from fedaudit.core.errors import BadInput, an, type_of
from fedaudit.core.seeds import seeded
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.defenses.base import UNDEFENDED, Defense, Visit
from fedaudit.fl.algorithms.base import Algorithm, KeepsModels
from fedaudit.observe.round import Gradient, Sent, Update, Upload
from fedaudit.observe.usage import COUNTS


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


_MOST = 2**40
"""Beyond any sample's number, and any bytes that a client sends or samples that it has."""


def refuse_unfit(job: Job, done: Done, algorithm: Algorithm) -> None:
    """Refuses an answer of another form than the question has: names, shapes and types.

    Numbers of models are not judged; a training that has come to nothing is a result. Those that
    are only counted (seconds, which samples were used) are.

    Args:
        job: The turn.
        done: What is said to have come of it.
        algorithm: That it was a turn of.

    Raises:
        BadInput: It does not fit; what of it is named.
    """
    fault = (
        _upload_fault(job.sent, done.upload, algorithm)
        or _memory_fault(job, done.memory, algorithm)
        or _differs(done.defense, job.defense, "the defense's state", growing=True)
        or next((fault for n, v in done.facts.items() if (fault := _note_fault(n, v))), "")
        or ("" if 0 <= done.seconds < inf else f"it took {done.seconds} seconds")
    )
    if fault:
        raise BadInput(
            f"what came back for client {job.visit.client} in round {job.visit.round} does not "
            f"fit what was sent: {fault}; use the same fedaudit and study on every machine"
        )


def _upload_fault(sent: Sent, upload: Upload, algorithm: Algorithm) -> str:
    if not isinstance(upload, algorithm.upload_kind):
        return f"{type_of(upload)} instead of {an(algorithm.upload_kind.__name__)}"
    if not isinstance(upload, Update | Gradient):
        return _differs(upload.values, sent.extra, "the outputs")
    choice = upload.choice if isinstance(upload, Update) else 0
    if not 0 <= choice < len(sent.models):
        return f"it is of model {str(choice)[:20]}, and {len(sent.models)} were sent"
    if not 0 <= upload.samples <= _MOST:
        return f"it is of {str(upload.samples)[:20]} samples"
    model = sent.models[choice]
    return _differs(upload.values, model.params, "the upload") or _differs(
        upload.buffers, model.buffers, "the uploaded buffers"
    )


def _memory_fault(job: Job, memory: Params, algorithm: Algorithm) -> str:
    """Fault of a client's own model; other memories are checked in use."""
    if not isinstance(algorithm, KeepsModels):
        return ""
    if job.memory:
        return _differs(memory, job.memory, "the client's own model")
    fits = any(not _differs(memory, net.initial(0).tensors(), "") for net in algorithm.nets)
    return "" if fits else "the client's own model is of none of the algorithm's networks"


def _note_fault(name: str, noted: Tensor) -> str:
    if noted.dim() != 1:
        return f"the note {name[:80]!r} is no row"
    if name in COUNTS and not (
        noted.dtype == torch.int64 and bool(((noted >= 0) & (noted <= _MOST)).all())
    ):
        return f"the note {name!r} holds no whole numbers that can be"
    # Summed as floats: whole numbers would start again from below.
    if name == "extra_bytes" and float(noted.double().sum()) > _MOST:
        return f"the note {name!r} adds up to more than a client sends"
    return ""


def _differs(found: Params, like: Params, what: str, *, growing: bool = False) -> str:
    """Differences of tensors in name, order, shape or type from others; empty for none."""
    if list(found) != list(like):
        return f"{what} has other names than it should"
    for name, value in like.items():
        there, skip = found[name], 1 if growing else 0
        same = (there.dim(), there.shape[skip:], there.dtype) == (
            value.dim(),
            value.shape[skip:],
            value.dtype,
        )
        if not same:
            return (
                f"{what} has {name!r} of shape {tuple(there.shape)} and type {there.dtype} "
                f"instead of {tuple(value.shape)} and {value.dtype}"
            )
    return ""
