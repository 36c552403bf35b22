"""Training steps of dense layers with manual backpropagation instead of autograd.

Autograd's overhead is a large part of a step of a small dense network: the same matrix products in
plain calls are about a third faster.

The derivative of the loss by the outputs is computed by autograd, and the backward pass through
dense layers by hand. In a convolutional network, autograd computes the part before the last
``Flatten`` from the gradient at that point. The dense part has most of such a network's weights and
takes a third of a step. By hand, and with the faster library for products, a whole step takes a
tenth to a fifth less time (see ``benchmarks/README.md``). Results agree with autograd's up to
rounding.

``params`` are the weight and bias of each dense layer in order, as in ``module.parameters()``.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedaudit.core.modules import runs_custom_code
from fedaudit.core.values import Batch
from fedaudit.fl.hooks import Objective
from fedaudit.signals.kernels import product

Slope: TypeAlias = Callable[[Tensor], Tensor]
"""Function that maps outputs to the derivative of the loss with respect to them, summed over a
batch."""


def dense_layers(module: nn.Module) -> list[nn.Linear] | None:
    """Return the linear layers of a plain stack of linear layers with ReLU between them.

    The stack may be nested, and may begin with ``Flatten``. Pass its parameters, in the module's
    order, to :func:`dense_gradients` and :func:`descend_dense`.

    Returns:
        The layers in order, or None for any other module: with another type of layer, a layer that
        is used twice, has no bias or is partly frozen, or hooks, which would not be called.
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
    """Compute the gradients of the mean loss of a batch."""
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
    """Take one step of plain gradient descent on the mean loss of a batch, in place.

    The weight gradient is accumulated into the weights and never stored, which is a tenth faster
    than :func:`dense_gradients` with an optimizer. There is no momentum or weight decay.
    """
    with torch.no_grad():
        rate = -lr / len(x)
        pairs = list(zip(params[::2], params[1::2], strict=True))
        # _errors computes the next error before it yields the current one. Changing the current
        # layer's weights here therefore cannot change the errors of earlier layers.
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
    """Compute the sum of the samples' cross-entropy gradients, each clipped to norm ``clip``.

    A sample's gradient at a layer is the outer product of its error and its input, so that its norm
    is the product of their norms.
    """
    with torch.no_grad():
        backward = list(_errors(params, x, partial(cross_entropy_slope, y=y)))
        squared = torch.zeros(len(y), dtype=torch.float64, device=x.device)
        for error, inputs in backward:
            squared += error.square().sum(1) * (inputs.square().sum(1) + 1)
        factors = clip_factors(squared, clip).to(backward[0][0].dtype)[:, None]
        clipped = [(error * factors, inputs) for error, inputs in backward]
        reverse = [grad for error, inputs in clipped for grad in (error.sum(0), error.t() @ inputs)]
    return reverse[::-1]


def clip_factors(
    squared_norms: Float[Tensor, " samples"], clip: float
) -> Float[Tensor, " samples"]:
    """Return the factors that clip gradients with these squared norms to norm ``clip``."""
    return (clip / squared_norms.sqrt()).clamp(max=1.0)


def _errors(
    params: Sequence[Tensor], x: Tensor, slope: Slope
) -> Iterator[tuple[Float[Tensor, "samples outputs"], Float[Tensor, "samples inputs"]]]:
    """Yield each layer's derivative of the summed loss by its output, and its input, backwards."""
    weights, biases = params[::2], params[1::2]
    inputs = [x.flatten(1)]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
    error = slope(torch.addmm(biases[-1], inputs[-1], weights[-1].t()))
    for weight, layer_input in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
        earlier = torch.ops.aten.threshold_backward(error @ weight, layer_input, 0)
        yield error, layer_input
        error = earlier
    yield error, inputs[0]


def cross_entropy_slope(
    outputs: Float[Tensor, "samples classes"], y: Int[Tensor, " samples"]
) -> Float[Tensor, "samples classes"]:
    """Return the derivative of the summed cross-entropy by the outputs: softmax minus one-hot."""
    error = outputs.softmax(1)
    # scatter raises an error for labels out of range, unlike a flat index.
    return error.scatter_add_(1, y.long()[:, None], error.new_full((len(y), 1), -1.0))


