"""Recorder of a federation: measures what an adversary sees of each round."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, cast

from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId, Model
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.uploads import Metric, metrics_in
from fedaudit.live.background import refuse_impossible
from fedaudit.live.clients import Attendance, ByClient, ClientRef, number_of, participants_of
from fedaudit.live.faults import RecorderWarnings
from fedaudit.live.files import claim, waiting_entries, write_audit, write_untrained
from fedaudit.live.measuring import Measurement, Measuring, When, locked
from fedaudit.live.network import Network
from fedaudit.live.open_recording import OpenRecording, RecordedRounds
from fedaudit.live.recording import (
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    append_round,
    mended_round_log,
    recording_text,
    round_entry,
    write_recording,
)
from fedaudit.live.rounds import (
    CheckedRound,
    Kind,
    RoundData,
    Sent,
    bases_of,
    digest_of_models,
    finite_model,
    round_of_globals,
    round_of_uploads,
)
from fedaudit.live.setup import recorded_run
from fedaudit.live.weights import NOT_FINITE, Weights, estimated_layers, list_some
from fedaudit.observe.round import ALL_CLIENTS, Round
from fedaudit.observe.tensors import MAX_ROUND
from fedaudit.observe.views import seen_from
from fedaudit.plan.parts import Setup
from fedaudit.results.text import plain


class Recorder:
    """Recorder of a live recording; see :func:`fedaudit.record`."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        samples: AuditSet,
        net: Network,
        *,
        uploads: Kind,
        keep_samples: bool,
        strict: bool,
        measure: When,
        workers: int,
        device: str,
        log: Callable[[str], None],
    ) -> None:
        self._folder, self._shape, self._uploads = folder, net.shape, uploads
        self._warnings = RecorderWarnings(strict=strict, log=log)
        torch_device = device_named(device)
        if measure == "background":
            refuse_impossible(torch_device)
        claimed = claim(folder, recording, samples)
        self._open = OpenRecording(folder, claimed.model_copy(update={"is_closed": False}))
        lock = locked(folder, log)
        unmeasured = waiting_entries(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = recorded_run(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        logged = mended_round_log(folder)
        # Leave out failed rounds, which may be recorded again.
        earlier = {entry.round: entry for entry in logged if not entry.failed} | unmeasured
        self._rounds = RecordedRounds(earlier, self._open, self._warnings)
        self._attendance = Attendance(
            {*clients, *self.recording.targets, *self.recording.sizes},
            [*logged, *unmeasured.values()],
            self._open.display_name,
        )
        for index in unmeasured:
            self._set_reason(index)
        self._awaiting_next_model: tuple[Model, RoundEntry] | None = None
        self._measuring = Measuring(
            folder,
            self.recording,
            self._setup,
            net.shape,
            lock,
            when=measure,
            workers=workers,
            device=torch_device,
            log_entry=self._log_entry,
            log_failure=self._log_failure,
            log=log,
        )
        # Refuse settings that could not be read back before anything is measured.
        recording_text(self.recording, folder)
        if not logged and not unmeasured:
            untrained = self._measuring.untrained()
            # This replaces the files of an earlier session that stopped before its first round.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
        if self.recording != claimed or not (logged or unmeasured):
            write_recording(self.recording, folder)
        if earlier:
            log(f"{self.recording.name}: continues after round {max(earlier)}")
        self._measuring.begin()
        if measure == "now":
            self._poll()

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
        asked: Collection[ClientRef] | None = None,
        unnamed: int = 0,
        after: Weights | None = None,
        excluded: ByClient[str] | None = None,
        kept_out: Collection[ClientRef] = (),
        note: str = "",
        reported: ByClient[Mapping[str, float]] | None = None,
    ) -> None:
        """Record one round.

        If a round is passed again, it is compared with the first version, which is kept.

        Use the same client numbers or names as in the audited samples. A client whose upload cannot
        be measured (non-finite values, another shape, another part of the model, an impossible
        weight) is treated as if it had not answered, and the log names it.

        Args:
            index: The round's number, from 1.
            sent: The global model that clients were sent, or one model per client.
            uploads: Each client's upload; empty in a view without uploads.
            weights: Weights of clients in the average; by default their sizes, or equal weights.
            asked: Clients that were sent the model; by default the clients that answered.
            unnamed: Number of unidentified clients that were sent the model and did not answer.
            after: The global model after the round. By default the mean of the uploads that can be
                measured. In a view without uploads, by default the model that is sent in the next
                round.
            excluded: Clients with an unreadable upload, and the reason. The round is measured
                without them, and their uploads count as missing.
            kept_out: Clients whose upload the server rejected. A rejected upload is measured if
                possible. If not, it does not count as missing, since it was not aggregated. A
                non-finite upload counts as rejected if ``after`` is finite.
            note: Fault in uploads of clients that are not identified.
            reported: Accuracy ("accuracy", as a fraction or in percent) and mean loss ("loss") that
                a client computed on its training data with the uploaded model. They are compared
                with the recorder's values on audited members.

        Raises:
            BadInput: An argument is invalid, and the recording is strict.
        """
        entry: RoundEntry | None = None
        try:
            self._set_reason(index)
            self._open.keep_names([*(asked or ()), *(uploads or ()), *(excluded or ())])
            participants = participants_of(
                uploads or {}, asked or (), excluded or {}, self.recording.targets
            )
            entry = participants.entry(index, unnamed=unnamed, note=note)
            known_weights = self._open.by_usable_number(weights or {})
            rejected = self._open.by_usable_number(dict.fromkeys(kept_out, 0.0))
            entry = entry.model_copy(
                update={
                    "unknown": bool(entry.note),
                    "kept_out": tuple(sorted({*entry.answered} & rejected.keys())),
                    "reported": self._usable_metrics(reported or {}, participants.uploads),
                }
            )
            received = participants.uploads
            self._check_and_measure(
                entry, RoundData(sent, received, known_weights, after, entry.kept_out)
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
        asked: Collection[ClientRef] = (),
        answered: Collection[ClientRef] | None = None,
        unnamed: int = 0,
    ) -> None:
        """Log a round that cannot be recorded, with the reason.

        Args:
            index: The round's number, from 1.
            reason: Reason why the round cannot be recorded.
            asked: Known clients that were sent the model.
            answered: Clients that answered; None if some are unknown.
            unnamed: See :meth:`round`.

        Raises:
            BadInput: The recording is strict.
        """
        entry, failure = None, BadInput(reason)
        try:
            if self.has(index):
                return
            self._set_reason(index)
            self._open.keep_names([*asked, *(answered or ())])
            participants = participants_of(
                {}, asked, dict.fromkeys(answered or (), reason), self.recording.targets
            )
            is_unknown = answered is None or bool(participants.note)
            # The reason concerns the round, so no single upload is listed as faulty.
            entry = participants.entry(index, unnamed=unnamed).model_copy(
                update={"excluded": {}, "note": "", "unknown": is_unknown}
            )
        except Exception as error:
            failure = BadInput(str(error))
        self._handle_failure(index, entry, failure)

    def prepare(self, sent: Weights) -> None:
        """Start to measure a model that clients are sent, before they upload; see :meth:`measured`.

        Raises:
            BadInput: The model does not fit, or has values that are not finite.
        """
        self._measuring.prepare(finite_model(sent, self._shape, "the model sent"))

    def measured(self, index: int, *, sent: Sent, uploads: ByClient[Weights]) -> Measurement:
        """Measure a round without recording it, which :meth:`keep` does later.

        Raises:
            BadInput: The round's number is invalid, or an upload cannot be measured.
        """
        participants = participants_of(uploads, (), {}, self.recording.targets)
        entry = participants.entry(index)
        answers = RoundData(sent, participants.uploads, {}, None)
        checked = round_of_uploads(entry, answers, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, answers, checked)
        if checked.round is None or entry.excluded or entry.note:
            self._raise_first_fault(entry.excluded or {self.recording.targets[0]: entry.note})
        (seen,) = seen_from([checked.round], self._setup.view)
        return self._measuring.measured(seen, entry)

    def keep(self, measurement: Measurement) -> None:
        """Record a round that :meth:`measured` returned."""
        self._measuring.write(measurement)
        self._rounds.entries[measurement.entry.round] = measurement.entry
        self._set_reason(measurement.entry.round)

    def repeated(self, index: int) -> None:
        """List a round as incomplete, because another upload of it was measured elsewhere."""
        self._open.keep_conflict(index, "this recording lacks another upload of the round")

    def name_client(self, client: str) -> None:
        """Store the name of a client whose uploads are identified by number."""
        self._open.keep_names([client])

    def withheld(self, index: int, client: ClientId, reason: str) -> None:
        """Log that a client sent no upload in a round, with the reason."""
        if not self.has(index):
            self._log_entry(round_entry(index, [client], (), 0, note=reason))

    def begin_at(self, index: int, what: str) -> None:
        """Warn if a run begins with a round that is already recorded; raise if strict.

        Frameworks start each run at round 1, so every round would look already recorded.

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
    def recording(self) -> Recording:
        """The settings of the recording."""
        return self._open.settings

    @property
    def run(self) -> Setup:
        """The recording as a run, for estimates and controls."""
        return self._setup

    @property
    def uploads(self) -> Kind:
        """The kind of uploads that :meth:`round` receives."""
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
        if self._measuring.is_closed:
            return
        try:
            with self._warnings.unless_strict("queued rounds could not be measured"):
                self._measuring.end(finish=finish)
        finally:
            with self._warnings.unless_strict("the recorder failed"):
                self._measuring.close()
        if finish:
            self._poll()
            with self._warnings.unless_strict("the recorder failed"):
                self._open.update(is_closed=True)
        if summary := self._attendance.summary():
            self._warnings.warn(plain(summary), summary)

    def _refuse_missing_uploads(self, entry: RoundEntry, answers: RoundData) -> None:
        """Raise if uploads are missing and the recording is strict or measures their sum."""
        missing = {c: why for c, why in entry.excluded.items() if c not in entry.kept_out}
        measures_sum = self.recording.view == "sum" or (
            self.recording.view != "uploads" and answers.after is None
        )
        if (missing or entry.note) and (self.strict or measures_sum):
            for client, why in missing.items():
                raise BadInput(f"upload of client {self._open.display_name(client)}: {why}")
            raise BadInput(entry.note)

    def _usable_metrics(
        self, reported: ByClient[Mapping[str, float]], answered: Collection[ClientId]
    ) -> dict[ClientId, dict[Metric, float]]:
        """Return the valid metrics of audited clients; a client may report anything."""
        # Metrics describe a trained model, but gradients belong to the model that was sent.
        if self._uploads == "gradients":
            return {}
        audited = {*self.recording.targets} & {*answered}
        metrics = dict[ClientId, dict[Metric, float]]()
        for client, values in reported.items():
            # Ignore an invalid metric instead of losing the round.
            with suppress(BadInput):
                metrics[number_of(client)] = metrics_in(values)
        return {client: metrics[client] for client in sorted(audited) if metrics.get(client)}

    def _check_and_measure(self, entry: RoundEntry, answers: RoundData) -> None:
        self._rounds.refuse_other_run()
        if not answers.uploads and not self.sees_uploads:
            self._measure_previous(entry, cast("Weights", answers.sent), answers.after)
            return
        if not answers.uploads:
            if entry.excluded:
                self._raise_first_fault(entry.excluded)
            raise BadInput("no client's upload came back")
        if entry.round % self.recording.every:
            bases = bases_of(answers.sent, sorted(answers.uploads), self._shape)[0]
            entry = entry.model_copy(update={"sent": digest_of_models(bases), "note": ""})
            if not self._is_repeated(entry):
                self._warn_if_none_audited(entry)
                self._log_entry(entry.logged())
            return
        checked = round_of_uploads(entry, answers, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, answers, checked)
        if self._is_repeated(entry):
            return
        if checked.round is None:
            self._raise_first_fault(entry.excluded)
        self._refuse_missing_uploads(entry, answers)
        self._warn_if_none_audited(entry)
        self._measure(checked.round, entry)
        self._warn_of_faulty(entry.round, entry.excluded)
        if entry.note:
            # If all audited clients replied, the unidentified upload is from an unaudited client.
            all_replied = {*self.recording.targets} <= {*entry.answered}
            state = "is recorded without an upload" if all_replied else "is not recorded in full"
            self._warnings.warn(plain(f"round {entry.round} {state}: {entry.note}"), entry.note)

    def _is_repeated(self, entry: RoundEntry) -> bool:
        """Return True if a round was passed before; raise if the folder has another run."""
        awaiting = self._awaiting_next_model[1] if self._awaiting_next_model is not None else None
        is_awaiting = awaiting is not None and awaiting.round == entry.round
        return self._rounds.is_repeated(entry, awaiting if is_awaiting else None)

    def _warn_if_none_audited(self, entry: RoundEntry) -> None:
        """Warn if no client of the rounds so far is audited; raise if the recording is strict."""
        if fault := self._attendance.fault(entry):
            self._warnings.raise_or_warn(fault, "no client is audited")

    def _raise_first_fault(self, faulty: Mapping[ClientId, str]) -> NoReturn:
        client, reason = next(iter(sorted(faulty.items())))
        raise BadInput(
            "no upload can be measured; the upload of client "
            f"{self._open.display_name(client)}: {reason}"
        )

    def _warn_of_faulty(self, index: int, faulty: Mapping[ClientId, str]) -> None:
        for client, why in faulty.items():
            name = self._open.display_name(client)
            text = plain(f"round {index} is recorded without client {name}: {why}")
            self._warnings.warn(text, f"{name}: {why}")

    def _measure_previous(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """Measure the previous round, which ends with the model sent in this one."""
        model = finite_model(sent, self._shape, f"the model sent in round {entry.round}")
        entry = entry.model_copy(update={"sent": digest_of_models({ALL_CLIENTS: model})})
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
            model_after = finite_model(after, self._shape, "the model afterwards")
            self._measure_globals(model, model_after, entry)

    def _measure_globals(self, base: Model, after: Model, entry: RoundEntry) -> None:
        if entry.round % self.recording.every:
            self._log_entry(entry)
        else:
            client = self.recording.targets[0]
            self._measure(round_of_globals(entry, base, after, client, self._shape), entry)

    def _measure(self, round: Round, entry: RoundEntry) -> None:
        (seen,) = seen_from([round], self._setup.view)
        layers = estimated_layers(seen, self._shape.unsent)
        if layers:
            self._warnings.warn(
                f"clients do not send the running statistics of {plain(list_some(layers))}; they "
                "are estimated for each model on audited samples, as the report notes; send the "
                "whole state dict to measure the clients' statistics",
                "estimated statistics",
            )
        self._measuring.take(seen, entry)
        self._rounds.entries[entry.round] = entry

    def _poll(self) -> None:
        """Warn of rounds that were not measured in full; raise if the recording is strict."""
        with self._warnings.unless_strict("the recorder failed"):
            for index, _, error, faulty in self._measuring.outcomes():
                if error:
                    self._rounds.entries.pop(index, None)
                    self._set_reason(index, error)
                if self.strict and (error or faulty):
                    why = error or next(iter(faulty.values()))
                    raise BadInput(f"round {index} could not be measured: {why}")
                if error:
                    self._warnings.warn(plain(f"round {index} is not recorded: {error}"), error)
                self._warn_of_faulty(index, faulty)

    def _log_entry(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        if not entry.failed:
            self._rounds.entries[entry.round] = entry

    def _set_reason(self, index: object, reason: str = "") -> None:
        """Store the reason why a round is not recorded; empty for a recorded round."""
        self._attendance.reasons[str(index)[:80]] = reason

    def _handle_failure(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self.strict:
            raise error
        reason = str(error) or type(error).__name__
        # Escape the text, which may contain names of clients and parameters.
        text = plain(f"round {index} is not recorded: {reason}")
        # Log first: the warning may be raised as an error. Never overwrite a recorded round.
        if entry is not None and index not in self._rounds.entries:
            self._log_failure(entry, text)
        if not self._rounds.entries and not any(self._attendance.reasons.values()):
            text += ". No round is recorded so far, and later rounds will fail in the same way"
        self._set_reason(index, reason)
        self._warnings.warn(text, reason)

    def _log_failure(self, entry: RoundEntry, note: str) -> None:
        # A full disk may be the cause of the failure, and would make logging fail too.
        with suppress(Exception):
            self._log_entry(entry.logged(note=note[:2000]))


def _with_findings(entry: RoundEntry, answers: RoundData, checked: CheckedRound) -> RoundEntry:
    """Return the entry with faulty uploads, digests and weights."""
    excluded = {**entry.excluded, **checked.faulty}
    kept_out = {*entry.kept_out}
    if answers.after is not None and checked.after_is_finite:
        # A finite next model was aggregated without the uploads that are not finite.
        kept_out |= {client for client, why in excluded.items() if NOT_FINITE in why}
    return entry.model_copy(
        update={
            "excluded": {client: plain(why)[:2000] for client, why in excluded.items()},
            "kept_out": tuple(sorted(kept_out)),
            "sent": checked.sent,
            "uploads": checked.uploads,
            "weights": checked.weights if answers.after is None else {},
        }
    )
