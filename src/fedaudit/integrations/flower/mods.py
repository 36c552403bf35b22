"""Client mods of Flower: a defense for any ClientApp, and the adapter for check-dp."""

import copy
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import Architecture, ClientId, Model, plus
from fedaudit.filters.claim import Arrays, Claim
from fedaudit.fl.hooks import Defense, TrainingContext, apply_upload_hook
from fedaudit.integrations.flower.messages import (
    PARTITION,
    array_of,
    client_in,
    is_training,
    record_of,
    round_of,
    weight_of,
)
from fedaudit.live.clients import ByClient, number_of
from fedaudit.live.weights import tensor_of
from fedaudit.observe.round import Update

STATE = "fedaudit.defense"
_IN_TRAINING = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")


def defense_mod(
    defense: Defense,
    model: nn.Module | Callable[[], nn.Module],
    *,
    seed: int | None = None,
    rounds: int = 0,
    weights: ByClient[float] | None = None,
) -> Mod:
    """Client mod that applies a defense to what a client uploads.

    A mod sees the received and the returned model only. Defenses that act on data or training steps
    are refused, and belong in the training function.

    Args:
        defense: A defense of uploads (noise, clipping, sparsification, quantization, cancelling
            noise, chains).
        model: The module that clients train, or a function that builds one.
        seed: Seed of the defense's draws. By default a new secret one in every call; coalitions
            with cancelling noise share one.
        rounds: Number of rounds of the run, for defenses that need it.
        weights: Every client's share in the average, for cancelling noise: all of them must be
            asked in every round, and answer.

    Raises:
        Unsupported: The defense does not act on updates alone.
        BadInput: Noise cancels, and seed or weights are missing.
    """
    _refuse(defense, seed, weights)
    module = model if isinstance(model, nn.Module) else model()
    architecture = Architecture(type(module).__name__, lambda: copy.deepcopy(module))
    like = Model.of(architecture, module)
    names = tuple(module.state_dict())
    shares = None if weights is None else {number_of(c): share for c, share in weights.items()}

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        came = record_of(message) if is_training(message) and message.has_content() else None
        # Copied before training, which may change the arrays in place.
        received = None if came is None else _tensors(came, names)
        reply = call_next(message, context)
        if came is None or received is None or not reply.has_content():
            return reply
        leaving = record_of(reply)
        if leaving is None:
            raise BadInput("the reply has no arrays to defend; apply the mod to training only")
        local = _tensors(leaving, names)
        training = _training_context(message, context, _model(like, received), seed, rounds, shares)
        client_defense = copy.deepcopy(defense)
        if STATE in context.state.array_records:
            stored = context.state.array_records[STATE]
            client_defense.restore(
                {n: tensor_of(array_of(a), f"the state {n!r}") for n, a in stored.items()}
            )
        buffers = {name: local[name].to(value) for name, value in like.buffers.items()}
        change = plus(_model(like, local).params, training.received.params, -1.0)
        samples = _samples(reply)
        sent = apply_upload_hook(client_defense, Update(change, buffers, samples=samples), training)
        assert isinstance(sent, Update)
        local |= plus(training.received.params, sent.values) | sent.buffers
        state = client_defense.state()
        if state:
            arrays = {n: Array(v.detach().cpu().numpy()) for n, v in state.items()}
            context.state[STATE] = ArrayRecord(arrays)
        for (key, array), name in zip(leaving.items(), _names(leaving, names), strict=True):
            if name in like.params or name in like.buffers:
                leaving[key] = Array(local[name].numpy().astype(array_of(array).dtype))
        return reply

    return mod


def _refuse(defense: Defense, seed: int | None, weights: ByClient[float] | None) -> None:
    name = type(defense).__name__
    elsewhere = [hook for hook in _IN_TRAINING if defense.acts_in(hook)]
    if elsewhere:
        raise Unsupported(
            f"{name} acts in training ({', '.join(elsewhere)}), and a mod sees uploads only; use "
            "a defense of uploads, or call its hooks in the training function"
        )
    if Update not in defense.accepts:
        raise Unsupported(f"{name} does not work on updates, which is what Flower's clients send")
    if defense.cancels and (seed is None or weights is None):
        raise BadInput(
            f"the noise of {name} cancels only between clients that share a seed and know all "
            "weights; give seed and weights"
        )


