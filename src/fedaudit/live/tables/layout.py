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
from fedaudit.core.values import NO_CLIENT, ClientId, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.clients import ByClient, numbers_of
from fedaudit.live.tables.columns import Columns, name_of
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.tensors import MAX_ROUND

_MAX_ID = 2**62


class TableLayout(NamedTuple):
    """Rounds, clients and samples of a table, and the round, client and sample of each row.

    Attributes:
        rounds: Round numbers, ascending.
        clients: Names of the clients.
        samples: Names of the samples.
        round_of: Index into ``rounds`` for each row.
        client_of: Index into ``clients`` for each row.
        sample_of: Index into ``samples`` for each row.
        has: Whether each client was measured on each sample.
        order: Random order of the samples in the recording, which does not reveal membership.
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
        """True if clients were measured on different samples."""
        return not bool(self.has.all())


def layout_of(columns: Columns, kind: str = "client") -> TableLayout:
    """Return the layout of a table.

    Args:
        columns: The table.
        kind: What error messages call the clients, such as "model" for reference models.

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
    # Number each pair of a round and a client, and each cell of such a pair and a sample.
    pair = round_of * n_clients + client_of
    cell = pair * n_samples + sample_of
    _, first_row, counts = np.unique(cell, return_index=True, return_counts=True)
    if bool((counts > 1).any()):
        row = int(first_row[np.argmax(counts > 1)])
        raise BadInput(
            f"round {rounds[round_of[row]]}, {kind} {clients[client_of[row]]} and sample "
            f"{samples[sample_of[row]]} have two rows; give one"
        )
    # If no sample is shared, clients need their own samples in every round, otherwise all samples.
    is_needed = has if bool((has.sum(0) == 1).all()) else np.ones_like(has)
    pairs = np.unique(pair)
    n_expected = is_needed.sum(1)[pairs % n_clients]
    n_rows = np.bincount(pair)[pairs]
    if bool((n_rows < n_expected).any()):
        incomplete = int(pairs[np.argmax(n_rows < n_expected)])
        round, client = divmod(incomplete, n_clients)
        is_absent = is_needed[client].copy()
        is_absent[sample_of[pair == incomplete]] = False
        raise _missing_row(rounds[round], f"{kind} {clients[client]}", samples[is_absent.argmax()])
    order = seeded_numpy(0, "signal table").permutation(n_samples)
    names = clients.tolist(), samples.tolist()
    return TableLayout(rounds, *names, round_of, client_of, sample_of, has, order)


def _missing_row(round: int, client: str, sample: str) -> BadInput:
    return BadInput(
        f"there is no row of sample {sample} for {client} in round {round}; give every client or "
        "model all samples in each round in which it took part, or each client only its own samples"
    )


def audit_of(
    columns: Columns,
    layout: TableLayout,
    members: ByClient[Collection[object]] | None,
    *,
    fair: bool,
) -> tuple[AuditSet, dict[str, ClientId]]:
    """Return the audit set, and the number of each client by name."""
    owners = _owners(columns, layout, members)
    names = {*layout.clients, *filter(None, owners)}
    numbers = {str(name): number for name, number in numbers_of(sorted(names)).items()}
    owner = np.array([numbers[name] if name else NO_CLIENT for name in owners], dtype=np.int64)
    labels = np.zeros(len(owner), dtype=np.int64)
    if "label" in columns:
        labels = _value_of_each_sample(columns["label"].astype(np.int64), layout, "label")
        if labels.min() < 0:
            raise BadInput(f"label has the value {labels.min()}; give classes from 0")
    drawn_for = _drawn_for(columns, layout, numbers)
    fair_target = np.full(len(owner), NO_CLIENT)
    if fair:
        if drawn_for is None:
            raise BadInput("fair=True needs the column drawn_for, the client whose coin was tossed")
        if bool(((owner != NO_CLIENT) & (owner != drawn_for)).any()):
            raise BadInput(
                "fair=True, but a sample is owned by another client than that in drawn_for"
            )
        fair_target = drawn_for
    ids = np.arange(len(owner))
    if all(name.isdecimal() and int(name) <= _MAX_ID for name in layout.samples):
        ids = np.array([int(name) for name in layout.samples], dtype=np.int64)
        if len(np.unique(ids)) < len(ids):
            raise BadInput("two names of samples are one number, such as 7 and 07; rename one")
    order = layout.order
    sample_labels, sample_ids = torch.from_numpy(labels[order]), torch.from_numpy(ids[order])
    no_features = torch.zeros(len(order), 0)
    samples = Samples(no_features, sample_labels, sample_ids, sample_labels)
    audit = AuditSet(samples, owner[order], fair_target[order])
    if layout.is_separate and drawn_for is not None:
        audit = replace(audit, drawn_for=drawn_for[order])
    return audit, numbers


