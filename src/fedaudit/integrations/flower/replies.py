"""Additions of Flower's clients to their replies, and answers when asked for their part.

This module imports nothing that only a server needs: a client may be a new process for every
message.
"""

from collections.abc import Callable
from math import isfinite

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedaudit.integrations.guard import warn
from fedaudit.live.audited import Split
from fedaudit.live.recording import Called

IDENTITY = "fedaudit"
PARTITION = "partition-id"
DECLINED = "declined"
ACTION = "audit"
"""Action of the query that asks for parts: ``@app.query("audit")``."""
PART = "fedaudit.part"
OLDER_METRICS = "fitres.metrics"
"""Record in which replies of the older interface hold their metrics."""
_LARGEST = 10**15
"""Largest client number that a recording takes."""
_LONGEST = 200


def client_in(value: object) -> Called | None:
    """Return the client that a ``partition-id`` names: a number, or a name.

    Args:
        value: From a node's configuration or from a reply, so it may be anything. Digits are a
            number, and 2.7 is the name "2.7".

    Returns:
        None for what names no client: truth values, negative numbers, empty or unprintable text.
    """
    if isinstance(value, float) and isfinite(value):
        value = int(value) if value.is_integer() else str(value)
    if isinstance(value, str):
        value = value.strip()
        if not value.isdecimal():
            return value if value.isprintable() and 0 < len(value) <= _LONGEST else None
        value = int(value) if len(value) <= _LONGEST else -1
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST else None


def identity_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that adds to each reply which client it is from: its ``partition-id``.

    The node's configuration holds it as a number or a name. Simulations set it, and a SuperNode
    takes it as ``--node-config "partition-id=0 ..."`` or ``--node-config 'partition-id="north"'``.
    A client without one adds nothing. The mod never raises: it warns, and passes the reply on.
    """
    reply = call_next(message, context)
    try:
        _identify(reply, context)
    # Whatever it is: no audit may end a client's training.
    except Exception as error:
        warn(f"this client's reply does not say which client it is from ({error})", stacklevel=2)
    return reply


def _identify(reply: Message, context: Context) -> None:
    value = context.node_config.get(PARTITION)
    if value is None or not reply.has_content():
        return
    client = client_in(value)
    if client is None:
        raise ValueError(f"its partition-id is {str(value)[:80]!r}, which is no number or name")
    reply.content[IDENTITY] = ConfigRecord({PARTITION: client})
    if OLDER_METRICS in reply.content.config_records:
        reply.content.config_records[OLDER_METRICS][PARTITION] = client


def without_identity(reply: Message) -> None:
    """Remove what :func:`identity_mod` added to the metrics of a reply of the older interface."""
    if reply.has_content() and IDENTITY in reply.content.config_records:
        reply.content.config_records.get(OLDER_METRICS, {}).pop(PARTITION, None)


def audit_mod(split: Callable[[Context], Split | None]) -> Mod:
    """Client mod that answers :func:`gathered_audit` for a ``ClientApp(client_fn=...)``.

    Such an app cannot have an ``@app.query("audit")``. An app of decorators needs that query:
    Flower calls mods only for messages that one of its functions is registered for.

    Args:
        split: Returns the client's :func:`fedaudit.fair_split`, or None if it declines the audit.
            It gets the node's context. An error in it is reported to the server as the reason why
            this client is not audited.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type != f"query.{ACTION}":
            return call_next(message, context)
        try:
            part = split(context)
            return audit_decline(message) if part is None else audit_reply(message, part)
        # Whatever it is: no audit may end a client's process.
        except Exception as error:
            return audit_decline(message, f"its part cannot be made: {error}")

    return mod


def audit_reply(message: Message, split: Split) -> Message:
    """Return a client's answer to :func:`gathered_audit`: its audited samples, and no others.

    Args:
        message: The server's, of ``@app.query("audit")``.
        split: Of :func:`fedaudit.fair_split` on the client's own data, under its own number or
            name.
    """
    arrays = {name: Array(values) for name, values in split.part.items()}
    return Message(RecordDict({PART: ArrayRecord(arrays)}), reply_to=message)


def audit_decline(message: Message, reason: str = "") -> Message:
    """Return the answer of a client that takes no part in the audit; it trains as before.

    Args:
        message: The server's, of ``@app.query("audit")``.
        reason: For the recording and its report.
    """
    return Message(RecordDict({PART: ConfigRecord({DECLINED: reason[:1000]})}), reply_to=message)
