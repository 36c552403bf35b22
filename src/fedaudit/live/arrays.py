"""Arrays that come from elsewhere: of any form, until they are looked at."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedaudit.errors import BadInput


def array_from(read: Callable[[], object]) -> np.ndarray:
    """An array out of bytes that may be anybody's.

    Args:
        read: Reads it, by a library that executes nothing of what it reads.

    Raises:
        BadInput: It is no array, or cannot be read.
    """
    try:
        found = read()
    # Headers are parsed as Python's, archives opened: what these raise is of many kinds.
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"what should be an array is none ({said})") from error
    if not isinstance(found, np.ndarray):
        raise BadInput(f"what should be an array is a {type(found).__name__}")
    return found


def tensor_of(value: object, what: str) -> Tensor:
    """The numbers of an array as a tensor on the CPU, with the array's memory where that can be.

    Args:
        value: Of NumPy in any order of bytes or axes, or of torch.
        what: It is, for messages.

    Raises:
        BadInput: It is no array, or none of plain real numbers.
    """
    if not isinstance(value, Tensor | np.ndarray):
        raise BadInput(f"{what} is a {type(value).__name__}, not an array")
    kind = str(value.dtype)[:80]
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(_usual(value))
        sound = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
        tensor = tensor.cpu()
    # NumPy's texts, dates and records; tensors without memory.
    except (TypeError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"{what} holds no numbers that torch knows, but {kind} ({said})") from error
    if not sound:
        raise BadInput(f"{what} is no plain tensor, but {tensor.layout} of {kind}")
    if tensor.is_complex():
        raise BadInput(f"{what} holds complex numbers, and the model real ones")
    return tensor


def _usual(array: np.ndarray) -> np.ndarray:
    """In the machine's order of bytes, and as torch can take it: writable, no axis backwards."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.require(native, requirements=["C", "W", "E"])
