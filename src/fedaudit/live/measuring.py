"""Measurement of a recorder's rounds: during the training loop, in the background, or later."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.errors import BadInput, format_assignment
from fedaudit.core.files import Lock, lock_folder
from fedaudit.core.progress import format_bytes, format_duration
from fedaudit.core.values import ClientId, Model, Samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.engines.local import one_thread
from fedaudit.evaluation.accuracy import (
    EvaluationSplit,
    accuracy_notes,
    count_correct,
    evaluation_split,
)
from fedaudit.evaluation.controls import untrained_rounds
from fedaudit.evaluation.uploads import reported_notes, update_notes
from fedaudit.live.background import (
    MAX_WAITING_ROUNDS,
    BackgroundProcess,
    RoundOutcome,
    has_training_ended,
    try_measuring,
)
from fedaudit.live.files import read_waiting, remove_waiting_folder, store_waiting, waiting_rounds
from fedaudit.live.forking import can_fork
from fedaudit.live.preparing import PreparingProcess
from fedaudit.live.recording import UPLOAD_VIEWS, Recording, RoundEntry
from fedaudit.live.rounds import SENT_NOTE, measure_valid_clients
from fedaudit.live.unsent import (
    ESTIMATED_NOTE,
    layers_without_statistics,
    with_estimated_statistics,
)
from fedaudit.live.weights import ModelLayout, list_some
from fedaudit.observe.kept_files import write_round
from fedaudit.observe.measurements import MeasuredRound, write_measured
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import round_bytes
from fedaudit.plan.parts import Setup
from fedaudit.results.text import clean_text
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import Outputs, OutputSignal, Targets, Values

_LOG_INTERVAL = 5.0
"""Seconds between two log lines on progress; shorter measurements are not logged."""

_MANY_VALUES = 10**7
"""Number of parameters of all clients' models above which initialising them takes long."""

MeasurementTime = Literal["now", "background", "after"]
"""Time at which rounds are measured."""


def lock_recording(folder: Path, log: Callable[[str], None]) -> Lock:
    """Lock the folder; wait while the background process of an earlier run measures rounds."""
    try:
        return lock_folder(folder)
    except BadInput:
        if not has_training_ended(folder):
            raise
        log(f"waiting for the previous run, which measures {_rounds(_n_waiting(folder))}")
        return lock_folder(folder, wait=True)


class Measurement(NamedTuple):
    """Everything that is stored of one round: signals, models, log entry and notes.

    Attributes:
        measured: The signals of the round.
        round: The round as the adversary sees it, without the excluded clients.
        entry: The round's log entry.
        notes: Notes by name that are stored with the signals, such as the accuracy of models.
        excluded: Clients whose upload could not be measured, with the reason for each.
    """

    measured: MeasuredRound
    round: Round
    entry: RoundEntry
    notes: Mapping[str, str]
    excluded: dict[ClientId, str]


