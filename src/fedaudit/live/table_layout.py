"""Rounds, clients, samples and members of a table of signals."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import ByClient, numbers_of
from fedaudit.live.table_columns import Columns, name_of
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.tensors import MAX_ROUND

_LARGEST_ID = 2**62


class Layout(NamedTuple):
    """Rounds, clients and samples of a table, and each row's place in them.

    Attributes:
        rounds: Round numbers, ascending.
        clients: Names of the clients.
        samples: Names of the samples.
        round_of: Position of each row's round; likewise ``client_of`` and ``sample_of``.
        client_of: Position of each row's client.
        sample_of: Position of each row's sample.
        has: Whether each client was measured on each sample.
        order: Random order of the samples in the recording, which reveals no owner.
    """

    rounds: Int[ndarray, " rounds"]
    clients: list[str]
    samples: list[str]
    round_of: Int[ndarray, " rows"]
    client_of: Int[ndarray, " rows"]
    sample_of: Int[ndarray, " rows"]
    has: Bool[ndarray, "clients samples"]
    order: Int[ndarray, " samples"]

    @property
    def is_separate(self) -> bool:
        """True if each client was measured on different samples."""
        return not bool(self.has.all())


def layout_of(columns: Columns, kind: str = "client") -> Layout:
    """Return the layout of a table.

    Args:
        columns: The table.
        kind: What its clients are, for messages.

    Raises:
        BadInput: Rows are repeated or missing.
    """
    rounds, round_of = np.unique(columns["round"].astype(np.int64), return_inverse=True)
    if rounds[0] < 1 or rounds[-1] > MAX_ROUND:
        raise BadInput(f"round has values from {rounds[0]} to {rounds[-1]}; count rounds from 1")
    clients, client_of = np.unique(columns["client"].astype(str), return_inverse=True)
    samples, sample_of = np.unique(columns["sample"].astype(str), return_inverse=True)
    n_clients, n_samples = len(clients), len(samples)
    has = np.zeros((n_clients, n_samples), dtype=bool)
    has[client_of, sample_of] = True
    pair = round_of * n_clients + client_of
    row = pair * n_samples + sample_of
    _, first, counts = np.unique(row, return_index=True, return_counts=True)
    if bool((counts > 1).any()):
        at = int(first[np.argmax(counts > 1)])
        raise BadInput(
            f"round {rounds[round_of[at]]}, {kind} {clients[client_of[at]]} and sample "
            f"{samples[sample_of[at]]} have two rows; give one"
        )
    present = np.unique(pair)
    expected = has.sum(1)[present % n_clients]
    counted = np.bincount(pair)[present]
    if bool((counted < expected).any()):
        at = int(present[np.argmax(counted < expected)])
        rows = set(sample_of[pair == at].tolist())
        lacking = next(s for s in np.flatnonzero(has[at % n_clients]).tolist() if s not in rows)
        name = f"{kind} {clients[at % n_clients]}"
        raise _gap(int(rounds[at // n_clients]), name, str(samples[lacking]))
    if not has.all() and bool((has.sum(0) > 1).any()):
        client, sample = (int(part[0]) for part in np.nonzero(~has))
        some_round = int(rounds[(present[present % n_clients == client] // n_clients)[0]])
        raise _gap(some_round, f"{kind} {clients[client]}", str(samples[sample]))
    order = seeded_numpy(0, "signal table").permutation(n_samples)
    names = [str(name) for name in clients], [str(name) for name in samples]
    return Layout(rounds, *names, round_of, client_of, sample_of, has, order)


def _gap(round: int, client: str, sample: str) -> BadInput:
    return BadInput(
        f"there is no row of sample {sample} for {client} in round {round}; give every client or "
        "model all samples in each round in which it took part, or each client its own samples only"
    )


def audit_of(
    columns: Columns, layout: Layout, members: ByClient[Collection[object]] | None, *, fair: bool
) -> tuple[AuditSet, dict[str, ClientId]]:
    """Return the audit set, and the number of each measured client."""
    owners = _owners(columns, layout, members)
    named = {*layout.clients, *filter(None, owners)}
    numbers = {str(name): number for name, number in numbers_of(sorted(named)).items()}
    owner = np.array([numbers[name] if name else NOBODY for name in owners], dtype=np.int64)
    labels = np.zeros(len(owner), dtype=np.int64)
    if "label" in columns:
        labels = _per_sample(columns["label"].astype(np.int64), layout, "label")
        if labels.min() < 0:
            raise BadInput(f"label has the value {labels.min()}; give classes from 0")
    drawn_for: Int[ndarray, " samples"] | None = None
    if "drawn_for" in columns:
        texts = _per_sample(columns["drawn_for"], layout, "drawn_for")
        unknown = sorted({*texts} - {*layout.clients})
        if unknown:
            raise BadInput(f"drawn_for names {unknown[0]!r}, which is no client of the table")
        drawn_for = np.array([numbers[name] for name in texts], dtype=np.int64)
    elif layout.is_separate or len(layout.clients) == 1:
        measured = np.array([numbers[name] for name in layout.clients], dtype=np.int64)
        drawn_for = measured[layout.has.argmax(0)]
    if fair and drawn_for is None:
        raise BadInput("fair=True needs the column drawn_for, the client whose coin was tossed")
    if fair and drawn_for is not None and bool(((owner != NOBODY) & (owner != drawn_for)).any()):
        raise BadInput("fair=True, but a sample is owned by another client than that in drawn_for")
    ids = np.arange(len(owner))
    if all(name.isdecimal() and int(name) <= _LARGEST_ID for name in layout.samples):
        ids = np.array([int(name) for name in layout.samples], dtype=np.int64)
        if len(np.unique(ids)) < len(ids):
            raise BadInput("two samples have one number in two spellings; write numbers alike")
    order = layout.order
    classes, numbers_of_samples = torch.from_numpy(labels[order]), torch.from_numpy(ids[order])
    samples = Samples(torch.zeros(len(order), 0), classes, numbers_of_samples, classes)
    panel = drawn_for if fair and drawn_for is not None else np.full(len(owner), NOBODY)
    audit = AuditSet(samples, owner[order], panel[order])
    if layout.is_separate and drawn_for is not None:
        audit = replace(audit, drawn_for=drawn_for[order])
    return audit, numbers


def _owners(
    columns: Columns, layout: Layout, members: ByClient[Collection[object]] | None
) -> list[str]:
    """Return the name of each sample's owner, empty for held-out samples."""
    ways = [way for way in ("owner", "member") if way in columns]
    ways += ["members="] if members is not None else []
    if len(ways) != 1:
        what = " and ".join(ways) or "nothing"
        raise BadInput(
            f"{what} states who trains on a sample; give exactly one of members=, the column owner "
            "and the column member"
        )
    if "owner" in columns:
        return [str(name) for name in _per_sample(columns["owner"], layout, "owner")]
    owners = [""] * len(layout.samples)
    for client, sample in _memberships(columns, layout, members):
        if owners[sample] not in ("", client):
            raise BadInput(
                f"sample {layout.samples[sample]} has two owners, {owners[sample]} and {client}; "
                "leave it out of the audit"
            )
        owners[sample] = client
    return owners


