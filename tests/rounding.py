"""A simulated processor whose matrix products depend on the position of rows and columns.

Real ones work through matrices in blocks, and what is left over at the edges goes another way, so
that equal rows get unequal values at some sizes, on some processors and in some versions of a
library. Here they do at every size.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "linear"}


class RoundedByPlace(TorchDispatchMode):
    """While it is entered, every other row and column of a product is an ulp larger."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        call: Callable[..., object] = func
        found = call(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _PRODUCTS and isinstance(found, Tensor) and found.is_floating_point():
            for dim in (0,) if name == "convolution" else range(-min(2, found.dim()), 0):
                found.mul_(_ulps(found, dim))
        return found


def _ulps(values: Tensor, dim: int) -> Tensor:
    factors = torch.ones(values.shape[dim], dtype=values.dtype)
    factors[1::2] += torch.finfo(values.dtype).eps
    shape = [1] * values.dim()
    shape[dim] = -1
    return factors.view(shape)
