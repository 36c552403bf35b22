"""Second process that starts to measure a round when only the received model is known."""

import mmap
import os
import signal as system
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

from fedaudit.core.values import ClientId, Model, Params, Samples, Sees
from fedaudit.live.forking import fork_detached, has_ended
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import Exposed, Round
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import OutputSignal
from fedaudit.signals.received import Prepares, Received

_SEEN = Sees.GLOBAL_MODEL | Sees.UPDATE
"""What signals may need that are measured in the second process."""
_ALIGNMENT = 64
_POLL_SECONDS = 0.5
"""Seconds between two checks whether the program still runs."""
_MIN_PATIENCE = 120.0
"""Minimum of the seconds that a measurement may take, whatever the estimate."""
_MAX_STARTS = 3


class _Upload(NamedTuple):
    """Message that the update is in the shared memory.

    Attributes:
        number: Number of the message, which the answer repeats.
        round: Number of the round.
        client: The client.
        gradient_scale: See :class:`~fedaudit.observe.round.Exposed`.
    """

    number: int
    round: int
    client: ClientId
    gradient_scale: float | None


class _Answer(NamedTuple):
    """Values of signals; None if they could not be measured."""

    number: int
    values: Mapping[str, np.ndarray] | None


_RECEIVED, _END = "received", "end"


