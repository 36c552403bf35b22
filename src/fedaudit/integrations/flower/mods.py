"""Client mods of Flower: a defense for any ClientApp, and an adapter to check mods by check-dp."""

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
from fedaudit.core.values import Architecture, ClientId, Model, add_scaled
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
from fedaudit.live.clients import ByClient, by_number, number_of
from fedaudit.live.weights import as_cpu_tensor
from fedaudit.observe.round import Update

DEFENSE_STATE_RECORD = "fedaudit.defense"
"""Record with the defense's state, which a node keeps between rounds."""
_TRAINING_HOOKS = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")


def defense_mod(
    defense: Defense,
    model: nn.Module | Callable[[], nn.Module],
    *,
    seed: int | None = None,
    rounds: int = 0,
    weights: ByClient[float] | None = None,
) -> Mod:
    """Client mod that applies a defense to a client's uploads.

    A mod sees only the received and the returned model. Defenses that act on data or training steps
    are refused; call their hooks in the training function.

    Args:
        defense: A defense that changes only the upload: noise, clipping, sparsification,
            quantization, noise that cancels between clients, or a chain of these.
        model: The module that clients train, or a function that builds one.
        seed: Seed of the defense's random draws. By default a new secret seed is drawn in every
            round. Clients whose noise cancels need the same seed.
        rounds: Number of rounds of the run, for defenses that need it.
        weights: Every client's weight in the average, for cancelling noise. All of these clients
            must be sampled in every round and must reply.

    Raises:
        Unsupported: The defense acts during training, or does not accept updates.
        BadInput: The defense's noise cancels between clients, and seed or weights are missing.
    """
    _raise_if_unsupported(defense, seed, weights)
    module = model if isinstance(model, nn.Module) else model()
    architecture = Architecture(type(module).__name__, lambda: copy.deepcopy(module))
    template = Model.of(architecture, module)
    names = tuple(module.state_dict())
    numbered_weights = None if weights is None else by_number(weights)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        request = record_of(message) if is_training(message) and message.has_content() else None
        # Copy the model before training, which may change the arrays in place.
        received = None if request is None else _tensors(request, names)
        reply = call_next(message, context)
        if received is None or not reply.has_content():
            return reply
        upload = record_of(reply)
        if upload is None:
            raise BadInput(
                "the reply to a training message has no model arrays, so there is no update to "
                "defend; return the trained model in the reply"
            )
        local = _tensors(upload, names)
        training = _training_context(
            message, context, _model(template, received), seed, rounds, numbered_weights
        )
        client_defense = copy.deepcopy(defense)
        if DEFENSE_STATE_RECORD in context.state.array_records:
            stored = context.state.array_records[DEFENSE_STATE_RECORD]
            client_defense.restore(
                {n: as_cpu_tensor(array_of(a), f"the state {n!r}") for n, a in stored.items()}
            )
        buffers = {name: local[name].to(value) for name, value in template.buffers.items()}
        change = add_scaled(_model(template, local).params, training.received.params, -1.0)
        update = Update(change, buffers, samples=_n_samples(reply))
        defended = apply_upload_hook(client_defense, update, training)
        assert isinstance(defended, Update)
        local |= add_scaled(training.received.params, defended.values) | defended.buffers
        state = client_defense.state()
        if state:
            arrays = {n: Array(v.detach().cpu().numpy()) for n, v in state.items()}
            context.state[DEFENSE_STATE_RECORD] = ArrayRecord(arrays)
        for (key, array), name in zip(upload.items(), _names(upload, names), strict=True):
            if name in template.params or name in template.buffers:
                upload[key] = Array(local[name].numpy().astype(array_of(array).dtype))
        return reply

    return mod


def _raise_if_unsupported(
    defense: Defense, seed: int | None, weights: ByClient[float] | None
) -> None:
    name = type(defense).__name__
    if hooks := [hook for hook in _TRAINING_HOOKS if defense.acts_in(hook)]:
        raise Unsupported(
            f"{name} acts in training ({', '.join(hooks)}), and a mod sees only uploads; use a "
            "defense of uploads, or call its hooks in the training function"
        )
    if Update not in defense.accepts:
        raise Unsupported(f"{name} does not act on updates, as a defense in Flower must")
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
    client_ref = client_in(context.node_config.get(PARTITION))
    if client_ref is None and seed is not None:
        raise BadInput(
            "this node has no partition-id, so clients with a common seed would draw the same "
            "numbers; give it one, or omit the seed"
        )
    client = 0 if client_ref is None else number_of(client_ref)
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


def _n_samples(reply: Message) -> int:
    """Return the number of training samples that a client reports; 0 if unknown."""
    try:
        return int(weight_of(reply, "num-examples") or 0)
    except BadInput:
        return 0


