"""Recorder of a federation: computes the signals that an adversary sees in each round."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, cast

from fedaudit.core.devices import device_named
from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.uploads import Metric, metrics_in
from fedaudit.live.background import raise_if_background_unsupported
from fedaudit.live.clients import Attendance, ByClient, ClientRef, number_of, participants_of
from fedaudit.live.digests import digest_of_models, digests_of_globals
from fedaudit.live.files import prepare_folder, waiting_round_entries, write_audit, write_untrained
from fedaudit.live.measuring import Measurement, MeasurementTime, RoundMeasurer, lock_recording
from fedaudit.live.network import Network
from fedaudit.live.open_recording import OpenRecording, RecordedRounds, RecorderWarnings
from fedaudit.live.recording import (
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    append_round,
    recording_text,
    repair_round_log,
    round_entry,
    write_recording,
)
from fedaudit.live.rounds import (
    CheckedRound,
    RoundData,
    Sent,
    UploadKind,
    bases_of,
    finite_model,
    round_of_globals,
    round_of_uploads,
)
from fedaudit.live.sending import RoundSender
from fedaudit.live.setup import setup_of_recording
from fedaudit.live.unsent import layers_without_statistics
from fedaudit.live.weights import NOT_FINITE, Weights, list_some
from fedaudit.observe.round import ALL_CLIENTS, Round
from fedaudit.observe.tensors import MAX_ROUND, round_paths
from fedaudit.observe.views import seen_from
from fedaudit.plan.parts import Setup
from fedaudit.results.text import clean_text
from fedaudit.sinks.base import Sink


class Recorder:
    """Recorder of the rounds of a running federation; see :func:`fedaudit.record`."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        samples: AuditSet,
        net: Network,
        *,
        uploads: UploadKind,
        keep_samples: bool,
        strict: bool,
        measure: MeasurementTime,
        workers: int,
        device: str,
        log: Callable[[str], None],
        sink: Sink | None = None,
    ) -> None:
        self._folder, self._layout, self._uploads = folder, net.layout, uploads
        self._warnings = RecorderWarnings(strict=strict, log=log)
        torch_device = device_named(device)
        if measure == "background":
            raise_if_background_unsupported(torch_device)
        stored = prepare_folder(folder, recording, samples)
        self._open = OpenRecording(folder, stored.model_copy(update={"is_closed": False}))
        lock = lock_recording(folder, log)
        unmeasured = waiting_round_entries(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = setup_of_recording(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        logged = repair_round_log(folder)
        # Leave out failed rounds, which may be recorded again.
        earlier = {entry.round: entry for entry in logged if not entry.failed} | unmeasured
        self._rounds = RecordedRounds(earlier, self._open, self._warnings)
        self._attendance = Attendance(
            {*clients, *self.recording.targets, *self.recording.sizes},
            [*logged, *unmeasured.values()],
            self._open.display_name,
        )
        for index in unmeasured:
            self._mark_recorded(index)
        self._awaiting_next_model: tuple[Model, RoundEntry] | None = None
        self._measurer = RoundMeasurer(
            folder,
            self.recording,
            self._setup,
            net.layout,
            lock,
            when=measure,
            workers=workers,
            device=torch_device,
            log_entry=self._log_entry,
            log_failure=self._log_failure,
            log=log,
        )
        # Before measuring anything, check that the settings can be written and read back.
        recording_text(self.recording, folder)
        is_new = not logged and not unmeasured
        if is_new:
            # A control runs the attacks on models with random parameters.
            untrained = self._measurer.measure_untrained_models()
            # These calls replace files of an earlier session that stopped before its first round.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
        if self.recording != stored or is_new:
            write_recording(self.recording, folder)
        self._open.keep_names(samples.names)
        self._sender: RoundSender | None = None
        if sink is not None:
            self._sender = RoundSender(sink, folder, self.recording, self._setup, log)
        if earlier:
            log(f"{self.recording.name}: continues after round {max(earlier)}")
        self._measurer.begin()
        if measure == "now":
            self._poll()

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._close(finish=error is None)
        except Exception:
            # Otherwise the error that stopped the loop takes precedence.
            if error is None:
                raise

    def round(
        self,
        index: int,
        *,
        sent: Sent,
        uploads: ByClient[Weights] | None = None,
        weights: ByClient[float] | None = None,
        selected: Collection[ClientRef] | None = None,
        unnamed: int = 0,
        after: Weights | None = None,
        unreadable: ByClient[str] | None = None,
        rejected: Collection[ClientRef] = (),
        unattributed_fault: str = "",
        reported: ByClient[Mapping[str, float]] | None = None,
    ) -> None:
        """Record one round.

        If a round is passed again, it is compared with the first version, which is kept.

        Use the same client numbers or names as in the audited samples. An upload cannot be measured
        if it has non-finite values, another shape, another part of the model or an impossible
        weight. The client is then left out of the round, and the log names it. In the view ``sum``,
        such a round is not recorded.

        Args:
            index: The round's number, from 1.
            sent: The global model that clients were sent, or one model per client.
            uploads: Each client's upload; empty if the adversary does not see uploads.
            weights: Weights of clients in the average; by default their sizes, or equal weights.
            selected: Clients that were sent the model; by default the clients that answered.
            unnamed: Number of unidentified clients that were sent the model and did not answer.
            after: The global model after the round. By default the mean of the uploads that can be
                measured. If the adversary does not see uploads, by default the model that is sent
                in the next round.
            unreadable: Clients with an unreadable upload, and the reason. The round is measured
                without them, and their uploads count as missing.
            rejected: Clients whose upload the server rejected. A rejected upload is measured if
                possible. If not, it does not count as missing, since it was not aggregated. A
                non-finite upload counts as rejected if ``after`` is finite.
            unattributed_fault: Fault in uploads that cannot be attributed to a client, such as an
                upload of an unidentified client; empty if all clients are identified.
            reported: Accuracy ("accuracy", as a fraction or in percent) and mean loss ("loss") that
                a client computed on its training data with the uploaded model. They are compared
                with the recorder's values on audited members.

        Raises:
            BadInput: An argument is invalid, and the recording is strict.
        """
        entry: RoundEntry | None = None
        try:
            self._mark_recorded(index)
            self._open.keep_names([*(selected or ()), *(uploads or ()), *(unreadable or ())])
            participants = participants_of(
                uploads or {}, selected or (), unreadable or {}, self.recording.targets
            )
            entry = participants.entry(index, unnamed=unnamed, note=unattributed_fault)
            valid_weights = self._open.by_valid_number(weights or {})
            valid_rejected = self._open.by_valid_number(dict.fromkeys(rejected, 0.0))
            entry = entry.model_copy(
                update={
                    "has_unidentified": bool(entry.note),
                    "rejected": tuple(sorted({*entry.answered} & valid_rejected.keys())),
                    "reported": self._valid_metrics(reported or {}, participants.uploads),
                }
            )
            self._check_and_measure(
                entry,
                RoundData(sent, participants.uploads, valid_weights, after, entry.rejected),
            )
        # Catch any error: an audit must not stop the training that it observes.
        except Exception as error:
            self._handle_failure(index, entry, error)
        # Store this round before polling, which may raise for an earlier round.
        self._poll()

    def missed(
        self,
        index: int,
        reason: str,
        *,
        selected: Collection[ClientRef] = (),
        answered: Collection[ClientRef] | None = None,
        unnamed: int = 0,
    ) -> None:
        """Log a round that cannot be recorded, with the reason.

        Args:
            index: The round's number, from 1.
            reason: Reason why the round cannot be recorded.
            selected: Known clients that were sent the model.
            answered: Clients that answered; None if some of them are not identified.
            unnamed: Number of unidentified clients that were sent the model and did not answer.

        Raises:
            BadInput: The recording is strict.
        """
        entry, failure = None, BadInput(reason)
        try:
            if self.has(index):
                return
            self._mark_recorded(index)
            self._open.keep_names([*selected, *(answered or ())])
            participants = participants_of(
                {}, selected, dict.fromkeys(answered or (), reason), self.recording.targets
            )
            has_unidentified = answered is None or bool(participants.note)
            # The reason concerns the round, so no single upload is listed as faulty.
            entry = participants.entry(index, unnamed=unnamed).model_copy(
                update={"excluded": {}, "note": "", "has_unidentified": has_unidentified}
            )
        except Exception as error:
            failure = BadInput(str(error))
        self._handle_failure(index, entry, failure)

    def prepare(self, sent: Weights) -> None:
        """Start to measure a model that clients are sent, before they upload; see :meth:`measure`.

        Raises:
            BadInput: The model's layers do not match the recorded network, or a value is not
                finite.
        """
        self._measurer.prepare(finite_model(sent, self._layout, "the model sent"))

    def measure(self, index: int, *, sent: Sent, uploads: ByClient[Weights]) -> Measurement:
        """Measure a round without recording it; :meth:`store` can record it later.

        Raises:
            BadInput: The round's number is invalid, or an upload cannot be measured.
        """
        participants = participants_of(uploads, (), {}, self.recording.targets)
        entry = participants.entry(index)
        checked_round, entry = self._check(entry, RoundData(sent, participants.uploads, {}, None))
        if checked_round.round is None or entry.excluded or entry.note:
            self._raise_first_reason(entry.excluded or {self.recording.targets[0]: entry.note})
        (seen,) = seen_from([checked_round.round], self._setup.view)
        return self._measurer.measure(seen, entry)

    def store(self, measurement: Measurement) -> None:
        """Record a round that :meth:`measure` returned."""
        self._measurer.write(measurement)
        self._rounds.entries[measurement.entry.round] = measurement.entry
        self._mark_recorded(measurement.entry.round)

    def log_conflict(self, index: int) -> None:
        """Log that a round had a further upload, which this recording does not contain."""
        self._open.keep_conflict(index, "this recording lacks another upload of the round")

    def name_client(self, client: str) -> None:
        """Store the name of a client whose uploads are identified by number."""
        self._open.keep_names([client])

    def log_withheld(self, index: int, client: ClientId, reason: str) -> None:
        """Log that a client sent no upload in a round, with the reason."""
        if not self.has(index):
            self._log_entry(round_entry(index, [client], (), 0, note=reason))

    def check_first_round(self, index: int, what: str) -> None:
        """Warn if a run begins with a round that is already recorded; raise if strict.

        Frameworks start each run at round 1. In the folder of an earlier run, every round would
        therefore count as a repetition.

        Args:
            index: The run's first round.
            what: Kind of run in the error message, such as "a run of Flower".
        """
        if self.has(index):
            self._warnings.raise_or_warn(
                f"round {index} was recorded before and is not replaced; give {what} another folder"
            )

    def has(self, index: int) -> bool:
        """Return True if a round is recorded, in this session or in one that it continues."""
        return index in self._rounds.entries

    @property
    def entries(self) -> list[RoundEntry]:
        """Log entries of the recorded rounds, in order."""
        return [self._rounds.entries[index] for index in sorted(self._rounds.entries)]

    @property
    def measured(self) -> list[int]:
        """Numbers of the measured rounds, in order."""
        return [number for number, _ in round_paths(self._folder / "measured", ".safetensors")]

    @property
    def folder(self) -> Path:
        """Folder of the recording."""
        return self._folder

    @property
    def recording(self) -> Recording:
        """The settings of the recording."""
        return self._open.settings

    @property
    def run(self) -> Setup:
        """Setup from which estimates and controls of the recording are computed."""
        return self._setup

    @property
    def uploads(self) -> UploadKind:
        """The kind of uploads that :meth:`round` receives; see :func:`fedaudit.record`."""
        return self._uploads

    @property
    def sees_uploads(self) -> bool:
        """True if the adversary sees the clients' uploads, single or summed."""
        return self.recording.view in UPLOAD_VIEWS

    @property
    def strict(self) -> bool:
        """True if a round that cannot be recorded stops the loop."""
        return self._warnings.strict

    def close(self) -> None:
        """Measure all waiting rounds and end the recording; it can be continued later."""
        self._close(finish=True)

    def _close(self, *, finish: bool) -> None:
        """End the recording; waiting rounds are only measured if ``finish`` is True."""
        if self._awaiting_next_model is not None:
            self._log_failure(self._awaiting_next_model[1], "no model followed")
            self._awaiting_next_model = None
        if self._measurer.is_closed:
            return
        try:
            with self._warnings.unless_strict("queued rounds could not be measured"):
                self._measurer.end(finish=finish)
        finally:
            with self._warnings.unless_strict("the recorder failed"):
                self._measurer.close()
        if finish:
            self._poll()
            with self._warnings.unless_strict("the recorder failed"):
                self._open.update(is_closed=True)
        if self._sender is not None:
            self._sender.close()
        if summary := self._attendance.summary():
            self._warnings.warn(clean_text(summary), summary)

    def _raise_if_missing_uploads(self, entry: RoundEntry, data: RoundData) -> None:
        """Raise if uploads are missing and the recording is strict or measures their sum."""
        measures_sum = self.recording.view == "sum" or (
            self.recording.view != "uploads" and data.after is None
        )
        if not (self.strict or measures_sum):
            return
        for client, reason in entry.excluded.items():
            if client not in entry.rejected:
                raise BadInput(f"upload of client {self._open.display_name(client)}: {reason}")
        if entry.note:
            raise BadInput(entry.note)

    def _valid_metrics(
        self, reported: ByClient[Mapping[str, float]], answered: Collection[ClientId]
    ) -> dict[ClientId, dict[Metric, float]]:
        """Return the valid metrics of audited clients; a client may report anything."""
        # Metrics describe a trained model, but gradients belong to the model that was sent.
        if self._uploads == "gradients":
            return {}
        audited_clients = {*self.recording.targets} & {*answered}
        metrics = dict[ClientId, dict[Metric, float]]()
        for client, values in reported.items():
            # Ignore an invalid metric instead of losing the round.
            with suppress(BadInput):
                metrics[number_of(client)] = metrics_in(values)
        return {
            client: metrics[client] for client in sorted(audited_clients) if metrics.get(client)
        }

    def _check(self, entry: RoundEntry, data: RoundData) -> tuple[CheckedRound, RoundEntry]:
        """Check the uploads of a round, and add the results to its log entry."""
        checked_round = round_of_uploads(
            entry, data, self._layout, self._uploads, self.recording.sizes
        )
        return checked_round, _with_check_results(entry, data, checked_round)

    def _check_and_measure(self, entry: RoundEntry, data: RoundData) -> None:
        self._rounds.raise_if_other_run()
        if not data.uploads and not self.sees_uploads:
            self._measure_previous(entry, cast("Weights", data.sent), data.after)
            return
        if not data.uploads:
            if entry.excluded:
                self._raise_first_reason(entry.excluded)
            raise BadInput("no client's upload came back")
        if entry.round % self.recording.every:
            bases, _ = bases_of(data.sent, sorted(data.uploads), self._layout)
            entry = entry.model_copy(
                update={
                    "sent": digest_of_models(bases),
                    "models": digests_of_globals(self._layout, bases.values()),
                    "note": "",
                }
            )
            if not self._is_repeated(entry):
                self._warn_if_none_audited(entry)
                self._log_entry(entry.logged())
            return
        checked_round, entry = self._check(entry, data)
        if self._is_repeated(entry):
            return
        if checked_round.round is None:
            self._raise_first_reason(entry.excluded)
        self._raise_if_missing_uploads(entry, data)
        self._warn_if_none_audited(entry)
        self._measure(checked_round.round, entry)
        self._warn_of_excluded(entry.round, entry.excluded)
        if entry.note:
            # If all audited clients replied, the unidentified upload is from an unaudited client.
            all_replied = {*self.recording.targets} <= {*entry.answered}
            state = "is recorded without an upload" if all_replied else "is not recorded in full"
            self._warnings.warn(
                clean_text(f"round {entry.round} {state}: {entry.note}"), entry.note
            )

    def _is_repeated(self, entry: RoundEntry) -> bool:
        """Return True if a round was passed before; raise if the folder has another run."""
        earlier: RoundEntry | None = None
        if self._awaiting_next_model is not None:
            _, awaiting = self._awaiting_next_model
            earlier = awaiting if awaiting.round == entry.round else None
        return self._rounds.is_repeated(entry, earlier)

    def _warn_if_none_audited(self, entry: RoundEntry) -> None:
        """Warn if no client of the rounds so far is audited; raise if the recording is strict."""
        if warning := self._attendance.warning(entry):
            self._warnings.raise_or_warn(warning, "no client is audited")

    def _raise_first_reason(self, excluded: Mapping[ClientId, str]) -> NoReturn:
        client, reason = min(excluded.items())
        raise BadInput(
            "no upload can be measured; the upload of client "
            f"{self._open.display_name(client)}: {reason}"
        )

    def _warn_of_excluded(self, index: int, excluded: Mapping[ClientId, str]) -> None:
        for client, reason in excluded.items():
            name = self._open.display_name(client)
            text = clean_text(f"round {index} is recorded without client {name}: {reason}")
            self._warnings.warn(text, f"{name}: {reason}")

    def _measure_previous(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """Measure the previous round, which ends with the model sent in this one."""
        model = finite_model(sent, self._layout, f"the model sent in round {entry.round}")
        entry = entry.model_copy(
            update={
                "sent": digest_of_models({ALL_CLIENTS: model}),
                "models": digests_of_globals(self._layout, [model]),
            }
        )
        if self._is_repeated(entry):
            return
        if self._awaiting_next_model is not None:
            before, previous = self._awaiting_next_model
            if entry.round < previous.round:
                raise BadInput(
                    f"it was passed after round {previous.round}, but without uploads a round ends "
                    "with the model of the next round; pass rounds in order"
                )
            self._awaiting_next_model = None
            self._measure_globals(before, model, previous)
        if after is None:
            self._awaiting_next_model = (model, entry)
        else:
            model_after = finite_model(after, self._layout, "the model afterwards")
            self._measure_globals(model, model_after, entry)

    def _measure_globals(self, base: Model, after: Model, entry: RoundEntry) -> None:
        models = digests_of_globals(self._layout, [base], after)
        entry = entry.model_copy(update={"models": models})
        if entry.round % self.recording.every:
            self._log_entry(entry)
        else:
            client = self.recording.targets[0]
            self._measure(round_of_globals(entry, base, after, client, self._layout), entry)

    def _measure(self, round: Round, entry: RoundEntry) -> None:
        (seen,) = seen_from([round], self._setup.view)
        layers = layers_without_statistics(seen, self._layout.unsent)
        if layers:
            self._warnings.warn(
                f"clients do not send the running statistics of {clean_text(list_some(layers))}; "
                "they are estimated for each model on audited samples, as the report notes; send "
                "the whole state dict to measure the clients' statistics",
                "estimated statistics",
            )
        self._measurer.measure_or_store(seen, entry)
        self._rounds.entries[entry.round] = entry

    def _poll(self) -> None:
        """Warn of rounds that were not measured in full; raise if the recording is strict."""
        with self._warnings.unless_strict("the recorder failed"):
            for outcome in self._measurer.outcomes():
                index, _, error, excluded = outcome
                if self._sender is not None:
                    self._sender.send(outcome, self._rounds.entries.get(index))
                if error:
                    self._rounds.entries.pop(index, None)
                    self._set_missing_reason(index, error)
                if self.strict and (error or excluded):
                    reason = error or next(iter(excluded.values()))
                    raise BadInput(f"round {index} could not be measured: {reason}")
                if error:
                    self._warnings.warn(
                        clean_text(f"round {index} is not recorded: {error}"), error
                    )
                self._warn_of_excluded(index, excluded)

    def _log_entry(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        if not entry.failed:
            self._rounds.entries[entry.round] = entry

    def _mark_recorded(self, index: object) -> None:
        """Delete the reason why a round is not recorded."""
        self._set_missing_reason(index, "")

    def _set_missing_reason(self, index: object, reason: str) -> None:
        """Store the reason why a round is not recorded; empty for a recorded round."""
        self._attendance.reasons[str(index)[:80]] = reason

    def _handle_failure(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self.strict:
            raise error
        reason = str(error) or type(error).__name__
        # Escape the text, which may contain names of clients and parameters.
        text = clean_text(f"round {index} is not recorded: {reason}")
        # Log first: the warning may be raised as an error. Never overwrite a recorded round.
        if entry is not None and index not in self._rounds.entries:
            self._log_failure(entry, text)
        if not self._rounds.entries and not any(self._attendance.reasons.values()):
            text += ". No round is recorded so far, and later rounds will fail in the same way"
        self._set_missing_reason(index, reason)
        self._warnings.warn(text, reason)

    def _log_failure(self, entry: RoundEntry, note: str) -> None:
        # If a full disk caused the failure, the log cannot be written either.
        with suppress(Exception):
            self._log_entry(entry.logged(note=note[:2000]))


def _with_check_results(
    entry: RoundEntry, data: RoundData, checked_round: CheckedRound
) -> RoundEntry:
    """Return the entry with excluded uploads, digests and weights."""
    excluded = {**entry.excluded, **checked_round.excluded}
    rejected = {*entry.rejected}
    if checked_round.after_is_finite:
        # A finite next model was aggregated without the uploads that are not finite.
        rejected |= {client for client, reason in excluded.items() if NOT_FINITE in reason}
    return entry.model_copy(
        update={
            "excluded": {client: clean_text(reason)[:2000] for client, reason in excluded.items()},
            "rejected": tuple(sorted(rejected)),
            "sent": checked_round.sent,
            "uploads": checked_round.uploads,
            "models": checked_round.models,
            "weights": checked_round.weights if data.after is None else {},
        }
    )
