"""Recorder of a federated loop: what an adversary sees of it, round by round."""

import re
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NoReturn, cast, get_args

from torch import nn

from fedaudit.core.arguments import checked
from fedaudit.core.devices import device_named
from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.progress import on_stderr
from fedaudit.core.tasks import (
    CLASSIFICATION,
    TASKS,
    PerSampleLoss,
    Task,
    classification_by,
    cross_entropy,
    of_loss,
    task_named,
)
from fedaudit.core.values import ClientId, Model
from fedaudit.datasets.dataset import samples_of_task
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.evaluation.uploads import Metric, metrics_in
from fedaudit.live.background import refuse_impossible
from fedaudit.live.clients import (
    Attendance,
    ByClient,
    ClientRef,
    number_of,
    numbers_of,
    participants_of,
    plain_name,
    refuse_mixed_references,
    usable_number,
)
from fedaudit.live.files import claim, waiting_entries, write_audit, write_untrained
from fedaudit.live.measuring import Measurement, Measuring, When, locked
from fedaudit.live.network import Network, network_of
from fedaudit.live.recording import (
    MOST_CLIENTS,
    MOST_CONFLICTS,
    UPLOAD_VIEWS,
    Recording,
    RoundEntry,
    append_round,
    mended_round_log,
    recording_of,
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
from fedaudit.live.setup import attacks_in, recorded_run
from fedaudit.live.weights import NOT_FINITE, Weights, estimated_layers, named_few
from fedaudit.observe.round import ALL_CLIENTS, Round
from fedaudit.observe.tensors import MAX_ROUND, Keep
from fedaudit.observe.views import seen_from, view_named
from fedaudit.plan.parts import Setup
from fedaudit.results.text import log_line, plain

_LONGEST_NAME = 200


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
        self._strict, self._warned, self._log = strict, set[str](), log
        torch_device = device_named(device)
        if measure == "background":
            refuse_impossible(torch_device)
        claimed = claim(folder, recording, samples)
        self.recording = claimed.model_copy(update={"is_closed": False})
        lock = locked(folder, log)
        unmeasured = waiting_entries(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = recorded_run(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._other_run_error = ""
        logged = mended_round_log(folder)
        # Leave out failed rounds, which may be recorded again.
        self._recorded = {entry.round: entry for entry in logged if not entry.failed}
        self._attendance = Attendance(
            {*clients, *self.recording.targets, *self.recording.sizes},
            [*logged, *unmeasured.values()],
            self._display_name,
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
            note=self._log_entry,
            failed=self._log_failure,
            log=log,
        )
        # Refuse settings that could not be read back before anything is measured.
        recording_text(self.recording, folder)
        if not logged and not unmeasured:
            untrained = self._measuring.untrained()
            # This replaces the files of an earlier run that stopped before its first round.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
        if self.recording != claimed or not (logged or unmeasured):
            write_recording(self.recording, folder)
        self._recorded |= unmeasured
        self._from_previous_session = {*self._recorded}
        if self._recorded:
            log(f"{self.recording.name}: continues after round {max(self._recorded)}")
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
        """Record one round; a repeated round is compared with the first.

        Use the same client numbers or names as in the audited samples. A client whose upload cannot
        be measured (non-finite values, another shape, another part of the model, an impossible
        weight) is treated as if it had not answered, and the log names it.

        Args:
            index: The round's number, from 1.
            sent: The global model that clients were sent, or one model per client.
            uploads: Each client's upload; none in a view without uploads.
            weights: Weights of clients in the average; by default their sizes, or equal weights.
            asked: Clients that were sent the model; by default the clients that answered.
            unnamed: Number of further clients that were sent the model, did not answer, and are
                not identified.
            after: The global model after the round. By default the mean of the uploads that can be
                measured, or, in a view without uploads, the model of the next round.
            excluded: Clients with an unreadable upload, and the reason. The round is measured
                without them, and their uploads count as missing.
            kept_out: Clients whose upload the server rejected. A rejected upload is measured if
                possible. If not, it does not count as missing, since it was not aggregated. A
                non-finite upload counts as rejected if ``after`` is finite.
            note: Fault in uploads of unidentified clients.
            reported: Accuracy ("accuracy", as a share or in percent) and mean loss ("loss") on the
                training data, which a client computed with the model that it uploads. They are
                compared with the recorder's values on audited members.

        Raises:
            BadInput: An argument is invalid, and the recording is strict.
        """
        entry: RoundEntry | None = None
        try:
            self._set_reason(index)
            self._keep_names(*(asked or ()), *(uploads or ()), *(excluded or ()))
            participants = participants_of(
                uploads or {}, asked or (), excluded or {}, self.recording.targets
            )
            answered = {*participants.uploads, *participants.faulty}
            entry = round_entry(
                index,
                participants.asked,
                answered,
                unnamed + participants.unnamed,
                participants.faulty,
                note or participants.note,
            )
            shares = self._by_number(weights or {})
            numbers = self._by_number(dict.fromkeys(kept_out, 0.0))
            entry = entry.model_copy(
                update={
                    "unknown": bool(entry.note),
                    "kept_out": tuple(sorted(answered & numbers.keys())),
                    "reported": self._usable_metrics(reported or {}, participants.uploads),
                }
            )
            self._ingest(
                entry, RoundData(sent, participants.uploads, shares, after, entry.kept_out)
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
            self._keep_names(*asked, *(answered or ()))
            participants = participants_of(
                {}, asked, dict.fromkeys(answered or (), reason), self.recording.targets
            )
            entry = round_entry(
                index, participants.asked, participants.faulty, unnamed + participants.unnamed
            )
            entry = entry.model_copy(
                update={"unknown": answered is None or bool(participants.note)}
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
        """Measure a round of uploads without recording it; see :meth:`keep`.

        Raises:
            BadInput: The round's number is invalid, or an upload cannot be measured.
        """
        participants = participants_of(uploads, (), {}, self.recording.targets)
        entry = round_entry(
            index,
            participants.asked,
            participants.uploads,
            participants.unnamed,
            participants.faulty,
            participants.note,
        )
        answers = RoundData(sent, participants.uploads, {}, None)
        checked = round_of_uploads(entry, answers, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, answers, checked)
        if checked.round is None or entry.excluded or entry.note:
            self._raise_first_fault(entry.excluded or {self.recording.targets[0]: entry.note})
        (seen,) = seen_from([checked.round], self._setup.view)
        return self._measuring.measured(seen, entry)

    def keep(self, measurement: Measurement) -> None:
        """Record a round that :meth:`measured` returned and that is not recorded yet."""
        self._measuring.write(measurement)
        self._recorded[measurement.entry.round] = measurement.entry
        self._set_reason(measurement.entry.round)

    def repeated(self, index: int) -> None:
        """List a round as incomplete, since a further upload of it was measured elsewhere."""
        self._keep_conflict(index, "a further upload of it, which this recording lacks")

    def withheld(self, index: int, client: ClientId, reason: str) -> None:
        """Log that a client was sent the model of a round but sent no upload, with the reason."""
        if not self.has(index):
            self._log_entry(round_entry(index, [client], (), 0, note=reason))

    def begin_at(self, index: int, what: str) -> None:
        """Warn if a run begins with a round that is already recorded; raise if strict.

        Frameworks start each run at round 1, so every round would look already recorded.

        Args:
            index: The run's first round.
            what: The kind of run, for the message.
        """
        if not self.has(index):
            return
        text = f"round {index} was recorded before and is not replaced; give {what} another folder"
        if self._strict:
            raise BadInput(text)
        self._warn(text, text)

    def has(self, index: int) -> bool:
        """Return True if a round is recorded, in this run or in a run that it continues."""
        return index in self._recorded

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
        return self._strict

    def close(self) -> None:
        """Measure all waiting rounds and end the recording; it can be continued later."""
        self._close(finish=True)

    def _close(self, *, finish: bool) -> None:
        """End the recording; after an interrupted loop, waiting rounds stay unmeasured."""
        if self._awaiting_next_model is not None:
            self._log_failure(self._awaiting_next_model[1], "no model followed")
            self._awaiting_next_model = None
        if self._measuring.is_closed:
            return
        try:
            self._measuring.end(finish=finish)
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"queued rounds could not be measured: {error}"), str(error))
        finally:
            with self._warn_unless_strict():
                self._measuring.close()
        if finish:
            self._poll()
            with self._warn_unless_strict():
                self._update_recording(is_closed=True)
        if summary := self._attendance.summary():
            self._warn(plain(summary), summary)

    @contextmanager
    def _warn_unless_strict(self) -> Iterator[None]:
        """Turn errors into warnings, unless the recording is strict."""
        try:
            yield
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"the recorder failed: {error}"), str(error))

    def _keep_names(self, *clients: ClientRef) -> None:
        names, new = self.recording.names, dict[ClientId, str]()
        for client in clients:
            name = plain_name(client) if isinstance(client, str) else ""
            if name and not name.isdecimal():
                with suppress(BadInput):
                    new[usable_number(name, self.recording.targets)] = name[:200]
        if len(names) < MOST_CLIENTS and not new.keys() <= names.keys():
            # Beyond the limit, show clients as numbers instead of losing rounds.
            with suppress(BadInput):
                self._update_recording(names=dict(islice((names | new).items(), MOST_CLIENTS)))

    def _update_recording(self, **changes: object) -> None:
        recording = self.recording.model_copy(update=changes)
        write_recording(recording, self._folder)
        self.recording = recording

    def _by_number(self, values: ByClient[float]) -> dict[ClientId, float]:
        """Return values by client number, without clients whose number or name is invalid."""
        numbered = dict[ClientId, float]()
        for client, value in values.items():
            with suppress(BadInput):
                numbered[usable_number(client, self.recording.targets)] = value
        return numbered

    def _display_name(self, client: ClientId) -> str:
        return self.recording.names.get(client, str(client))

    def _refuse_missing_uploads(self, entry: RoundEntry, answers: RoundData) -> None:
        """Raise if uploads are missing and the recording is strict or measures their sum."""
        missing = {c: why for c, why in entry.excluded.items() if c not in entry.kept_out}
        of_sum = self.recording.view == "sum" or (
            self.recording.view != "uploads" and answers.after is None
        )
        if (missing or entry.note) and (self._strict or of_sum):
            client, why = next(iter(missing.items()), (None, entry.note))
            raise BadInput(
                why if client is None else f"upload of client {self._display_name(client)}: {why}"
            )

    def _usable_metrics(
        self, reported: ByClient[Mapping[str, float]], answered: Collection[ClientId]
    ) -> dict[ClientId, dict[Metric, float]]:
        """Return usable metrics of audited clients; a client may report anything."""
        # Metrics concern a trained model, but gradients are computed at the model that was sent.
        if self._uploads == "gradients":
            return {}
        audited = {*self.recording.targets} & {*answered}
        metrics = dict[ClientId, dict[Metric, float]]()
        for client, values in reported.items():
            # Ignore an unusable metric instead of losing the round.
            with suppress(BadInput):
                metrics[number_of(client)] = metrics_in(values)
        return {client: metrics[client] for client in sorted(audited) if metrics.get(client)}

    def _ingest(self, entry: RoundEntry, answers: RoundData) -> None:
        if self._other_run_error:
            raise BadInput(self._other_run_error)
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
            # If all audited clients have replied, the unidentified upload is from an unaudited one.
            all_replied = {*self.recording.targets} <= {*entry.answered}
            state = "is recorded without an upload" if all_replied else "is not recorded in full"
            self._warn(plain(f"round {entry.round} {state}: {entry.note}"), entry.note)

    def _is_repeated(self, entry: RoundEntry) -> bool:
        """Return True if a round was recorded before; raise if the folder has another run."""
        before = self._recorded.get(entry.round)
        if self._awaiting_next_model is not None:
            awaiting = self._awaiting_next_model[1]
            before = awaiting if awaiting.round == entry.round else before
        if before is None:
            return False
        pairs = ((before.sent, entry.sent), (before.uploads, entry.uploads))
        if not any(then and now and then != now for then, now in pairs):
            self._from_previous_session.discard(entry.round)
            return True
        what = "models sent" if before.sent != entry.sent else "uploads"
        text = f"round {entry.round} was recorded before with other {what}"
        if entry.round in self._from_previous_session:
            self._keep_conflict(
                entry.round,
                f"another run passed it with other {what}; no more of that run is measured",
            )
            self._other_run_error = (
                f"{text}: the folder has another run, which is kept, and this run is not recorded "
                "from now on; give it another folder"
            )
            raise BadInput(self._other_run_error)
        self._keep_conflict(
            entry.round, f"it was passed again with other {what}; the first version is measured"
        )
        text += " in this run; the first version is kept: use each round number once"
        if self._strict:
            raise BadInput(text)
        self._warn(text, text)
        return True

    def _keep_conflict(self, index: int, reason: str) -> None:
        conflicts = self.recording.conflicts
        if index not in conflicts and len(conflicts) < MOST_CONFLICTS:
            with suppress(BadInput):
                self._update_recording(conflicts={**conflicts, index: reason})

    def _warn_if_none_audited(self, entry: RoundEntry) -> None:
        """Warn if no client so far is audited; raise if the recording is strict."""
        fault = self._attendance.fault(entry)
        if fault and self._strict:
            raise BadInput(fault)
        if fault:
            self._warn(fault, "no client is audited")

    def _raise_first_fault(self, faulty: Mapping[ClientId, str]) -> NoReturn:
        client, reason = next(iter(sorted(faulty.items())))
        raise BadInput(
            "no upload can be measured; the upload of client "
            f"{self._display_name(client)}: {reason}"
        )

    def _warn_of_faulty(self, index: int, faulty: Mapping[ClientId, str]) -> None:
        for client, why in faulty.items():
            name = self._display_name(client)
            text = plain(f"round {index} is recorded without client {name}: {why}")
            self._warn(text, f"{name}: {why}")

    def _measure_previous(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """Measure the previous round, which ends with the model sent in this one."""
        now = finite_model(sent, self._shape, f"the model sent in round {entry.round}")
        entry = entry.model_copy(update={"sent": digest_of_models({ALL_CLIENTS: now})})
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
            self._measure_globals(before, now, previous)
        if after is None:
            self._awaiting_next_model = (now, entry)
        else:
            end = finite_model(after, self._shape, "the model afterwards")
            self._measure_globals(now, end, entry)

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
            self._warn(
                f"running statistics of {plain(named_few(layers))} are not in what clients send; "
                "they are estimated for each model on audited samples, as the report notes; "
                "send the whole state dict to measure the clients' statistics",
                "estimated statistics",
            )
        self._measuring.take(seen, entry)
        self._recorded[entry.round] = entry

    def _poll(self) -> None:
        """Warn of rounds that were not measured in full; raise if the recording is strict."""
        with self._warn_unless_strict():
            for index, _, error, faulty in self._measuring.outcomes():
                if error:
                    self._recorded.pop(index, None)
                    self._set_reason(index, error)
                if self._strict and (error or faulty):
                    why = error or next(iter(faulty.values()))
                    raise BadInput(f"round {index} could not be measured: {why}")
                if error:
                    self._warn(plain(f"round {index} is not recorded: {error}"), error)
                self._warn_of_faulty(index, faulty)

    def _log_entry(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        if not entry.failed:
            self._recorded[entry.round] = entry

    def _set_reason(self, index: object, reason: str = "") -> None:
        """Store the reason why a round is not recorded; empty for a recorded round."""
        self._attendance.reasons[str(index)[:80]] = reason

    def _handle_failure(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self._strict:
            raise error
        reason = str(error) or type(error).__name__
        # Escape the text, which may contain names of clients and parameters.
        text = plain(f"round {index} is not recorded: {reason}")
        # Log first: the warning may be raised as an error. Never overwrite a recorded round.
        if entry is not None and index not in self._recorded:
            self._log_failure(entry, text)
        if not self._recorded and not any(self._attendance.reasons.values()):
            text += ". No round is recorded so far, and later rounds will fail in the same way"
        self._set_reason(index, reason)
        self._warn(text, reason)

    def _warn(self, text: str, reason: str) -> None:
        # Report a reason once, even if it concerns all rounds.
        if reason in self._warned:
            return
        self._warned.add(reason)
        text = log_line(text)
        try:
            warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)
        # A loop that turns warnings into errors must not stop because of this one.
        except RuntimeWarning:
            with suppress(Exception):
                self._log(f"warning: {text}")

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


@checked
def record(
    path: Path | str,
    model: nn.Module | Callable[[], nn.Module],
    samples: AuditSet,
    *,
    name: str = "",
    attacks: Sequence[str] = (),
    targets: Sequence[ClientRef] = (),
    view: str = "uploads",
    every: int = 1,
    keep: Keep = "signals",
    uploads: Kind = "models",
    sizes: ByClient[int] | None = None,
    loss: PerSampleLoss = cross_entropy,
    task: str | Task | PerSampleLoss = CLASSIFICATION,
    not_uploaded: Collection[str] = (),
    keep_samples: bool = True,
    strict: bool = False,
    measure: When = "now",
    workers: int = 1,
    device: str = "cpu",
    log: Callable[[str], None] = on_stderr,
) -> Recorder:
    """Start or continue a recording of a federation that runs elsewhere.

    The network is first tried on a few samples; see :func:`fedaudit.core.modules.refuse_unfit`.

    Args:
        path: Folder for the recording; a recording that was stopped is continued.
        model: The module that clients train, or a function that builds one. It is copied.
        samples: The audit set, from :func:`fair_split` or :func:`audit_samples`.
        name: Name of the federation; by default the folder's.
        attacks: Attacks to measure for; by default those of the default set that view and recording
            allow.
        targets: Audited clients; by default all with audited members.
        view: The adversary's view; "globals" for a client that sees no uploads.
        every: Interval between measured rounds, in rounds; 1 measures every round.
        keep: "signals" keeps measurements only, "full" also every update of measured rounds.
        uploads: What :meth:`Recorder.round` receives: clients' "models" after training, "updates"
            (differences from the model they were sent), or "gradients" at the model they were sent.
        sizes: Number of training samples per client; SIA can use it as a prior.
        loss: Per-sample loss of (logits, class indices) for classification.
        task: The clients' task: a name ("next-token"), a task of ``fedaudit.tasks``, or a
            per-sample loss of (outputs, targets).
        not_uploaded: Names, or patterns such as "head.*", of parameters and buffers that clients do
            not upload. Their values are taken from the sent model, or from ``model`` if they are
            not sent. Any other missing parameter is an error; missing running statistics are
            estimated.
        keep_samples: Whether to store the audited samples' features in the recording, which the
            blind-classifier control needs.
        strict: Whether a round that cannot be recorded stops the loop. By default a warning is
            issued, and the record lists the round as missing.
        measure: "now" measures a round before the loop continues. "background" measures in a
            background process, for which a few rounds may wait; the loop only copies models.
            "after" stores all rounds and measures them when the recording is closed. Results are
            the same.
        workers: Threads for the gradient signals.
        device: Device on which models are run, such as "cuda".
        log: Function that takes lines on costs and progress; writes to standard error by default.

    Raises:
        BadInput: Settings or samples are invalid, the network cannot be audited, or the folder has
            other files or is in use by another process.
        NotVisible: An attack needs more than the view shows.
        Damaged: The recording to continue cannot be read.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> import torch
        >>> from fedaudit.live.audited import fair_split
        >>> data = {c: (torch.randn(60, 2), torch.arange(60) % 2) for c in (0, 1)}
        >>> split = fa.fair_split(data, audited=40)
        >>> net = nn.Linear(2, 2)
        >>> recorder = fa.record(
        ...     "runs/live", net, split.audit, attacks=["loss-series"], log=lambda line: None
        ... )
        >>> with recorder:
        ...     for number in (1, 2, 3):  # your loop
        ...         recorder.round(number, sent=net, uploads={0: net, 1: net})
    """
    folder = Path(path)
    if uploads not in get_args(Kind):
        raise unknown_name("kind of uploads", uploads, get_args(Kind))
    if measure not in get_args(When):
        raise BadInput(f"measure is {measure!r}; give 'now', 'background' or 'after'")
    if not isinstance(samples, AuditSet):
        hint = "; give its attribute audit" if hasattr(samples, "audit") else ""
        raise BadInput(f"samples must be audited samples, got {type_of(samples)}{hint}")
    chosen = task_of(task, loss)
    possible, refused = attacks_in(view_named(view), attacks, chosen)
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    for clients in (targets, sizes or {}):
        refuse_mixed_references(clients, owners)
    samples = replace(samples, samples=samples_of_task(samples.samples, chosen))
    net = network_of(model, samples, chosen, not_uploaded)
    recording = recording_of(
        name=name or named_after(folder),
        key=secrets.token_hex(16),
        view=view,
        every=every,
        keep=keep,
        attacks=tuple(possible),
        refused=refused,
        targets=tuple(numbers_of(targets).values()) or tuple(owners),
        classes=net.classes if chosen.classes else int(samples.samples.labels.max()) + 1,
        task={"name": chosen.name, "options": dict(chosen.settings)},
        sizes=dict(zip(numbers_of(sizes).values(), sizes.values(), strict=True)) if sizes else {},
        not_uploaded=tuple(not_uploaded),
        unaudited=dict(samples.unaudited),
        model=net.architecture.name,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Recorder(
        folder,
        recording,
        samples,
        net,
        uploads=uploads,
        keep_samples=keep_samples,
        strict=strict,
        measure=measure,
        workers=workers,
        device=device,
        log=log,
    )


def task_of(task_like: str | Task | PerSampleLoss, loss: PerSampleLoss) -> Task:
    """Return the task of :func:`record`'s arguments."""
    if not isinstance(task_like, str | Task) and not callable(task_like):
        raise BadInput(
            f"task is {type_of(task_like)}; give a name such as 'next-token', a task from "
            "fedaudit.tasks, or a loss of (outputs, targets)"
        )
    if isinstance(task_like, str):
        task = task_named(task_like, {})
    elif isinstance(task_like, Task):
        task = task_like
    elif cast("object", task_like) in list(TASKS.values()):
        task = cast("Callable[[], Task]", task_like)()
    else:
        task = of_loss(getattr(task_like, "__name__", type(task_like).__name__), task_like)
    if loss is cross_entropy:
        return task
    if task != CLASSIFICATION:
        raise BadInput(
            f"loss is for classification, and the task {task.name!r} has its own loss; omit one of "
            "them"
        )
    return classification_by(loss)


def named_after(folder: Path) -> str:
    """Return the name of a federation whose recording is in a folder."""
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", folder.absolute().name)
    return name.lstrip("._=,+-")[:_LONGEST_NAME] or "recording"
