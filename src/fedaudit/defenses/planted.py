"""Indicators with which a client can detect a planted neuron in the model that it received.

An indicator is a number that depends on weights, on changes between rounds, or on activations for
the client's own samples. It is larger if a planted neuron is more likely. Sources cite AMI, the
active membership inference attack of Nguyen et al. 2023.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import load_module
from fedaudit.core.values import Model, Samples

_USE = "indicators"

Indicator = Callable[[Model, Model | None, Samples], float]
"""Function that computes an indicator from the received model, the model of the previous round (or
None), and the client's own samples."""


class DenseLayer(NamedTuple):
    """Parameters of a dense layer.

    Attributes:
        name: Name of the module.
        weight: One row per unit, in double precision.
        bias: Bias of each unit; zeros if the layer has none.
    """

    name: str
    weight: Float[Tensor, "units inputs"]
    bias: Float[Tensor, " units"]

    @property
    def rows(self) -> Float[Tensor, "units inputs_and_bias"]:
        """Weights and bias of each unit."""
        return torch.cat([self.weight, self.bias[:, None]], dim=1)


def indicator(measure: Indicator) -> Indicator:
    """Make an indicator infinite if a parameter or the computed value is not finite.

    An honest server does not send such parameters, and comparisons with NaN would be meaningless.
    """

    @wraps(measure)
    def measure_finite(now: Model, before: Model | None, samples: Samples) -> float:
        params = [*now.params.values(), *(before.params.values() if before else ())]
        if not all(bool(values.isfinite().all()) for values in params):
            return math.inf
        value = measure(now, before, samples)
        return value if math.isfinite(value) else math.inf

    return measure_finite


def hidden_layers(model: Model) -> tuple[DenseLayer, ...]:
    """Return the dense layers of a model except the last, in which no neuron can be planted.

    Raises:
        Unsupported: The model has no hidden dense layer.
    """
    layers = []
    for name, layer in _hidden(model):
        # Copy parameters, because the next model is loaded into the same module.
        weight = layer.weight.detach().to(torch.float64, copy=True)
        bias = torch.zeros_like(weight[:, 0])
        if layer.bias is not None:
            bias.copy_(layer.bias.detach())
        layers.append(DenseLayer(name, weight, bias))
    return tuple(layers)


