"""Measurement of a recorder's rounds: in the loop, in the background or after it."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.files import Lock, lock_folder
from fedaudit.core.progress import size_of, time_of
from fedaudit.core.values import ClientId, Model, Samples
from fedaudit.engines.local import one_thread
from fedaudit.evaluation.accuracy import accuracy_notes, evaluation_split
from fedaudit.evaluation.controls import untrained_rounds
from fedaudit.evaluation.uploads import reported_notes, update_notes
from fedaudit.live.ahead import Ahead
from fedaudit.live.background import (
    MOST_WAITING,
    BackgroundProcess,
    Outcome,
    is_trainer_gone,
    outcome_of,
)
from fedaudit.live.evaluating import KnownAnswers
from fedaudit.live.files import clear, read_waiting, store_waiting, waiting
from fedaudit.live.forking import can_fork
from fedaudit.live.recording import Recording, RoundEntry
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
"""Number of values in all clients' models from which it takes seconds to draw them."""

When = Literal["now", "background", "after"]
"""Times at which rounds are measured."""


def locked(folder: Path, log: Callable[[str], None]) -> Lock:
    """Return the folder's lock; wait while a previous run's process measures its last rounds."""
    try:
        return lock_folder(folder)
    except BadInput:
        if not is_trainer_gone(folder):
            raise
        log(f"the previous run still measures {_rounds(len(waiting(folder)))}; waiting for it")
        return lock_folder(folder, wait=True)


