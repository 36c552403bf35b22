"""Gradient quantization: rounding of every entry of the upload to one of a few levels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedaudit.core.arguments import Range, dataclass
from fedaudit.fl.hooks import ConfiguredDefense, TrainingContext
from fedaudit.observe.round import Upload


@dataclass(frozen=True)
class GradientQuantization(ConfiguredDefense):
    """Rounding of each tensor to evenly spaced levels between its smallest and largest entry.

    Attributes:
        bits: Number of bits per entry after rounding, 1 to 10; with 32, entries are not rounded.
            Published: 1 to 10 (FedMIA).
        rounding: "stochastic" rounds an entry up or down to one of 2^bits levels at random, without
            bias; "floor" rounds it down, as the published code does.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientQuantization(bits=8).bits
        8

    Source: Zhu et al. 2024 (FedMIA), appendix A.2 (gradient quantization); Reisizadeh et al. 2020
        (FedPAQ) for unbiased rounding.
    Differs: FedMIA's code rounds each entry down, which biases updates downwards, in steps of
        range / 2^bits, so there are 2^bits + 1 levels; "floor" does the same. For a tensor with
        equal entries, FedMIA's code returns NaN; here, the tensor is not changed. All attacks see
        the rounded upload, including attacks on losses.
    """

    bits: Annotated[int, Range(ge=1, le=10)] | Literal[32]
    rounding: Literal["stochastic", "floor"] = "stochastic"

    def upload(self, upload: Upload, context: TrainingContext) -> Upload:
        if self.bits == 32:
            return upload
        if self.rounding == "floor":
            values = {name: floor_to_level(v, self.bits) for name, v in upload.values.items()}
        else:
            rng = context.rng("gradient quantization")
            values = {
                name: round_stochastically(v, self.bits, rng) for name, v in upload.values.items()
            }
        return replace(upload, values=values)


def round_stochastically(values: Tensor, bits: int, rng: torch.Generator) -> Tensor:
    """Round entries to one of 2^bits levels at random, without bias."""

    def to_level(position: Tensor) -> Tensor:
        below = position.floor()
        draws = torch.rand(position.shape, dtype=torch.float64, generator=rng)
        return below + (draws < position - below)

    return _quantize(values, 2**bits - 1, to_level)


def floor_to_level(values: Tensor, bits: int) -> Tensor:
    """Round entries down to one of 2^bits + 1 levels, as FedMIA's code does."""
    return _quantize(values, 2**bits, torch.floor)


def _quantize(values: Tensor, steps: int, to_level: Callable[[Tensor], Tensor]) -> Tensor:
    """Scale entries to [0, steps], round them with ``to_level``, and scale them back.

    An entry that equals a level up to rounding error is not changed. So quantizing twice gives the
    same result as quantizing once.
    """
    if values.numel() == 0:
        return values
    low, high = float(values.min()), float(values.max())
    step = (high - low) / steps
    if step == 0:
        return values
    position = (values.double() - low) / step
    tolerance = 2 * torch.finfo(values.dtype).eps * max(abs(low), abs(high)) / step
    nearest = position.round()
    level = to_level(torch.where((position - nearest).abs() <= tolerance, nearest, position))
    return (low + step * level).clamp(low, high).to(values.dtype)
