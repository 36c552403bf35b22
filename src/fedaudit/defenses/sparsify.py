"""Gradient sparsification: only the largest entries of the upload are sent."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core.arguments import Fraction, dataclass
from fedaudit.core.values import Params, flat
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext
from fedaudit.observe.round import Upload

SMALL = 1000
"""Largest number of entries of a tensor that the published code does not change."""


@dataclass(frozen=True)
class GradientSparsification(ConfiguredDefense):
    """Gradient sparsification: only the entries of largest magnitude are sent.

    Attributes:
        ratio: Share of the entries that become zero, in [0, 1]; 0 changes nothing. Published: 0.1
            to 0.99 (FedMIA), 0.1 and 0.2 (CoFedMID).
        scope: "global" ranks the entries of all tensors together, and sends exactly
            round((1 - ratio) * count) of them, the first of ties; "per-tensor" ranks each tensor
            separately, as the published code does.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientSparsification(ratio=0.9).ratio
        0.9

    Source: FedMIA, appendix A.2 (gradient sparsification); CoFedMID, appendix E (GradSparse).
    Differs: FedMIA's code ranks each tensor separately, does not change tensors of up to 1000
        entries and sends all entries that equal the smallest one sent. "per-tensor" does the same,
        but sends zeros at ratio 1, where that code fails. All attacks see the sparse upload,
        including attacks on losses.
    """

    ratio: Fraction
    scope: Literal["global", "per-tensor"] = "global"

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        if self.ratio == 0:
            return upload
        sparse = sparse_globally if self.scope == "global" else sparse_per_tensor
        return replace(upload, values=sparse(upload.values, self.ratio))


def sparse_globally(values: Params, ratio: float) -> Params:
    """Set all but the largest entries of all tensors together to zero.

    Args:
        values: Tensors by name.
        ratio: Share of the entries that become zero. The number of others is rounded, halves to
            even: for 6 entries and a ratio of 0.25, 4.5 is rounded to 4.
    """
    total = sum(value.numel() for value in values.values())
    is_largest = _largest(flat(values).abs(), round((1 - ratio) * total))
    parts = torch.split(is_largest, [value.numel() for value in values.values()])
    return {
        name: torch.where(part.reshape(value.shape), value, 0)
        for (name, value), part in zip(values.items(), parts, strict=True)
    }


def sparse_per_tensor(values: Params, ratio: float) -> Params:
    """Set all but the largest entries of each large tensor to zero, without breaking ties."""

    def sparse(value: Tensor) -> Tensor:
        if value.numel() <= SMALL:
            return value
        count = int(value.numel() * (1 - ratio))
        if count == 0:
            return torch.zeros_like(value)
        return torch.where(value.abs() >= _smallest_of(value.abs().flatten(), count), value, 0)

    return {name: sparse(value) for name, value in values.items()}


def _largest(sizes: Float[Tensor, " entries"], count: int) -> Bool[Tensor, " entries"]:
    """Mark exactly ``count`` of the largest entries, the first of ties."""
    if count == 0:
        return torch.zeros_like(sizes, dtype=torch.bool)
    threshold = _smallest_of(sizes, count)
    larger = sizes > threshold
    equal = sizes == threshold
    return larger | (equal & (equal.cumsum(0) <= count - larger.sum()))


def _smallest_of(sizes: Float[Tensor, " entries"], count: int) -> Float[Tensor, ""]:
    """Return the smallest of the ``count`` largest entries."""
    smallest: Tensor = sizes.kthvalue(len(sizes) - count + 1).values
    return smallest
