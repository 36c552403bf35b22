"""Guard of a Flower node: a client mod that lets only those replies leave that its guard sends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedaudit.core.errors import BadInput
from fedaudit.guard.arrays import Arrays, copied
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
"""Entry of a node's configuration with the path of its policy."""

POLICY_VARIABLE = "FEDAUDIT_GUARD"
"""Environment variable with the path, for nodes without that entry, as in a simulation."""

_EXAMPLES = "num-examples"
_WITHHELD = 6
"""Flower's code MOD_FAILED_PRECONDITION, which strategies count as a failed reply."""


class _Training(NamedTuple):
    """Round of a training message, and a copy of its model."""

    round: int
    model: Arrays


def guard_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Client mod that measures each reply and withholds those that leak.

    Make it the first mod of a ClientApp, since mods before it act on what it has checked. The
    operator of a node names the policy by ``--node-config 'fedaudit-guard="/etc/guard.toml"'`` of
    its SuperNode, or by the environment variable FEDAUDIT_GUARD, in which "{site}" stands for the
    partition. Settings of a run are not read. A node without a policy sends nothing.

    A reply that leaves has the arrays that were measured, "num-examples" and, if the policy allows
    them, metrics. All other records are dropped. In the place of a withheld reply the node sends an
    error, which strategies leave out of the average.
    """
    try:
        # Copied before training, which may change the arrays in place.
        training, path = _training(message), _policy_path(context)
        with _opened(training, path, context) as guard:
            if guard is not None and training is not None and read_site_policy(path).prepare:
                guard.prepare(sent=training.model)
            reply = call_next(message, context)
            if reply.has_error():
                return Message(Error(reply.error.code, "the ClientApp failed"), reply_to=message)
            content = _leaving(reply, training, guard, read_site_policy(path))
    # Any error, also of the ClientApp, whose text would be sent to the server.
    except Exception as error:
        reason = str(error) if isinstance(error, BadInput) else type(error).__name__
        warn(f"a reply is withheld: {reason}", stacklevel=2)
        content = None
    if content is None:
        reason = "the reply is withheld by the guard of this node"
        return Message(Error(_WITHHELD, reason), reply_to=message)
    return Message(content, reply_to=message)


def _training(message: Message) -> _Training | None:
    record = record_of(message) if is_training(message) and message.has_content() else None
    number = round_of(message)
    if record is None or number is None:
        return None
    return _Training(number, copied(arrays_of(record), "the model sent"))


@contextmanager
def _opened(training: _Training | None, path: str, context: Context) -> Iterator[Guard | None]:
    """Open the guard of a run; yield None for a message without a model."""
    if training is None:
        yield None
        return
    with site_guard(path, f"run-{context.run_id}") as guard:
        yield guard


def _leaving(
    reply: Message, training: _Training | None, guard: Guard | None, policy: SitePolicy
) -> RecordDict | None:
    """Return the content that may leave; None if it is withheld."""
    record = record_of(reply)
    if record is None and policy.metrics and len(reply.content.metric_records) == 1:
        return RecordDict({**_metrics(reply, policy)})
    if record is None or training is None or guard is None:
        raise BadInput(
            "it has no model, or the message had none with a round, so that nothing can be measured"
        )
    if len(reply.content.metric_records) != 1:
        raise BadInput("it has not one record of metrics; the older interface is not supported")
    leaving = guard.check(training.round, sent=training.model, upload=arrays_of(record))
    if leaving is None:
        return None
    values = leaving.values() if isinstance(leaving, dict) else leaving
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
            f"this node names no policy of its guard; set {POLICY!r} in its node-config, or "
            f"{POLICY_VARIABLE} in its environment"
        )
    return path.replace("{site}", str(context.node_config.get(PARTITION, "")))
