"""A mod of Flower's clients as a function from update to update, for a check of what it does."""

from contextlib import suppress
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import Mod
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded_numpy
from fedaudit.filters.claim import Arrays, Claim
from fedaudit.integrations.flower.contents import array_of


class _Interface(NamedTuple):
    """Names of records in messages of one of Flower's two interfaces."""

    sent: str
    settings: str
    returned: str
    examples: str
    weight: str
    is_older: bool = False


_NEWER = _Interface("arrays", "config", "arrays", "metrics", "num-examples")
_OLDER = _Interface(
    "fitins.parameters",
    "fitins.config",
    "fitres.parameters",
    "fitres.num_examples",
    "num_examples",
    is_older=True,
)
_OF_OLDER = ("fitins", "fitres")
_SPREAD = 0.05
"""Of the values of the model that is sent out, as in networks at their start."""


class _Filtered:
    """A client behind a mod, which answers every message with a given update."""

    def __init__(self, mod: Mod, clip: float) -> None:
        self._mod, self._clip, self._round = mod, clip, 0
        self._interface: _Interface | None = None
        # A mod keeps what it knows from round to round in its context.
        self._context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})

    def __call__(self, update: Arrays) -> tuple[Arrays, dict[str, object]]:
        self._round += 1
        received = {name: _received(v.shape, v.dtype) for name, v in update.items()}
        reply = self._reply(update, received)
        if reply.has_error():
            raise BadInput(f"the mod answers with an error: {reply.error.reason}")
        arrays: Arrays = {}
        for record in reply.content.array_records.values():
            arrays |= {name: np.asarray(array_of(array)) for name, array in record.items()}
        places = [str(place) for place in range(len(update))]
        if self._interface is _OLDER and [*arrays] == places:
            arrays = dict(zip(update, arrays.values(), strict=True))
        change = {
            name: np.asarray(value.astype(np.float64) - received[name].astype(np.float64))
            if name in received
            else value
            for name, value in arrays.items()
        }
        metrics = {
            f"{key}.{name}": value
            for records in (reply.content.metric_records, reply.content.config_records)
            for key, record in records.items()
            for name, value in record.items()
        }
        return change, metrics

    def _reply(self, update: Arrays, received: Arrays) -> Message:
        """Call the mod by the interface that it reads; the first call finds out which."""
        if self._interface is not None:
            return self._called(self._interface, update, received)
        try:
            reply = self._called(_NEWER, update, received)
            self._interface = _NEWER
        except KeyError as error:
            if not any(record in str(error) for record in _OF_OLDER):
                raise
            self._interface = _OLDER
            reply = self._called(_OLDER, update, received)
        return reply

    def _called(self, interface: _Interface, update: Arrays, received: Arrays) -> Message:
        def trained(message: Message, context: Context) -> Message:
            local = {name: np.asarray(received[name] + value) for name, value in update.items()}
            examples = MetricRecord({interface.weight: 10})
            arrays = _record(local, named=not interface.is_older)
            content = RecordDict({interface.returned: arrays, interface.examples: examples})
            if interface.is_older:
                content["fitres.metrics"] = ConfigRecord()
                content["fitres.status"] = ConfigRecord({"code": 0, "message": ""})
            return Message(content, reply_to=message)

        settings = {KEY_CLIPPING_NORM: self._clip, "server-round": self._round}
        model = _record(received, named=not interface.is_older)
        sent = {interface.sent: model, interface.settings: ConfigRecord(settings)}
        return self._mod(Message(RecordDict(sent), 1, "train"), self._context, trained)


def filtered(mod: object, claim: Claim) -> object:
    """The mod with a client behind it, and a context of its own.

    Args:
        mod: Takes message, context and what to call next; of ``flwr.clientapp`` or of the older
            ``flwr.client``, whose messages have other records.
        claim: Its sensitivity is the clipping norm that the server sends, for mods that ask.
    """
    _identify()
    return _Filtered(cast(Mod, mod), claim.sensitivity)


@cache
def _received(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of the model that the client was sent; nobody writes into it."""
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.asarray(seeded_numpy(0, "received").normal(0, _SPREAD, shape)).astype(dtype)


def _record(arrays: Arrays, *, named: bool) -> ArrayRecord:
    """Return a record of arrays, by name or, as in the older interface, by place."""
    items = arrays.items() if named else enumerate(arrays.values())
    return ArrayRecord({str(key): Array(np.asarray(value)) for key, value in items})


def _identify() -> None:
    """Says who we are to Flower, whose messages ask for it, where no process of it has."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # before it was asked for
        return
    for name in ("run_id", "node_id", "task_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            with suppress(AttributeError):
                setattr(TaskIdentity, name, 1)
