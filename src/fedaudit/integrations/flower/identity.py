"""Who a reply is from: node numbers are drawn anew in every run, partitions stay."""

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fedaudit.core import ClientId

IDENTITY = "fedaudit"
PARTITION = "partition-id"
_LARGEST = 10**15
"""Of the numbers that a recording takes for clients."""
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


def client_of(reply: Message) -> ClientId | None:
    """Which client says that it sent a reply; None where none does."""
    if not reply.has_content():
        return None
    for record in reply.content.config_records.values():
        said = record.get(PARTITION)
        if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _LARGEST:
            return said
    return None
