"""Activations or gradients at one model, which are kept until the client's update is known."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.values import Model
from fedaudit.signals.kernels import FormedGradients, FormsGradients, LayerKernel, LayerProducts
from fedaudit.signals.kernels.capture import Activation
from fedaudit.signals.kernels.plan import KernelPlan

Kept: TypeAlias = Activation | FormedGradients

_MAX_SIZE_RATIO = 8
"""Largest size of gradients that are kept, relative to the layer's activation. Larger gradients
would take longer to read than to compute, and the memory would suffice for fewer samples."""


class KeptChunks:
    """Activations or gradients of the first chunks of samples, for one model and one update.

    Attributes:
        base: The model.
        bytes: Memory that is used.
    """

    def __init__(self, base: Model, plan: KernelPlan, most_bytes: int) -> None:
        self.base, self.bytes = base, 0
        self._plan, self._most_bytes = plan, most_bytes
        self._by_start: dict[int, dict[str, Kept]] = {}

    def add(self, start: int, activations: Mapping[str, Activation]) -> bool:
        """Keep the chunk that begins at a sample; return False if it is too large."""
        kept: dict[str, Kept] = {
            path: _form_or_keep(self._plan.kernels[path], activation)
            for path, activation in activations.items()
        }
        size = sum(map(_bytes, kept.values()))
        if self.bytes + size > self._most_bytes:
            return False
        self._by_start[start] = kept
        self.bytes += size
        return True

    def by_start(
        self, chunk: int, layout: torch.memory_format, clients: int
    ) -> dict[int, dict[str, Kept]]:
        """Return results by layer, by first sample of a chunk; empty for another plan."""
        is_same_plan = (self._plan.chunk, self._plan.layout, 1) == (chunk, layout, clients)
        return self._by_start if is_same_plan else {}


def products_of_kept(kernel: LayerKernel, module: nn.Module, kept: Kept) -> LayerProducts | None:
    """Return a layer's products; None if the layer has no effect on the loss."""
    if isinstance(kept, FormedGradients):
        if not isinstance(kernel, FormsGradients):
            raise RuntimeError("gradients were formed by another kernel")
        return kernel.products_of_formed(kept)
    return None if kept.grads is None else kernel(module, kept.inputs, kept.grads)


def _form_or_keep(kernel: LayerKernel, activation: Activation) -> Kept:
    """Return a layer's gradients if they are not too large, else its activation."""
    if not isinstance(kernel, FormsGradients) or activation.grads is None:
        return activation
    if kernel.gradient_bytes(len(activation.inputs)) > _MAX_SIZE_RATIO * _bytes(activation):
        return activation
    with torch.no_grad():
        return kernel.form_gradients(activation.inputs, activation.grads)


def _bytes(kept: Kept) -> int:
    values = (value for field in kept for value in (field if isinstance(field, list) else [field]))
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
