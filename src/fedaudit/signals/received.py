"""Cache of the parts of gradient and projection signals that depend only on the received model.

These parts can be computed while clients train.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from fedaudit.core.values import Model, Samples

if TYPE_CHECKING:
    from fedaudit.signals.kernels.cache import ChunkCache

MAX_BYTES = 1 << 30
"""Memory for cached results. Results that do not fit are computed when the update is known."""


class ReceivedModelCache:
    """Cache of what several signals compute from the received model and the audited samples.

    Results are computed with the same operations and batches as in a measurement after the round,
    so signals are bitwise equal.

    Attributes:
        model: The received model.
        samples: The samples to measure.
    """

    def __init__(self, model: Model, samples: Samples, max_bytes: int = MAX_BYTES) -> None:
        self.model, self.samples = model, samples
        self._free_bytes = max_bytes
        self._gradient_cache: ChunkCache | None = None
        self._inputs: dict[str, list[Tensor]] = {}

    @property
    def gradient_cache(self) -> "ChunkCache | None":
        """Cached parts of gradient signals; None if they are not cached."""
        return self._gradient_cache

    def inputs(self, layer: str, base: Model) -> list[Tensor] | None:
        """Return the cached inputs of a layer.

        Returns:
            None if the inputs are not cached, or if ``base`` is not the model of this cache.
        """
        return self._inputs.get(layer) if self.model is base else None

    def cache_gradients(self) -> Iterator[None]:
        """Compute and cache gradient results, one batch per iteration, until the memory is full."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import cache_chunks

        if self._gradient_cache is None:
            features, targets = self.samples.features, self.samples.targets
            for cache in cache_chunks(self.model, features, targets, self._free_bytes):
                self._gradient_cache = cache
                yield
            if self._gradient_cache is not None:
                self._free_bytes -= self._gradient_cache.bytes

    def cache_inputs(self, layer: str, compute: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Compute a layer's inputs in one iteration, and cache them if there is enough memory."""
        if layer not in self._inputs:
            inputs = compute()
            size = sum(batch.nbytes for batch in inputs)
            if size <= self._free_bytes:
                self._inputs[layer] = inputs
                self._free_bytes -= size
            yield


@runtime_checkable
class PreparableSignal(Protocol):
    """Signal of which a part can be computed before the clients' updates are known."""

    def prepare(self, received: ReceivedModelCache) -> Iterator[None]:
        """Compute and cache this part; the caller may stop after any iteration."""
        ...
