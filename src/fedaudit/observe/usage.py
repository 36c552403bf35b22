"""Usage of samples, bytes and time by clients in each round, which no adversary sees."""

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

_LONGEST_COSINE = 1 + 1e-6
MOST_USES = 1_000_000
"""Largest count of uses of one sample; a histogram has a bin for each count."""
_LARGEST = 1e15
"""Largest sum of bytes or seconds in a run."""

COUNTS = ("used", "recycled", "extra_bytes", "acted", "risk_decided")
"""Notes of clients whose values are integers: sample ids, bytes, and 1 or 0 for yes or no."""


@dataclass(frozen=True)
class Usage:
    """Number of uses of each client's samples in training, and the cost of its rounds.

    Attributes:
        clients: The clients, in the order of columns.
        ids: Sample ids of each client, ascending.
        used: Number of training steps with each sample, over all rounds.
        recycled: Number of those steps for which a defense had returned the sample after leaving
            it out.
        distinct: Number of different samples that a client trained on in each round.
        extra_bytes: Bytes that a defense made a client send or receive in addition to model and
            upload.
        seconds: Processor time of a client's round, or wall-clock time on a GPU. It depends on the
            machine.
        filter_cosine: Cosine between a filter's input and output, the mean over the filters of a
            round; NaN if no filter acted, or if one of the two was zero.
        acted: 1 in rounds in which a client's defense changed a step or its upload, else 0; NaN
            for a defense that always acts, and for a client that did not take part.
        risk_decided: 1 in rounds in which a client chose another model because of the models'
            risks, else 0; NaN if it did not choose by risk.
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
    """Return the usage with one more round; a round that was added already changes nothing.

    Raises:
        Damaged: Rounds in between are missing.
    """
    if round.index <= usage.rounds:
        return usage
    if round.index > usage.rounds + 1:
        raise Damaged(
            f"usage is known up to round {usage.rounds}, but the next round is {round.index}; "
            "restore the run's folder from a copy, or delete it and run the study again"
        )
    facts = {client: round.facts.get(client, {}) for client in usage.clients}
    extra = [int(facts[c].get("extra_bytes", torch.zeros(0)).sum()) for c in usage.clients]
    seconds = [float(round.seconds.get(client, 0.0)) for client in usage.clients]
    nothing = torch.tensor([math.nan])
    cosines = [
        float(facts[client].get("filter_cosine", nothing).double().mean())
        for client in usage.clients
    ]
    acted, decided = (
        [float((v > 0).any()) if (v := facts[c].get(name)) is not None else math.nan for c in facts]
        for name in ("acted", "risk_decided")
    )
    added = {client: _times(usage.ids[client], facts[client], "used") for client in facts}
    recycled = {client: _times(usage.ids[client], facts[client], "recycled") for client in facts}
    distinct = [int((added[client] > 0).sum()) for client in usage.clients]
    return replace(
        usage,
        used={c: (usage.used[c] + added[c]).clamp(max=MOST_USES) for c in usage.clients},
        recycled={c: (usage.recycled[c] + recycled[c]).clamp(max=MOST_USES) for c in usage.clients},
        distinct=torch.cat([usage.distinct, torch.tensor([distinct])]),
        extra_bytes=torch.cat([usage.extra_bytes, torch.tensor([extra])]),
        seconds=torch.cat([usage.seconds, torch.tensor([seconds], dtype=torch.float64)]),
        filter_cosine=torch.cat(
            [usage.filter_cosine, torch.tensor([cosines], dtype=torch.float64)]
        ),
        acted=torch.cat([usage.acted, torch.tensor([acted], dtype=torch.float64)]),
        risk_decided=torch.cat([usage.risk_decided, torch.tensor([decided], dtype=torch.float64)]),
    )


def _times(ids: Int[Tensor, " samples"], facts: Params, fact: str) -> Int[Tensor, " samples"]:
    """Count each id (ascending) in a fact; ids of other samples are ignored."""
    noted = facts.get(fact)
    if noted is None or len(ids) == 0:
        return torch.zeros(len(ids), dtype=torch.int64)
    places = torch.searchsorted(ids, noted).clamp(max=len(ids) - 1)
    return torch.bincount(places[ids[places] == noted], minlength=len(ids))


def record_usage(
    rounds: Iterable[Round], clients: Mapping[ClientId, Samples], folder: Path, run: str
) -> Iterator[Round]:
    """Move the clients' facts from rounds, before any view, to a usage file in the run's folder.

    A resumed run continues its file.

    Raises:
        Damaged: The file belongs to another run, or lacks rounds.
    """
    usage: Usage | None = None
    for round in rounds:
        # Read after the first round: the check of the checkpoint gives a better error message for
        # the folder of another run.
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
    # One tensor for all clients: a file cannot have three tensors for each of 100,000 clients.
    tensors["samples"] = torch.tensor([len(usage.ids[client]) for client in usage.clients])
    for name, part in (("ids", usage.ids), ("used", usage.used), ("recycled", usage.recycled)):
        tensors[name] = torch.cat([torch.zeros(0).long(), *(part[c] for c in usage.clients)])
    write_tensors(tensors, folder / USAGE_FILE, {"run": run})


def read_usage(folder: Path, run: str) -> Usage | None:
    """Read the usage in a run's folder; None if it was never recorded.

    Raises:
        Damaged: The file belongs to another run, or was not written by fedaudit.
    """
    path = folder / USAGE_FILE
    if not os.path.lexists(path):
        return None
    # Treated as missing, it would be replaced by a new file without the counts so far.
    if path.is_symlink() or not path.is_file():
        raise Damaged(
            f"{path} is a link, a folder or another special file, but usage is stored in a regular "
            "file; restore it from a copy, or delete it and the folder's checkpoint"
        )
    tensors, notes = read_tensors(path)
    try:
        clients = tuple(int(client) for client in tensors["clients"].tolist())
        parts = {part: _by_client(part, clients, tensors) for part in ("ids", "used", "recycled")}
        distinct, extra, seconds = (tensors[n] for n in ("distinct", "extra_bytes", "seconds"))
        # Files of older versions lack these.
        cosine, acted, decided = (
            tensors.get(name, torch.full(seconds.shape, math.nan)).double()
            for name in ("filter_cosine", "acted", "risk_decided")
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is not a record of usage ({error}); restore it") from error
    fits = (
        len(set(clients)) == len(clients)
        and all(0 <= client <= _LARGEST for client in clients)
        and all(
            part[c].shape == (len(parts["ids"][c]),) for part in parts.values() for c in clients
        )
    )
    shapes = {distinct.shape, extra.shape, seconds.shape, cosine.shape}
    shapes |= {acted.shape, decided.shape}
    is_table = shapes == {(len(distinct), len(clients))}
    counts = parts["ids"], parts["used"], parts["recycled"]
    integers = (distinct, extra, *(value for part in counts for value in part.values()))
    valid = all(value.dtype == torch.int64 and bool((value >= 0).all()) for value in integers)
    # A histogram takes memory for the largest count, and sums of large counts overflow.
    uses = (value for part in ("used", "recycled") for value in parts[part].values())
    valid = valid and all(bool((value <= MOST_USES).all()) for value in uses)
    valid = valid and float(extra.double().sum()) <= _LARGEST
    sizes = torch.tensor([len(parts["ids"][c]) for c in clients], dtype=torch.int64)
    valid = valid and (not is_table or bool((distinct <= sizes).all()))
    valid = valid and bool((seconds >= 0).all()) and float(seconds.double().sum()) <= _LARGEST
    valid = valid and bool((cosine.isnan() | (cosine.abs() <= _LONGEST_COSINE)).all())
    flags = torch.cat([acted.flatten(), decided.flatten()])
    valid = valid and bool((flags.isnan() | (flags == 0) | (flags == 1)).all())
    is_same_run = notes.get("run") == run
    if not (is_same_run and fits and is_table and valid):
        raise Damaged(
            f"{path} is {'damaged' if is_same_run else 'of another run'}; restore it from a copy, "
            "or delete the run's folder and run the study again"
        )
    return Usage(clients, *counts, distinct, extra, seconds, cosine, acted, decided)


def _by_client(part: str, clients: Sequence[ClientId], tensors: Params) -> dict[ClientId, Tensor]:
    """Split the counts by client; files of older versions have one tensor per client."""
    if "samples" not in tensors:
        return {client: tensors[f"{part}/{client}"] for client in clients}
    sizes = tensors["samples"].tolist()
    return dict(zip(clients, torch.split(tensors[part], sizes), strict=True))
