"""The planted neuron: one of the second layer, over all of the first."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Distinct(NamedTuple):
    """Rows without repeats.

    Attributes:
        rows: Each once, in the order given where none repeats.
        place: Which of them each given row is.
    """

    rows: Float[Tensor, "distinct features"]
    place: Int[Tensor, " given"]

    @staticmethod
    def of(rows: Float[Tensor, "given features"]) -> "Distinct":
        """Each of these rows once.

        Many processors round a row of a matrix product by its place in it, so that two equal rows
        may get unequal values. A value that is worked out once for both is the same everywhere.
        """
        kept, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(kept) == len(rows):
            return Distinct(rows, torch.arange(len(rows)))
        return Distinct(kept, place)


class Neurons(NamedTuple):
    """Neurons that fire for one record each: v(x) = h . ReLU(W x + c) + b.

    Attributes:
        first: W, the weights of the first layer.
        first_bias: c.
        second: h, the neuron's own weights in the second layer.
        second_bias: b.

    Source: AMI, Eqs. (5) and (7).
    Differs: the paper suppresses biases; its published code has both.
    """

    first: Float[Tensor, "neurons hidden features"]
    first_bias: Float[Tensor, "neurons hidden"]
    second: Float[Tensor, "neurons hidden"]
    second_bias: Float[Tensor, " neurons"]

    def values(
        self, records: Float[Tensor, "neurons records features"]
    ) -> Float[Tensor, "neurons records"]:
        """What each neuron is before its ReLU, on records of its own."""
        inner = torch.baddbmm(self.first_bias[:, None], records, self.first.transpose(1, 2))
        outer = torch.bmm(inner.relu_(), self.second[:, :, None]).squeeze(2)
        return outer + self.second_bias[:, None]

    def values_alike(
        self, records: Float[Tensor, "1 records features"]
    ) -> Float[Tensor, "1 records"]:
        """The same of one neuron, equal for equal records on any processor: for comparisons."""
        kept = Distinct.of(records[0])
        return self.values(kept.rows[None])[:, kept.place]

    def fires(
        self, records: Float[Tensor, "neurons records features"]
    ) -> Bool[Tensor, "neurons records"]:
        """For which records the neuron has a gradient."""
        return self.values(records) > 0

    def shifted(self, by: Float[Tensor, " neurons"]) -> "Neurons":
        """The same neurons, each easier to fire by that much."""
        return self._replace(second_bias=self.second_bias + by)

    def at(self, index: int) -> "Neurons":
        """One of them."""
        return Neurons(*(part[index : index + 1] for part in self))

    @staticmethod
    def joined(parts: Iterable["Neurons"]) -> "Neurons":
        """All neurons of several parts."""
        return Neurons(*(torch.cat(part) for part in zip(*parts, strict=True)))
