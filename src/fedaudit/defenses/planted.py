"""Signs by which a client can tell that the model it was sent has a neuron planted in it.

They look at weights, at movement between rounds, and at activity on the client's own samples.
"""

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


@sign
def lone_units(now: Model, before: Model | None, own: Samples) -> float:
    """Share of units behind the first hidden layer that fire for at most one own sample.

    A planted neuron fires for its target alone, or for none where the client does not have it.
    With one hidden layer, its units are looked at.

    Source: AMI, Eq. (5).
    """
    values = values_on(now, own)
    fired = torch.cat([(layer > 0).sum(0) for layer in values[1:] or values])
    return float((fired <= 1).double().mean())


@sign
def one_stands_out(now: Model, before: Model | None, own: Samples) -> float:
    """Largest lead of one own sample over the next at a unit, in deviations of all but it.

    Units behind the first hidden layer, before their ReLU; with one hidden layer, its units.
    """
    values = values_on(now, own)
    together = torch.cat(values[1:] or values, dim=1).double().sort(0, descending=True).values
    first, rest = together[0], together[1:]
    # A unit that is the same for all others by rounding is one that a single sample sets apart.
    least = together.abs().amax(0).clamp_min(1e-30) * torch.finfo(torch.float32).eps
    return float(((first - rest[0]) / rest.std(0, correction=0).maximum(least)).max())


@sign
def dead_units(now: Model, before: Model | None, own: Samples) -> float:
    """Share of hidden units that fire for no own sample."""
    fired = torch.cat([(layer > 0).any(0) for layer in values_on(now, own)])
    return float((~fired).double().mean())


@sign
def moved_row(now: Model, before: Model | None, own: Samples) -> float:
    """Log ratio of the most moved unit's movement and the median one's of its layer.

    Weights and bias of a unit together. Silent where more than half of a layer is replaced.
    """
    return max(
        float((moves[:, 0].max() / moves[:, 0].median()).log()) for moves in row_moves(now, before)
    )


@sign
def rewritten_row(now: Model, before: Model | None, own: Samples) -> float:
    """Largest log ratio of a unit's movement and its own length the round before.

    Weights and bias of a unit together; near 0 or above where it was replaced.
    """
    return max(float((moves[:, 0] / moves[:, 1]).log().max()) for moves in row_moves(now, before))


_LEAST = 1e-30


@sign
def norm_ratio(now: Model, before: Model | None, own: Samples) -> float:
    """Largest |log ratio| of the length of a unit's weights and the median of its layer.

    Source: AMI, Figs. 8 and 14 (malicious weights are said to look as others do).
    """
    return max(_farthest(layer.weight.norm(dim=1)) for layer in hidden_layers(now))


@sign
def bias_ratio(now: Model, before: Model | None, own: Samples) -> float:
    """Largest log ratio of the size of a bias and its layer's median."""
    sizes = [layer.bias.abs().clamp_min(_LEAST) for layer in hidden_layers(now)]
    return max(float((size.max() / size.median()).log()) for size in sizes)


@sign
def odd_row(now: Model, before: Model | None, own: Samples) -> float:
    """Largest Kolmogorov-Smirnov distance of a unit's weights from those of its layer's others.

    Source: AMI, Figs. 8 and 14 (distributions of weights).
    """
    layers = [layer.weight for layer in hidden_layers(now) if len(layer.weight) > 1]
    return max((float(distance_from_others(rows).max()) for rows in layers), default=0.0)


@sign
def moved_weights(now: Model, before: Model | None, own: Samples) -> float:
    """Largest Kolmogorov-Smirnov distance of a layer's weights from those of the round before.

    Source: AMI, Fig. 14, where weights of an honest model stand beside malicious ones.
    """
    pairs = zip(hidden_layers(now), layers_before(now, before), strict=True)
    return max(distance_between(new.weight.flatten(), old.weight.flatten()) for new, old in pairs)


@sign
def twins(now: Model, before: Model | None, own: Samples) -> float:
    """Largest cosine between the weights of two units of a layer; units without weights have none.

    Units of the first layer that are trained for one neuron may come to look the same way.
    """
    found = [-1.0]
    for layer in hidden_layers(now):
        kept = layer.weight[layer.weight.norm(dim=1) > 0]
        if len(kept) > 1:
            ways = kept / kept.norm(dim=1, keepdim=True)
            found.append(float((ways @ ways.T).fill_diagonal_(-1).max().clamp(max=1)))
    return max(found)


@sign
def zero_weights(now: Model, before: Model | None, own: Samples) -> float:
    """Largest share of a layer's weights that are exactly zero.

    What other neurons read of the units that a planted one takes may have been set to zero.
    """
    return max(float((layer.weight == 0).double().mean()) for layer in hidden_layers(now))


def distance_from_others(rows: Float[Tensor, "rows values"]) -> Float[Tensor, " rows"]:
    """Kolmogorov-Smirnov distance of each row's values from those of all other rows together.

    Two distribution functions differ most at a value of the row or just before one, since between
    two of them the row's own stands still.
    """
    count, each = rows.shape
    everywhere = _ranks(rows.flatten()).reshape(2, count, each)
    within, ordered = rows.contiguous(), rows.sort(1).values.contiguous()
    mine = torch.stack(
        [torch.searchsorted(ordered, within, right=right) for right in (True, False)]
    ).double()
    gaps = mine / each - (everywhere - mine) / ((count - 1) * each)
    return gaps.abs().amax((0, 2))


def distance_between(one: Float[Tensor, " values"], other: Float[Tensor, " more_values"]) -> float:
    """Kolmogorov-Smirnov distance of two samples: the largest gap between their shares below."""
    together, mine = _ranks(torch.cat([one, other]))[:, : len(one)], _ranks(one)
    return float((mine / len(one) - (together - mine) / len(other)).abs().max())


def _ranks(values: Float[Tensor, " values"]) -> Float[Tensor, "2 values"]:
    """Number of values at most as large as each, and number of smaller ones."""
    order = values.sort()
    starts = torch.cat([order.values.new_ones(1, dtype=torch.bool), order.values.diff() != 0])
    place = starts.cumsum(0) - 1
    alike = torch.bincount(place)
    most = alike.cumsum(0)[place]
    found = torch.empty(2, len(values), dtype=torch.float64)
    found[:, order.indices] = torch.stack([most, most - alike[place]]).double()
    return found


def _farthest(lengths: Tensor) -> float:
    """Largest |log ratio| to the median; lengths of 0 count as next to nothing."""
    logs = lengths.clamp_min(_LEAST).log()
    return float((logs - logs.median()).abs().max())


SIGNS: dict[str, Sign] = {
    "lone-units": lone_units,
    "one-stands-out": one_stands_out,
    "dead-units": dead_units,
    "norm-ratio": norm_ratio,
    "bias-ratio": bias_ratio,
    "odd-row": odd_row,
    "twins": twins,
    "zero-weights": zero_weights,
    "moved-weights": moved_weights,
    "moved-row": moved_row,
    "rewritten-row": rewritten_row,
}
"""What a client can look at without anybody's help; the last three need the round before."""
