"""Optimizer steps on lists of tensors: what ``torch.optim`` computes, without its upkeep."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedaudit.core.errors import BadInput


@runtime_checkable
class Optimizer(Protocol):
    """Moves parameters along gradients; a fresh one for each local training."""

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place.

        Args:
            params: The same tensors, in the same order, in every call.
            grads: Their gradients; left as they are, and free to be overwritten afterwards.
        """
        ...


@dataclass
class Sgd:
    """Stochastic gradient descent.

    Attributes:
        lr: Learning rate, above 0.
        momentum: Share of the last direction that is kept, in [0, 1); 0 for none. The first
            step's direction is its gradient, as in torch.
        weight_decay: This multiple of the parameters is added to their gradient; 0 for none.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    _directions: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum lies in [0, 1), 0 for none, got {self.momentum}")

    @property
    def plain(self) -> bool:
        """True if a step is the gradient times the learning rate and nothing else."""
        return self.momentum == 0 and self.weight_decay == 0

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place."""
        directions = _decayed(params, grads, self.weight_decay)
        if self.momentum > 0:
            directions = self._with_momentum(directions)
        torch._foreach_add_(list(params), directions, alpha=-self.lr)

    def _with_momentum(self, grads: list[Tensor]) -> list[Tensor]:
        if not self._directions:
            self._directions = [grad.clone() for grad in grads]
        else:
            torch._foreach_mul_(self._directions, self.momentum)
            torch._foreach_add_(self._directions, grads)
        return self._directions


@dataclass
class Adam:
    """Adam, with the weight decay added to the gradient (not AdamW's).

    Attributes:
        lr: Learning rate, above 0.
        weight_decay: This multiple of the parameters is added to their gradient; 0 for none.
        betas: Share of the last mean and of the last mean square that is kept, each in [0, 1).
        eps: Added to the root of the mean square, so that nothing is divided by 0.

    Source: Kingma and Ba, "Adam", Algorithm 1.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _steps: int = field(default=0, init=False, repr=False)
    _means: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _squares: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)
        if not all(0 <= beta < 1 for beta in self.betas) or self.eps < 0:
            raise BadInput(
                f"betas lie in [0, 1) and eps is at least 0, got {self.betas} and {self.eps}"
            )

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place."""
        grads = _decayed(params, grads, self.weight_decay)
        if self._steps == 0:
            self._means = [torch.zeros_like(param) for param in params]
            self._squares = [torch.zeros_like(param) for param in params]
        self._steps += 1
        first, second = self.betas
        torch._foreach_lerp_(self._means, grads, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, grads, grads, 1 - second)
        spreads = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(spreads, sqrt(1 - second**self._steps))
        torch._foreach_add_(spreads, self.eps)
        rate = self.lr / (1 - first**self._steps)
        torch._foreach_addcdiv_(list(params), self._means, spreads, -rate)


@dataclass
class Anchored:
    """Another optimizer, with a pull towards where training began.

    Attributes:
        optimizer: Takes the steps.
        pull: mu, at least 0: this multiple of the way from the anchor is added to the gradient.

    Source: Li et al. 2020 (FedProx), Eq. (2): the gradient of mu / 2 times the squared distance.
    """

    optimizer: Optimizer
    pull: float
    _anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Changes the parameters in place; where they are at the first step is the anchor."""
        if not self._anchor:
            self._anchor = [param.clone() for param in params]
        away = torch._foreach_sub(list(params), self._anchor)
        self.optimizer.step(params, torch._foreach_add(list(grads), away, alpha=self.pull))


def _check(lr: float, weight_decay: float) -> None:
    if not (lr > 0 and weight_decay >= 0):
        raise BadInput(
            f"lr is above 0 and weight_decay at least 0 (0 for none), got {lr} and {weight_decay}"
        )


def _decayed(
    params: Sequence[Tensor], grads: Sequence[Tensor], weight_decay: float
) -> list[Tensor]:
    if weight_decay == 0:
        return list(grads)
    return list(torch._foreach_add(list(grads), list(params), alpha=weight_decay))