class RoundMeasurer:
    """Measurement of a recording's rounds, now or later; keeps the folder locked until closed."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        setup: Setup,
        layout: ModelLayout,
        lock: Lock,
        *,
        when: MeasurementTime,
        workers: int,
        device: torch.device,
        log_entry: Callable[[RoundEntry], None],
        log_failure: Callable[[RoundEntry, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._recording, self._setup, self._layout = folder, recording, setup, layout
        self._lock: Lock | None = lock
        self._when, self._workers, self._device = when, workers, device
        self._log_entry, self._log_failure, self._log = log_entry, log_failure, log
        self._evaluation = evaluation_split(setup)
        self._predictions = ReusedPredictions(self._evaluation, setup.assignment.audit)
        self._logged = set[str]()
        self._seconds_waited = self._seconds_per_round = 0.0
        self._outcomes = list[RoundOutcome]()
        self._background: BackgroundProcess | None = None
        self._preparing: PreparingProcess | None = None

    def measure_untrained_models(self) -> tuple[MeasuredRound, ...]:
        """Measure models with random parameters for a control, and log the cost of a round."""
        assignment, timer = self._setup.assignment, _ProgressTimer(self._log)
        if len(assignment.clients) * self._layout.n_values >= _MANY_VALUES:
            self._log(f"{self._recording.name}: an untrained model is measured first")
        measured = untrained_rounds(
            self._setup, assignment.audit.samples, self._device, timer.log_progress
        )
        self._seconds_per_round = timer.seconds
        self._log(self._describe_cost(timer.seconds, measured[0]))
        return measured

    def begin(self) -> None:
        """Start the background process, or measure the waiting rounds of an earlier session."""
        has_waiting = bool(waiting_rounds(self._folder))
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

    def measure_or_store(self, seen: Round, entry: RoundEntry) -> None:
        """Measure a round as the adversary sees it, or store it to be measured later."""
        if self._when != "now" and self._lock is None:
            raise BadInput("the recording is closed; open it again with fedaudit.record")
        if self._background is not None:
            self._limit_waiting(self._background, entry)
        is_stored = self._when != "now" and store_waiting(self._folder, seen, entry)
        if not is_stored:
            start = monotonic()
            excluded = self._measure_and_write(seen, entry)
            self._outcomes.append(RoundOutcome(entry.round, monotonic() - start, "", excluded))
        elif self._background is not None:
            self._background.notify()

    def outcomes(self) -> list[RoundOutcome]:
        """Return the outcomes since the last call, and log measurements that took long."""
        outcomes, self._outcomes = self._outcomes, []
        if self._background is not None:
            outcomes += self._background.outcomes()
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
        n_waiting = _n_waiting(self._folder) if self._when != "now" else 0
        state = f"{_rounds(n_waiting)} {'is' if n_waiting == 1 else 'are'} still to be measured"
        if n_waiting and finish:
            self._log(state)
        if self._background is not None and finish:
            self._background.wait(max_waiting=0)
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
            remove_waiting_folder(self._folder)
        self._lock = None

    def _describe_cost(self, seconds: float, untrained: MeasuredRound) -> str:
        """Describe the time, disk space and memory that a measured round needs."""
        recording, n_values = self._recording, self._layout.n_values
        n_signals = len(untrained.signals)
        n_measured = sum(values.numel() for values in untrained.signals.values())
        n_uploads = len(self._setup.assignment.clients) if recording.view in UPLOAD_VIEWS else 1
        disk = round_bytes(
            keep=recording.keep,
            clients=len(untrained.clients),
            values=n_measured,
            parameters=n_values,
        )
        # A model and an update per client, and two models of the server, in single precision.
        memory = 4 * n_values * (2 * n_uploads + 2) + 8 * n_measured
        interval, advice = f"every {recording.every} rounds", ""
        if recording.every == 1:
            interval = "every round"
            # The view "final" needs the last round, which may be no tenth one.
            if recording.view != "final":
                advice = f"; {format_assignment('every', '10')} would measure only each tenth round"
        waiting_size = format_bytes(4 * n_values * (n_uploads + 2))
        where = {
            "now": "in this process",
            "background": "in a background process",
            "after": "when the recording is closed",
        }[self._when]
        waiting = {
            "now": "",
            "background": f". At most {MAX_WAITING_ROUNDS} rounds that are not yet measured are "
            f"kept on disk ({waiting_size} each)",
            "after": f". Until then, each round is kept on disk ({waiting_size})",
        }[self._when]
        return (
            f"{recording.name}: {n_signals} {'signal' if n_signals == 1 else 'signals'} of "
            f"{len(self._setup.assignment.audit)} samples "
            f"{'is' if n_signals == 1 else 'are'} measured {interval} {where}. Each "
            f"time takes about {format_duration(seconds)}, {format_bytes(disk)} of disk and "
            f"{format_bytes(memory)} of memory{waiting}{advice}"
        )

    def prepare(self, base: Model) -> None:
        """Start the part of a measurement that depends only on a received model.

        A second process computes this part while the client trains. On a GPU, or on a system
        without fork, nothing is prepared.
        """
        if self._device.type != "cpu" or not can_fork() or self._lock is None:
            return
        if self._preparing is None:
            self._preparing = PreparingProcess(
                self._setup.signals,
                self._setup.assignment.audit.samples,
                self._layout.model,
                workers=self._workers,
                seconds=self._seconds_per_round,
            )
        self._preparing.prepare(base)

    def measure(self, seen: Round, entry: RoundEntry) -> Measurement:
        """Measure a round without storing it; see :meth:`write`."""
        audit, unsent = self._setup.assignment.audit, self._layout.unsent
        # One thread, so that results are bit-identical in every process.
        with one_thread():
            measured, seen, excluded = measure_valid_clients(
                seen, entry.weights, self._measure_signals, audit.samples
            )
            layers = layers_without_statistics(seen, unsent)
            seen = with_estimated_statistics(seen, unsent, audit, self._device)
            notes = {"complete": str(entry.complete), "run": self._recording.key}
            notes |= {SENT_NOTE: entry.sent} if entry.sent else {}
            notes |= {ESTIMATED_NOTE: list_some(layers)} if layers else {}
            measured, count = self._predictions.without_utility(measured, seen)
            notes |= accuracy_notes(self._setup, self._evaluation, seen, self._device, count=count)
            notes |= reported_notes(entry.reported, self._evaluation.by_client, seen, self._device)
            notes |= update_notes(seen)
        entry = entry.logged(measured=True, excluded={**entry.excluded, **excluded})
        return Measurement(measured, seen, entry, notes, excluded)

    def write(self, measurement: Measurement) -> None:
        """Store a measured round and its log entry."""
        write_round(self._folder, measurement.round, self._recording.keep)
        write_measured(self._folder, measurement.measured, measurement.notes)
        self._log_entry(measurement.entry)

    def _measure_and_write(self, seen: Round, entry: RoundEntry) -> dict[ClientId, str]:
        """Measure and store a round; return the excluded clients, with the reason for each."""
        measurement = self.measure(seen, entry)
        self.write(measurement)
        return measurement.excluded

    def _measure_signals(self, seen: Round, samples: Samples) -> MeasuredRound:
        audit, unsent = self._setup.assignment.audit, self._layout.unsent
        seen = with_estimated_statistics(seen, unsent, audit, self._device)
        signals = self._predictions.with_utility(self._setup.signals, seen)

        def measure(chosen: Sequence[Signal]) -> MeasuredRound:
            return measure_round(seen, chosen, samples, workers=self._workers, device=self._device)

        # After a failure, each client is measured on a few samples, without preparation.
        if self._preparing is None or samples is not audit.samples:
            return measure(signals)
        return self._preparing.measure(seen, signals, measure)

    def _measure_file(self, path: Path) -> dict[ClientId, str]:
        """Measure a waiting round and delete its file; return the excluded clients."""
        entry: RoundEntry | None = None
        try:
            seen, entry = read_waiting(path, self._layout.model.architecture)
            excluded = self._measure_and_write(seen, entry)
        # Catch any error, since it concerns only this round. After an interrupt the file stays.
        except Exception as error:
            if entry is not None:
                self._log_failure(
                    entry, clean_text(f"round {entry.round} is not recorded: {error}")
                )
            path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)
        return excluded

    def _measure_waiting(self) -> None:
        rounds = waiting_rounds(self._folder)
        for number, (index, path) in enumerate(rounds, 1):
            outcome = try_measuring(index, path, self._measure_file)
            # With a duration of 0, outcomes() does not log the round a second time.
            self._outcomes.append(outcome._replace(seconds=0.0))
            if outcome.seconds >= _LOG_INTERVAL:
                self._log(f"{number} of {_rounds(len(rounds))} are measured")

    def _limit_waiting(self, background: BackgroundProcess, entry: RoundEntry) -> None:
        """Wait if ``MAX_WAITING_ROUNDS`` rounds wait already, which limits their disk space."""
        if background.has_given_up:
            self._log_once(
                "the measuring process could not be kept running; waiting rounds are measured when "
                "the recording is closed"
            )
        elif _n_waiting(self._folder) >= MAX_WAITING_ROUNDS:
            self._log_once(
                f"round {entry.round} waits until one of {MAX_WAITING_ROUNDS} other rounds is "
                "measured; measuring takes longer than training, see every= and measure='after'"
            )
            start = monotonic()
            background.wait(MAX_WAITING_ROUNDS - 1)
            self._seconds_waited += monotonic() - start

    def _log_once(self, text: str) -> None:
        """Log a text, unless an earlier text differs only in numbers."""
        key = re.sub(r"\d+", "", text)
        if key not in self._logged:
            self._logged.add(key)
            self._log(text)


def _n_waiting(folder: Path) -> int:
    return len(waiting_rounds(folder))


def _rounds(count: int) -> str:
    return f"{count} round" + "s" * (count != 1)


class _ProgressTimer:
    """Timer for the measurement of an untrained model, with progress lines."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._start = self._last_log = monotonic()
        self.seconds = 0.0

    def log_progress(self, done: int, total: int) -> None:
        """Log from time to time that ``done`` of ``total`` samples are measured."""
        now = monotonic()
        if not done:
            self._start = self._last_log = now
        self.seconds = now - self._start
        if 0 < done < total and now - self._last_log >= _LOG_INTERVAL:
            self._last_log = now
            self._log(
                f"an untrained model is measured as a control: {done} of {total} "
                f"samples after {format_duration(self.seconds)}"
            )


