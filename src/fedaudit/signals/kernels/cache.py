"""Cache of activations or gradients at one model, for use when the client's update is known."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.values import Model
from fedaudit.signals.kernels import FormedGradients, FormsGradients, LayerKernel, LayerProducts
from fedaudit.signals.kernels.capture import Activation
from fedaudit.signals.kernels.plan import KernelPlan

CachedLayer: TypeAlias = Activation | FormedGradients

_MAX_SIZE_RATIO = 8
"""Largest size of cached gradients, relative to the layer's activation. Larger gradients would take
longer to read than to compute, and the memory would suffice for fewer samples."""


class ChunkCache:
    """Activations or gradients of the first chunks of samples, for one model and one update.

    Attributes:
        base: The model.
        bytes: Memory that is used.
    """

    def __init__(self, base: Model, plan: KernelPlan, max_bytes: int) -> None:
        self.base, self.bytes = base, 0
        self._plan, self._max_bytes = plan, max_bytes
        self._by_start: dict[int, dict[str, CachedLayer]] = {}

    def add(self, start: int, activations: Mapping[str, Activation]) -> bool:
        """Add the chunk that begins at sample ``start``; return False if it is too large."""
        layers: dict[str, CachedLayer] = {
            path: _gradients_or_activation(self._plan.kernels[path], activation)
            for path, activation in activations.items()
        }
        size = sum(map(_bytes, layers.values()))
        if self.bytes + size > self._max_bytes:
            return False
        self._by_start[start] = layers
        self.bytes += size
        return True

    def by_start(
        self, chunk: int, layout: torch.memory_format, clients: int
    ) -> dict[int, dict[str, CachedLayer]]:
        """Return the layers of each chunk by the chunk's first sample; empty for another plan."""
        is_same_plan = (self._plan.chunk, self._plan.layout, 1) == (chunk, layout, clients)
        return self._by_start if is_same_plan else {}


def products_from_cache(
    kernel: LayerKernel, module: nn.Module, layer: CachedLayer
) -> LayerProducts | None:
    """Return a layer's products; None if the layer has no effect on the loss."""
    if isinstance(layer, FormedGradients):
        if not isinstance(kernel, FormsGradients):
            raise RuntimeError("gradients were formed by another kernel")
        return kernel.products_of_formed(layer)
    return None if layer.grads is None else kernel(module, layer.inputs, layer.grads)


def _gradients_or_activation(kernel: LayerKernel, activation: Activation) -> CachedLayer:
    """Return a layer's gradients if they are not too large, else its activation."""
    if not isinstance(kernel, FormsGradients) or activation.grads is None:
        return activation
    if kernel.gradient_bytes(len(activation.inputs)) > _MAX_SIZE_RATIO * _bytes(activation):
        return activation
    with torch.no_grad():
        return kernel.form_gradients(activation.inputs, activation.grads)


def _bytes(layer: CachedLayer) -> int:
    size = 0
    for field in layer:
        values = field if isinstance(field, list) else [field]
        size += sum(value.nbytes for value in values if isinstance(value, Tensor))
    return size
