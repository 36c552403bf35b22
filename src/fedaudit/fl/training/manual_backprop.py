"""Training steps of networks whose dense layers are stepped by hand instead of by autograd.

The loss's slope at a network's outputs is left to autograd, which is given these few numbers a
sample alone; the way back through dense layers is written out. Of a convolutional network, what
comes before the last ``Flatten`` goes through autograd, which is given the gradient that arrives
there. Its end holds most of such a network's weights and is a third of a step's work; by hand, and
on the faster library for products, a whole step takes a tenth to a fifth less (see
``benchmarks/README.md``). Results agree with autograd's to rounding.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.core.modules import runs_foreign_code
from fedaudit.core.values import Batch
from fedaudit.fl.hooks import Objective
from fedaudit.fl.training.dense import (
    Slope,
    dense_gradients,
    dense_layers,
    descend_dense,
    flattened,
    has_hooks,
    is_plain_flatten,
)
from fedaudit.signals.kernels.gemm import product


class SplitNetwork(NamedTuple):
    """A network in two parts.

    Attributes:
        front: Everything before the last ``Flatten``.
        front_params: The front's trainable parameters, in its order.
        tail_params: Weight and bias of each linear layer after it.
    """

    front: nn.Sequential
    front_params: list[Tensor]
    tail_params: list[Tensor]


def split(module: nn.Module) -> SplitNetwork | None:
    """A network as whatever it begins with, ``Flatten``, and linear layers with ReLU between.

    Returns:
        None for any other module: another end, an end that is frozen in part or shares its
        parameters, nothing to train before it, hooks, whose calls would be missed, or code of
        somebody else's.
    """
    parts = list(flattened(module))
    places = [place for place, part in enumerate(parts) if is_plain_flatten(part)]
    if not places or any(has_hooks(part) for part in module.modules()):
        return None
    if runs_foreign_code(module):  # which may leave parameters out, or look at those of the end
        return None
    front, end = nn.Sequential(*parts[: places[-1]]), nn.Sequential(*parts[places[-1] :])
    front_params: list[Tensor] = [p for p in front.parameters() if p.requires_grad]
    tail_params: list[Tensor] = list(end.parameters())
    trained = [param for param in module.parameters() if param.requires_grad]
    together = [*front_params, *tail_params]
    whole = [id(param) for param in together] == [id(param) for param in trained]
    if dense_layers(end) is None or not front_params or not whole:
        return None
    return SplitNetwork(front, front_params, tail_params)


def split_gradients(
    network: SplitNetwork, x: Shaped[Tensor, "samples ..."], slope: Slope
) -> list[Tensor]:
    """Gradients of the mean loss of a batch, in the order of the parameters.

    Args:
        network: See :func:`split`.
        x: Features.
        slope: Of the loss, such as :func:`fedaudit.fl.training.dense.cross_entropy_slope`.
    """
    hidden = network.front(x)
    with torch.no_grad():
        passed = _backward(network.tail_params, hidden, slope)
        tail = [
            gradient
            for error, inputs in zip(passed.errors, passed.inputs, strict=True)
            for gradient in (product(error.t(), inputs.t()), error.sum(0))
        ]
    return [*torch.autograd.grad(hidden, network.front_params, passed.at_hidden), *tail]


def descend_split(
    network: SplitNetwork, x: Shaped[Tensor, "samples ..."], slope: Slope, *, lr: float
) -> None:
    """One step of plain gradient descent on the mean loss of a batch, in place.

    Args:
        network: See :func:`split`.
        x: Features.
        slope: Of the loss, such as :func:`fedaudit.fl.training.dense.cross_entropy_slope`.
        lr: Learning rate.
    """
    hidden = network.front(x)
    with torch.no_grad():
        passed = _backward(network.tail_params, hidden, slope)
        pairs = zip(network.tail_params[::2], network.tail_params[1::2], strict=True)
        for (weight, bias), error, inputs in zip(pairs, passed.errors, passed.inputs, strict=True):
            weight.addmm_(error.t(), inputs, alpha=-lr)
            bias.add_(error.sum(0), alpha=-lr)
    found = torch.autograd.grad(hidden, network.front_params, passed.at_hidden)
    with torch.no_grad():
        torch._foreach_add_(network.front_params, list(found), alpha=-lr)


class _Passed(NamedTuple):
    """Values of a pass through the end and back, first layer first.

    Attributes:
        errors: Derivative of the mean loss by each layer's output.
        inputs: What each layer was given.
        at_hidden: Derivative of the mean loss by what the end was given, in its shape.
    """

    errors: list[Float[Tensor, "samples _"]]
    inputs: list[Float[Tensor, "samples _"]]
    at_hidden: Float[Tensor, "samples ..."]


def _backward(params: Sequence[Tensor], hidden: Tensor, slope: Slope) -> _Passed:
    weights, biases = params[::2], params[1::2]
    inputs = [hidden.flatten(1)]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(product(inputs[-1], weight).add_(bias).relu_())
    outputs = product(inputs[-1], weights[-1]).add_(biases[-1])
    errors = [slope(outputs).div_(len(outputs))]
    for weight, given in zip(reversed(weights[1:]), reversed(inputs[1:]), strict=True):
        earlier = product(errors[-1], weight.t())
        errors.append(torch.ops.aten.threshold_backward(earlier, given, 0))
    at_hidden = product(errors[-1], weights[0].t()).view(hidden.shape)
    return _Passed(errors[::-1], inputs, at_hidden)


class _Descend(Protocol):
    def __call__(self, x: Tensor, slope: Slope, *, lr: float) -> None: ...


class WrittenOut(NamedTuple):
    """Steps on a batch's mean loss that were written for a kind of network.

    Attributes:
        gradients: Of the features and the loss's slope, in the order of the parameters.
        descend: One step of plain gradient descent, in place.
    """

    gradients: Callable[[Tensor, Slope], list[Tensor]]
    descend: _Descend


def written_out(module: nn.Module) -> WrittenOut | None:
    """The steps that fit a network; None where autograd has to do."""
    if dense_layers(module) is not None:
        params = list(module.parameters())
        return WrittenOut(partial(dense_gradients, params), partial(descend_dense, params))
    network = split(module)
    if network is not None:
        return WrittenOut(partial(split_gradients, network), partial(descend_split, network))
    return None


class OutputGradient:
    """The slope of a batch's loss, whatever that makes of the outputs.

    The loss is asked once. Where it looks at parameters in another way than through these
    outputs (a second pass of its own, a penalty on weights), its derivative by them that way is
    kept, to be added to what comes back through the outputs.

    Attributes:
        direct: One for each parameter, once the slope was asked for; None for nothing.
    """

    def __init__(self, objective: Objective, batch: Batch, params: Sequence[Tensor]) -> None:
        self._objective, self._batch, self._params = objective, batch, params
        self.direct: Sequence[Tensor | None] = [None] * len(params)

    def __call__(
        self, outputs: Float[Tensor, "samples outputs"]
    ) -> Float[Tensor, "samples outputs"]:
        """The derivative of the loss by the outputs, times the number of samples."""
        if self._objective.slope is not None:
            known = self._objective.slope(outputs, self._batch)
            if known is not None:
                return known
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            # A loss may change outputs in place, as it may those of a network; a leaf it may not.
            loss = self._objective.loss(leaf.clone(), self._batch)
            found, *self.direct = torch.autograd.grad(
                loss, [leaf, *self._params], allow_unused=True
            )
        return torch.zeros_like(outputs) if found is None else found * len(outputs)

    def with_direct(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients that came back through the outputs, and what did not come that way."""
        return [
            through if found is None else through + found
            for through, found in zip(gradients, self.direct, strict=True)
        ]

    @torch.no_grad()
    def descend_direct(self, *, lr: float) -> None:
        """One step of plain gradient descent along what did not come through the outputs."""
        for param, found in zip(self._params, self.direct, strict=True):
            if found is not None:
                param.add_(found, alpha=-lr)
