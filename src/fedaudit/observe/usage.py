"""Samples that clients train on, additional traffic, and computing time in each round.

The usage serves only the audit; adversaries do not see it.
"""

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
"""Largest number of uses of one sample; a histogram has one bin for each number."""

_MAX_CLIENT_ID = 10**15
"""Largest number of a client."""

_MAX_TOTAL = 1e15
"""Largest sum of bytes or seconds in a run."""

INTEGER_NOTES = ("used", "recycled", "extra_bytes", "acted", "risk_decided")
"""Names of client notes with integers: sample ids, numbers of bytes, and flags (1 or 0)."""


@dataclass(frozen=True)
class Usage:
    """Number of uses of each client's samples in training, and the cost of each client's rounds.

    Attributes:
        clients: The clients, in the order of columns.
        ids: Sample ids of each client in ascending order.
        used: Number of training steps with each sample, over all rounds.
        recycled: Number of those steps that used the sample although the client was not assigned
            its class in that round (samples that CoFedMID returns to training).
        distinct: Number of different samples on which a client trained in each round.
        extra_bytes: Bytes that a client sent or received for a defense, in addition to model and
            upload.
        seconds: Processor time of a client in a round, or wall-clock time on a GPU.
        filter_cosine: Cosine between input and output of a privacy filter, averaged over the
            filters of a round; NaN without filters, or if input or output was zero.
        acted: 1 in rounds in which a client's defense changed a step or its upload, else 0; NaN
            for a defense that always acts, and for a client that did not take part.
        risk_decided: In clustered FL, 1 in rounds in which the models' membership risks changed a
            client's choice of model, else 0; NaN for a client that does not consider risks.
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
    """Return the usage including another round; unchanged if the round was already added.

    Raises:
        Damaged: The previous round was not added.
    """
    if round.index <= usage.rounds:
        return usage
    if round.index > usage.rounds + 1:
        raise Damaged(
            f"usage was recorded up to round {usage.rounds}, but the next round is {round.index}; "
            "restore the run's folder from a copy, or delete it and run the study again"
        )
    clients = usage.clients
    notes = {client: round.client_notes.get(client, {}) for client in clients}
    used = {client: _count_uses(usage.ids[client], notes[client].get("used")) for client in clients}
    recycled = {
        client: _count_uses(usage.ids[client], notes[client].get("recycled")) for client in clients
    }
    distinct = [int((used[client] > 0).sum()) for client in clients]
    extra_bytes = [int(notes[c].get("extra_bytes", torch.zeros(0)).sum()) for c in clients]
    no_cosine = torch.tensor([math.nan])
    cosines = [float(notes[c].get("filter_cosine", no_cosine).double().mean()) for c in clients]
    return replace(
        usage,
        used={c: (usage.used[c] + used[c]).clamp(max=MAX_USES) for c in clients},
        recycled={c: (usage.recycled[c] + recycled[c]).clamp(max=MAX_USES) for c in clients},
        distinct=_with_row(usage.distinct, distinct),
        extra_bytes=_with_row(usage.extra_bytes, extra_bytes),
        seconds=_with_row(usage.seconds, [round.seconds.get(c, 0.0) for c in clients]),
        filter_cosine=_with_row(usage.filter_cosine, cosines),
        acted=_with_row(usage.acted, [_flag(notes[c].get("acted")) for c in clients]),
        risk_decided=_with_row(
            usage.risk_decided, [_flag(notes[c].get("risk_decided")) for c in clients]
        ),
    )


def _with_row(table: Tensor, row: Sequence[float | int]) -> Tensor:
    return torch.cat([table, torch.tensor([row], dtype=table.dtype)])


def _flag(values: Tensor | None) -> float:
    """Return 1 if any value is positive, else 0; NaN without values."""
    return math.nan if values is None else float((values > 0).any())


def _count_uses(ids: Int[Tensor, " samples"], uses: Tensor | None) -> Int[Tensor, " samples"]:
    """Count how often each of the sorted ids occurs in ``uses``; other ids are ignored."""
    if uses is None or len(ids) == 0:
        return torch.zeros(len(ids), dtype=torch.int64)
    positions = torch.searchsorted(ids, uses).clamp(max=len(ids) - 1)
    return torch.bincount(positions[ids[positions] == uses], minlength=len(ids))


def record_usage(
    rounds: Iterable[Round], clients: Mapping[ClientId, Samples], folder: Path, run_key: str
) -> Iterator[Round]:
    """Move the clients' notes from rounds to a usage file in the run's folder.

    The rounds are yielded without notes. A resumed run continues its file. Apply this
    function before :func:`fedaudit.views.seen_from`, which removes or merges clients according to
    the adversary's view.

    Raises:
        Damaged: The file belongs to another run, or has no entry for the previous round.
    """
    usage: Usage | None = None
    for round in rounds:
        # Read the file only after the first round: if the folder belongs to another run, the
        # checkpoint is then checked first, which gives a better error message.
        usage = add_round(usage or read_usage(folder, run_key) or empty_usage(clients), round)
        _write(usage, folder, run_key)
        round = replace(round, client_notes={}, seconds={})
        yield round
        del round


def _write(usage: Usage, folder: Path, run_key: str) -> None:
    tensors: Params = {
        "clients": torch.tensor(usage.clients, dtype=torch.int64),
        "distinct": usage.distinct,
        "extra_bytes": usage.extra_bytes,
        "seconds": usage.seconds,
        "filter_cosine": usage.filter_cosine,
        "acted": usage.acted,
        "risk_decided": usage.risk_decided,
    }
    # Concatenate the values of all clients, since a file with 100,000 clients would otherwise have
    # too many tensors.
    tensors["samples"] = torch.tensor([len(usage.ids[client]) for client in usage.clients])
    for name, values in (("ids", usage.ids), ("used", usage.used), ("recycled", usage.recycled)):
        tensors[name] = torch.cat([torch.zeros(0).long(), *(values[c] for c in usage.clients)])
    write_tensors(tensors, folder / USAGE_FILE, {"run": run_key})


def read_usage(folder: Path, run_key: str) -> Usage | None:
    """Read the usage in a run's folder; None if it was never recorded.

    Raises:
        Damaged: The file belongs to another run, or was not written by fedaudit.
    """
    path = folder / USAGE_FILE
    if not os.path.lexists(path):
        return None
    # If a link or special file were treated as missing, a new file would replace it and the counts
    # so far would be lost.
    if path.is_symlink() or not path.is_file():
        raise Damaged(
            f"{path} is a link, a folder or another special file, but usage is stored in a regular "
            "file; restore it from a copy, or delete it and the folder's checkpoint"
        )
    tensors, metadata = read_tensors(path)
    try:
        usage = _usage_in(tensors)
        is_valid = _is_valid(usage)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(
            f"{path} is not a valid usage file ({error}); restore it from a copy"
        ) from error
    is_same_run = metadata.get("run") == run_key
    if not (is_same_run and is_valid):
        raise Damaged(
            f"{path} {'is damaged' if is_same_run else 'belongs to another run'}; restore it from "
            "a copy, or delete the run's folder and run the study again"
        )
    return usage


def _usage_in(tensors: Params) -> Usage:
    clients = tuple(int(client) for client in tensors["clients"].tolist())
    seconds = tensors["seconds"]
    # Files of older versions lack three of the tensors.
    missing_table = torch.full(seconds.shape, math.nan)
    return Usage(
        clients,
        ids=_by_client("ids", clients, tensors),
        used=_by_client("used", clients, tensors),
        recycled=_by_client("recycled", clients, tensors),
        distinct=tensors["distinct"],
        extra_bytes=tensors["extra_bytes"],
        seconds=seconds,
        filter_cosine=tensors.get("filter_cosine", missing_table).double(),
        acted=tensors.get("acted", missing_table).double(),
        risk_decided=tensors.get("risk_decided", missing_table).double(),
    )


def _is_valid(usage: Usage) -> bool:
    """Return True if all values have the shapes, types and ranges that :func:`add_round` writes."""
    clients = usage.clients
    if len({*clients}) < len(clients) or not all(0 <= c <= _MAX_CLIENT_ID for c in clients):
        return False
    shape = (usage.rounds, len(clients))
    tables = (usage.distinct, usage.extra_bytes, usage.seconds, usage.filter_cosine)
    flags = (usage.acted, usage.risk_decided)
    if any(table.shape != shape for table in (*tables, *flags)):
        return False
    integer_tensors = [usage.distinct, usage.extra_bytes]
    for client in clients:
        by_sample = (usage.ids[client], usage.used[client], usage.recycled[client])
        if any(values.shape != (len(usage.ids[client]),) for values in by_sample):
            return False
        # A histogram takes memory for the largest count, and sums of large counts overflow.
        if any(bool((values > MAX_USES).any()) for values in by_sample[1:]):
            return False
        integer_tensors += by_sample
    if any(value.dtype != torch.int64 or bool((value < 0).any()) for value in integer_tensors):
        return False
    n_samples = torch.tensor([len(usage.ids[c]) for c in clients], dtype=torch.int64)
    cosine = usage.filter_cosine
    return (
        bool((usage.distinct <= n_samples).all())
        and float(usage.extra_bytes.double().sum()) <= _MAX_TOTAL
        and bool((usage.seconds >= 0).all())
        and float(usage.seconds.double().sum()) <= _MAX_TOTAL
        and bool((cosine.isnan() | (cosine.abs() <= _MAX_COSINE)).all())
        and all(bool((f.isnan() | (f == 0) | (f == 1)).all()) for f in flags)
    )


def _by_client(name: str, clients: Sequence[ClientId], tensors: Params) -> dict[ClientId, Tensor]:
    """Split a tensor by client; files of older versions have one tensor per client."""
    if "samples" not in tensors:
        return {client: tensors[f"{name}/{client}"] for client in clients}
    sizes = tensors["samples"].tolist()
    return dict(zip(clients, torch.split(tensors[name], sizes), strict=True))
