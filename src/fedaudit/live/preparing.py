"""Second process that prepares the measurement of a round while the client trains."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from multiprocessing.connection import Connection
from pickle import UnpicklingError
from time import monotonic
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaudit.core.values import Capability, ClientId, Model, Params, Samples
from fedaudit.live.forking import POLL_SECONDS, DetachedProcess, has_ended
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.base import PreparableSignal, ReceivedModelCache, Signal
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import OutputSignal

_SHARED_DATA = Capability.GLOBAL_MODEL | Capability.UPDATE
"""Data that the second process has; it measures the signals that need nothing else."""
_ALIGNMENT = 64
"""Number of bytes at whose multiples tensors start in shared memory."""
_MODEL_RECEIVED, _END = "a model was received", "end"
"""Messages to the second process."""


class _Upload(NamedTuple):
    """Message that an update is in the shared memory.

    Attributes:
        number: Number of the message, which the reply repeats.
        round: Number of the round.
        client: The client.
        gradient_scale: Factor that turns the negative update into a sum of gradients; None if
            unknown.
    """

    number: int
    round: int
    client: ClientId
    gradient_scale: float | None


class _Reply(NamedTuple):
    """Signals of an upload.

    Attributes:
        number: Number of the message about the upload.
        values: Values by signal name; None if they could not be measured.
    """

    number: int
    values: Mapping[str, np.ndarray] | None


class PreparingProcess:
    """Second process that measures signals of one client, controlled by the main process.

    The process is forked when the first model is received. It passes the samples through the model
    while the client trains, and computes the signals when it gets the update. Signals are
    bit-identical to those of a measurement in one process. If the second process fails, the main
    process measures all signals itself.
    """

    def __init__(
        self,
        signals: Sequence[Signal],
        samples: Samples,
        model: Model,
        *,
        workers: int,
        seconds: float,
    ) -> None:
        """Store the settings; the process starts when the first model is received.

        Args:
            signals: Signals of a recording.
            samples: The samples to measure.
            model: A model with the names and shapes of the received models.
            workers: Threads of the process.
            seconds: Estimate of the time that a measurement takes.
        """
        self._signals = [
            signal
            for signal in signals
            if not isinstance(signal, OutputSignal) and not signal.needs & ~_SHARED_DATA
        ]
        self._samples, self._workers = samples, workers
        self._architecture = model.architecture
        self._base = _SharedTensors(model.tensors())
        self._update = _SharedTensors(model.params)
        self._process = DetachedProcess(self._serve, seconds=seconds)
        self._number = 0

    def prepare(self, base: Model) -> None:
        """Start the part of the measurement that depends only on the received model."""
        can_prepare = any(isinstance(signal, PreparableSignal) for signal in self._signals)
        if can_prepare and self._process.is_owner_process and self._base.write(base.tensors()):
            self._process.start()
            self._process.send(_MODEL_RECEIVED)

    def measure(
        self,
        seen: Round,
        signals: Sequence[Signal],
        measure: Callable[[Sequence[Signal]], MeasuredRound],
    ) -> MeasuredRound:
        """Measure a round, with some of its signals in the second process.

        Args:
            seen: The round.
            signals: All signals, in the order of the result.
            measure: Measures signals of the round in this process.
        """
        sent = self._send_update(seen)
        measured = measure([signal for signal in signals if signal not in sent])
        if not sent:
            return measured
        values = self._receive()
        if values is None:
            values = dict(measure(sent).signals)
        all_values = {**measured.signals, **values}
        return replace(
            measured, signals={signal.name: all_values[signal.name] for signal in signals}
        )

    def close(self) -> None:
        """End the process."""
        if self._process.is_owner_process:
            self._process.send(_END)
            self._process.disconnect()

    def _send_update(self, seen: Round) -> list[Signal]:
        """Send the update of a round, and return the signals that the process measures.

        The process measures no signal if it does not run, or has prepared another model.
        """
        process = self._process
        if not process.is_owner_process or process.pipe is None or len(seen.observed) != 1:
            return []
        ((client, observed),) = seen.observed.items()
        if observed.base is None or observed.update is None:
            return []
        if not self._base.holds(observed.base.tensors()) or not self._update.write(observed.update):
            return []
        self._number += 1
        message = _Upload(self._number, seen.index, client, observed.gradient_scale)
        return self._signals if process.send(message) else []

    def _receive(self) -> dict[str, Tensor] | None:
        """Return the signals of the last update; None if they could not be measured."""
        deadline, pipe = monotonic() + self._process.patience, self._process.pipe
        try:
            while pipe is not None and pipe.poll(max(0.0, deadline - monotonic())):
                reply: _Reply = pipe.recv()
                # Skip the reply to an earlier update, whose measurement failed in this process.
                if reply.number != self._number:
                    continue
                if reply.values is None:
                    return None
                return {name: torch.from_numpy(value) for name, value in reply.values.items()}
        except (EOFError, OSError, UnpicklingError):
            pass
        # The process has exited, or hangs.
        self._process.kill()
        return None

    def _serve(self, pipe: Connection) -> None:
        """Prepare models and measure updates, until the main process ends."""
        received: ReceivedModelCache | None = None
        # Preparation is done in steps, between which an update may arrive.
        steps: Iterator[None] | None = None
        with suppress(EOFError, OSError):
            while True:
                if pipe.poll(POLL_SECONDS if steps is None else 0.0):
                    message = pipe.recv()
                    if message == _END:
                        return
                    if message == _MODEL_RECEIVED:
                        # Release the memory of the last model first.
                        received = steps = None
                        base = Model.from_tensors(self._architecture, self._base.read())
                        received = ReceivedModelCache(base, self._samples)
                        steps = self._prepare_in_steps(received)
                    else:
                        steps = None
                        pipe.send(self._measure_upload(message, received))
                elif steps is not None:
                    is_prepared = next(steps, _END) is _END
                    steps = None if is_prepared else steps
                elif has_ended(self._process.owner_pid):
                    # Another forked process may hold the pipe open, which hides its end.
                    return

    def _prepare_in_steps(self, received: ReceivedModelCache) -> Iterator[None]:
        for signal in self._signals:
            # A signal that cannot be prepared is measured with the update, and may fail then.
            with suppress(Exception):
                if isinstance(signal, PreparableSignal):
                    yield from signal.prepare(received)

    def _measure_upload(self, upload: _Upload, received: ReceivedModelCache | None) -> _Reply:
        # Ignore any error: the main process then measures the signals itself, and raises the error.
        with suppress(Exception):
            assert received is not None
            observed = ObservedModels(
                received.model, None, self._update.read(), upload.gradient_scale
            )
            seen = Round(
                index=upload.round,
                observed={upload.client: observed},
                sent={},
                uploads={},
                weights={upload.client: 1.0},
                selected=(upload.client,),
                answered=(upload.client,),
                after={},
            )
            measured = measure_round(
                seen, self._signals, self._samples, workers=self._workers, received=received
            )
            values = {name: values.numpy() for name, values in measured.signals.items()}
            return _Reply(upload.number, values)
        return _Reply(upload.number, None)


class _SharedTensors:
    """Tensors in memory that is shared with a forked process.

    The memory is anonymous, since the /dev/shm of a container is small.
    """

    def __init__(self, like: Params) -> None:
        # Round sizes up to multiples of the alignment.
        sizes = [-(-value.nbytes // _ALIGNMENT) * _ALIGNMENT for value in like.values()]
        *starts, total = accumulate(sizes, initial=0)
        # Allocate one byte more, since empty memory cannot be mapped.
        memory = mmap.mmap(-1, total + 1)
        self._tensors: Params = {}
        for start, (name, value) in zip(starts, like.items(), strict=True):
            self._tensors[name] = torch.empty_like(value)
            if count := value.numel():
                flat = torch.frombuffer(memory, dtype=value.dtype, count=count, offset=start)
                self._tensors[name] = flat.view(value.shape)

    def write(self, tensors: Params) -> bool:
        """Store tensors; return False if their names, shapes or types differ."""
        if not self._have_same_form(tensors):
            return False
        for name, value in tensors.items():
            self._tensors[name].copy_(value)
        return True

    def read(self) -> Params:
        """Return copies of the tensors."""
        return {name: value.clone() for name, value in self._tensors.items()}

    def holds(self, tensors: Params) -> bool:
        """Return True if the stored tensors equal these tensors."""
        return self._have_same_form(tensors) and all(
            torch.equal(value, self._tensors[name]) for name, value in tensors.items()
        )

    def _have_same_form(self, tensors: Params) -> bool:
        return tensors.keys() == self._tensors.keys() and all(
            (value.shape, value.dtype) == (self._tensors[name].shape, self._tensors[name].dtype)
            for name, value in tensors.items()
        )