def flattened(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of nested ``Sequential`` containers, in the order of their calls."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module:
        yield from flattened(child)


def is_plain_flatten(module: nn.Module) -> bool:
    """Return True if a module flattens each sample to one row, and does nothing else."""
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def has_hooks(module: nn.Module) -> bool:
    """Return True if hooks are registered on a module."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class SplitNetwork(NamedTuple):
    """Network that is split at its last ``Flatten``.

    Attributes:
        front: The part before the last ``Flatten``.
        front_params: Trainable parameters of the front, in its order.
        tail_params: Weight and bias of each linear layer after it.
    """

    front: nn.Sequential
    front_params: list[Tensor]
    tail_params: list[Tensor]


def split(module: nn.Module) -> SplitNetwork | None:
    """Split a network that ends with ``Flatten`` and linear layers with ReLU between them.

    Returns:
        The two parts, or None for any other module: with another end, an end that is partly frozen
        or shares its parameters, no trainable parameters before it, hooks, which would not be
        called, or custom code.
    """
    parts = list(flattened(module))
    places = [place for place, part in enumerate(parts) if is_plain_flatten(part)]
    if not places or any(has_hooks(part) for part in module.modules()):
        return None
    if runs_custom_code(module):  # it may skip parameters, or use those of the end elsewhere
        return None
    front, end = nn.Sequential(*parts[: places[-1]]), nn.Sequential(*parts[places[-1] :])
    front_params: list[Tensor] = [p for p in front.parameters() if p.requires_grad]
    tail_params: list[Tensor] = list(end.parameters())
    trained = [param for param in module.parameters() if param.requires_grad]
    together = [*front_params, *tail_params]
    trains_all = [id(param) for param in together] == [id(param) for param in trained]
    if dense_layers(end) is None or not front_params or not trains_all:
        return None
    return SplitNetwork(front, front_params, tail_params)


def split_gradients(
    network: SplitNetwork, x: Shaped[Tensor, "samples ..."], slope: Slope
) -> list[Tensor]:
    """Compute the gradients of the mean loss of a batch, in the order of the parameters."""
    hidden = network.front(x)
    with torch.no_grad():
        tail = _backward(network.tail_params, hidden, slope)
        tail_gradients = [
            gradient
            for error, inputs in zip(tail.errors, tail.inputs, strict=True)
            for gradient in (product(error.t(), inputs.t()), error.sum(0))
        ]
    return [*torch.autograd.grad(hidden, network.front_params, tail.at_hidden), *tail_gradients]


def descend_split(
    network: SplitNetwork, x: Shaped[Tensor, "samples ..."], slope: Slope, *, lr: float
) -> None:
    """Take one step of plain gradient descent on the mean loss of a batch, in place."""
    hidden = network.front(x)
    with torch.no_grad():
        tail = _backward(network.tail_params, hidden, slope)
        pairs = zip(network.tail_params[::2], network.tail_params[1::2], strict=True)
        for (weight, bias), error, inputs in zip(pairs, tail.errors, tail.inputs, strict=True):
            weight.addmm_(error.t(), inputs, alpha=-lr)
            bias.add_(error.sum(0), alpha=-lr)
    front_gradients = torch.autograd.grad(hidden, network.front_params, tail.at_hidden)
    with torch.no_grad():
        torch._foreach_add_(network.front_params, list(front_gradients), alpha=-lr)


class _TailPass(NamedTuple):
    """Values of a forward and backward pass through the tail, first layer first.

    Attributes:
        errors: Derivative of the mean loss by each layer's output.
        inputs: Input of each layer.
        at_hidden: Derivative of the mean loss by the input of the tail.
    """

    errors: list[Float[Tensor, "samples _"]]
    inputs: list[Float[Tensor, "samples _"]]
    at_hidden: Float[Tensor, "samples ..."]


def _backward(params: Sequence[Tensor], hidden: Tensor, slope: Slope) -> _TailPass:
    weights, biases = params[::2], params[1::2]
    inputs = [hidden.flatten(1)]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(product(inputs[-1], weight).add_(bias).relu_())
    outputs = product(inputs[-1], weights[-1]).add_(biases[-1])
    errors = [slope(outputs).div_(len(outputs))]
    for weight, layer_input in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
        earlier = product(errors[-1], weight.t())
        errors.append(torch.ops.aten.threshold_backward(earlier, layer_input, 0))
    at_hidden = product(errors[-1], weights[0].t()).view(hidden.shape)
    return _TailPass(errors[::-1], inputs, at_hidden)


class _Descend(Protocol):
    def __call__(self, x: Tensor, slope: Slope, *, lr: float) -> None: ...


class WrittenOut(NamedTuple):
    """Manual training steps for a type of network.

    Attributes:
        gradients: Function of features and slope that returns gradients in the order of parameters.
        descend: Function that takes one step of plain gradient descent, in place.
    """

    gradients: Callable[[Tensor, Slope], list[Tensor]]
    descend: _Descend


def written_out(module: nn.Module) -> WrittenOut | None:
    """Return the manual training steps for a network, or None if it needs autograd."""
    if dense_layers(module) is not None:
        params = list(module.parameters())
        return WrittenOut(partial(dense_gradients, params), partial(descend_dense, params))
    network = split(module)
    if network is not None:
        return WrittenOut(partial(split_gradients, network), partial(descend_split, network))
    return None


class OutputGradient:
    """Derivative of a batch's loss with respect to the outputs, for any loss.

    The loss is evaluated once. A loss may also depend on parameters directly, by a second forward
    pass or a penalty on weights. That part of the derivative is stored, and added to the gradient
    that flows back through the outputs.

    Attributes:
        direct: The direct part for each parameter, after a call; None for zero.
    """

    def __init__(self, objective: Objective, batch: Batch, params: Sequence[Tensor]) -> None:
        self._objective, self._batch, self._params = objective, batch, params
        self.direct: Sequence[Tensor | None] = [None] * len(params)

    def __call__(
        self, outputs: Float[Tensor, "samples outputs"]
    ) -> Float[Tensor, "samples outputs"]:
        """Return the derivative of the loss by the outputs, times the number of samples."""
        if self._objective.slope is not None:
            slope = self._objective.slope(outputs, self._batch)
            if slope is not None:
                return slope
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            # A clone, since a loss may change its outputs in place, which a leaf does not allow.
            loss = self._objective.loss(leaf.clone(), self._batch)
            output_gradient, *self.direct = torch.autograd.grad(
                loss, [leaf, *self._params], allow_unused=True
            )
        return (
            torch.zeros_like(outputs) if output_gradient is None else output_gradient * len(outputs)
        )

    def with_direct(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients through the outputs plus the direct part."""
        return [
            through if direct is None else through + direct
            for through, direct in zip(gradients, self.direct, strict=True)
        ]

    @torch.no_grad()
    def descend_direct(self, *, lr: float) -> None:
        """Take one step of plain gradient descent along the direct part."""
        for param, direct in zip(self._params, self.direct, strict=True):
            if direct is not None:
                param.add_(direct, alpha=-lr)
