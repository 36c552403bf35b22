"""How a parameter of planted neurons is moved by its slope: with momentum, or as Adam does."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
"""From a parameter and the slope of the loss there to the parameter afterwards."""


@dataclass
class Momentum:
    """Descent with momentum: p becomes m p + slope, and the parameter falls by lr p.

    Attributes:
        lr: Step size.
        momentum: Share of the last step's direction that is kept.
    """

    lr: float
    momentum: float
    _pace: Tensor | None = field(default=None, init=False)

    def __call__(self, value: Tensor, slope: Tensor) -> Tensor:
        """The parameter after one step."""
        if self._pace is None:
            self._pace = torch.zeros_like(value)
        self._pace.mul_(self.momentum).add_(slope)
        return value.sub(self._pace, alpha=self.lr)


@dataclass
class Adam:
    """Adam with its usual constants.

    Attributes:
        lr: Step size.

    Source: Kingma and Ba 2015, Algorithm 1; AMI's published code trains by it.
    """

    lr: float
    _first: Tensor | None = field(default=None, init=False)
    _second: Tensor | None = field(default=None, init=False)
    _steps: int = field(default=0, init=False)

    def __call__(self, value: Tensor, slope: Tensor) -> Tensor:
        """The parameter after one step."""
        if self._first is None or self._second is None:
            self._first, self._second = torch.zeros_like(value), torch.zeros_like(value)
        self._steps += 1
        self._first.mul_(0.9).add_(slope, alpha=0.1)
        self._second.mul_(0.999).addcmul_(slope, slope, value=0.001)
        spread = self._second.sqrt().div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        return value.addcdiv(self._first, spread, value=-self.lr / (1 - 0.9**self._steps))