def _names(record: ArrayRecord, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return, for each array of a message, the name of its parameter or buffer.

    The message may use positions as keys.
    """
    keys = tuple(record)
    if set(keys) == set(names):
        return keys
    if keys == tuple(str(position) for position in range(len(names))):
        return names
    unknown = sorted({*keys} ^ {*names})
    raise BadInput(
        "the model given to defense_mod and the arrays of a message have different names: only one "
        f"of them has {unknown[0]!r}; give the model that clients train"
    )


def _tensors(record: ArrayRecord, names: tuple[str, ...]) -> dict[str, Tensor]:
    arrays = zip(_names(record, names), record.values(), strict=True)
    # Copies, since clients may change arrays in place.
    return {
        name: as_cpu_tensor(array_of(array), f"a message has {name!r}, which").clone()
        for name, array in arrays
    }


def _model(template: Model, tensors: Mapping[str, Tensor]) -> Model:
    for name, value in (template.params | template.buffers).items():
        if tensors[name].shape != value.shape:
            raise BadInput(
                f"the model given to defense_mod has {name!r} of shape {tuple(value.shape)}, and "
                f"a message {tuple(tensors[name].shape)}"
            )
    return Model(
        template.architecture,
        {name: tensors[name].to(value) for name, value in template.params.items()},
        {name: tensors[name].to(value) for name, value in template.buffers.items()},
    )


class _MessageFormat(NamedTuple):
    """Names of records in messages, and of the metric with the number of examples."""

    sent: str
    settings: str
    returned: str
    examples: str
    weight: str
    is_legacy: bool = False


_MESSAGE_API = _MessageFormat("arrays", "config", "arrays", "metrics", "num-examples")
_LEGACY_API = _MessageFormat(
    "fitins.parameters",
    "fitins.config",
    "fitres.parameters",
    "fitres.num_examples",
    "num_examples",
    is_legacy=True,
)
_LEGACY_PREFIXES = ("fitins", "fitres")
_STANDARD_DEVIATION = 0.05
"""Standard deviation of the values of the sent model, as in networks before training."""


class _ModAsFunction:
    """Function that passes an update through a mod, as the reply of a client."""

    def __init__(self, mod: Mod, clip: float) -> None:
        self._mod, self._clip, self._round = mod, clip, 0
        self._format: _MessageFormat | None = None
        # A mod keeps its state between rounds in its context.
        self._context = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})

    def __call__(self, update: Arrays) -> tuple[Arrays, dict[str, object]]:
        self._round += 1
        received = {name: _simulated_server_array(v.shape, v.dtype) for name, v in update.items()}
        reply = self._reply(update, received)
        if reply.has_error():
            raise BadInput(f"the mod replies with an error: {reply.error.reason}")
        arrays: Arrays = {}
        for record in reply.content.array_records.values():
            arrays |= {name: np.asarray(array_of(array)) for name, array in record.items()}
        positions = [str(position) for position in range(len(update))]
        if self._format is _LEGACY_API and [*arrays] == positions:
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
        """Call the mod in the message format that it supports, which the first call determines."""
        if self._format is not None:
            return self._call(self._format, update, received)
        try:
            reply = self._call(_MESSAGE_API, update, received)
            self._format = _MESSAGE_API
        except KeyError as error:
            if not any(prefix in str(error) for prefix in _LEGACY_PREFIXES):
                raise
            self._format = _LEGACY_API
            reply = self._call(_LEGACY_API, update, received)
        return reply

    def _call(self, message_format: _MessageFormat, update: Arrays, received: Arrays) -> Message:
        def train(message: Message, context: Context) -> Message:
            local = {name: np.asarray(received[name] + value) for name, value in update.items()}
            examples = MetricRecord({message_format.weight: 10})
            arrays = _record(local, named=not message_format.is_legacy)
            content = RecordDict(
                {message_format.returned: arrays, message_format.examples: examples}
            )
            if message_format.is_legacy:
                content["fitres.metrics"] = ConfigRecord()
                content["fitres.status"] = ConfigRecord({"code": 0, "message": ""})
            return Message(content, reply_to=message)

        # Imported here, since this internal module of Flower may move in later versions.
        from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

        settings = {KEY_CLIPPING_NORM: self._clip, "server-round": self._round}
        model = _record(received, named=not message_format.is_legacy)
        sent = {message_format.sent: model, message_format.settings: ConfigRecord(settings)}
        return self._mod(Message(RecordDict(sent), 1, "train"), self._context, train)


def as_update_function(mod: object, claim: Claim) -> object:
    """Return a mod of the Message API or the legacy API as a function of updates, for check-dp.

    Messages to the mod state the claim's sensitivity as the server's clipping norm.
    """
    _set_task_identity()
    return _ModAsFunction(cast(Mod, mod), claim.sensitivity)


@cache
def _simulated_server_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of the sent model; it is cached and must not be changed."""
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    rng = seeded_numpy(0, "received")
    return np.asarray(rng.normal(0, _STANDARD_DEVIATION, shape)).astype(dtype)


def _record(arrays: Arrays, *, named: bool) -> ArrayRecord:
    """Return a record of arrays, by name or, for the legacy API, by position."""
    items = arrays.items() if named else enumerate(arrays.values())
    return ArrayRecord({str(key): Array(np.asarray(value)) for key, value in items})


def _set_task_identity() -> None:
    """Set the task identity that Flower's messages need outside Flower's processes."""
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
