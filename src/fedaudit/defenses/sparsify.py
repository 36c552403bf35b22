"""Gradient sparsification: sending only the largest entries of the upload."""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core.arguments import Fraction, dataclass
from fedaudit.core.values import Params, flat
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext
from fedaudit.observe.round import Upload

UNCHANGED_SIZE = 1000
"""Largest number of entries of a tensor that the published code does not change."""


@dataclass(frozen=True)
class GradientSparsification(ConfiguredDefense):
    """Gradient sparsification: only the entries of largest magnitude are sent.

    Attributes:
        ratio: Fraction of the entries that are set to zero, in [0, 1]; with 0, the defense is off.
            Published: 0.1 to 0.99 (FedMIA), 0.1 and 0.2 (CoFedMID).
        scope: "global" ranks the entries of all tensors together, and sends exactly
            round((1 - ratio) * count) of them; among equal entries, the first are sent.
            "per-tensor" ranks each tensor separately, as in the published code.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientSparsification(ratio=0.9).ratio
        0.9

    Source: Zhu et al. 2024 (FedMIA), appendix A.2 (gradient sparsification); Bai et al. 2026
        (CoFedMID), appendix E (GradSparse).
    Differs: FedMIA's code ranks each tensor separately, and does not change tensors with up to 1000
        entries. It sends all entries that equal the smallest entry that it sends. "per-tensor" does
        the same, but sends zeros at ratio 1, where FedMIA's code fails. All attacks see the sparse
        upload, including attacks on losses.
    """

    ratio: Fraction
    scope: Literal["global", "per-tensor"] = "global"

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        if self.ratio == 0:
            return upload
        sparsify = sparsify_globally if self.scope == "global" else sparsify_per_tensor
        return replace(upload, values=sparsify(upload.values, self.ratio))


def sparsify_globally(values: Params, ratio: float) -> Params:
    """Set all but the largest entries of all tensors together to zero.

    Args:
        values: Tensors by name.
        ratio: Fraction of the entries that are set to zero. The number of the remaining entries is
            rounded, with halves to even: for 6 entries and a ratio of 0.25, 4.5 is rounded to 4.
    """
    total = sum(value.numel() for value in values.values())
    is_largest = _largest(flat(values).abs(), round((1 - ratio) * total))
    masks = torch.split(is_largest, [value.numel() for value in values.values()])
    return {
        name: torch.where(mask.reshape(value.shape), value, 0)
        for (name, value), mask in zip(values.items(), masks, strict=True)
    }


def sparsify_per_tensor(values: Params, ratio: float) -> Params:
    """Set all but the largest entries of each large tensor to zero.

    All entries that equal the smallest kept entry are kept, too.
    """

    def sparsify(value: Tensor) -> Tensor:
        if value.numel() <= UNCHANGED_SIZE:
            return value
        count = int(value.numel() * (1 - ratio))
        if count == 0:
            return torch.zeros_like(value)
        return torch.where(value.abs() >= _threshold(value.abs().flatten(), count), value, 0)

    return {name: sparsify(value) for name, value in values.items()}


def _largest(magnitudes: Float[Tensor, " entries"], count: int) -> Bool[Tensor, " entries"]:
    """Return a mask of the ``count`` largest entries; among equal entries, the first are chosen."""
    if count == 0:
        return torch.zeros_like(magnitudes, dtype=torch.bool)
    threshold = _threshold(magnitudes, count)
    is_larger = magnitudes > threshold
    is_equal = magnitudes == threshold
    return is_larger | (is_equal & (is_equal.cumsum(0) <= count - is_larger.sum()))


def _threshold(magnitudes: Float[Tensor, " entries"], count: int) -> Float[Tensor, ""]:
    """Return the smallest of the ``count`` largest entries."""
    smallest: Tensor = magnitudes.kthvalue(len(magnitudes) - count + 1).values
    return smallest
