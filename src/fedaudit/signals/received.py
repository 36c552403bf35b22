"""Computations that depend on the model that clients received alone, and not on their updates."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from fedaudit.core.values import Model, Samples

if TYPE_CHECKING:
    from fedaudit.signals.kernels.kept import KeptChunks

MOST_BYTES = 1 << 30
"""Memory for results that are kept. What does not fit is computed when the update is known."""


class Received:
    """Received model and samples, with kept results that several signals use.

    They are computed with the operations of a measurement in one go, in the same batches, so that
    signals have the same bits.

    Attributes:
        base: The received model.
        samples: The samples to measure.
    """

    def __init__(self, base: Model, samples: Samples, most_bytes: int = MOST_BYTES) -> None:
        self.base, self.samples = base, samples
        self._room = most_bytes
        self._gradients: KeptChunks | None = None
        self._inputs: dict[str, list[Tensor]] = {}

    @property
    def gradients(self) -> "KeptChunks | None":
        """What is kept of the samples' gradients; None if nothing is."""
        return self._gradients

    def inputs(self, layer: str, base: Model) -> list[Tensor] | None:
        """Return the kept inputs of a layer of a model; None if there are none."""
        return self._inputs.get(layer) if self.base is base else None

    def keep_gradients(self) -> Iterator[None]:
        """Keep what gradients need until the memory is used up, one batch in each step."""
        # A late import, since signals of outputs need no gradients.
        from fedaudit.signals.gradients import keep_chunks

        if self._gradients is None:
            features, targets = self.samples.features, self.samples.targets
            for kept in keep_chunks(self.base, features, targets, self._room):
                self._gradients = kept
                yield
            self._room -= 0 if self._gradients is None else self._gradients.bytes

    def keep_inputs(self, layer: str, compute: Callable[[], list[Tensor]]) -> Iterator[None]:
        """Compute the inputs of a layer, and keep them if they fit the memory."""
        if layer not in self._inputs:
            inputs = compute()
            size = sum(each.nbytes for each in inputs)
            if size <= self._room:
                self._inputs[layer] = inputs
                self._room -= size
            yield


@runtime_checkable
class Prepares(Protocol):
    """Signal of which a part depends on the received model alone."""

    def prepare(self, received: Received) -> Iterator[None]:
        """Compute this part and keep it, in steps between which the caller may stop."""
        ...
