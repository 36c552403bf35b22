"""Messages of Flower: what they carry, and what clients add to their replies.

A deployment starts a process of a client for every message, so that this module imports nothing
that only a server needs.
"""

from collections.abc import Callable
from math import isfinite
from typing import TypeAlias, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedaudit.core.errors import BadInput
from fedaudit.integrations.common import is_evaluation, training_metrics, warn
from fedaudit.live.audited import Split
from fedaudit.live.clients import ClientRef
from fedaudit.live.weights import array_from

Arrays: TypeAlias = dict[str, np.ndarray] | list[np.ndarray]
"""By name; in their order where they have none."""

_ROUND = "server-round"
_WEIGHTS = ("num-examples", "num_examples")
_HEAVIEST = 1e15


def is_training(message: Message) -> bool:
    """Return True if a message asks a client to train."""
    return message.metadata.message_type.split(".")[0] == "train"


def round_of(message: Message) -> int | None:
    """Return the round that a message of the server belongs to, if it names one."""
    if message.has_content():
        for record in message.content.config_records.values():
            number = record.get(_ROUND)
            if isinstance(number, int):
                return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None


def record_of(message: Message) -> ArrayRecord | None:
    """Return the model that a message carries, if any; raise if there are several."""
    records = message.content.array_records
    if len(records) > 1:
        raise BadInput(
            f"a message has {len(records)} sets of arrays ({', '.join(records)[:200]}), and a "
            "recorder supports a single model; record such a loop with fedaudit.record"
        )
    return next(iter(records.values()), None)


def arrays_of(record: ArrayRecord) -> Arrays:
    """Return the arrays of a record by name, or as a list if names are positions."""
    arrays = {name: array_of(array) for name, array in record.items()}
    if list(arrays) == [str(place) for place in range(len(arrays))]:
        return list(arrays.values())
    return arrays


def array_of(sent: Array) -> np.ndarray:
    """Return an array of an untrusted message."""
    # Flower reads arrays without unpickling anything.
    return array_from(sent.numpy)


def weight_of(reply: Message, key: str) -> float | None:
    """Return the weight in the average that a client reports; None without one.

    It is the metric ``key``, ``num-examples`` or ``num_examples``, and a number from 0 to 1e15.
    """
    for record in reply.content.metric_records.values():
        for name in (key, *_WEIGHTS):
            if name in record:
                return _weight(name, record[name])
    return None


def _weight(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Whole numbers beyond a float's range are compared before they are converted.
    if is_number and 0 <= cast("float", value) <= _HEAVIEST:
        return float(cast("float", value))
    raise BadInput(f"its {name} is {str(value)[:80]!r} instead of a number from 0 to 1e15")


def metrics_of(reply: Message) -> dict[str, float]:
    """Return the training loss and accuracy in a client's reply, of either interface.

    Records named after an evaluation (``eval``, ``val``, ``test``) are left out.
    """
    records = {**reply.content.metric_records}
    if OLDER_METRICS in reply.content.config_records:
        records[OLDER_METRICS] = reply.content.config_records[OLDER_METRICS]
    values: dict[str, object] = {}
    for name, record in records.items():
        if not is_evaluation(name):
            values |= dict(record)
    return training_metrics(values)


IDENTITY = "fedaudit"
PARTITION = "partition-id"
DECLINED = "declined"
ACTION = "audit"
"""Action of the query that asks for parts: ``@app.query("audit")``."""
PART = "fedaudit.part"
OLDER_METRICS = "fitres.metrics"
"""Record in which replies of the older interface hold their metrics."""
_LARGEST = 10**15
"""Largest client number of a recording."""
_LONGEST = 200


def client_in(value: object) -> ClientRef | None:
    """Return the client that a ``partition-id`` names; None for an invalid value.

    Digits are a number, and 2.7 is the name "2.7". Truth values, negative numbers, and empty or
    unprintable texts are invalid.
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
    """Client mod that adds the client's ``partition-id`` to each reply.

    It is a number or a name in the node's configuration. Simulations set it, and a SuperNode takes
    it as ``--node-config "partition-id=0 ..."`` or ``--node-config 'partition-id="north"'``. A
    client without one adds nothing. The mod never raises, but warns and returns the reply.
    """
    reply = call_next(message, context)
    try:
        _identify(reply, context)
    # Catch any error: an audit must not stop a client's training.
    except Exception as error:
        warn(f"this client's reply does not name its client ({error})", stacklevel=2)
    return reply


def _identify(reply: Message, context: Context) -> None:
    value = context.node_config.get(PARTITION)
    if value is None or not reply.has_content():
        return
    client = client_in(value)
    if client is None:
        raise ValueError(
            f"its partition-id is {str(value)[:80]!r}, which is neither a number nor a name"
        )
    reply.content[IDENTITY] = ConfigRecord({PARTITION: client})
    if OLDER_METRICS in reply.content.config_records:
        reply.content.config_records[OLDER_METRICS][PARTITION] = client


def without_identity(reply: Message) -> None:
    """Remove what :func:`identity_mod` added to metrics of the older interface."""
    if reply.has_content() and IDENTITY in reply.content.config_records:
        reply.content.config_records.get(OLDER_METRICS, {}).pop(PARTITION, None)


def audit_mod(split: Callable[[Context], Split | None]) -> Mod:
    """Client mod that answers :func:`gathered_audit` for a ``ClientApp(client_fn=...)``.

    An app with decorators needs an ``@app.query("audit")`` instead: Flower calls mods only for
    messages with a registered function.

    Args:
        split: Takes the node's context and returns the client's :func:`fedaudit.fair_split`, or
            None if it declines the audit. An error is reported to the server as the reason why
            the client is not audited.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type != f"query.{ACTION}":
            return call_next(message, context)
        try:
            part = split(context)
            return audit_decline(message) if part is None else audit_reply(message, part)
        # Catch any error: an audit must not stop a client's process.
        except Exception as error:
            return audit_decline(message, f"its part cannot be made: {error}")

    return mod


def audit_reply(message: Message, split: Split) -> Message:
    """Return a client's answer to :func:`gathered_audit`: its audited samples only.

    Args:
        message: The server's message of ``@app.query("audit")``.
        split: Result of :func:`fedaudit.fair_split` on the client's data, under its number or name.
    """
    arrays = {name: Array(values) for name, values in split.part.items()}
    return Message(RecordDict({PART: ArrayRecord(arrays)}), reply_to=message)


def audit_decline(message: Message, reason: str = "") -> Message:
    """Return the answer of a client that takes no part in the audit; it trains as before.

    Args:
        message: The server's message of ``@app.query("audit")``.
        reason: Reason for the recording and its report.
    """
    return Message(RecordDict({PART: ConfigRecord({DECLINED: reason[:1000]})}), reply_to=message)
