"""Results that depend only on the received model, and can be computed while clients train."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from fedaudit.core.values import Model, Samples

if TYPE_CHECKING:
    from fedaudit.signals.kernels.cache import ChunkCache

MAX_BYTES = 1 << 30
"""Memory for cached results. Results that do not fit are computed when the update is known."""


class Received:
    """Received model and samples, with cached results for several signals.

    Results are computed with the same operations and batches as in a measurement after the round,
    so signals are bitwise equal.

    Attributes:
        base: The received model.
        samples: The samples to measure.
    """

    def __init__(self, base: Model, samples: Samples, max_bytes: int = MAX_BYTES) -> None:
        self.base, self.samples = base, samples
        self._free_bytes = max_bytes
        self._gradients: ChunkCache | None = None
        self._inputs: dict[str, list[Tensor]] = {}

    @property
    def gradients(self) -> "ChunkCache | None":
        """Cached results for gradient signals; None if there are none."""
        return self._gradients

    def inputs(self, layer: str, base: Model) -> list[Tensor] | None:
        """Return the cached inputs of a layer of a model; None if there are none."""
        return self._inputs.get(layer) if self.base is base else None

    def cache_gradients(self) -> Iterator[None]:
        """Compute results for gradient signals, one batch per step, until the memory is full."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import cache_chunks

        if self._gradients is None:
            features, targets = self.samples.features, self.samples.targets
            for cache in cache_chunks(self.base, features, targets, self._free_bytes):
                self._gradients = cache
                yield
            if self._gradients is not None:
                self._free_bytes -= self._gradients.bytes

    def cache_inputs(self, layer: str, compute: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Compute the inputs of a layer in one step, and cache them if there is enough memory."""
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

    def prepare(self, received: Received) -> Iterator[None]:
        """Compute and cache this part, in steps between which the caller may stop."""
        ...