def _drawn_for(
    columns: Columns, layout: TableLayout, numbers: Mapping[str, ClientId]
) -> Int[ndarray, " samples"] | None:
    """Return the client whose coin decided on each sample; None if it is unknown."""
    if "drawn_for" in columns:
        names = _value_of_each_sample(columns["drawn_for"], layout, "drawn_for")
        if unknown := sorted({*names} - {*layout.clients}):
            raise BadInput(f"drawn_for names {unknown[0]!r}, which is no client of the table")
        return np.array([numbers[name] for name in names], dtype=np.int64)
    if layout.is_separate or len(layout.clients) == 1:
        # Each sample was measured at a single client.
        clients = np.array([numbers[name] for name in layout.clients], dtype=np.int64)
        return np.asarray(clients[layout.has.argmax(0)])
    return None


def _owners(
    columns: Columns, layout: TableLayout, members: ByClient[Collection[object]] | None
) -> list[str]:
    """Return the name of each sample's owner, empty for held-out samples."""
    sources = [name for name in ("owner", "member") if name in columns]
    sources += ["members="] if members is not None else []
    if len(sources) != 1:
        raise BadInput(
            f"membership is stated by {' and '.join(sources) or 'nothing'}; give exactly one of "
            "members=, the column owner and the column member"
        )
    if "owner" in columns:
        return [str(name) for name in _value_of_each_sample(columns["owner"], layout, "owner")]
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
    columns: Columns, layout: TableLayout, members: ByClient[Collection[object]] | None
) -> Iterator[tuple[str, int]]:
    """Yield each pair of a client and the index of a sample that the client trains on."""
    if members is None:
        is_member = membership_in(columns, layout, "member", "the client trains on the sample")
        for client_index, sample_index in np.argwhere(is_member).tolist():
            yield layout.clients[client_index], sample_index
        return
    position = {name: number for number, name in enumerate(layout.samples)}
    for client, samples in members.items():
        names = [name_of(sample) for sample in samples]
        if not any(name in position for name in names):
            raise BadInput(f"none of the members of client {client} is in the table")
        yield from ((name_of(client), position[name]) for name in names if name in position)


def membership_in(
    columns: Columns, layout: TableLayout, name: str, meaning: str
) -> Bool[ndarray, "clients samples"]:
    """Return a column of 0 and 1 as a mask, which is False for pairs without a row.

    Raises:
        BadInput: The column has other values, or values that differ between rounds; ``meaning``
            explains the value 1.
    """
    values = columns[name]
    if not {*np.unique(values).tolist()} <= {0.0, 1.0}:
        raise BadInput(f"{name} has other values than 0 and 1; give 1 if {meaning}")
    mask = np.zeros(layout.has.shape, dtype=bool)
    mask[layout.client_of, layout.sample_of] = values > 0
    if bool((mask[layout.client_of, layout.sample_of] != (values > 0)).any()):
        raise BadInput(f"{name} changes between rounds; give the same value in each")
    return mask


def _value_of_each_sample(column: ndarray, layout: TableLayout, name: str) -> ndarray:
    """Return the value of each sample; raise if the rows of a sample have different values."""
    values = np.empty(len(layout.samples), dtype=column.dtype)
    values[layout.sample_of] = column
    differs = values[layout.sample_of] != column
    if bool(differs.any()):
        sample = layout.samples[layout.sample_of[np.argmax(differs)]]
        raise BadInput(f"sample {sample} has two values in {name}; give one in all of its rows")
    return values


def measured_rounds_of(
    layout: TableLayout, signals: Mapping[str, ndarray], numbers: Mapping[str, ClientId]
) -> Iterator[MeasuredRound]:
    """Yield the measured rounds; values of samples that a client lacks are 0 and never read."""
    ascending = sorted(
        range(len(layout.clients)), key=lambda client: numbers[layout.clients[client]]
    )
    for position, index in enumerate(layout.rounds.tolist()):
        rows = np.flatnonzero(layout.round_of == position)
        participants = {*layout.client_of[rows].tolist()}
        clients = [client for client in ascending if client in participants]
        row_of = np.zeros(len(layout.clients), dtype=np.int64)
        row_of[clients] = np.arange(len(clients))
        values = {}
        for name, column in signals.items():
            matrix = np.zeros((len(clients), len(layout.samples)))
            matrix[row_of[layout.client_of[rows]], layout.sample_of[rows]] = column[rows]
            values[name] = torch.from_numpy(matrix[:, layout.order])
        yield MeasuredRound(
            index,
            tuple(numbers[layout.clients[client]] for client in clients),
            torch.zeros(len(clients), dtype=torch.int64),
            values,
        )
