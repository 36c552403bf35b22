"""Clients' parts of an audit, asked for over Flower: each client splits its own data alone."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedaudit.core.errors import BadInput
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.integrations.flower.contents import arrays_of
from fedaudit.integrations.flower.ledger import there_of
from fedaudit.live.audited import Split, join_audits
from fedaudit.results.text import plain

ACTION = "audit"
"""Of the query that asks for parts: ``@app.query("audit")``."""

_PART = "fedaudit.part"


def audit_reply(message: Message, split: Split) -> Message:
    """A client's answer to :func:`gathered_audit`: its audited samples, and no others.

    Args:
        message: The server's, of ``@app.query("audit")``.
        split: Of :func:`fedaudit.fair_split` on the client's own data, under its own number.
    """
    arrays = {name: Array(values) for name, values in split.part.items()}
    return Message(RecordDict({_PART: ArrayRecord(arrays)}), reply_to=message)


def gathered_audit(
    grid: Grid, *, nodes: int, patience: float = 60.0, timeout: float = 600.0, seed: int = 1
) -> AuditSet:
    """The audit set of all clients, each of which is asked for its part before anybody trains.

    Args:
        grid: What ``main`` of a ServerApp is given.
        nodes: How many clients there are, which are waited for.
        patience: Seconds for which nodes are waited for.
        timeout: Seconds in which they have to answer.
        seed: With which clients split; see :func:`fedaudit.join_audits`.

    Raises:
        BadInput: Fewer nodes have come, one does not answer with a part, or parts do not fit
            together.
    """
    found = there_of(grid, nodes, patience)
    if len(found) < nodes:
        raise BadInput(
            f"{len(found)} of {nodes} nodes are there after {patience:g} seconds, and all of them "
            f"have a part of the audit; start the others, give more patience, or say "
            f"nodes={len(found)}"
        )
    asked = [Message(RecordDict(), node, f"query.{ACTION}") for node in found]
    replies = list(grid.send_and_receive(asked, timeout=timeout))
    _refuse_lost(replies, len(asked))
    return join_audits([_part(one) for one in replies], seed=seed)


def _part(reply: Message) -> dict[str, np.ndarray]:
    record = reply.content.array_records.get(_PART)
    if record is None:
        raise BadInput(
            f"node {reply.metadata.src_node_id} answers without a part of the audit; return "
            f'audit_reply(message, split) from @app.query("{ACTION}")'
        )
    found = arrays_of(record)
    return found if isinstance(found, dict) else {}


def _refuse_lost(replies: Iterable[Message], asked: int) -> None:
    """All parts are needed, and nothing has been trained yet that could be lost."""
    answered = [one for one in replies if one.has_content()]
    if len(answered) == asked:
        return
    reasons = [one.error.reason or "" for one in replies if one.has_error()]
    why = next((plain(reason.strip().splitlines()[-1]) for reason in reasons if reason.strip()), "")
    raise BadInput(
        f"{len(answered)} of {asked} nodes answered when asked for their part of the audit"
        f"{f' ({why[:300]})' if why else ''}; every ClientApp needs "
        f'@app.query("{ACTION}"), which returns audit_reply(message, split)'
    )
