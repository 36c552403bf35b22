"""Measurement of a recorder's rounds: in the loop, in the background or after it."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import Lock, lock_folder
from fedaudit.core.progress import format_bytes, format_duration
from fedaudit.core.values import ClientId, Model, Samples
from fedaudit.engines.local import one_thread
from fedaudit.evaluation.accuracy import accuracy_notes, evaluation_split
from fedaudit.evaluation.controls import untrained_rounds
from fedaudit.evaluation.uploads import reported_notes, update_notes
from fedaudit.live.background import (
    MOST_WAITING,
    BackgroundProcess,
    Outcome,
    has_trainer_ended,
    outcome_of,
)
from fedaudit.live.evaluating import KnownPredictions
from fedaudit.live.files import clear, read_waiting, store_waiting, waiting
from fedaudit.live.forking import can_fork
from fedaudit.live.preparing import PreparingProcess
from fedaudit.live.recording import UPLOAD_VIEWS, Recording, RoundEntry
from fedaudit.live.rounds import SENT, measure_without_faulty
from fedaudit.live.weights import ESTIMATED, Shape, estimated_layers, list_some, with_estimates
from fedaudit.observe.kept_files import write_round
from fedaudit.observe.measurements import MeasuredRound, write_measured
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import round_bytes
from fedaudit.plan.parts import Setup
from fedaudit.results.text import plain
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round

_LOG_INTERVAL = 5.0
"""Seconds between two log lines on progress; shorter measurements are not logged."""

_MANY_VALUES = 10**7
"""Number of values in all clients' models from which drawing untrained models takes seconds."""

When = Literal["now", "background", "after"]
"""Time at which rounds are measured."""


def locked(folder: Path, log: Callable[[str], None]) -> Lock:
    """Lock the folder; wait while the background process of an earlier run measures rounds."""
    try:
        return lock_folder(folder)
    except BadInput:
        if not has_trainer_ended(folder):
            raise
        log(f"waiting for the previous run, which measures {_rounds(len(waiting(folder)))}")
        return lock_folder(folder, wait=True)


class Measurement(NamedTuple):
    """Measured round with all data that are stored.

    Attributes:
        measured: The signals.
        round: The round as the adversary sees it, without clients that were left out.
        entry: The round's log entry.
        notes: Notes that are stored with the signals.
        faulty: Clients that were left out, with the reason.
    """

    measured: MeasuredRound
    round: Round
    entry: RoundEntry
    notes: Mapping[str, str]
    faulty: dict[ClientId, str]