@dataclass(frozen=True)
class _Utility(OutputSignal):
    """Utility of the client's model on each sample, which is measured but not stored."""

    kind = "utility"

    def of(self, model: Model, outputs: Outputs, targets: Targets) -> Values:
        return model.architecture.task.utility.per_sample(outputs, targets).double()


_UTILITY = _Utility()


class ReusedPredictions:
    """Correct predictions on audited samples that are also evaluation samples.

    In a round with one upload, the model after the round is the uploaded model. Signals and
    accuracy then need the same outputs, which are computed once. Batches differ from those of a
    separate pass. This can change the last bits of outputs, and a count only if outputs are tied.
    """

    def __init__(self, split: EvaluationSplit, audit: AuditSet) -> None:
        self._split, self._audit = split, audit

    def with_utility(self, signals: Sequence[Signal], round: Round) -> Sequence[Signal]:
        """Add the utility of the only client's model, if a signal needs its outputs anyway."""
        reads_outputs = any(
            isinstance(signal, OutputSignal) and signal.snapshot == "local" for signal in signals
        )
        observed = [*round.observed.values()]
        local = observed[0].local if len(observed) == 1 else None
        is_accuracy = local is not None and local.architecture.task.utility.is_accuracy
        return [*signals, _UTILITY] if reads_outputs and is_accuracy else signals

    def without_utility(
        self, measured: MeasuredRound, round: Round
    ) -> tuple[MeasuredRound, "CorrectCounter"]:
        """Return the signals without the utility, and a counter of correct predictions."""
        signals = dict(measured.signals)
        utilities = signals.pop(_UTILITY.name, None)
        if utilities is None:
            return measured, CorrectCounter(None, {})
        (observed,) = round.observed.values()
        utility_by_key = {
            key: utilities[0, positions] for key, positions in self._positions.items()
        }
        return replace(measured, signals=signals), CorrectCounter(observed.local, utility_by_key)

    @cached_property
    def _positions(self) -> dict[int, Int[Tensor, " samples"]]:
        """Positions of evaluation samples among the audited samples, by ``id`` of the object."""
        test, trained = self._split.test, self._split.all_clients
        ids = self._audit.samples.ids.tolist()
        position_of = {sample_id: position for position, sample_id in enumerate(ids)}
        # Sample ids of the test set are not those of the audit set, so take held-out samples.
        positions = {
            id(test): torch.from_numpy(self._audit.owner < 0).nonzero().flatten(),
            id(trained): torch.tensor([position_of.get(n, 0) for n in trained.ids.tolist()]),
        }
        return {
            id(samples): positions[id(samples)]
            for samples in (test, trained)
            if _equal_samples(samples, self._audit.samples.take(positions[id(samples)]))
        }


class CorrectCounter:
    """Counter of correct predictions, which are already known for one model.

    Args:
        model: The model whose predictions are known; None if no predictions are known.
        known: Whether each prediction is correct, by ``id`` of the samples.
    """

    def __init__(self, model: Model | None, known: dict[int, Float[Tensor, " samples"]]) -> None:
        self._model, self._known = model, known

    def __call__(self, model: Model, samples: Samples, device: torch.device) -> int:
        """Return the number of correct predictions, as :func:`count_correct` does."""
        known = self._known.get(id(samples))
        if known is None or self._model is None or not _equal_models(model, self._model):
            return count_correct(model, samples, device)
        return int(known.sum())


def _equal_samples(first: Samples, second: Samples) -> bool:
    return torch.equal(first.features, second.features) and torch.equal(
        first.targets, second.targets
    )


def _equal_models(first: Model, second: Model) -> bool:
    tensors, second_tensors = first.tensors(), second.tensors()
    return tensors.keys() == second_tensors.keys() and all(
        torch.equal(value, second_tensors[name]) for name, value in tensors.items()
    )
