"""Inputs of signs: the dense layers of a model, and their values on the client's samples."""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import loaded
from fedaudit.core.values import Model, Samples

_USE = "signs"

Sign = Callable[[Model, Model | None, Samples], float]
"""How suspicious a model looks, larger for more: of the model that was sent, the one of the round
before if there was any, and samples of the client's own."""


class DenseLayer(NamedTuple):
    """A dense layer.

    Attributes:
        name: Of the module.
        weight: A row for each unit, in double precision.
        bias: Of each unit; zeros where the layer has none.
    """

    name: str
    weight: Float[Tensor, "units inputs"]
    bias: Float[Tensor, " units"]

    @property
    def rows(self) -> Float[Tensor, "units inputs_and_bias"]:
        """Weights and bias of each unit."""
        return torch.cat([self.weight, self.bias[:, None]], dim=1)


def sign(look: Sign) -> Sign:
    """A sign that calls a model most suspicious where it cannot be calculated with.

    Weights that are not finite, or so large that sums of them are not, give infinity: no honest
    server sends them, and comparisons with them would say nothing.
    """

    @wraps(look)
    def guarded(now: Model, before: Model | None, own: Samples) -> float:
        sent = [*now.params.values(), *(before.params.values() if before else ())]
        if not all(bool(values.isfinite().all()) for values in sent):
            return math.inf
        found = look(now, before, own)
        return found if math.isfinite(found) else math.inf

    return guarded


def hidden_layers(model: Model) -> tuple[DenseLayer, ...]:
    """The dense layers of a model without the last, in which no neuron can be planted.

    Raises:
        Unsupported: There is none.
    """
    return tuple(
        DenseLayer(
            name,
            # Copies: the module is refilled for the next model.
            part.weight.detach().to(torch.float64, copy=True),
            torch.zeros(len(part.weight), dtype=torch.float64)
            if part.bias is None
            else part.bias.detach().to(torch.float64, copy=True),
        )
        for name, part in _hidden(model)
    )


def values_on(model: Model, own: Samples) -> tuple[Float[Tensor, "samples units"], ...]:
    """Value of each unit of each hidden dense layer on samples, before its ReLU.

    Raises:
        Unsupported: The model has no hidden dense layer.
        BadInput: There are fewer than three samples, of which none can stand out.
    """
    if len(own) < 3:
        raise BadInput(
            f"how units act is seen on three samples of the client's own or more, got {len(own)}"
        )
    found: list[Tensor] = []
    hooks = [
        part.register_forward_hook(lambda _, __, output: found.append(output.detach()))
        for _, part in _hidden(model)
    ]
    try:
        with torch.no_grad():
            loaded(model, _USE)(own.features)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(values.flatten(0, -2) for values in found)


def row_moves(now: Model, before: Model | None) -> tuple[Float[Tensor, "units 2"], ...]:
    """Movement of each unit's weights since the round before, and their length then.

    What is shorter than rounding counts as that long. A tensor for each hidden dense layer.

    Raises:
        Unsupported: There is no model of the round before, or one of other layers.
    """
    moves = []
    for new, old in zip(hidden_layers(now), layers_before(now, before), strict=True):
        length = old.rows.norm(dim=1)
        rounding = max(float(length.median()), 1e-30) * torch.finfo(torch.float32).eps
        moved = (new.rows - old.rows).norm(dim=1)
        moves.append(torch.stack([moved, length], dim=1).clamp_min(rounding))
    return tuple(moves)


def layers_before(now: Model, before: Model | None) -> tuple[DenseLayer, ...]:
    """Hidden dense layers of the model of the round before.

    Raises:
        Unsupported: There is no such model, or one of other layers.
    """
    if before is None:
        raise Unsupported(
            "a sign of change needs the model of the round before; in the first round take others"
        )
    old, new = hidden_layers(before), hidden_layers(now)
    if [one.weight.shape for one in old] != [one.weight.shape for one in new]:
        raise Unsupported("the model of the round before has other layers than the one sent now")
    return old


def _hidden(model: Model) -> list[tuple[str, nn.Linear]]:
    module = loaded(model, _USE).eval()
    dense = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if len(dense) < 2:
        raise Unsupported(
            "signs of a planted neuron are looked for in hidden dense layers, and "
            f"{model.architecture.name!r} has none"
        )
    return dense[:-1]
