"""Contents of Flower's messages, and additions of clients to their replies.

A deployment starts a client process for every message, so this module must not import modules that
only a server needs.
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
from fedaudit.live.recording import MAX_CLIENT_NUMBER
from fedaudit.live.weights import read_array

Arrays: TypeAlias = dict[str, np.ndarray] | list[np.ndarray]
"""Arrays by name, or in their order if they have no names."""

_ROUND = "server-round"
_WEIGHTS = ("num-examples", "num_examples")
_MAX_WEIGHT = 1e15


def is_training(message: Message) -> bool:
    """Return True if a message asks a client to train."""
    return message.metadata.message_type.split(".")[0] == "train"


def round_of(message: Message) -> int | None:
    """Return the round to which a message of the server belongs; None if it names none."""
    if message.has_content():
        for record in message.content.config_records.values():
            number = record.get(_ROUND)
            if isinstance(number, int):
                return number
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None


def record_of(message: Message) -> ArrayRecord | None:
    """Return the model in a message, or None; raise if there are several."""
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
    if list(arrays) == [str(position) for position in range(len(arrays))]:
        return list(arrays.values())
    return arrays


def array_of(array: Array) -> np.ndarray:
    """Return an array of an untrusted message."""
    # Flower reads arrays without unpickling objects.
    return read_array(array.numpy)


def weight_of(reply: Message, key: str) -> float | None:
    """Return the weight in the average that a client reports; None if it reports none.

    The weight is the metric ``key``, ``num-examples`` or ``num_examples``.

    Raises:
        BadInput: The metric is not a number from 0 to 1e15.
    """
    for record in reply.content.metric_records.values():
        for name in (key, *_WEIGHTS):
            if name in record:
                return _weight(name, record[name])
    return None


def _weight(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compare before the conversion, which fails for whole numbers beyond the range of floats.
    if is_number and 0 <= cast("float", value) <= _MAX_WEIGHT:
        return float(cast("float", value))
    raise BadInput(f"its {name} is {str(value)[:80]!r} instead of a number from 0 to 1e15")


def metrics_of(reply: Message) -> dict[str, float]:
    """Return the training loss and accuracy in a client's reply.

    Records named after an evaluation (``eval``, ``val``, ``test``) are ignored.
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
"""Record that :func:`client_id_mod` adds to a reply."""
PARTITION = "partition-id"
"""Entry with the client's number or name, in this record and in a node's configuration."""
ACTION = "audit"
"""Action of the query for audited samples: ``@app.query("audit")``."""
PART = "fedaudit.part"
"""Record with a client's audited samples."""
DECLINED = "declined"
"""Entry with the reason of a client that declines the audit."""
OLDER_METRICS = "fitres.metrics"
"""Record with the metrics in replies of Flower's older interface."""
_LONGEST_NAME = 200


def client_in(value: object) -> ClientRef | None:
    """Return the client that a ``partition-id`` names; None for an invalid value.

    A text of digits is a number, and the number 2.7 is the name "2.7". Truth values, negative
    numbers, and empty or unprintable texts are invalid.
    """
    if isinstance(value, float) and isfinite(value):
        value = int(value) if value.is_integer() else str(value)
    if isinstance(value, str):
        value = value.strip()
        if not value.isdecimal():
            return value if value.isprintable() and 0 < len(value) <= _LONGEST_NAME else None
        value = int(value) if len(value) <= _LONGEST_NAME else -1
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MAX_CLIENT_NUMBER else None


def client_id_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that adds the client's ``partition-id`` to each reply.

    The ``partition-id`` is a number or a name in the node's configuration. Simulations set it. For
    a SuperNode, pass ``--node-config "partition-id=0 ..."`` or ``--node-config
    'partition-id="north"'``. Without it, replies stay unchanged. The mod never raises an error, but
    warns and returns the reply.
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
    """Remove the client's identity from metrics of the older interface."""
    if reply.has_content() and IDENTITY in reply.content.config_records:
        reply.content.config_records.get(OLDER_METRICS, {}).pop(PARTITION, None)


def audit_mod(split: Callable[[Context], Split | None]) -> Mod:
    """Client mod that answers :func:`gathered_audit` for a ``ClientApp(client_fn=...)``.

    An app with decorators needs an ``@app.query("audit")`` instead: Flower calls mods only for
    messages with a registered function.

    Args:
        split: Function that receives the node's context and returns the client's
            :func:`fedaudit.fair_split`, or None to decline the audit. If it raises an error, the
            client is not audited, and the server receives the error as the reason.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type != f"query.{ACTION}":
            return call_next(message, context)
        try:
            part = split(context)
            return audit_decline(message) if part is None else audit_reply(message, part)
        # Catch any error: an audit must not stop a client's process.
        except Exception as error:
            return audit_decline(message, f"its part cannot be created: {error}")

    return mod


def audit_reply(message: Message, split: Split) -> Message:
    """Return a client's answer to :func:`gathered_audit`, which has only audited samples.

    Args:
        message: The server's message of ``@app.query("audit")``.
        split: Result of :func:`fedaudit.fair_split` on the client's data, under its number or name.
    """
    arrays = {name: Array(values) for name, values in split.part.items()}
    return Message(RecordDict({PART: ArrayRecord(arrays)}), reply_to=message)


def audit_decline(message: Message, reason: str = "") -> Message:
    """Return the answer of a client that declines the audit; it trains as before.

    Args:
        message: The server's message of ``@app.query("audit")``.
        reason: Reason that is shown in the report.
    """
    return Message(RecordDict({PART: ConfigRecord({DECLINED: reason[:1000]})}), reply_to=message)