def activations_on(model: Model, samples: Samples) -> tuple[Float[Tensor, "samples units"], ...]:
    """Return the outputs of each hidden dense layer for samples, before the ReLU.

    Raises:
        Unsupported: The model has no hidden dense layer.
        BadInput: There are fewer than three samples.
    """
    if len(samples) < 3:
        raise BadInput(
            "indicators computed from activations need at least three samples of the client, got "
            f"{len(samples)}; omit these indicators, or give the client more samples"
        )
    captured: list[Tensor] = []

    def capture(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        captured.append(output.detach())

    hooks = [layer.register_forward_hook(capture) for _, layer in _hidden(model)]
    try:
        with torch.no_grad():
            load_module(model, _USE)(samples.features)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(values.flatten(0, -2) for values in captured)


def row_changes(now: Model, before: Model | None) -> tuple[Float[Tensor, "units 2"], ...]:
    """Return the norm of each unit's change since the previous round, and of its previous weights.

    There is one tensor per hidden dense layer. Norms below the rounding error are replaced by this
    error.

    Raises:
        Unsupported: There is no model of the previous round, or it has other layers.
    """
    changes = []
    for new, old in zip(hidden_layers(now), layers_before(now, before), strict=True):
        norms = old.rows.norm(dim=1)
        rounding_error = max(float(norms.median()), 1e-30) * torch.finfo(torch.float32).eps
        change_norms = (new.rows - old.rows).norm(dim=1)
        changes.append(torch.stack([change_norms, norms], dim=1).clamp_min(rounding_error))
    return tuple(changes)


def layers_before(now: Model, before: Model | None) -> tuple[DenseLayer, ...]:
    """Return the hidden dense layers of the previous round's model.

    Raises:
        Unsupported: There is no such model, or its layers have other shapes.
    """
    if before is None:
        raise Unsupported(
            "an indicator that compares rounds needs the previous round's model; use other "
            "indicators in the first round"
        )
    old, new = hidden_layers(before), hidden_layers(now)
    if [layer.weight.shape for layer in old] != [layer.weight.shape for layer in new]:
        raise Unsupported(
            "the model of the previous round has other layers than the received one; compare "
            "models of one architecture"
        )
    return old


def _hidden(model: Model) -> list[tuple[str, nn.Linear]]:
    module = load_module(model, _USE).eval()
    dense = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if len(dense) < 2:
        raise Unsupported(
            "indicators of a planted neuron need a hidden dense layer, but "
            f"{model.architecture.name!r} has none; use a model with one"
        )
    return dense[:-1]


@indicator
def lone_units(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the fraction of units after the first hidden layer that fire for at most one sample.

    A planted neuron fires only for its target, or for no sample if the client does not have the
    target. If the model has only one hidden layer, the units of this layer are used.

    Source: Nguyen et al. 2023 (AMI), Eq. (5).
    """
    values = activations_on(now, samples)
    fired = torch.cat([(layer > 0).sum(0) for layer in values[1:] or values])
    return float((fired <= 1).double().mean())


@indicator
def one_stands_out(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest gap between the highest and the second-highest output of a unit.

    Each sample gives one output before the ReLU. The gap is in standard deviations of all outputs
    of the unit except the highest. The units are those of :func:`lone_units`.
    """
    values = activations_on(now, samples)
    ordered = torch.cat(values[1:] or values, dim=1).double().sort(0, descending=True).values
    first, others = ordered[0], ordered[1:]
    # The deviation is 0 if a unit has equal values for all other samples.
    rounding_error = ordered.abs().amax(0).clamp_min(1e-30) * torch.finfo(torch.float32).eps
    deviation = others.std(0, correction=0).maximum(rounding_error)
    return float(((first - others[0]) / deviation).max())


@indicator
def dead_units(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the fraction of hidden units that fire for no sample."""
    fired = torch.cat([(layer > 0).any(0) for layer in activations_on(now, samples)])
    return float((~fired).double().mean())


@indicator
def moved_row(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the log ratio of the largest to the median change of a layer's units.

    A change is the norm over weights and bias. If more than half of a layer is replaced, the
    indicator does not detect it.
    """
    return max(
        float((changes[:, 0].max() / changes[:, 0].median()).log())
        for changes in row_changes(now, before)
    )


@indicator
def rewritten_row(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest log ratio of a unit's change to its norm in the previous round.

    Norms are over weights and bias. For a unit that was replaced, the value is near 0 or above.
    """
    return max(
        float((changes[:, 0] / changes[:, 1]).log().max()) for changes in row_changes(now, before)
    )


_TINY = 1e-30
"""Smallest norm, so that its logarithm is finite."""


@indicator
def norm_ratio(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest |log ratio| of the norm of a unit's weights to the layer's median norm.

    Source: Nguyen et al. 2023 (AMI), Figs. 8 and 14 (which claim that malicious weights resemble
        normal ones).
    """
    logs = [layer.weight.norm(dim=1).clamp_min(_TINY).log() for layer in hidden_layers(now)]
    return max(float((log_norms - log_norms.median()).abs().max()) for log_norms in logs)


@indicator
def bias_ratio(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest log ratio of a bias's absolute value to the median of its layer."""
    biases = [layer.bias.abs().clamp_min(_TINY) for layer in hidden_layers(now)]
    return max(float((values.max() / values.median()).log()) for values in biases)


@indicator
def outlier_row(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute how much the distribution of a unit's weights differs from that of its layer.

    The value is the largest Kolmogorov-Smirnov distance of a unit's weights from all other weights
    of the layer.

    Source: Nguyen et al. 2023 (AMI), Figs. 8 and 14 (distributions of weights).
    """
    layers = [layer.weight for layer in hidden_layers(now) if len(layer.weight) > 1]
    return max((float(distance_from_others(rows).max()) for rows in layers), default=0.0)


@indicator
def moved_weights(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest Kolmogorov-Smirnov distance between a layer's weights in two rounds.

    Source: Nguyen et al. 2023 (AMI), Fig. 14, which compares the weights of honest and malicious
        models.
    """
    pairs = zip(hidden_layers(now), layers_before(now, before), strict=True)
    return max(distance_between(new.weight.flatten(), old.weight.flatten()) for new, old in pairs)


@indicator
def twins(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest cosine between the non-zero weights of two units of a layer.

    Units of the first layer that are trained for one planted neuron may become parallel.
    """
    largest = -1.0
    for layer in hidden_layers(now):
        rows = layer.weight[layer.weight.norm(dim=1) > 0]
        if len(rows) > 1:
            units = rows / rows.norm(dim=1, keepdim=True)
            cosine = float((units @ units.T).fill_diagonal_(-1).max().clamp(max=1))
            largest = max(largest, cosine)
    return largest


@indicator
def zero_weights(now: Model, before: Model | None, samples: Samples) -> float:
    """Compute the largest fraction of a layer's weights that are exactly zero.

    A malicious server may set to zero the weights that connect the planted neuron's input units to
    other neurons.
    """
    return max(float((layer.weight == 0).double().mean()) for layer in hidden_layers(now))


def distance_from_others(rows: Float[Tensor, "rows values"]) -> Float[Tensor, " rows"]:
    """Compute the Kolmogorov-Smirnov distance of each row from all other rows together."""
    count, size = rows.shape
    # The largest gap is at a value of the row or just before one, because the row's distribution
    # function is constant in between.
    ranks_in_all = _ranks(rows.flatten()).reshape(2, count, size)
    contiguous, ordered = rows.contiguous(), rows.sort(1).values.contiguous()
    ranks_in_row = torch.stack(
        [torch.searchsorted(ordered, contiguous, right=right) for right in (True, False)]
    ).double()
    gaps = ranks_in_row / size - (ranks_in_all - ranks_in_row) / ((count - 1) * size)
    return gaps.abs().amax((0, 2))


def distance_between(
    first: Float[Tensor, " values"], second: Float[Tensor, " more_values"]
) -> float:
    """Compute the Kolmogorov-Smirnov distance between two samples."""
    ranks_in_first = _ranks(first)
    ranks_in_second = _ranks(torch.cat([first, second]))[:, : len(first)] - ranks_in_first
    return float((ranks_in_first / len(first) - ranks_in_second / len(second)).abs().max())


def _ranks(values: Float[Tensor, " values"]) -> Float[Tensor, "2 values"]:
    """Return, for each value, how many values are at most as large, and how many are smaller."""
    order = values.sort()
    is_new = torch.cat([order.values.new_ones(1, dtype=torch.bool), order.values.diff() != 0])
    group = is_new.cumsum(0) - 1
    group_sizes = torch.bincount(group)
    up_to = group_sizes.cumsum(0)[group]
    ranks = torch.empty(2, len(values), dtype=torch.float64)
    ranks[:, order.indices] = torch.stack([up_to, up_to - group_sizes[group]]).double()
    return ranks


INDICATORS: dict[str, Indicator] = {
    "lone-units": lone_units,
    "one-stands-out": one_stands_out,
    "dead-units": dead_units,
    "norm-ratio": norm_ratio,
    "bias-ratio": bias_ratio,
    "odd-row": outlier_row,
    "twins": twins,
    "zero-weights": zero_weights,
    "moved-weights": moved_weights,
    "moved-row": moved_row,
    "rewritten-row": rewritten_row,
}
"""Indicators by name. Results store these names. The last three need the model of the previous
round."""
