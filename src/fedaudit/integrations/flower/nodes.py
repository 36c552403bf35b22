"""Waits until all clients are there: Flower samples from those that have come so far."""

import time
import warnings

from flwr.serverapp import Grid

from fedaudit.errors import BadInput
from fedaudit.live.recorder import Recorder

_PAUSE = 0.2


class Nodes:
    """How many nodes there are to be.

    In a simulation, nodes register while the server is running already. A strategy that trains
    a share of all nodes takes that share of those that are there, so that the first round may
    train 8 clients of 100 without a word.
    """

    def __init__(self, recorder: Recorder, number: int | None, patience: float) -> None:
        targets = len(recorder.recording.targets)
        if number is not None and number < targets:
            raise BadInput(
                f"{number} nodes cannot be {targets} audited clients; give as many as there are "
                "clients"
            )
        if not patience >= 0:
            raise BadInput(f"patience is a number of seconds of at least 0, got {patience}")
        self._number = targets if number is None else number
        self._patience, self._strict = patience, recorder.strict
        self._warned = False

    def await_all(self, grid: Grid) -> None:
        """Waits for nodes before the first round; later, says once that some have gone.

        Raises:
            BadInput: Fewer have come, and the recording is strict.
        """
        there = len(there_of(grid, self._number, 0.0 if self._warned else self._patience))
        if there >= self._number or self._warned:
            return
        self._warned = True
        text = (
            f"{there} of {self._number} nodes are there after {self._patience:g} seconds; clients "
            "that are not asked are not audited. Start the others, give more patience, or say "
            f"nodes={there}"
        )
        if self._strict:
            raise BadInput(text)
        warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)


def there_of(grid: Grid, number: int, patience: float) -> list[int]:
    """The nodes that are there once a number of them has come, or patience is at an end."""
    end = time.monotonic() + patience
    there = list(grid.get_node_ids())
    while len(there) < number and time.monotonic() < end:
        time.sleep(_PAUSE)
        there = list(grid.get_node_ids())
    return there
