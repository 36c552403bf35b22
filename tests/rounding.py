"""A simulated processor whose matrix products depend on the position of rows and columns.

Real processors multiply matrices in blocks and treat the edges differently. Equal rows then have
unequal values at some sizes, on some processors and in some versions of a library. Here they have
unequal values at every size.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "linear"}


class RoundedByPlace(TorchDispatchMode):
    """A context in which every other row and column of a product is an ulp larger."""

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
        result = call(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _PRODUCTS and isinstance(result, Tensor) and result.is_floating_point():
            for dim in (0,) if name == "convolution" else range(-min(2, result.dim()), 0):
                result.mul_(_ulps(result, dim))
        return result


def _ulps(values: Tensor, dim: int) -> Tensor:
    factors = torch.ones(values.shape[dim], dtype=values.dtype)
    factors[1::2] += torch.finfo(values.dtype).eps
    shape = [1] * values.dim()
    shape[dim] = -1
    return factors.view(shape)
