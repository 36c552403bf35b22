"""Training steps of fully connected networks, written out by hand instead of by autograd.

A step of a small dense network costs little more than what autograd spends on keeping its
books, so that the same products in plain calls are about a third faster (see
``benchmarks/README.md``). Results agree with autograd's to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

Slope: TypeAlias = Callable[[Tensor], Tensor]
"""From a network's outputs to the derivative by them of the loss that is summed over a batch."""


def dense_layers(module: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a plain stack of linear layers with ReLU between them.

    The stack may be nested, and may begin with ``Flatten``. Its parameters, in the module's
    order, are then what :func:`dense_gradients` and :func:`descend_dense` take.

    Returns:
        The layers in order, or None for any other module: another kind of layer, a layer
        used twice, without bias, frozen in part, or with hooks, whose calls would be missed.
    """
    parts = list(flattened(module))
    if any(has_hooks(part) for part in module.modules()):
        return None
    if parts and is_plain_flatten(parts[0]):
        parts = parts[1:]
    layers = [part for part in parts[::2] if type(part) is nn.Linear]
    between = [part for part in parts[1::2] if type(part) is nn.ReLU]
    alternate = len(layers) + len(between) == len(parts) and len(layers) == len(between) + 1
    params = [param for layer in layers for param in (layer.weight, layer.bias)]
    once = len({id(param) for param in params}) == len(params)
    trained = all(param is not None and param.requires_grad for param in params)
    return layers if alternate and once and trained else None


def dense_gradients(
    params: Sequence[Tensor],
    x: Shaped[Tensor, "samples ..."],
    slope: Slope,
) -> list[Tensor]:
    """Gradients of the mean loss of a batch.

    Args:
        params: Weight and bias of each layer in turn, as ``module.parameters()`` gives them.
        x: Features, flattened here.
        slope: Of the loss, such as :func:`cross_entropy_slope` with its classes.
    """
    with torch.no_grad():
        backward = _errors(params, x, slope)
        reverse = [
            grad
            for error, inputs in backward
            for grad in (error.sum(0).div_(len(x)), error.t().div(len(x)) @ inputs)
        ]
    return reverse[::-1]


def descend_dense(
    params: Sequence[Tensor],
    x: Shaped[Tensor, "samples ..."],
    slope: Slope,
    *,
    lr: float,
) -> None:
    """One step of plain gradient descent on the mean loss of a batch, in place.

    The weight gradient is added to the weights as it is formed, and never stored: a tenth
    faster than :func:`dense_gradients` with an optimizer. No momentum, no weight decay.

    Args:
        params: Weight and bias of each layer in turn, as ``module.parameters()`` gives them.
        x: Features, flattened here.
        slope: Of the loss, such as :func:`cross_entropy_slope` with its classes.
        lr: Learning rate.
    """
    with torch.no_grad():
        rate = -lr / len(x)
        pairs = list(zip(params[::2], params[1::2], strict=True))
        # _errors has passed a layer's error on before it gives it out, so that changing the
        # layer's weights here cannot change the errors of the layers before it.
        for (weight, bias), (error, inputs) in zip(
            reversed(pairs), _errors(params, x, slope), strict=True
        ):
            weight.addmm_(error.t(), inputs, alpha=rate)
            bias.add_(error.sum(0), alpha=rate)


def dense_clipped_sum(
    params: Sequence[Tensor],
    x: Shaped[Tensor, "samples ..."],
    y: Int[Tensor, " samples"],
    *,
    clip: float,
) -> list[Tensor]:
    """The sum of the samples' gradients of the cross-entropy, each shortened to ``clip``.

    A sample's gradient at a layer is the product of its error and its input, so that its
    length is the product of theirs.

    Args:
        params: Weight and bias of each layer in turn, as ``module.parameters()`` gives them.
        x: Features, flattened here.
        y: Class indices.
        clip: Largest Euclidean length of one sample's gradient; infinity clips nothing.
    """
    with torch.no_grad():
        backward = list(_errors(params, x, partial(cross_entropy_slope, y=y)))
        squared = torch.zeros(len(y), dtype=torch.float64, device=x.device)
        for error, inputs in backward:
            squared += error.square().sum(1) * (inputs.square().sum(1) + 1)
        factors = shortening(squared, clip).to(backward[0][0].dtype)[:, None]
        shortened = [(error * factors, inputs) for error, inputs in backward]
        reverse = [
            grad for error, inputs in shortened for grad in (error.sum(0), error.t() @ inputs)
        ]
    return reverse[::-1]


def shortening(squared_norms: Float[Tensor, " samples"], clip: float) -> Float[Tensor, " samples"]:
    """The factor that makes a gradient of each squared length at most ``clip`` long, or 1."""
    return (clip / squared_norms.sqrt()).clamp(max=1.0)


def _errors(
    params: Sequence[Tensor], x: Tensor, slope: Slope
) -> Iterator[tuple[Float[Tensor, "samples outputs"], Float[Tensor, "samples inputs"]]]:
    """Per layer, last first: the derivative of the *summed* loss by its output, and its input."""
    weights, biases = params[::2], params[1::2]
    inputs = [x.flatten(1)]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
    error = slope(torch.addmm(biases[-1], inputs[-1], weights[-1].t()))
    for weight, given in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
        earlier = torch.ops.aten.threshold_backward(error @ weight, given, 0)
        yield error, given
        error = earlier
    yield error, inputs[0]


def cross_entropy_slope(
    outputs: Float[Tensor, "samples classes"], y: Int[Tensor, " samples"]
) -> Float[Tensor, "samples classes"]:
    """The derivative of the summed cross-entropy by the outputs: softmax less the true class.

    Args:
        outputs: Before the softmax.
        y: True classes.
    """
    error = outputs.softmax(1)
    # scatter rather than a flat index: it refuses labels that are not among the classes.
    return error.scatter_add_(1, y.long()[:, None], error.new_full((len(y), 1), -1.0))


def flattened(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of nested ``Sequential`` containers, in the order in which they are called."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module:
        yield from flattened(child)


def is_plain_flatten(module: nn.Module) -> bool:
    """True if a module makes one row a sample, and does nothing else."""
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def has_hooks(module: nn.Module) -> bool:
    """True if somebody wants to be told when a module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