class Measurement(NamedTuple):
    """Measured round with everything that is stored of it.

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
        note: Callable[[RoundEntry], None],
        failed: Callable[[RoundEntry, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._recording, self._setup, self._shape = folder, recording, setup, shape
        self._lock: Lock | None = lock
        self._when, self._workers, self._device = when, workers, device
        self._note, self._failed, self._log = note, failed, log
        self._evaluation = evaluation_split(setup)
        self._answers = KnownAnswers(self._evaluation, setup.deal.audit)
        self._logged: set[str] = set()
        self._waited, self._expected = 0.0, 0.0
        self._outcomes: list[Outcome] = []
        self._process: BackgroundProcess | None = None
        self._ahead: Ahead | None = None

    def untrained(self) -> tuple[MeasuredRound, ...]:
        """Measure untrained models for a control, and log what a round costs."""
        watch, clients = _Watch(self._log), len(self._setup.deal.clients)
        if clients * self._shape.n_values >= _MANY_VALUES:
            self._log(f"{self._recording.name}: an untrained model is measured first")
        samples = self._setup.deal.audit.samples
        measured = untrained_rounds(self._setup, samples, self._device, watch.measured)
        self._expected = watch.seconds
        self._log(self._cost(watch.seconds, measured[0]))
        return measured

    def begin(self) -> None:
        """Start the background process, or measure rounds that a previous run left."""
        has_waiting = bool(waiting(self._folder))
        if self._when == "background" and self._lock is not None:
            # The background process must keep the lock's file open.
            kept_files = [self._lock.number]
            self._process = BackgroundProcess(
                self._folder, self._measure_file, self._expected, kept_files
            )
            if has_waiting:
                self._process.notify()
        elif has_waiting and self._when == "now":
            self._measure_waiting()

    def take(self, seen: Round, entry: RoundEntry) -> None:
        """Measure a round as the adversary sees it, or store it to be measured later."""
        if self._when != "now" and self._lock is None:
            raise BadInput("the recording is closed; open it again with fedaudit.record")
        if self._process is not None:
            self._wait_for_room(entry)
        if self._when == "now" or not store_waiting(self._folder, seen, entry):
            began = monotonic()
            faulty = self._measure_and_write(seen, entry)
            self._outcomes.append(Outcome(entry.round, monotonic() - began, "", faulty))
        elif self._process is not None:
            self._process.notify()

    def outcomes(self) -> list[Outcome]:
        """Return outcomes since the last call, and log long measurements."""
        outcomes, self._outcomes = self._outcomes, []
        outcomes += self._process.outcomes() if self._process is not None else []
        for outcome in outcomes:
            if not outcome.error and outcome.seconds >= _LOG_INTERVAL:
                self._log(f"round {outcome.round} is measured, in {time_of(outcome.seconds)}")
        return outcomes

    @property
    def is_closed(self) -> bool:
        """True once the folder is released."""
        return self._lock is None

    def end(self, *, finish: bool) -> None:
        """Measure waiting rounds, or leave them if the loop was interrupted."""
        n_waiting = len(waiting(self._folder)) if self._when != "now" else 0
        state = f"{_rounds(n_waiting)} {'is' if n_waiting == 1 else 'are'} still to be measured"
        if n_waiting and finish:
            self._log(state)
        if self._process is not None and finish:
            self._process.wait(0)
        if finish:
            self._measure_waiting()
        elif n_waiting and self._process is None:
            self._log(f"{state}: open the recording again with fedaudit.record, and close it")
        if self._waited >= _LOG_INTERVAL:
            self._log(f"training waited {time_of(self._waited)} in all for measuring")

    def close(self) -> None:
        """Release the folder."""
        if self._ahead is not None:
            self._ahead.close()
        if self._process is not None:
            self._process.close()
        if self._when != "now":
            clear(self._folder)
        self._lock = None

    def _cost(self, seconds: float, untrained: MeasuredRound) -> str:
        recording, numbers = self._recording, self._shape.n_values
        values = sum(part.numel() for part in untrained.signals.values())
        senders = len(self._setup.deal.clients) if recording.view in ("uploads", "sum") else 1
        disk = round_bytes(
            keep=recording.keep, clients=len(untrained.clients), values=values, parameters=numbers
        )
        # A model and an update per client, and two models of the server.
        memory = 4 * numbers * (2 * senders + 2) + 8 * values
        often = "every round" if recording.every == 1 else f"every {recording.every} rounds"
        advice = "; every=10 would measure each tenth round only" if recording.every == 1 else ""
        waits = size_of(4 * numbers * (senders + 2))
        where = {
            "now": "in this process",
            "background": f"in a background process, for which at most {MOST_WAITING} rounds wait "
            f"({waits} each)",
            "after": f"when the recording is closed, until when each round waits ({waits})",
        }[self._when]
        return (
            f"{recording.name}: {len(self._setup.deal.audit)} samples are measured {often} by "
            f"{len(untrained.signals)} signals, which takes about {time_of(seconds)} {where}, "
            f"{size_of(disk)} of disk and {size_of(memory)} of memory each time{advice}"
        )

    def prepare(self, base: Model) -> None:
        """Start to measure in a second process what depends on a received model alone.

        Nothing is done on a GPU, or on a system without fork.
        """
        if self._device.type != "cpu" or not can_fork() or self._lock is None:
            return
        if self._ahead is None:
            self._ahead = Ahead(
                self._setup.signals,
                self._setup.deal.audit.samples,
                self._shape.model,
                workers=self._workers,
                seconds=self._expected,
            )
        self._ahead.prepare(base)

    def measured(self, seen: Round, entry: RoundEntry) -> Measurement:
        """Measure a round, and write nothing."""
        audit, unsent = self._setup.deal.audit, self._shape.unsent
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
            measured, count = self._answers.taken_from(measured, seen)
            notes |= accuracy_notes(self._setup, self._evaluation, seen, self._device, count=count)
            notes |= reported_notes(entry.reported, self._evaluation.by_client, seen, self._device)
            notes |= update_notes(seen)
        entry = entry.logged(measured=True, excluded={**entry.excluded, **faulty})
        return Measurement(measured, seen, entry, notes, faulty)

    def write(self, measurement: Measurement) -> None:
        """Write a measured round and its line of the log."""
        write_round(self._folder, measurement.round, self._recording.keep)
        write_measured(self._folder, measurement.measured, measurement.notes)
        self._note(measurement.entry)

    def _measure_and_write(self, seen: Round, entry: RoundEntry) -> dict[ClientId, str]:
        """Measure and write a round; return the clients that were left out, with the reason."""
        measurement = self.measured(seen, entry)
        self.write(measurement)
        return measurement.faulty

    def _measure_signals(self, seen: Round, samples: Samples) -> MeasuredRound:
        audit, unsent = self._setup.deal.audit, self._shape.unsent
        seen = with_estimates(seen, unsent, audit, self._device)
        signals = self._answers.with_utility(self._setup.signals, seen)

        def measure(some: Sequence[Signal]) -> MeasuredRound:
            return measure_round(seen, some, samples, workers=self._workers, device=self._device)

        # After a failure, clients are tried on a few samples.
        if self._ahead is None or samples is not audit.samples:
            return measure(signals)
        return self._ahead.measure(seen, signals, measure)

    def _measure_file(self, path: Path) -> dict[ClientId, str]:
        """Measure a waiting round and delete its file."""
        entry: RoundEntry | None = None
        try:
            seen, entry = read_waiting(path, self._shape.model.architecture)
            faulty = self._measure_and_write(seen, entry)
        # Any error concerns this round only. An interrupt is no error: the file then stays.
        except Exception as error:
            if entry is not None:
                self._failed(entry, plain(f"round {entry.round} is not recorded: {error}"))
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

    def _wait_for_room(self, entry: RoundEntry) -> None:
        assert self._process is not None
        if self._process.given_up:
            self._log_once(
                "the measuring process could not be kept running; waiting rounds are measured when "
                "the recording is closed"
            )
        elif len(waiting(self._folder)) >= MOST_WAITING:
            self._log_once(
                f"round {entry.round} waits until one of {MOST_WAITING} earlier ones is measured; "
                "measuring takes longer than training, see every= and measure='after'"
            )
            began = monotonic()
            self._process.wait(MOST_WAITING - 1)
            self._waited += monotonic() - began

    def _log_once(self, text: str) -> None:
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
        self._began = self._said = monotonic()
        self.seconds = 0.0

    def measured(self, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` samples are measured."""
        now = monotonic()
        if not done:
            self._began = self._said = now
        self.seconds = now - self._began
        if 0 < done < total and now - self._said >= _LOG_INTERVAL:
            self._said = now
            self._log(
                f"an untrained model is measured as a control: {done} of {total} "
                f"samples after {time_of(self.seconds)}"
            )