class Ahead:
    """Second process that measures gradients of one client at a time, seen from the program.

    It is forked when the first model is received. It passes the samples through the model while the
    client trains, and computes the signals when it gets the update. Signals have the bits of a
    measurement in one process. If the process fails in any way, nothing is lost: the program
    measures by itself.
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
        """Store the settings; the process starts with the first model.

        Args:
            signals: Signals of a recording.
            samples: The samples to measure.
            model: A model with the names and shapes of those that are received.
            workers: Threads of the process.
            seconds: Estimate of the time that a measurement takes.
        """
        self._signals = [
            signal
            for signal in signals
            if not isinstance(signal, OutputSignal) and not signal.needs & ~_SEEN
        ]
        self._samples, self._workers = samples, workers
        self._architecture = model.architecture
        self._limit = max(_MIN_PATIENCE, 20 * seconds)
        self._base = _SharedTensors(model.tensors())
        self._update = _SharedTensors(model.params)
        self._program, self._pid, self._starts = os.getpid(), 0, 0
        self._pipe: Connection | None = None
        self._number = 0

    def prepare(self, base: Model) -> None:
        """Start to measure what depends on a received model alone."""
        if os.getpid() != self._program or not any(isinstance(s, Prepares) for s in self._signals):
            return
        if self._base.write(base.tensors()):
            self._start()
            self._send(_RECEIVED)

    def measure(
        self,
        seen: Round,
        signals: Sequence[Signal],
        measure: Callable[[Sequence[Signal]], MeasuredRound],
    ) -> MeasuredRound:
        """Measure a round, and some of its signals in the second process.

        Args:
            seen: The round.
            signals: All signals, in the order of the result.
            measure: Measures signals of the round in this process.
        """
        elsewhere = self._begin(seen)
        measured = measure([signal for signal in signals if signal not in elsewhere])
        if not elsewhere:
            return measured
        values = self._end()
        if values is None:
            values = dict(measure(elsewhere).signals)
        joined = {**measured.signals, **values}
        return replace(measured, signals={signal.name: joined[signal.name] for signal in signals})

    def close(self) -> None:
        """End the process."""
        if os.getpid() == self._program:
            self._send(_END)
            self._disconnect()

    def _begin(self, seen: Round) -> list[Signal]:
        """Send the update of a round, and return the signals that the process measures.

        They are none if it does not run, or has prepared another model.
        """
        if os.getpid() != self._program or self._pipe is None or len(seen.exposed) != 1:
            return []
        ((client, exposed),) = seen.exposed.items()
        if exposed.base is None or exposed.update is None:
            return []
        if not self._base.holds(exposed.base.tensors()) or not self._update.write(exposed.update):
            return []
        self._number += 1
        message = _Upload(self._number, seen.index, client, exposed.gradient_scale)
        return self._signals if self._send(message) else []

    def _end(self) -> dict[str, Tensor] | None:
        """Return the signals of the last update; None if they could not be measured."""
        until = monotonic() + self._limit
        try:
            while self._pipe is not None and self._pipe.poll(max(0.0, until - monotonic())):
                answer: _Answer = self._pipe.recv()
                # An earlier update may have been given up.
                if answer.number == self._number:
                    values = answer.values
                    return None if values is None else _tensors(values)
        except (EOFError, OSError, UnpicklingError):
            pass
        # The process has ended, or hangs.
        self._kill()
        return None

    def _start(self) -> None:
        if self._pipe is None and self._starts < _MAX_STARTS:
            self._starts += 1
            forked = fork_detached(self._serve)
            if forked is not None:
                self._pid, self._pipe = forked

    def _send(self, message: object) -> bool:
        if self._pipe is None:
            return False
        try:
            self._pipe.send(message)
        except OSError:
            self._disconnect()
            return False
        return True

    def _kill(self) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                os.kill(self._pid, system.SIGKILL)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, self._pid = None, 0

    def _serve(self, pipe: Connection) -> None:
        """Prepare models and measure updates, until the program ends."""
        received: Received | None = None
        steps: Iterator[None] | None = None
        with suppress(EOFError, OSError):
            while True:
                if pipe.poll(_POLL_SECONDS if steps is None else 0.0):
                    message = pipe.recv()
                    if message == _END:
                        return
                    if message == _RECEIVED:
                        # Memory of the last model is released first.
                        received = steps = None
                        received = self._received()
                        steps = self._steps(received)
                    else:
                        steps = None
                        pipe.send(self._answer(message, received))
                elif steps is not None:
                    steps = steps if next(steps, self) is None else None
                elif has_ended(self._program):
                    # Another forked process may hold the pipe open, which hides its end.
                    return

    def _received(self) -> Received:
        base = Model.from_tensors(self._architecture, self._base.read())
        return Received(base, self._samples)

    def _steps(self, received: Received) -> Iterator[None]:
        for signal in self._signals:
            # What cannot be prepared is measured with the update, or raises the error then.
            with suppress(Exception):
                if isinstance(signal, Prepares):
                    yield from signal.prepare(received)

    def _answer(self, upload: _Upload, received: Received | None) -> _Answer:
        # Any error: the program measures by itself, and raises it.
        with suppress(Exception):
            assert received is not None
            exposed = Exposed(received.base, None, self._update.read(), upload.gradient_scale)
            seen = Round(
                index=upload.round,
                exposed={upload.client: exposed},
                sent={},
                uploads={},
                weights={upload.client: 1.0},
                asked=(upload.client,),
                answered=(upload.client,),
                after={},
            )
            measured = measure_round(
                seen, self._signals, self._samples, workers=self._workers, received=received
            )
            values = {name: values.numpy() for name, values in measured.signals.items()}
            return _Answer(upload.number, values)
        return _Answer(upload.number, None)


class _SharedTensors:
    """Tensors in memory that a forked process shares.

    The memory is anonymous, since /dev/shm of a container is small.
    """

    def __init__(self, like: Params) -> None:
        sizes = [-(-value.nbytes // _ALIGNMENT) * _ALIGNMENT for value in like.values()]
        ends = [*accumulate(sizes, initial=0)]
        # One byte more, as empty memory cannot be mapped.
        memory = mmap.mmap(-1, ends[-1] + 1)
        self._tensors = {
            name: torch.frombuffer(
                memory, dtype=value.dtype, count=value.numel(), offset=start
            ).view(value.shape)
            if value.numel()
            else torch.empty_like(value)
            for start, (name, value) in zip(ends, like.items(), strict=False)
        }

    def write(self, tensors: Params) -> bool:
        """Store tensors; return False if their names, shapes or types differ."""
        if not self._fits(tensors):
            return False
        for name, value in tensors.items():
            self._tensors[name].copy_(value)
        return True

    def read(self) -> Params:
        """Return copies."""
        return {name: value.clone() for name, value in self._tensors.items()}

    def holds(self, tensors: Params) -> bool:
        """Return True if the stored tensors are the same."""
        return self._fits(tensors) and all(
            torch.equal(value, self._tensors[name]) for name, value in tensors.items()
        )

    def _fits(self, tensors: Params) -> bool:
        return tensors.keys() == self._tensors.keys() and all(
            (value.shape, value.dtype) == (self._tensors[name].shape, self._tensors[name].dtype)
            for name, value in tensors.items()
        )


def _tensors(values: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in values.items()}
