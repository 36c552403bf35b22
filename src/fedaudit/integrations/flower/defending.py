"""Defenses of fedaudit in front of any ClientApp of Flower."""

import copy
import secrets
from collections.abc import Callable, Collection, Mapping

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Architecture, ClientId, Model, plus
from fedaudit.fl.hooks import Defense, Turn
from fedaudit.integrations.flower.contents import (
    array_of,
    is_training,
    record_of,
    round_of,
    weight_of,
)
from fedaudit.integrations.flower.replies import PARTITION, client_in
from fedaudit.live.recording import ByClient, number_of
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

    A mod sees parameters alone: the model that came and the one that leaves. Defenses that act on
    data or on training steps are refused by name; they belong into the training function.

    Args:
        defense: Acts on uploads (noise, clipping, sparsification, quantization, noise that
            cancels, chains of them).
        model: The module that clients train, or what makes one: tells parameters from buffers.
        seed: Of the defense's draws. By default a fresh one in every call, which nobody can
            repeat; a coalition whose noise cancels shares one.
        rounds: How many the run will have, for defenses that ask.
        weights: Every client's share in the average, for noise that cancels: all of them have to
            be asked in every round, and to answer.

    Raises:
        Unsupported: The defense acts elsewhere, or not on updates.
        BadInput: Its noise is to cancel, and seed or weights are missing.
    """
    _refuse(defense, seed, weights)
    module = model if isinstance(model, nn.Module) else model()
    architecture = Architecture(type(module).__name__, lambda: copy.deepcopy(module))
    like = Model.of(architecture, module)
    names = tuple(module.state_dict())
    shares = None if weights is None else {number_of(c): share for c, share in weights.items()}

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        came = record_of(message) if is_training(message) and message.has_content() else None
        # Before the client trains, which may do so in place.
        received = None if came is None else _tensors(came, names)
        reply = call_next(message, context)
        if came is None or received is None or not reply.has_content():
            return reply
        leaving = record_of(reply)
        if leaving is None:
            raise BadInput("the reply carries no arrays to defend; put the mod on training alone")
        local = _tensors(leaving, names)
        turn = _turn(message, context, _model(like, received), seed, rounds, shares)
        own = copy.deepcopy(defense)
        if STATE in context.state.array_records:
            kept = context.state.array_records[STATE]
            own.restore({n: tensor_of(array_of(a), f"the state {n!r}") for n, a in kept.items()})
        buffers = {name: local[name].to(value) for name, value in like.buffers.items()}
        change = plus(_model(like, local).params, turn.received.params, -1.0)
        samples = _samples(reply)
        sent = own.upload(Update(change, buffers, samples=samples), turn)
        assert isinstance(sent, Update)
        local |= plus(turn.received.params, sent.values) | sent.buffers
        state = own.state()
        if state:
            context.state[STATE] = ArrayRecord({n: _array(v) for n, v in state.items()})
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


def _turn(
    message: Message,
    context: Context,
    received: Model,
    seed: int | None,
    rounds: int,
    weights: Mapping[ClientId, float] | None,
) -> Turn:
    called = client_in(context.node_config.get(PARTITION))
    if called is None and seed is not None:
        raise BadInput(
            "clients with a common seed would all draw the same: this node has no partition-id; "
            "give it one, or leave the seed out"
        )
    client = 0 if called is None else number_of(called)
    cohort: Collection[ClientId] = sorted(weights) if weights is not None else (client,)
    return Turn(
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
    """The parameters that a record's arrays are, in its order."""
    found = tuple(record)
    if set(found) == set(names):
        return found
    if len(found) == len(names) and found == tuple(str(place) for place in range(len(names))):
        return names
    unknown = sorted({*found} ^ {*names})
    raise BadInput(
        f"the model given to defense_mod does not fit the arrays of a message: {unknown[0]!r} is "
        "in one of them alone"
    )


def _tensors(record: ArrayRecord, names: tuple[str, ...]) -> dict[str, Tensor]:
    found = zip(_names(record, names), record.values(), strict=True)
    # Copies, as clients may train in place.
    return {
        name: tensor_of(array_of(array), f"a message has {name!r}, which").clone()
        for name, array in found
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


def _array(value: Tensor) -> Array:
    return Array(value.detach().cpu().numpy())
