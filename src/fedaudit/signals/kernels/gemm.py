"""Matrix products on the faster of the two libraries that torch carries."""

import torch
from jaxtyping import Float
from torch import Tensor

# Below this many multiplications oneDNN's set-up costs more than it saves.
_WORTH_ONEDNN = 1 << 18


def _onednn() -> bool:
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


_HAS_ONEDNN = _onednn()


def product(
    left: Float[Tensor, "rows inner"], right: Float[Tensor, "columns inner"]
) -> Float[Tensor, "rows columns"]:
    """``left @ right.T``.

    ``torch.mm`` goes to MKL, which on AMD processors leaves half of the vector width unused;
    oneDNN, which torch uses for convolutions, reaches twice its speed there. The choice rests
    on shapes alone, so that bits do not change from run to run.
    """
    size = left.shape[0] * left.shape[1] * right.shape[0]
    # oneDNN falls to a reference kernel, a thousand times slower, for a sliced right side; a
    # transposed one it takes as it is.
    if (
        _HAS_ONEDNN
        and size >= _WORTH_ONEDNN
        and left.dtype == torch.float32
        and left.device.type == "cpu"
        and (right.is_contiguous() or right.t().is_contiguous())
    ):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        return out
    return left @ right.t()
