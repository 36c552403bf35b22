"""Passages and gradients at one model that are kept until its update is known."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedaudit.core.values import Model
from fedaudit.signals.kernels import LayerKernel, LayerProducts, WritesGradients, Written
from fedaudit.signals.kernels.capture import Passage
from fedaudit.signals.kernels.plan import KernelPlan

Kept: TypeAlias = Passage | Written

_LARGEST_RATIO = 8
"""Largest memory of written gradients, in passages. More would take longer to read than to write
again, and fewer samples would fit the memory."""


class KeptChunks:
    """What is kept of the first chunks of samples, for one model and one update.

    Attributes:
        base: The model.
        bytes: Memory that is used.
    """

    def __init__(self, base: Model, plan: KernelPlan, most_bytes: int) -> None:
        self.base, self.bytes = base, 0
        self._plan, self._most_bytes = plan, most_bytes
        self._by_start: dict[int, dict[str, Kept]] = {}

    def add(self, start: int, passages: Mapping[str, Passage]) -> bool:
        """Keep the chunk that begins at a sample; return False without room."""
        kept: dict[str, Kept] = {
            path: _written(self._plan.kernels[path], passage) for path, passage in passages.items()
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
        """Return what is kept by the first sample of a chunk; nothing for another plan."""
        fits = (self._plan.chunk, self._plan.layout, 1) == (chunk, layout, clients)
        return self._by_start if fits else {}


def products_of_kept(kernel: LayerKernel, module: nn.Module, kept: Kept) -> LayerProducts | None:
    """Return a layer's products; None if the layer has no effect on the loss."""
    if isinstance(kept, Written):
        if not isinstance(kernel, WritesGradients):
            raise RuntimeError("gradients were written for another kernel")
        return kernel.of_written(kept)
    return None if kept.grads is None else kernel(module, kept.inputs, kept.grads)


def _written(kernel: LayerKernel, passage: Passage) -> Kept:
    """Return written gradients if they are not too large, else the passage."""
    if not isinstance(kernel, WritesGradients) or passage.grads is None:
        return passage
    if kernel.bytes_of_written(len(passage.inputs)) > _LARGEST_RATIO * _bytes(passage):
        return passage
    with torch.no_grad():
        return kernel.write(passage.inputs, passage.grads)


def _bytes(kept: Kept) -> int:
    parts = (part for each in kept for part in (each if isinstance(each, list) else [each]))
    return sum(part.nbytes for part in parts if isinstance(part, Tensor))
