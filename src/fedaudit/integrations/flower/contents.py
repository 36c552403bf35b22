"""Contents of Flower's messages, as fedaudit needs them."""

from typing import TypeAlias, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from fedaudit.core.errors import BadInput
from fedaudit.integrations.flower.replies import OLDER_METRICS
from fedaudit.integrations.reported import is_evaluation, training_metrics
from fedaudit.live.weights import array_from

Arrays: TypeAlias = dict[str, np.ndarray] | list[np.ndarray]
"""By name; in their order where they have none."""

_ROUND = "server-round"
_WEIGHTS = ("num-examples", "num_examples")
_HEAVIEST = 1e15


def is_training(message: Message) -> bool:
    """True if a message asks a client to train, by whatever action."""
    return message.metadata.message_type.split(".")[0] == "train"


def round_of(message: Message) -> int | None:
    """The round that a message of the server belongs to; None where it does not say."""
    if message.has_content():
        for record in message.content.config_records.values():
            said = record.get(_ROUND)
            if isinstance(said, int):
                return said
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None


def record_of(message: Message) -> ArrayRecord | None:
    """The model that a message carries; None for no arrays at all.

    Raises:
        BadInput: It carries several models.
    """
    records = message.content.array_records
    if len(records) > 1:
        raise BadInput(
            f"a message carries {len(records)} sets of arrays ({', '.join(records)[:200]}), and a "
            "recorder knows one model; record such a loop with fedaudit.record itself"
        )
    return next(iter(records.values()), None)


def arrays_of(record: ArrayRecord) -> Arrays:
    """The arrays of a record by name; as a list where names are their places.

    Raises:
        BadInput: Something in it is no array.
    """
    arrays = {name: array_of(array) for name, array in record.items()}
    if list(arrays) == [str(place) for place in range(len(arrays))]:
        return list(arrays.values())
    return arrays


def array_of(sent: Array) -> np.ndarray:
    """An array out of a message, whose bytes may be anybody's.

    Raises:
        BadInput: They are no array.
    """
    # Flower reads arrays without unpickling anything.
    return array_from(sent.numpy)


def weight_of(reply: Message, key: str) -> float | None:
    """Return the weight in the average that a client gives itself; None if it gives none.

    Args:
        reply: The client's.
        key: Name of the metric; ``num-examples`` and ``num_examples`` are read as well.

    Raises:
        BadInput: It is no number from 0 to 1e15.
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
    raise BadInput(f"its {name} is {str(value)[:80]!r}, and a weight is a number from 0 to 1e15")


def metrics_of(reply: Message) -> dict[str, float]:
    """Return the training loss and accuracy that a client reports in its reply.

    Args:
        reply: To a message of training, of either interface.

    Returns:
        "loss" and "accuracy", as far as they are there. Metrics of records named after an
        evaluation (``eval``, ``val``, ``test``) are left out.
    """
    records = {**reply.content.metric_records}
    if OLDER_METRICS in reply.content.config_records:
        records[OLDER_METRICS] = reply.content.config_records[OLDER_METRICS]
    values: dict[str, object] = {}
    for name, record in records.items():
        if not is_evaluation(name):
            values |= dict(record)
    return training_metrics(values)
