"""Usage of data and time by clients, round by round: never shown to an adversary."""

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
"""Uses of one sample that are counted, at most; a histogram has a place for each number."""
_MOST = 1e15
"""Bytes and seconds of a run, at most."""

COUNTS = ("used", "recycled", "extra_bytes", "acted", "risk_decided")
"""What clients note in whole numbers: samples by number, bytes, and 1 or 0 for yes or no."""


@dataclass(frozen=True)
class Usage:
    """Number of each client's trainings on each of its samples, and the cost of its rounds.

    Attributes:
        clients: The order of columns.
        ids: Each client's samples.
        used: How often each of them was in a training step, over all rounds.
        recycled: How often of these a defense had brought it back after leaving it out.
        distinct: How many different samples a client trained on in a round.
        extra_bytes: What a defense made a client send or receive beside model and upload.
        seconds: What a client's rounds cost: processor time, or on a GPU time by the clock. Of
            the machine, not of the result.
        filter_cosine: Between what a client's filter was given and what it sent, the mean over
            several filters of one round; NaN where no filter acted, or one of the two was zero.
        acted: 1 in rounds in which a client's defense changed a step or its upload, else 0; NaN
            for a defense that always acts, and where the client took no part.
        risk_decided: 1 in rounds in which a client chose another model than it would have without
            the models' risks, else 0; NaN where it chose none by risk.
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


def unused(clients: Mapping[ClientId, Samples]) -> Usage:
    """The usage before the first round."""
    order = tuple(sorted(clients))
    none = {client: torch.zeros(len(clients[client]), dtype=torch.int64) for client in order}
    empty = torch.zeros(0, len(order), dtype=torch.int64)
    ids = {client: clients[client].ids.sort().values for client in order}
    return Usage(order, ids, none, none, empty, empty, *(empty.double() for _ in range(4)))


def counted(usage: Usage, round: Round) -> Usage:
    """The usage with one more round; a round that is in it already changes nothing.

    Raises:
        Damaged: Rounds between are missing.
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
    cosines = [_mean(facts[client].get("filter_cosine")) for client in usage.clients]
    acted, decided = (
        [_any(facts[client].get(name)) for client in usage.clients]
        for name in ("acted", "risk_decided")
    )
    added = {client: _times(usage.ids[client], facts[client], "used") for client in facts}
    again = {client: _times(usage.ids[client], facts[client], "recycled") for client in facts}
    distinct = [int((added[client] > 0).sum()) for client in usage.clients]
    return replace(
        usage,
        used={c: (usage.used[c] + added[c]).clamp(max=MOST_USES) for c in usage.clients},
        recycled={c: (usage.recycled[c] + again[c]).clamp(max=MOST_USES) for c in usage.clients},
        distinct=torch.cat([usage.distinct, torch.tensor([distinct])]),
        extra_bytes=torch.cat([usage.extra_bytes, torch.tensor([extra])]),
        seconds=torch.cat([usage.seconds, torch.tensor([seconds], dtype=torch.float64)]),
        filter_cosine=torch.cat(
            [usage.filter_cosine, torch.tensor([cosines], dtype=torch.float64)]
        ),
        acted=torch.cat([usage.acted, torch.tensor([acted], dtype=torch.float64)]),
        risk_decided=torch.cat([usage.risk_decided, torch.tensor([decided], dtype=torch.float64)]),
    )


def _mean(noted: Tensor | None) -> float:
    return math.nan if noted is None else float(noted.double().mean())


def _any(noted: Tensor | None) -> float:
    return math.nan if noted is None else float((noted > 0).any())


def _times(ids: Int[Tensor, " samples"], facts: Params, fact: str) -> Int[Tensor, " samples"]:
    """Counts of each id (ascending) among those noted; others' ids are passed over."""
    noted = facts.get(fact)
    if noted is None or len(ids) == 0:
        return torch.zeros(len(ids), dtype=torch.int64)
    places = torch.searchsorted(ids, noted).clamp(max=len(ids) - 1)
    return torch.bincount(places[ids[places] == noted], minlength=len(ids))


