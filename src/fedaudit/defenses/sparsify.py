"""Gradient sparsification: only the largest entries of what a client sends are sent."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core.arguments import Fraction, dataclass
from fedaudit.core.values import Params, flat
from fedaudit.fl.hooks import ConfiguredDefense, Turn
from fedaudit.observe.round import Upload

SMALL = 1000
"""Tensors of at most so many entries are left alone by the published code."""


@dataclass(frozen=True)
class GradientSparsification(ConfiguredDefense):
    """Sends the largest entries of the upload, by size, and zeros in place of all others.

    Attributes:
        ratio: Share of the entries that become zero, in [0, 1]; 0 changes nothing. Published: 0.1
            to 0.99 (FedMIA), 0.1 and 0.2 (CoFedMID).
        scope: "global" lets all entries compete, and keeps exactly the nearest whole number to
            (1 - ratio) times their count, halves to the even one, the first of equal entries;
            "per-tensor" is the published code's way.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientSparsification(ratio=0.9).ratio
        0.9

    Source: FedMIA, appendix A.2 (gradient sparsification); CoFedMID, appendix E (GradSparse).
    Differs: FedMIA's code ranks each tensor alone, leaves those of up to 1000 entries as they
        are and keeps all that equal the smallest kept one; "per-tensor" does so too, but sends
        zeros at ratio 1, where that code fails. The sparse upload is what every attack sees,
        losses included.
    """

    ratio: Fraction
    scope: Literal["global", "per-tensor"] = "global"

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: zeros in place of the small entries."""
        if self.ratio == 0:
            return upload
        sparse = sparse_globally if self.scope == "global" else sparse_per_tensor
        return replace(upload, values=sparse(upload.values, self.ratio))


def sparse_globally(values: Params, ratio: float) -> Params:
    """All but the largest entries of all tensors together become zero.

    Args:
        values: Tensors by name.
        ratio: Share of the entries that become zero. How many stay is rounded to the nearest
            whole number, halves to the even one: of 6 entries and 0.25, 4.5 makes 4.
    """
    total = sum(value.numel() for value in values.values())
    kept = _largest(flat(values).abs(), round((1 - ratio) * total))
    parts = torch.split(kept, [value.numel() for value in values.values()])
    return {
        name: torch.where(part.reshape(value.shape), value, 0)
        for (name, value), part in zip(values.items(), parts, strict=True)
    }


def sparse_per_tensor(values: Params, ratio: float) -> Params:
    """All but the largest entries of each large tensor become zero; equal ones all stay."""

    def sparse(value: Tensor) -> Tensor:
        if value.numel() <= SMALL:
            return value
        kept = int(value.numel() * (1 - ratio))
        if kept == 0:
            return torch.zeros_like(value)
        return torch.where(value.abs() >= _smallest_of(value.abs().flatten(), kept), value, 0)

    return {name: sparse(value) for name, value in values.items()}


def _largest(sizes: Float[Tensor, " entries"], count: int) -> Bool[Tensor, " entries"]:
    """Marks exactly so many of the largest; among equal ones the first."""
    if count == 0:
        return torch.zeros_like(sizes, dtype=torch.bool)
    edge = _smallest_of(sizes, count)
    larger = sizes > edge
    equal = sizes == edge
    return larger | (equal & (equal.cumsum(0) <= count - larger.sum()))


def _smallest_of(sizes: Float[Tensor, " entries"], count: int) -> Float[Tensor, ""]:
    """The smallest of so many largest."""
    smallest: Tensor = sizes.kthvalue(len(sizes) - count + 1).values
    return smallest
