"""Which networks take their training steps by hand, and how any loss of the outputs gets there.

What a loss does to a network's outputs is left to autograd, which is given these few numbers a
sample alone; the way back through the network is written out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedaudit.core import Batch
from fedaudit.defenses.base import Objective
from fedaudit.fl.training.conv_tail import descend_split, split, split_gradients
from fedaudit.fl.training.dense import Slope, dense_gradients, dense_layers, descend_dense


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


class OwnSlope:
    """The slope of a batch's loss, whatever that makes of the outputs.

    The loss is asked once. Where it looks at parameters in another way than through these
    outputs (a second pass of its own, a penalty on weights), its derivative by them that way is
    kept, to be added to what comes back through the outputs.

    Attributes:
        beside: One for each parameter, once the slope was asked for; None for nothing.
    """

    def __init__(self, objective: Objective, batch: Batch, params: Sequence[Tensor]) -> None:
        self._objective, self._batch, self._params = objective, batch, params
        self.beside: Sequence[Tensor | None] = [None] * len(params)

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
            found, *self.beside = torch.autograd.grad(
                loss, [leaf, *self._params], allow_unused=True
            )
        return torch.zeros_like(outputs) if found is None else found * len(outputs)

    def with_beside(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients that came back through the outputs, and what did not come that way."""
        return [
            through if found is None else through + found
            for through, found in zip(gradients, self.beside, strict=True)
        ]

    @torch.no_grad()
    def descend_beside(self, *, lr: float) -> None:
        """One step of plain gradient descent along what did not come through the outputs."""
        for param, found in zip(self._params, self.beside, strict=True):
            if found is not None:
                param.add_(found, alpha=-lr)
