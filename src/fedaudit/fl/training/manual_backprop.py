"""Training steps of dense layers with manual backpropagation instead of autograd.

Autograd's overhead is a large part of a step of a small dense network. Direct calls of the same
matrix products are about a third faster.

Autograd computes the derivative of the loss with respect to the outputs. Functions of this module
propagate it back through the dense layers. In a convolutional network, autograd continues at the
last ``Flatten``. The dense layers after it contain most of such a network's weights and take a
third of a step. Manual backpropagation uses the faster of two libraries for matrix products, and
shortens a step by 10 % to 20 % (see ``benchmarks/README.md``). Results agree with autograd's up to
rounding.

The argument ``params`` of several functions is the weight and bias of each dense layer in order, as
in ``module.parameters()``.
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
        The layers in order, or None if manual steps are impossible. This is the case if a layer has
        another type, is used twice, has no bias or is partly frozen. It is also the case for
        modules with hooks, which manual steps would not call.
    """
    layers = list(iterate_layers(module))
    if any(has_hooks(part) for part in module.modules()):
        return None
    if layers and is_plain_flatten(layers[0]):
        layers = layers[1:]
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear]
    relus = [layer for layer in layers[1::2] if type(layer) is nn.ReLU]
    is_alternating = len(linear) + len(relus) == len(layers) and len(linear) == len(relus) + 1
    params = [param for layer in linear for param in (layer.weight, layer.bias)]
    are_unique = len({id(param) for param in params}) == len(params)
    are_trainable = all(param is not None and param.requires_grad for param in params)
    return linear if is_alternating and are_unique and are_trainable else None


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

    A sample's gradient at a layer is the outer product of its error and its input. The norm of the
    gradient is therefore the product of their norms.
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
    """Yield each layer's derivative of the summed loss by its output, and its input; last first."""
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
    # Unlike an index into the flattened outputs, scatter raises an error for labels out of range.
    return error.scatter_add_(1, y.long()[:, None], error.new_full((len(y), 1), -1.0))


def iterate_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules in nested ``Sequential`` containers, in the order of their calls."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module:
        yield from iterate_layers(child)


def is_plain_flatten(module: nn.Module) -> bool:
    """Return True if a module is a ``Flatten`` that turns each sample into one row."""
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
        front: The layers before the last ``Flatten``.
        front_params: Trainable parameters of the front, in its order.
        tail_params: Weight and bias of each linear layer after the last ``Flatten``.
    """

    front: nn.Sequential
    front_params: list[Tensor]
    tail_params: list[Tensor]


def split(module: nn.Module) -> SplitNetwork | None:
    """Split a network that ends with ``Flatten`` and linear layers with ReLU between them.

    Returns:
        Front and tail, or None if manual steps are impossible. This is the case if the tail has
        other layers, frozen parameters or parameters that the front uses, or if the front has no
        trainable parameters. It is also the case for modules with hooks or custom code, which
        manual steps would not call.
    """
    layers = list(iterate_layers(module))
    flattens = [index for index, layer in enumerate(layers) if is_plain_flatten(layer)]
    if not flattens or any(has_hooks(part) for part in module.modules()):
        return None
    # Custom code may skip parameters, or use those of the tail elsewhere.
    if runs_custom_code(module):
        return None
    front, tail = nn.Sequential(*layers[: flattens[-1]]), nn.Sequential(*layers[flattens[-1] :])
    front_params: list[Tensor] = [p for p in front.parameters() if p.requires_grad]
    tail_params: list[Tensor] = list(tail.parameters())
    trainable = [id(param) for param in module.parameters() if param.requires_grad]
    has_all_params = [id(param) for param in (*front_params, *tail_params)] == trainable
    if dense_layers(tail) is None or not front_params or not has_all_params:
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
    """Values of a forward and backward pass through the tail, in the order of the layers.

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


class ManualSteps(NamedTuple):
    """Manual computation of gradients and training steps of one network.

    Attributes:
        gradients: Function of features and slope that returns gradients in the order of parameters.
        descend: Function that takes one step of plain gradient descent, in place.
    """

    gradients: Callable[[Tensor, Slope], list[Tensor]]
    descend: _Descend


def manual_steps(module: nn.Module) -> ManualSteps | None:
    """Return the manual training steps for a network, or None if it needs autograd."""
    if dense_layers(module) is not None:
        params = list(module.parameters())
        return ManualSteps(partial(dense_gradients, params), partial(descend_dense, params))
    network = split(module)
    if network is not None:
        return ManualSteps(partial(split_gradients, network), partial(descend_split, network))
    return None


class OutputGradient:
    """Derivative of a batch's loss with respect to the outputs, for any loss.

    A loss may also depend on parameters directly, by a second forward pass or a penalty on weights.
    The derivative with respect to these parameters is stored at the same time. Add it to the
    gradient that is backpropagated from the outputs.

    Attributes:
        direct: Derivative with respect to each parameter for fixed outputs, computed by a call;
            None for zero.
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
            # The loss gets a clone. It may change outputs in place, which a leaf does not allow.
            loss = self._objective.loss(leaf.clone(), self._batch)
            output_gradient, *self.direct = torch.autograd.grad(
                loss, [leaf, *self._params], allow_unused=True
            )
        return (
            torch.zeros_like(outputs) if output_gradient is None else output_gradient * len(outputs)
        )

    def with_direct(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of backpropagated gradients and the direct derivatives."""
        return [
            gradient if direct is None else gradient + direct
            for gradient, direct in zip(gradients, self.direct, strict=True)
        ]

    @torch.no_grad()
    def descend_direct(self, *, lr: float) -> None:
        """Take one step of plain gradient descent along the direct derivatives."""
        for param, direct in zip(self._params, self.direct, strict=True):
            if direct is not None:
                param.add_(direct, alpha=-lr)
