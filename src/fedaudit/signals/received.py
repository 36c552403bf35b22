"""Computations that depend only on the received model, and not on the clients' updates."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from fedaudit.core.values import Model, Samples

if TYPE_CHECKING:
    from fedaudit.signals.kernels.kept import KeptChunks

MOST_BYTES = 1 << 30
"""Memory for kept results. Everything else is computed when the update is known."""


class Received:
    """Received model and samples, with results that are kept for several signals.

    Results are computed with the same operations and batches as in a measurement after the round,
    so that signals are bitwise equal.

    Attributes:
        base: The received model.
        samples: The samples to measure.
    """

    def __init__(self, base: Model, samples: Samples, most_bytes: int = MOST_BYTES) -> None:
        self.base, self.samples = base, samples
        self._free_bytes = most_bytes
        self._gradients: KeptChunks | None = None
        self._inputs: dict[str, list[Tensor]] = {}

    @property
    def gradients(self) -> "KeptChunks | None":
        """Kept results for gradient signals; None if there are none."""
        return self._gradients

    def inputs(self, layer: str, base: Model) -> list[Tensor] | None:
        """Return the kept inputs of a layer of a model; None if there are none."""
        return self._inputs.get(layer) if self.base is base else None

    def keep_gradients(self) -> Iterator[None]:
        """Compute and keep results for gradient signals, one batch per step, within the memory."""
        # Imported here, as signals from outputs do not need it.
        from fedaudit.signals.gradients import keep_chunks

        if self._gradients is None:
            features, targets = self.samples.features, self.samples.targets
            for kept in keep_chunks(self.base, features, targets, self._free_bytes):
                self._gradients = kept
                yield
            self._free_bytes -= 0 if self._gradients is None else self._gradients.bytes

    def keep_inputs(self, layer: str, compute: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Compute the inputs of a layer, and keep them if there is enough memory."""
        if layer not in self._inputs:
            inputs = compute()
            size = sum(batch.nbytes for batch in inputs)
            if size <= self._free_bytes:
                self._inputs[layer] = inputs
                self._free_bytes -= size
            yield


@runtime_checkable
class Prepares(Protocol):
    """Signal with computations that depend only on the received model."""

    def prepare(self, received: Received) -> Iterator[None]:
        """Do these computations and keep results, in steps between which the caller may stop."""
        ...
