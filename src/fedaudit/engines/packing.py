"""What travels to and from other processes of this program: bytes, with tensors as arrays."""

import copyreg
import io
import pickle
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Recipe: TypeAlias = tuple[Callable[..., Tensor], tuple[object, ...]]

_AS_ARRAYS = {torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool}


def is_plain(tensor: Tensor) -> bool:
    """Whether an array keeps all there is to keep of a tensor."""
    # It keeps neither gaps nor what autograd knows, and there are none of 16-bit floats.
    return (
        tensor.dtype in _AS_ARRAYS
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg())
    )


def packed(value: object) -> bytes:
    """A value as bytes, for a process of this program: nothing from outside is ever unpickled.

    Raises:
        PicklingError, AttributeError, TypeError: It holds what no other process can have.
    """
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _reduced(tensor: Tensor) -> Recipe:
    """What to pickle of a tensor: an array where that is enough."""
    if is_plain(tensor):
        return torch.from_numpy, (tensor.numpy(),)
    usual: Callable[[int], Recipe] = tensor.__reduce_ex__
    return usual(pickle.HIGHEST_PROTOCOL)


class _Packer(pickle.Pickler):
    """Pickles tensors as arrays; torch writes a file in memory for each, 5 to 10 times as slow."""

    dispatch_table = copyreg.dispatch_table | {Tensor: _reduced}