def keeping_usage(
    rounds: Iterable[Round], clients: Mapping[ClientId, Samples], folder: Path, run: str
) -> Iterator[Round]:
    """The rounds without what clients noted, which is added up in a file of the run's folder.

    Args:
        rounds: As they were, before any view.
        clients: Each client's data.
        folder: The run's; a run that goes on also goes on counting.
        run: Names the run.

    Raises:
        Damaged: The file is another run's, or lacks rounds.
    """
    usage: Usage | None = None
    for round in rounds:
        # Not before: the run's checkpoint knows better why a folder is another run's.
        usage = counted(usage or read_usage(folder, run) or unused(clients), round)
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
    # One tensor for all clients: of three for each, no file holds those of 100,000.
    tensors["samples"] = torch.tensor([len(usage.ids[client]) for client in usage.clients])
    for name, part in (("ids", usage.ids), ("used", usage.used), ("recycled", usage.recycled)):
        tensors[name] = torch.cat([torch.zeros(0).long(), *(part[c] for c in usage.clients)])
    write_tensors(tensors, folder / USAGE_FILE, {"run": run})


def read_usage(folder: Path, run: str) -> Usage | None:
    """Usage in a run's folder; None where it was never kept.

    Raises:
        Damaged: The file is another run's, or not one that fedaudit wrote.
    """
    path = folder / USAGE_FILE
    if not os.path.lexists(path):
        return None
    # Training would write a new file in its place, and count from nothing.
    if path.is_symlink() or not path.is_file():
        raise Damaged(
            f"{path} is a link, a folder or another special file, and usage is kept in a regular "
            "file; restore it from a copy, or delete it and the folder's checkpoint"
        )
    tensors, notes = read_tensors(path)
    try:
        clients = tuple(int(client) for client in tensors["clients"].tolist())
        parts = {part: _by_client(part, clients, tensors) for part in ("ids", "used", "recycled")}
        distinct, extra, seconds = (tensors[n] for n in ("distinct", "extra_bytes", "seconds"))
        # Older files have none.
        cosine, acted, decided = (
            tensors.get(name, torch.full(seconds.shape, math.nan)).double()
            for name in ("filter_cosine", "acted", "risk_decided")
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"{path} is not a record of usage ({error}); restore it") from error
    fits = (
        len(set(clients)) == len(clients)
        and all(0 <= client <= _MOST for client in clients)
        and all(
            part[c].shape == (len(parts["ids"][c]),) for part in parts.values() for c in clients
        )
    )
    shapes = {distinct.shape, extra.shape, seconds.shape, cosine.shape}
    shapes |= {acted.shape, decided.shape}
    table = shapes == {(len(distinct), len(clients))}
    counts = parts["ids"], parts["used"], parts["recycled"]
    numbers = (distinct, extra, *(one for part in counts for one in part.values()))
    whole = all(one.dtype == torch.int64 and bool((one >= 0).all()) for one in numbers)
    # A histogram takes memory for the largest of them, and sums of large ones overflow.
    uses = (one for part in ("used", "recycled") for one in parts[part].values())
    whole = whole and all(bool((one <= MOST_USES).all()) for one in uses)
    whole = whole and float(extra.double().sum()) <= _MOST
    sizes = torch.tensor([len(parts["ids"][c]) for c in clients], dtype=torch.int64)
    whole = whole and (not table or bool((distinct <= sizes).all()))
    timed = bool((seconds >= 0).all()) and float(seconds.double().sum()) <= _MOST
    timed = timed and bool((cosine.isnan() | (cosine.abs() <= _LONGEST_COSINE)).all())
    asked = torch.cat([acted.flatten(), decided.flatten()])
    timed = timed and bool((asked.isnan() | (asked == 0) | (asked == 1)).all())
    ours = notes.get("run") == run
    if not (ours and fits and table and whole and timed):
        raise Damaged(
            f"{path} is {'damaged' if ours else 'of another run'}; restore it from a copy, or "
            "delete the run's folder and run the study again"
        )
    return Usage(clients, *counts, distinct, extra, seconds, cosine, acted, decided)


def _by_client(part: str, clients: Sequence[ClientId], tensors: Params) -> dict[ClientId, Tensor]:
    """Counts of each client's samples, which older files have in a tensor of each client's own."""
    if "samples" not in tensors:
        return {client: tensors[f"{part}/{client}"] for client in clients}
    sizes = tensors["samples"].tolist()
    return dict(zip(clients, torch.split(tensors[part], sizes), strict=True))