def _memberships(
    columns: Columns, layout: Layout, members: ByClient[Collection[object]] | None
) -> Iterator[tuple[str, int]]:
    """Yield each pair of a client and the position of a sample that it trains on."""
    if members is not None:
        place = {name: position for position, name in enumerate(layout.samples)}
        for client, samples in members.items():
            named = [name_of(sample) for sample in samples]
            if not any(name in place for name in named):
                raise BadInput(f"none of the members of client {client} is in the table")
            yield from ((name_of(client), place[name]) for name in named if name in place)
        return
    is_member = columns["member"]
    if not {*np.unique(is_member).tolist()} <= {0.0, 1.0}:
        raise BadInput("member has other values than 0 and 1; give 1 if the client trains on it")
    pairs = np.unique(layout.client_of * len(layout.samples) + layout.sample_of)
    pair = layout.client_of * len(layout.samples) + layout.sample_of
    rows, trained = np.bincount(pair)[pairs], np.bincount(pair, weights=is_member)[pairs]
    if bool(((trained > 0) & (trained < rows)).any()):
        raise BadInput("member changes between rounds; give the same value in each")
    for chosen in pairs[trained > 0].tolist():
        client, sample = divmod(chosen, len(layout.samples))
        yield layout.clients[client], sample


def _per_sample(column: ndarray, layout: Layout, name: str) -> ndarray:
    """Return the value of each sample; raise if its rows differ."""
    values = np.empty(len(layout.samples), dtype=column.dtype)
    values[layout.sample_of] = column
    if bool((values[layout.sample_of] != column).any()):
        at = int(np.argmax(values[layout.sample_of] != column))
        raise BadInput(
            f"sample {layout.samples[layout.sample_of[at]]} has two values in {name}; give one in "
            "all of its rows"
        )
    return values


def measured_rounds_of(
    layout: Layout, signals: Mapping[str, ndarray], numbers: Mapping[str, ClientId]
) -> Iterator[MeasuredRound]:
    """Yield the measured rounds; what a client was not measured on is 0, and not used."""
    ascending = sorted(range(len(layout.clients)), key=lambda at: numbers[layout.clients[at]])
    for position, index in enumerate(layout.rounds.tolist()):
        rows = np.flatnonzero(layout.round_of == position)
        took_part = {*layout.client_of[rows].tolist()}
        clients = [at for at in ascending if at in took_part]
        row_of = np.zeros(len(layout.clients), dtype=np.int64)
        row_of[clients] = np.arange(len(clients))
        values = {}
        for name, column in signals.items():
            matrix = np.zeros((len(clients), len(layout.samples)))
            matrix[row_of[layout.client_of[rows]], layout.sample_of[rows]] = column[rows]
            values[name] = torch.from_numpy(matrix[:, layout.order])
        yield MeasuredRound(
            index,
            tuple(numbers[layout.clients[at]] for at in clients),
            torch.zeros(len(clients), dtype=torch.int64),
            values,
        )