def _training_context(
    message: Message,
    context: Context,
    received: Model,
    seed: int | None,
    rounds: int,
    weights: Mapping[ClientId, float] | None,
) -> TrainingContext:
    called = client_in(context.node_config.get(PARTITION))
    if called is None and seed is not None:
        raise BadInput(
            "this node has no partition-id, so clients with a common seed would draw the same "
            "numbers; give it one, or omit the seed"
        )
    client = 0 if called is None else number_of(called)
    cohort: Collection[ClientId] = sorted(weights) if weights is not None else (client,)
    return TrainingContext(
        round=round_of(message) or 1,
        rounds=rounds,
        client=client,
        cohort=tuple(cohort),
        weights=dict(weights) if weights is not None else {client: 1.0},
        seed=secrets.randbits(62) if seed is None else seed,
        received=received,
    )


def _samples(reply: Message) -> int:
    try:
        return int(weight_of(reply, "num-examples") or 0)
    except BadInput:
        return 0


def _names(record: ArrayRecord, names: tuple[str, ...]) -> tuple[str, ...]:
    keys = tuple(record)
    if set(keys) == set(names):
        return keys
    if len(keys) == len(names) and keys == tuple(str(place) for place in range(len(names))):
        return names
    unknown = sorted({*keys} ^ {*names})
    raise BadInput(
        f"the model given to defense_mod does not fit the arrays of a message: only one of them "
        f"has {unknown[0]!r}; give the model that clients train"
    )


def _tensors(record: ArrayRecord, names: tuple[str, ...]) -> dict[str, Tensor]:
    arrays = zip(_names(record, names), record.values(), strict=True)
    # Copies, as clients may train in place.
    return {
        name: tensor_of(array_of(array), f"a message has {name!r}, which").clone()
        for name, array in arrays
    }


def _model(like: Model, tensors: Mapping[str, Tensor]) -> Model:
    for name, value in (like.params | like.buffers).items():
        if tensors[name].shape != value.shape:
            raise BadInput(
                f"the model given to defense_mod has {name!r} of shape {tuple(value.shape)}, and "
                f"a message {tuple(tensors[name].shape)}"
            )
    return Model(
        like.architecture,
        {name: tensors[name].to(value) for name, value in like.params.items()},
        {name: tensors[name].to(value) for name, value in like.buffers.items()},
    )


class _Interface(NamedTuple):
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
    """Client behind a mod that answers every message with a given update."""

    def __init__(self, mod: Mod, clip: float) -> None:
        self._mod, self._clip, self._round = mod, clip, 0
        self._interface: _Interface | None = None
        # A mod keeps its state between rounds in its context.
        self._context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})

    def __call__(self, update: Arrays) -> tuple[Arrays, dict[str, object]]:
        self._round += 1
        received = {name: _received(v.shape, v.dtype) for name, v in update.items()}
        reply = self._reply(update, received)
        if reply.has_error():
            raise BadInput(f"the mod replies with an error: {reply.error.reason}")
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
        """Call the mod by the interface that it reads, which the first call determines."""
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

        # An internal module of Flower, which only mods under check-dp need.
        from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

        settings = {KEY_CLIPPING_NORM: self._clip, "server-round": self._round}
        model = _record(received, named=not interface.is_older)
        sent = {interface.sent: model, interface.settings: ConfigRecord(settings)}
        return self._mod(Message(RecordDict(sent), 1, "train"), self._context, trained)


def filtered(mod: object, claim: Claim) -> object:
    """Return the mod with a client behind it, for ``flwr.clientapp`` or the older ``flwr.client``.

    The claim's sensitivity is the clipping norm that the server sends.
    """
    _identify()
    return _Filtered(cast(Mod, mod), claim.sensitivity)


@cache
def _received(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of the model that the client was sent; it must not be changed."""
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.asarray(seeded_numpy(0, "received").normal(0, _SPREAD, shape)).astype(dtype)


def _record(arrays: Arrays, *, named: bool) -> ArrayRecord:
    """Return a record of arrays, by name or, for the older interface, by position."""
    items = arrays.items() if named else enumerate(arrays.values())
    return ArrayRecord({str(key): Array(np.asarray(value)) for key, value in items})


def _identify() -> None:
    """Set the task identity that Flower's messages need outside its processes."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # an earlier version of Flower
        return
    for name in ("run_id", "node_id", "task_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            with suppress(AttributeError):
                setattr(TaskIdentity, name, 1)
