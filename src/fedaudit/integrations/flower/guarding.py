"""Guard of a Flower node: a client mod that withholds replies that leak."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedaudit.core.errors import BadInput
from fedaudit.guard.arrays import Arrays, copy_arrays
from fedaudit.guard.guard import Guard
from fedaudit.guard.site import SitePolicy, read_site_policy, site_guard
from fedaudit.integrations.common import numbers_in, warn
from fedaudit.integrations.flower.messages import (
    PARTITION,
    arrays_of,
    is_training,
    record_of,
    round_of,
    weight_of,
)

POLICY = "fedaudit-guard"
"""Entry of a node's configuration with the path of the policy file."""

POLICY_VARIABLE = "FEDAUDIT_GUARD"
"""Environment variable with the path, for nodes without that entry, as in a simulation."""

_EXAMPLES = "num-examples"
_WITHHELD = 6
"""Flower's error code MOD_FAILED_PRECONDITION, which strategies count as a failed reply."""


class _Request(NamedTuple):
    """Round and model of a training message; the model is a copy."""

    round: int
    model: Arrays


def guard_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that measures each reply and withholds those that leak.

    It must be the first mod of a ClientApp, since earlier mods can change a reply after its check.
    The operator of a node states the path of the policy file by ``--node-config
    'fedaudit-guard="/etc/guard.toml"'`` of its SuperNode, or by the environment variable
    FEDAUDIT_GUARD. In the path, "{site}" is replaced by the ``partition-id``. Settings of a run are
    not read. A node without a policy sends no reply.

    A reply that is sent has the arrays that were measured, "num-examples" and, if the policy allows
    them, metrics. All other records are dropped. Instead of a withheld reply, the node sends an
    error, and strategies average without it.
    """
    try:
        # Copy the model before training, which may change the arrays in place.
        request, path = _request(message), _policy_path(context)
        # A message without a model needs no guard.
        opening: AbstractContextManager[Guard | None] = nullcontext()
        if request is not None:
            opening = site_guard(path, f"run-{context.run_id}")
        with opening as guard:
            if guard is not None and request is not None and read_site_policy(path).prepare:
                guard.prepare(sent=request.model)
            reply = call_next(message, context)
            if reply.has_error():
                return Message(Error(reply.error.code, "the ClientApp failed"), reply_to=message)
            content = _checked_content(reply, request, guard, read_site_policy(path))
    # Catch any error, including errors of the ClientApp: their text would be sent to the server.
    except Exception as error:
        reason = str(error) if isinstance(error, BadInput) else type(error).__name__
        warn(f"a reply is withheld: {reason}", stacklevel=2)
        content = None
    if content is None:
        reason = "the reply is withheld by the guard of this node"
        return Message(Error(_WITHHELD, reason), reply_to=message)
    return Message(content, reply_to=message)


def _request(message: Message) -> _Request | None:
    """Return the round and the model of a training message; None if one of them is missing."""
    record = record_of(message) if is_training(message) and message.has_content() else None
    number = round_of(message)
    if record is None or number is None:
        return None
    return _Request(number, copy_arrays(arrays_of(record), "the model sent"))


def _checked_content(
    reply: Message, request: _Request | None, guard: Guard | None, policy: SitePolicy
) -> RecordDict | None:
    """Return the content to send; None if the reply is withheld."""
    record = record_of(reply)
    if record is None and policy.metrics and len(reply.content.metric_records) == 1:
        return RecordDict({**_metrics(reply, policy)})
    if record is None or request is None or guard is None:
        raise BadInput(
            "it cannot be measured, since it has no model, or its message has no model or round"
        )
    if (n_records := len(reply.content.metric_records)) != 1:
        raise BadInput(
            f"it has {n_records} records of metrics instead of one; the older interface is not "
            "supported"
        )
    checked = guard.check(request.round, sent=request.model, upload=arrays_of(record))
    if checked is None:
        return None
    values = checked.values() if isinstance(checked, dict) else checked
    (key,) = reply.content.array_records
    pairs = zip(record, values, strict=True)
    measured = ArrayRecord({name: Array(np.asarray(value)) for name, value in pairs})
    return RecordDict({key: measured, **_metrics(reply, policy)})


def _metrics(reply: Message, policy: SitePolicy) -> dict[str, MetricRecord]:
    """Return the number of examples, and other numbers if the policy allows them."""
    ((key, record),) = reply.content.metric_records.items()
    numbers = numbers_in(dict(record)) if policy.metrics else {}
    examples = weight_of(reply, _EXAMPLES)
    return {key: MetricRecord(numbers | ({} if examples is None else {_EXAMPLES: examples}))}


def _policy_path(context: Context) -> str:
    path = context.node_config.get(POLICY) or os.environ.get(POLICY_VARIABLE)
    if not isinstance(path, str):
        raise BadInput(
            f"this node has no policy for its guard; set {POLICY!r} in its node-config, or "
            f"{POLICY_VARIABLE} in its environment"
        )
    return path.replace("{site}", str(context.node_config.get(PARTITION, "")))
