"""The first layer of planted neurons while it is trained: its weights, or what stands for them."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.steps import Step


class ByCoefficients:
    """W = W0 + A' X and c = A' 1: descent never leaves the rows' span, so that A says it all.

    An epoch needs the rows' inner products only, not the rows. The values of all rows are moved
    along with A, and agree with W's to rounding.
    """

    def __init__(
        self, first: Tensor, rows: Tensor, watched: Tensor, lr: float, momentum: float
    ) -> None:
        self._first, self._rows = first, rows
        self._lr, self._momentum = lr, momentum
        self._products = torch.bmm(rows, rows.transpose(1, 2)) + 1
        self._inner = torch.bmm(rows, first.transpose(1, 2))
        self._watched_products = torch.bmm(watched, rows.transpose(1, 2)) + 1
        self._watched_start = torch.bmm(watched, first.transpose(1, 2))
        self._moved = torch.zeros_like(self._inner)
        self._pace = torch.zeros_like(self._inner)

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        """W x + c of every row."""
        return self._inner

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        """The same of rows that it is not trained on."""
        return torch.baddbmm(self._watched_start, self._watched_products, self._moved)

    def move(self, slope: Tensor) -> None:
        """A step of descent with momentum."""
        self._pace.mul_(self._momentum).add_(slope)
        self._moved.sub_(self._pace, alpha=self._lr)
        self._inner.baddbmm_(self._products, self._pace, alpha=-self._lr)

    def now(self) -> tuple[Tensor, Tensor]:
        """W and c."""
        weights = torch.baddbmm(self._first, self._moved.transpose(1, 2), self._rows)
        return weights, self._moved.sum(1)


class ByWeights:
    """W and c themselves, for more rows than their span has directions."""

    def __init__(
        self, first: Tensor, rows: Tensor, watched: Tensor, step: Step, bias_step: Step
    ) -> None:
        self._rows, self._watched = rows, watched
        self._first, self._bias = first, torch.zeros(first.shape[:2])
        self._step, self._bias_step = step, bias_step

    def inner(self) -> Float[Tensor, "neurons rows hidden"]:
        """W x + c of every row."""
        return self._of(self._rows)

    def watched(self) -> Float[Tensor, "neurons watched hidden"]:
        """The same of rows that it is not trained on."""
        return self._of(self._watched)

    def _of(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self._bias[:, None], rows, self._first.transpose(1, 2))

    def move(self, slope: Tensor) -> None:
        """A step of descent, of whatever kind."""
        self._first = self._step(self._first, torch.bmm(slope.transpose(1, 2), self._rows))
        self._bias = self._bias_step(self._bias, slope.sum(1))

    def now(self) -> tuple[Tensor, Tensor]:
        """W and c."""
        return self._first, self._bias


FirstLayer = ByCoefficients | ByWeights
