"""Additions of Flower's clients to their replies, and answers when asked for their part.

Apart from everything that a server needs, as a client may be a new process for every message.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedaudit.live.audited import Split

IDENTITY = "fedaudit"
PARTITION = "partition-id"
ACTION = "audit"
"""Of the query that asks for parts: ``@app.query("audit")``."""
PART = "fedaudit.part"
_OLDER = "fitres.metrics"
"""Where replies of the older interface hold what they say beside parameters."""


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that adds to each reply which client it is from: its ``partition-id``.

    The number is that of the node's configuration, which simulations set and which is given to a
    SuperNode as ``--node-config "partition-id=0 ..."``. A client that has none adds nothing.
    """
    reply = call_next(message, context)
    partition = context.node_config.get(PARTITION)
    if partition is None or not reply.has_content():
        return reply
    reply.content[IDENTITY] = ConfigRecord({PARTITION: int(partition)})
    if _OLDER in reply.content.config_records:
        reply.content.config_records[_OLDER][PARTITION] = int(partition)
    return reply


def audit_reply(message: Message, split: Split) -> Message:
    """A client's answer to ``gathered_audit``: its audited samples, and no others.

    Args:
        message: The server's, of ``@app.query("audit")``.
        split: Of :func:`fedaudit.fair_split` on the client's own data, under its own number.
    """
    arrays = {name: Array(values) for name, values in split.part.items()}
    return Message(RecordDict({PART: ArrayRecord(arrays)}), reply_to=message)
