"""Any other module with parameters of its own: exact, by differentiating the module alone."""

import warnings
from collections.abc import Mapping

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from fedaudit.signals.kernels.layer import Layer, LayerKernel, LayerProducts, direct

_BLOCK_BYTES = 16 << 20


def generic_kernel(
    layer: Layer, copies: int = 1, cut: Mapping[str, int] | None = None
) -> LayerKernel:
    """A kernel that forms each sample's gradient of this one module with ``torch.func``.

    Args:
        layer: Module and updates.
        copies: Rows that belong to one sample, one after the other; their gradients are added.
        cut: Of parameters, by their names in the module, that count in part only: how many of
            their first entries do.
    """
    stacks = {name: layer.stacked(name) for name in layer.updates}
    updates = {name: value.flatten(1) for name, value in stacks.items() if value is not None}
    weights = sum(value.shape[1] for value in updates.values())
    block = max(1, _BLOCK_BYTES // (4 * weights))

    def kernel(
        module: nn.Module,
        inputs: Shaped[Tensor, "samples ..."],
        grads: Float[Tensor, "samples ..."],
    ) -> LayerProducts:
        a, b = (_in_order(each).view(-1, copies, *each.shape[1:]) for each in (inputs, grads))
        # Slices of a fixed size: the block never depends on how many samples are left.
        parts = [
            _share(module, updates, a[at : at + block], b[at : at + block], cut or {})
            for at in range(0, len(a), block)
        ]
        return LayerProducts(
            torch.cat([part.dots for part in parts]),
            torch.cat([part.squared_norms for part in parts]),
        )

    return kernel


def _share(
    module: nn.Module,
    updates: dict[str, Tensor],
    inputs: Shaped[Tensor, "samples copies ..."],
    grads: Float[Tensor, "samples copies ..."],
    cut: Mapping[str, int],
) -> LayerProducts:
    own = {name: _in_order(getattr(module, name).detach()) for name in updates}

    def gradient(sample: Tensor, grad: Tensor) -> dict[str, Tensor]:
        def run(params: dict[str, Tensor]) -> Tensor:
            out: Tensor = functional_call(module, params, (sample,))
            return out

        pull = vjp(run, own)[1]
        found: dict[str, Tensor] = pull(grad)[0]
        return found

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = vmap(gradient)(inputs, grads)
    gradients = {name: value.flatten(1) for name, value in found.items()}
    for name, count in cut.items():
        gradients[name][:, count:] = 0
    shares = [direct(gradients[name], update) for name, update in updates.items()]
    total = shares[0]
    for share in shares[1:]:
        total = total.plus(share)
    return total


def _in_order(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The same numbers in the usual order; of others, torch 2.13 makes no gradient within vmap."""
    # Not contiguous(), which leaves maps of one pixel as they are and with them their strides.
    return values.clone(memory_format=torch.contiguous_format)