class Measuring:
    """Measurement of a recording's rounds; holds the folder's lock until it is closed."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        setup: Setup,
        shape: Shape,
        lock: Lock,
        *,
        when: When,
        workers: int,
        device: torch.device,
        log_entry: Callable[[RoundEntry], None],
        log_failure: Callable[[RoundEntry, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._recording, self._setup, self._shape = folder, recording, setup, shape
        self._lock: Lock | None = lock
        self._when, self._workers, self._device = when, workers, device
        self._log_entry, self._log_failure, self._log = log_entry, log_failure, log
        self._evaluation = evaluation_split(setup)
        self._predictions = KnownPredictions(self._evaluation, setup.assignment.audit)
        self._logged = set[str]()
        self._seconds_waited, self._seconds_per_round = 0.0, 0.0
        self._outcomes = list[Outcome]()
        self._background: BackgroundProcess | None = None
        self._preparing: PreparingProcess | None = None

    def untrained(self) -> tuple[MeasuredRound, ...]:
        """Measure untrained models for a control, and log the cost of a round."""
        watch, clients = _Watch(self._log), len(self._setup.assignment.clients)
        if clients * self._shape.n_values >= _MANY_VALUES:
            self._log(f"{self._recording.name}: an untrained model is measured first")
        samples = self._setup.assignment.audit.samples
        measured = untrained_rounds(self._setup, samples, self._device, watch.measured)
        self._seconds_per_round = watch.seconds
        self._log(self._cost(watch.seconds, measured[0]))
        return measured

    def begin(self) -> None:
        """Start the background process, or measure the waiting rounds of an earlier session."""
        has_waiting = bool(waiting(self._folder))
        if self._when == "background" and self._lock is not None:
            # The background process must keep the lock's file open.
            open_files = [self._lock.descriptor]
            self._background = BackgroundProcess(
                self._folder, self._measure_file, self._seconds_per_round, open_files
            )
            if has_waiting:
                self._background.notify()
        elif has_waiting and self._when == "now":
            self._measure_waiting()

    def take(self, seen: Round, entry: RoundEntry) -> None:
        """Measure a round as the adversary sees it, or store it to be measured later."""
        if self._when != "now" and self._lock is None:
            raise BadInput("the recording is closed; open it again with fedaudit.record")
        if self._background is not None:
            self._limit_waiting(self._background, entry)
        if self._when == "now" or not store_waiting(self._folder, seen, entry):
            began = monotonic()
            faulty = self._measure_and_write(seen, entry)
            self._outcomes.append(Outcome(entry.round, monotonic() - began, "", faulty))
        elif self._background is not None:
            self._background.notify()

    def outcomes(self) -> list[Outcome]:
        """Return outcomes since the last call, and log long measurements."""
        outcomes, self._outcomes = self._outcomes, []
        outcomes += self._background.outcomes() if self._background is not None else []
        for outcome in outcomes:
            if not outcome.error and outcome.seconds >= _LOG_INTERVAL:
                self._log(
                    f"round {outcome.round} is measured, in {format_duration(outcome.seconds)}"
                )
        return outcomes

    @property
    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self._lock is None

    def end(self, *, finish: bool) -> None:
        """Measure waiting rounds if ``finish`` is True, and log how many are left otherwise."""
        n_waiting = len(waiting(self._folder)) if self._when != "now" else 0
        state = f"{_rounds(n_waiting)} {'is' if n_waiting == 1 else 'are'} still to be measured"
        if n_waiting and finish:
            self._log(state)
        if self._background is not None and finish:
            self._background.wait(0)
        if finish:
            self._measure_waiting()
        elif n_waiting and self._background is None:
            self._log(f"{state}: open the recording again with fedaudit.record, and close it")
        if self._seconds_waited >= _LOG_INTERVAL:
            self._log(
                f"training waited {format_duration(self._seconds_waited)} in total for measurements"
            )

    def close(self) -> None:
        """End all processes, and release the folder."""
        if self._preparing is not None:
            self._preparing.close()
        if self._background is not None:
            self._background.close()
        if self._when != "now":
            clear(self._folder)
        self._lock = None

    def _cost(self, seconds: float, untrained: MeasuredRound) -> str:
        """Describe the time, disk space and memory that a round needs."""
        recording, n_values = self._recording, self._shape.n_values
        n_measured = sum(values.numel() for values in untrained.signals.values())
        senders = len(self._setup.assignment.clients) if recording.view in UPLOAD_VIEWS else 1
        disk = round_bytes(
            keep=recording.keep,
            clients=len(untrained.clients),
            values=n_measured,
            parameters=n_values,
        )
        # A model and an update per client, and two models of the server, in single precision.
        memory = 4 * n_values * (2 * senders + 2) + 8 * n_measured
        often = "every round" if recording.every == 1 else f"every {recording.every} rounds"
        advice = "; every=10 would measure only each tenth round" if recording.every == 1 else ""
        waits = format_bytes(4 * n_values * (senders + 2))
        where = {
            "now": "in this process",
            "background": f"in a background process, for which at most {MOST_WAITING} rounds wait "
            f"({waits} each)",
            "after": f"when the recording is closed, until when each round waits ({waits})",
        }[self._when]
        return (
            f"{recording.name}: {len(self._setup.assignment.audit)} samples are measured {often} "
            f"by {len(untrained.signals)} signals, which takes about {format_duration(seconds)} "
            f"{where}, {format_bytes(disk)} of disk and {format_bytes(memory)} of memory each "
            f"time{advice}"
        )

    def prepare(self, base: Model) -> None:
        """Start the part of a measurement that depends only on a received model.

        This happens in a second process, while the client trains. Without effect on a GPU, or on a
        system without fork.
        """
        if self._device.type != "cpu" or not can_fork() or self._lock is None:
            return
        if self._preparing is None:
            self._preparing = PreparingProcess(
                self._setup.signals,
                self._setup.assignment.audit.samples,
                self._shape.model,
                workers=self._workers,
                seconds=self._seconds_per_round,
            )
        self._preparing.prepare(base)

    def measured(self, seen: Round, entry: RoundEntry) -> Measurement:
        """Measure a round without storing it; see :meth:`write`."""
        audit, unsent = self._setup.assignment.audit, self._shape.unsent
        # One thread, so that results are bit-identical in every process.
        with one_thread():
            measured, seen, faulty = measure_without_faulty(
                seen, entry.weights, self._measure_signals, audit.samples
            )
            layers = estimated_layers(seen, unsent)
            seen = with_estimates(seen, unsent, audit, self._device)
            notes = {"complete": str(entry.complete), "run": self._recording.key}
            notes |= {SENT: entry.sent} if entry.sent else {}
            notes |= {ESTIMATED: list_some(layers)} if layers else {}
            measured, count = self._predictions.without_utility(measured, seen)
            notes |= accuracy_notes(self._setup, self._evaluation, seen, self._device, count=count)
            notes |= reported_notes(entry.reported, self._evaluation.by_client, seen, self._device)
            notes |= update_notes(seen)
        entry = entry.logged(measured=True, excluded={**entry.excluded, **faulty})
        return Measurement(measured, seen, entry, notes, faulty)

    def write(self, measurement: Measurement) -> None:
        """Store a measured round and its log entry."""
        write_round(self._folder, measurement.round, self._recording.keep)
        write_measured(self._folder, measurement.measured, measurement.notes)
        self._log_entry(measurement.entry)

    def _measure_and_write(self, seen: Round, entry: RoundEntry) -> dict[ClientId, str]:
        """Measure and store a round; return the clients that were left out, with the reason."""
        measurement = self.measured(seen, entry)
        self.write(measurement)
        return measurement.faulty

    def _measure_signals(self, seen: Round, samples: Samples) -> MeasuredRound:
        audit, unsent = self._setup.assignment.audit, self._shape.unsent
        seen = with_estimates(seen, unsent, audit, self._device)
        signals = self._predictions.with_utility(self._setup.signals, seen)

        def measure(chosen: Sequence[Signal]) -> MeasuredRound:
            return measure_round(seen, chosen, samples, workers=self._workers, device=self._device)

        # After a failure, each client is measured on a few samples, without preparation.
        if self._preparing is None or samples is not audit.samples:
            return measure(signals)
        return self._preparing.measure(seen, signals, measure)

    def _measure_file(self, path: Path) -> dict[ClientId, str]:
        """Measure a waiting round and delete its file."""
        entry: RoundEntry | None = None
        try:
            seen, entry = read_waiting(path, self._shape.model.architecture)
            faulty = self._measure_and_write(seen, entry)
        # Catch any error, since it concerns only this round. After an interrupt the file stays.
        except Exception as error:
            if entry is not None:
                self._log_failure(entry, plain(f"round {entry.round} is not recorded: {error}"))
            path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)
        return faulty

    def _measure_waiting(self) -> None:
        waiting_rounds = waiting(self._folder)
        for done, (index, path) in enumerate(waiting_rounds):
            outcome = outcome_of(index, path, self._measure_file)
            self._outcomes.append(outcome._replace(seconds=0.0))
            if outcome.seconds >= _LOG_INTERVAL:
                self._log(f"{done + 1} of {_rounds(len(waiting_rounds))} are measured")

    def _limit_waiting(self, background: BackgroundProcess, entry: RoundEntry) -> None:
        """Wait until fewer than ``MOST_WAITING`` rounds wait, so that disk space is limited."""
        if background.has_given_up:
            self._log_once(
                "the measuring process could not be kept running; waiting rounds are measured when "
                "the recording is closed"
            )
        elif len(waiting(self._folder)) >= MOST_WAITING:
            self._log_once(
                f"round {entry.round} waits until one of {MOST_WAITING} other rounds is measured; "
                "measuring takes longer than training, see every= and measure='after'"
            )
            began = monotonic()
            background.wait(MOST_WAITING - 1)
            self._seconds_waited += monotonic() - began

    def _log_once(self, text: str) -> None:
        # Texts that differ only in numbers are logged once.
        kind = re.sub(r"\d+", "", text)
        if kind not in self._logged:
            self._logged.add(kind)
            self._log(text)


def _rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)


class _Watch:
    """Timer for the measurement of an untrained model, with progress lines."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._began = self._logged = monotonic()
        self.seconds = 0.0

    def measured(self, done: int, total: int) -> None:
        """Log from time to time that ``done`` of ``total`` samples are measured."""
        now = monotonic()
        if not done:
            self._began = self._logged = now
        self.seconds = now - self._began
        if 0 < done < total and now - self._logged >= _LOG_INTERVAL:
            self._logged = now
            self._log(
                f"an untrained model is measured as a control: {done} of {total} "
                f"samples after {format_duration(self.seconds)}"
            )
