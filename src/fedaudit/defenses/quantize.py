"""Gradient quantization: every entry of what a client sends is moved to one of a few levels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedaudit.core.arguments import Range, dataclass
from fedaudit.core.values import Params
from fedaudit.fl.hooks import ConfiguredDefense, Turn
from fedaudit.observe.round import Upload


@dataclass(frozen=True)
class GradientQuantization(ConfiguredDefense):
    """Rounds each tensor of the upload to evenly spaced levels between its least and largest entry.

    Attributes:
        bits: Of a rounded entry, 1 to 10; 32 is full precision and changes nothing. Published: 1
            to 10 (FedMIA).
        rounding: "stochastic" moves an entry up or down to one of 2^bits levels by a draw whose
            mean is the entry; "floor" moves it down, the published code's way.

    Examples:
        >>> import fedaudit as fa
        >>> fa.defenses.GradientQuantization(bits=8).bits
        8

    Source: FedMIA, appendix A.2 (gradient quantization); Reisizadeh et al. 2020 (FedPAQ) for
        unbiased rounding.
    Differs: FedMIA's code takes the level below each entry, so that updates shrink on average,
        with steps of range / 2^bits and therefore 2^bits + 1 levels; "floor" does so too. A
        tensor whose entries are all equal stays as it is, where that code gives not-a-number.
        The rounded upload is what every attack sees, losses included.
    """

    bits: Annotated[int, Range(ge=1, le=10)] | Literal[32]
    rounding: Literal["stochastic", "floor"] = "stochastic"

    def upload(self, upload: Upload, turn: Turn) -> Upload:
        """Each round: every tensor is rounded between its own extremes."""
        if self.bits == 32:
            return upload
        if self.rounding == "floor":
            return replace(upload, values=_each(upload, partial(floored, bits=self.bits)))
        by_draw = partial(rounded_by_draw, bits=self.bits, rng=turn.rng("gradient quantization"))
        return replace(upload, values=_each(upload, by_draw))


def rounded_by_draw(values: Tensor, bits: int, rng: torch.Generator) -> Tensor:
    """Moves entries to one of 2^bits levels, each up with the probability that keeps its mean.

    Args:
        values: Any shape; their least and largest are the outermost levels.
        bits: At least 1.
        rng: Of the draws.
    """

    def drawn(position: Tensor) -> Tensor:
        below = position.floor()
        draws = torch.rand(position.shape, dtype=torch.float64, generator=rng)
        return below + (draws < position - below)

    return _moved(values, 2**bits - 1, drawn)


def floored(values: Tensor, bits: int) -> Tensor:
    """Moves entries down to the next of 2^bits + 1 levels, as FedMIA's code does."""
    return _moved(values, 2**bits, torch.floor)


def _moved(values: Tensor, steps: int, to_level: Callable[[Tensor], Tensor]) -> Tensor:
    """Entries at the levels that their places between least (0) and largest (steps) are moved to.

    A place within its entry's own precision of a level counts as that level, so that moving
    again changes nothing.
    """
    if values.numel() == 0:
        return values
    low, high = float(values.min()), float(values.max())
    step = (high - low) / steps
    if step == 0:
        return values
    place = (values.double() - low) / step
    slack = 2 * torch.finfo(values.dtype).eps * max(abs(low), abs(high)) / step
    nearest = place.round()
    level = to_level(torch.where((place - nearest).abs() <= slack, nearest, place))
    return (low + step * level).clamp(low, high).to(values.dtype)


def _each(upload: Upload, moved: Callable[[Tensor], Tensor]) -> Params:
    return {name: moved(value) for name, value in upload.values.items()}
