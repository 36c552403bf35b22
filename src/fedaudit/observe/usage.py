"""Use of samples, extra bytes and time by clients in each round, which no adversary sees."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.errors import Damaged
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors, write_tensors

USAGE_FILE = "usage.safetensors"

_MAX_COSINE = 1 + 1e-6
MAX_USES = 1_000_000
"""Largest count of uses of one sample; a histogram has a bin for each count."""

_LARGEST = 1e15
"""Largest sum of bytes or seconds in a run."""

COUNTS = ("used", "recycled", "extra_bytes", "acted", "risk_decided")
"""Notes with integer values: sample ids, bytes, and 1 or 0 for yes or no."""


@dataclass(frozen=True)
class Usage:
    """Number of uses of each client's samples in training, and the cost of each client's rounds.

    Attributes:
        clients: The clients, in the order of columns.
        ids: Sample ids of each client, ascending.
        used: Number of training steps with each sample, over all rounds.
        recycled: Number of those steps in rounds for which a defense returned the sample to
            training, after it had been left out.
        distinct: Number of different samples that a client trained on in each round.
        extra_bytes: Bytes that a client sent or received for a defense, in addition to model and
            upload.
        seconds: Processor time of a client's round, or wall-clock time on a GPU. It depends on the
            machine.
        filter_cosine: Cosine between input and output of a privacy filter, averaged over the
            filters of a round; NaN without filters, or if input or output was zero.
        acted: 1 in rounds in which a client's defense changed a step or its upload, else 0; NaN
            for a defense that always acts, and for a client that did not take part.
        risk_decided: 1 in rounds in which a client chose another model because of the models'
            risks, else 0; NaN for a client that does not choose by risk.
    """

    clients: tuple[ClientId, ...]
    ids: Mapping[ClientId, Int[Tensor, " _"]]
    used: Mapping[ClientId, Int[Tensor, " _"]]
    recycled: Mapping[ClientId, Int[Tensor, " _"]]
    distinct: Int[Tensor, "rounds clients"]
    extra_bytes: Int[Tensor, "rounds clients"]
    seconds: Float[Tensor, "rounds clients"]
    filter_cosine: Float[Tensor, "rounds clients"]
    acted: Float[Tensor, "rounds clients"]
    risk_decided: Float[Tensor, "rounds clients"]

    @property
    def rounds(self) -> int:
        """Number of counted rounds."""
        return len(self.distinct)


def empty_usage(clients: Mapping[ClientId, Samples]) -> Usage:
    """Return the usage before the first round."""
    order = tuple(sorted(clients))
    zeros = {client: torch.zeros(len(clients[client]), dtype=torch.int64) for client in order}
    empty = torch.zeros(0, len(order), dtype=torch.int64)
    ids = {client: clients[client].ids.sort().values for client in order}
    return Usage(order, ids, zeros, zeros, empty, empty, *(empty.double() for _ in range(4)))


def add_round(usage: Usage, round: Round) -> Usage:
    """Return the usage with another round. A round that was already added changes nothing.

    Raises:
        Damaged: The previous round was not added.
    """
    if round.index <= usage.rounds:
        return usage
    if round.index > usage.rounds + 1:
        raise Damaged(
            f"usage is known up to round {usage.rounds}, but the next round is {round.index}; "
            "restore the run's folder from a copy, or delete it and run the study again"
        )
    notes = {client: round.facts.get(client, {}) for client in usage.clients}
    extra = [int(notes[c].get("extra_bytes", torch.zeros(0)).sum()) for c in usage.clients]
    seconds = [float(round.seconds.get(client, 0.0)) for client in usage.clients]
    no_cosine = torch.tensor([math.nan])
    cosines = [
        float(notes[client].get("filter_cosine", no_cosine).double().mean())
        for client in usage.clients
    ]
    acted, decided = (
        [float((v > 0).any()) if (v := notes[c].get(name)) is not None else math.nan for c in notes]
        for name in ("acted", "risk_decided")
    )
    used, recycled = (
        {client: _count_uses(usage.ids[client], notes[client].get(name)) for client in notes}
        for name in ("used", "recycled")
    )
    distinct = [int((used[client] > 0).sum()) for client in usage.clients]
    return replace(
        usage,
        used={c: (usage.used[c] + used[c]).clamp(max=MAX_USES) for c in usage.clients},
        recycled={c: (usage.recycled[c] + recycled[c]).clamp(max=MAX_USES) for c in usage.clients},
        distinct=torch.cat([usage.distinct, torch.tensor([distinct])]),
        extra_bytes=torch.cat([usage.extra_bytes, torch.tensor([extra])]),
        seconds=torch.cat([usage.seconds, torch.tensor([seconds], dtype=torch.float64)]),
        filter_cosine=torch.cat(
            [usage.filter_cosine, torch.tensor([cosines], dtype=torch.float64)]
        ),
        acted=torch.cat([usage.acted, torch.tensor([acted], dtype=torch.float64)]),
        risk_decided=torch.cat([usage.risk_decided, torch.tensor([decided], dtype=torch.float64)]),
    )


def _count_uses(ids: Int[Tensor, " samples"], uses: Tensor | None) -> Int[Tensor, " samples"]:
    """Return how often each id (ascending) is in a list of uses; other ids are ignored."""
    if uses is None or len(ids) == 0:
        return torch.zeros(len(ids), dtype=torch.int64)
    positions = torch.searchsorted(ids, uses).clamp(max=len(ids) - 1)
    return torch.bincount(positions[ids[positions] == uses], minlength=len(ids))


def record_usage(
    rounds: Iterable[Round], clients: Mapping[ClientId, Samples], folder: Path, run: str
) -> Iterator[Round]:
    """Yield rounds without the clients' notes, which are added to a usage file in the run's folder.

    A resumed run continues its file. Call this before a view hides clients.

    Raises:
        Damaged: The file belongs to another run, or has no entry for the previous round.
    """
    usage: Usage | None = None
    for round in rounds:
        # The file is read after the first round. If the folder belongs to another run, the
        # checkpoint is then checked first, which gives a better error message.
        usage = add_round(usage or read_usage(folder, run) or empty_usage(clients), round)
        _write(usage, folder, run)
        round = replace(round, facts={}, seconds={})
        yield round
        del round


def _write(usage: Usage, folder: Path, run: str) -> None:
    tensors: Params = {
        "clients": torch.tensor(usage.clients, dtype=torch.int64),
        "distinct": usage.distinct,
        "extra_bytes": usage.extra_bytes,
        "seconds": usage.seconds,
        "filter_cosine": usage.filter_cosine,
        "acted": usage.acted,
        "risk_decided": usage.risk_decided,
    }
    # Values of all clients are concatenated, as 100,000 clients would need too many tensors.
    tensors["samples"] = torch.tensor([len(usage.ids[client]) for client in usage.clients])
    for name, values in (("ids", usage.ids), ("used", usage.used), ("recycled", usage.recycled)):
        tensors[name] = torch.cat([torch.zeros(0).long(), *(values[c] for c in usage.clients)])
    write_tensors(tensors, folder / USAGE_FILE, {"run": run})


def read_usage(folder: Path, run: str) -> Usage | None:
    """Read the usage in a run's folder; None if it was never recorded.

    Raises:
        Damaged: The file belongs to another run, or was not written by fedaudit.
    """
    path = folder / USAGE_FILE
    if not os.path.lexists(path):
        return None
    # If such a path counted as missing, a new file would replace it, without the counts so far.
    if path.is_symlink() or not path.is_file():
        raise Damaged(
            f"{path} is a link, a folder or another special file, but usage is stored in a regular "
            "file; restore it from a copy, or delete it and the folder's checkpoint"
        )
    tensors, notes = read_tensors(path)
    try:
        clients = tuple(int(client) for client in tensors["clients"].tolist())
        counts = {name: _by_client(name, clients, tensors) for name in ("ids", "used", "recycled")}
        distinct, extra, seconds = (tensors[n] for n in ("distinct", "extra_bytes", "seconds"))
        # Files of older versions do not have these tensors.
        cosine, acted, decided = (
            tensors.get(name, torch.full(seconds.shape, math.nan)).double()
            for name in ("filter_cosine", "acted", "risk_decided")
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is not a record of usage ({error}); restore it") from error
    are_clients_valid = (
        len(set(clients)) == len(clients)
        and all(0 <= client <= _LARGEST for client in clients)
        and all(
            values[c].shape == (len(counts["ids"][c]),)
            for values in counts.values()
            for c in clients
        )
    )
    shapes = {distinct.shape, extra.shape, seconds.shape, cosine.shape}
    shapes |= {acted.shape, decided.shape}
    is_table = shapes == {(len(distinct), len(clients))}
    integers = (distinct, extra, *(v for values in counts.values() for v in values.values()))
    is_valid = all(value.dtype == torch.int64 and bool((value >= 0).all()) for value in integers)
    # A histogram takes memory for the largest count, and sums of large counts overflow.
    uses = (value for name in ("used", "recycled") for value in counts[name].values())
    is_valid = is_valid and all(bool((value <= MAX_USES).all()) for value in uses)
    is_valid = is_valid and float(extra.double().sum()) <= _LARGEST
    sizes = torch.tensor([len(counts["ids"][c]) for c in clients], dtype=torch.int64)
    is_valid = is_valid and (not is_table or bool((distinct <= sizes).all()))
    is_valid = is_valid and bool((seconds >= 0).all()) and float(seconds.double().sum()) <= _LARGEST
    is_valid = is_valid and bool((cosine.isnan() | (cosine.abs() <= _MAX_COSINE)).all())
    flags = torch.cat([acted.flatten(), decided.flatten()])
    is_valid = is_valid and bool((flags.isnan() | (flags == 0) | (flags == 1)).all())
    is_same_run = notes.get("run") == run
    if not (is_same_run and are_clients_valid and is_table and is_valid):
        raise Damaged(
            f"{path} is {'damaged' if is_same_run else 'of another run'}; restore it from a copy, "
            "or delete the run's folder and run the study again"
        )
    ids, used, recycled = counts.values()
    return Usage(clients, ids, used, recycled, distinct, extra, seconds, cosine, acted, decided)


def _by_client(name: str, clients: Sequence[ClientId], tensors: Params) -> dict[ClientId, Tensor]:
    """Split a tensor by client; files of older versions have one tensor per client."""
    if "samples" not in tensors:
        return {client: tensors[f"{name}/{client}"] for client in clients}
    sizes = tensors["samples"].tolist()
    return dict(zip(clients, torch.split(tensors[name], sizes), strict=True))
