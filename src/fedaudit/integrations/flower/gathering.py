"""Audit sets that clients of Flower hand over, each its own part, before anybody trains."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedaudit.core.errors import BadInput
from fedaudit.core.values import NOBODY, ClientId
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.integrations.flower.contents import arrays_of
from fedaudit.integrations.flower.ledger import client_of, there_of
from fedaudit.integrations.flower.replies import ACTION, DECLINED, PART
from fedaudit.integrations.guard import warn
from fedaudit.live.audited import features_by_name, join_audits
from fedaudit.live.recording import number_of
from fedaudit.results.text import plain

_HOW = (
    f'a ClientApp needs @app.query("{ACTION}"), which returns audit_reply(message, split), or, if '
    "it has a client_fn, audit_mod(split) among its mods"
)


def gathered_audit(
    grid: Grid,
    *,
    nodes: int,
    quorum: int = 1,
    patience: float = 60.0,
    timeout: float = 600.0,
    seed: int = 1,
) -> AuditSet:
    """Ask every client for its part of the audit, before anybody trains, and join the parts.

    A client may decline (:func:`audit_decline`), be absent, or answer with something that is no
    part. It trains as before and is not audited; a warning, the recording and the report name it
    with the reason.

    Args:
        grid: What ``main`` of a ServerApp is given.
        nodes: Number of clients that are expected.
        quorum: Fewest parts that make an audit.
        patience: Seconds to wait for nodes.
        timeout: Seconds in which they have to answer.
        seed: With which clients split; see :func:`fedaudit.join_audits`.

    Returns:
        The joined audit set; its ``unaudited`` holds the clients without a part, and why.

    Raises:
        BadInput: Fewer parts than the quorum have come.
    """
    if not 1 <= quorum <= nodes:
        raise BadInput(f"quorum is a number of parts from 1 to nodes={nodes}, got {quorum}")
    there = there_of(grid, nodes, patience)
    asked = [Message(RecordDict(), node, f"query.{ACTION}") for node in there]
    read: list[_Part] = []
    unaudited: dict[str, str] = {}
    answered, names = 0, set[str]()
    for reply in grid.send_and_receive(asked, timeout=timeout) if asked else ():
        answered += 1
        name = _name_of(reply)
        # Two nodes may say that they are one client.
        name = f"{name} (node {reply.metadata.src_node_id})" if name in names else name
        names.add(name)
        try:
            read.append(_read(name, reply, seed))
        # Whatever it is: one client's answer ends nobody's training.
        except Exception as error:
            unaudited[name] = plain(str(error))[:500]
    parts = [one.arrays for one in _fitting(read, unaudited)]
    silent = len(there) - answered
    if silent > 0:
        unaudited[_counted(silent)] = f"no answer within {timeout:g} seconds"
    if len(there) < nodes:
        unaudited[_counted(nodes - len(there))] = f"not there after {patience:g} seconds"
    text = "; ".join(f"{name}: {why}" for name, why in unaudited.items())
    if len(parts) < quorum:
        raise BadInput(
            f"{len(parts)} of {nodes} clients handed over their part of the audit, and the quorum "
            f"is {quorum} ({text[:1000]}); {_HOW}"
        )
    if unaudited:
        warn(f"{nodes - len(parts)} of {nodes} clients are not audited: {text}", stacklevel=2)
    return replace(join_audits(parts, seed=seed), unaudited=unaudited)


def _counted(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"


def _name_of(reply: Message) -> str:
    client = client_of(reply)
    return f"node {reply.metadata.src_node_id}" if client is None else f"client {client}"


class _Part(NamedTuple):
    """One client's part: its sender, its arrays, and what has to fit those of others."""

    name: str
    arrays: Mapping[str, np.ndarray]
    clients: frozenset[ClientId]
    form: str


def _read(name: str, reply: Message, seed: int) -> _Part:
    if not reply.has_content():
        lines = (reply.error.reason or "").strip().splitlines() if reply.has_error() else []
        raise BadInput(f"it answers with an error{f' ({lines[-1][:300]})' if lines else ''}")
    declined = reply.content.config_records.get(PART)
    if declined is not None:
        why = str(declined.get(DECLINED) or "")
        raise BadInput(f"declined{f': {why}' if why else ''}")
    record = reply.content.array_records.get(PART)
    arrays = arrays_of(record) if record is not None else None
    if not isinstance(arrays, dict):
        raise BadInput("it answers without a part of the audit")
    alone = join_audits([arrays], seed=seed)
    clients = frozenset({*alone.owner.tolist(), *alone.panel.tolist()} - {NOBODY})
    sender = client_of(reply)
    if sender is not None and clients != {number_of(sender)}:
        raise BadInput("its part is of another client than the one that its identity_mod names")
    tensors = [*features_by_name(alone.samples).items(), ("targets", alone.samples.targets)]
    form = ", ".join(f"{key} {tuple(one.shape[1:])} {one.dtype}" for key, one in sorted(tensors))
    return _Part(name, arrays, clients, form)


def _fitting(read: Sequence[_Part], unaudited: dict[str, str]) -> list[_Part]:
    """Return the parts that can be joined, and note of the others why not.

    Args:
        read: All parts.
        unaudited: Gets the others, by name.
    """
    counts = Counter(client for one in read for client in one.clients)
    single: list[_Part] = []
    for one in read:
        if all(counts[client] == 1 for client in one.clients):
            single.append(one)
        else:
            unaudited[one.name] = "another node has handed over a part of the same client"
    # Of forms equally frequent the first in order of the alphabet, whatever came first.
    forms = Counter(one.form for one in single)
    usual = max(sorted(forms), key=forms.__getitem__, default="")
    for one in single:
        if one.form != usual:
            unaudited[one.name] = f"its samples are {one.form}, and those of most are {usual}"
    return [one for one in single if one.form == usual]
