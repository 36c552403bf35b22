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
    Called,
    number_of,
    numbers_of,
    participants_of,
    plain_name,
    refuse_otherwise_called,
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
        place = device_named(device)
        if measure == "background":
            refuse_impossible(place)
        claimed = claim(folder, recording, samples)
        self.recording = claimed.model_copy(update={"is_closed": False})
        lock = locked(folder, log)
        waiting = waiting_entries(folder)
        clients = samples.owner[samples.owner >= 0].tolist()
        self._setup = recorded_run(
            self.recording, samples, net.architecture, clients=clients, rounds=(MAX_ROUND,)
        )
        self._other_run = ""
        before = mended_round_log(folder)
        # A failed round may be recorded again.
        self._past = {entry.round: entry for entry in before if not entry.failed}
        self._attendance = Attendance(
            {*clients, *self.recording.targets, *self.recording.sizes},
            [*before, *waiting.values()],
            self._called,
        )
        for index in waiting:
            self._count(index)
        self._waiting: tuple[Model, RoundEntry] | None = None
        self._measuring = Measuring(
            folder,
            self.recording,
            self._setup,
            net.shape,
            lock,
            when=measure,
            workers=workers,
            device=place,
            note=self._note,
            failed=self._failed_quietly,
            log=log,
        )
        # Settings that could not be read back are refused before anything is measured.
        recording_text(self.recording, folder)
        if not before and not waiting:
            untrained = self._measuring.untrained()
            # This replaces the files of an earlier run that stopped before its first round.
            write_untrained(folder, untrained, self.recording.key)
            write_audit(folder, samples, features=keep_samples)
        if self.recording != claimed or not (before or waiting):
            write_recording(self.recording, folder)
        self._past |= waiting
        self._earlier = {*self._past}
        if self._past:
            log(f"{self.recording.name}: continues after round {max(self._past)}")
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
            # The error that stops the loop takes precedence.
            if error is None:
                raise

    def round(
        self,
        index: int,
        *,
        sent: Sent,
        uploads: ByClient[Weights] | None = None,
        weights: ByClient[float] | None = None,
        asked: Collection[Called] | None = None,
        unnamed: int = 0,
        after: Weights | None = None,
        excluded: ByClient[str] | None = None,
        kept_out: Collection[Called] = (),
        note: str = "",
        reported: ByClient[Mapping[str, float]] | None = None,
    ) -> None:
        """Record one round; a repeated round is compared with the first.

        Use the same client numbers or names as in the audited samples. A client whose upload cannot
        be measured (non-finite values, another shape, another part of the model, an impossible
        weight) is treated as if it had not answered, and the log names it.

        Args:
            index: The round's number, from 1.
            sent: The global model that clients were sent, or one for each client.
            uploads: Each client's upload; none in a view without uploads.
            weights: Weights of clients in the average; by default their sizes, or equal weights.
            asked: Clients that were sent the model; by default those that answered.
            unnamed: Number of further clients that were sent the model, did not answer, and are
                not identified.
            after: The global model afterwards. By default the mean of the uploads that can be
                measured, or, in a view without uploads, the model of the next round.
            excluded: Clients with an unreadable upload, and why; the round is measured without
                them.
            kept_out: Clients whose upload the server kept out of the average. Their uploads are
                measured, but are not missing if they cannot be, as no later model depends on them.
                A non-finite upload counts as kept out if ``after`` is finite.
            note: What was wrong with uploads of unidentified clients.
            reported: Accuracy ("accuracy", as a share or in percent) and mean loss ("loss") on its
                training data, computed by a client with the model that it uploads. They are
                compared with the recorder's own figures on audited members.

        Raises:
            BadInput: An argument does not fit, and the recording is strict.
        """
        entry: RoundEntry | None = None
        try:
            self._count(index)
            self._keep_names(*(asked or ()), *(uploads or ()), *(excluded or ()))
            came = participants_of(
                uploads or {}, asked or (), excluded or {}, self.recording.targets
            )
            answered = {*came.uploads, *came.faulty}
            entry = round_entry(
                index, came.asked, answered, unnamed + came.unnamed, came.faulty, note or came.note
            )
            shares = self._by_number(weights or {})
            numbers = self._by_number(dict.fromkeys(kept_out, 0.0))
            entry = entry.model_copy(
                update={
                    "unknown": bool(entry.note),
                    "kept_out": tuple(sorted(answered & numbers.keys())),
                    "reported": self._reported(reported or {}, came.uploads),
                }
            )
            self._ingest(entry, RoundData(sent, came.uploads, shares, after, entry.kept_out))
        # Any error: an audit must not stop the training that it observes.
        except Exception as error:
            self._failed(index, entry, error)
        # Earlier rounds are reported only after this one is stored.
        self._poll()

    def missed(
        self,
        index: int,
        reason: str,
        *,
        asked: Collection[Called] = (),
        answered: Collection[Called] | None = None,
        unnamed: int = 0,
    ) -> None:
        """Log a round that cannot be recorded, with the reason.

        Args:
            index: The round's number, from 1.
            reason: Why it cannot be recorded.
            asked: Known clients that were sent the model.
            answered: Clients that answered; None if not all of them are known.
            unnamed: See :meth:`round`.

        Raises:
            BadInput: The recording is strict.
        """
        entry, failure = None, BadInput(reason)
        try:
            if self.has(index):
                return
            self._count(index)
            self._keep_names(*asked, *(answered or ()))
            came = participants_of(
                {}, asked, dict.fromkeys(answered or (), reason), self.recording.targets
            )
            entry = round_entry(index, came.asked, came.faulty, unnamed + came.unnamed)
            entry = entry.model_copy(update={"unknown": answered is None or bool(came.note)})
        except Exception as error:
            failure = BadInput(str(error))
        self._failed(index, entry, failure)

    def measured(self, index: int, *, sent: Sent, uploads: ByClient[Weights]) -> Measurement:
        """Measure a round of uploads without recording it; see :meth:`keep`.

        Raises:
            BadInput: The round's number is invalid, or an upload cannot be measured.
        """
        came = participants_of(uploads, (), {}, self.recording.targets)
        entry = round_entry(index, came.asked, came.uploads, came.unnamed, came.faulty, came.note)
        answers = RoundData(sent, came.uploads, {}, None)
        checked = round_of_uploads(entry, answers, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, answers, checked)
        if checked.round is None or entry.excluded or entry.note:
            self._refuse_all(entry.excluded or {self.recording.targets[0]: entry.note})
        (seen,) = seen_from([checked.round], self._setup.view)
        return self._measuring.measured(seen, entry)

    def keep(self, measurement: Measurement) -> None:
        """Record a round that :meth:`measured` returned; it was not recorded before."""
        self._measuring.write(measurement)
        self._past[measurement.entry.round] = measurement.entry
        self._count(measurement.entry.round)

    def repeated(self, index: int) -> None:
        """List a round as incomplete, since a further upload of it is measured elsewhere."""
        self._keep_conflict(index, "a further upload of it, which this recording lacks")

    def withheld(self, index: int, client: ClientId, reason: str) -> None:
        """Log that a client was sent the model of a round, and sent no upload, with the reason."""
        if not self.has(index):
            self._note(round_entry(index, [client], (), 0, note=reason))

    def begin_at(self, index: int, what: str) -> None:
        """Warn if a run begins with a round that is already recorded.

        Frameworks count the rounds of each run from the start, so that none would be recorded.

        Args:
            index: The run's first round.
            what: The kind of run, in words.

        Raises:
            BadInput: The round is recorded, and the recording is strict.
        """
        if not self.has(index):
            return
        text = f"round {index} was recorded before and is not replaced; give {what} another folder"
        if self._strict:
            raise BadInput(text)
        self._warn(text, text)

    def has(self, index: int) -> bool:
        """True if a round is recorded, in this run or in one that it continues."""
        return index in self._past

    @property
    def run(self) -> Setup:
        """The recording as a run, for figures."""
        return self._setup

    @property
    def uploads(self) -> Kind:
        """The kind of uploads that :meth:`round` is given."""
        return self._uploads

    @property
    def sees_uploads(self) -> bool:
        """True if the adversary sees what clients send, each or in sum."""
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
        if self._waiting is not None:
            self._failed_quietly(self._waiting[1], "no model followed")
            self._waiting = None
        if self._measuring.is_closed:
            return
        try:
            self._measuring.end(finish=finish)
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"what waits could not be measured: {error}"), str(error))
        finally:
            with self._never_raising():
                self._measuring.close()
        if finish:
            self._poll()
            with self._never_raising():
                self._restate(is_closed=True)
        if summary := self._attendance.summary():
            self._warn(plain(summary), summary)

    @contextmanager
    def _never_raising(self) -> Iterator[None]:
        """Turn errors into warnings, unless the recording is strict."""
        try:
            yield
        except Exception as error:
            if self._strict:
                raise
            self._warn(plain(f"the recorder failed: {error}"), str(error))

    def _keep_names(self, *clients: Called) -> None:
        names, new = self.recording.names, dict[ClientId, str]()
        for client in clients:
            name = plain_name(client) if isinstance(client, str) else ""
            if name and not name.isdecimal():
                with suppress(BadInput):
                    new[usable_number(name, self.recording.targets)] = name[:200]
        if len(names) < MOST_CLIENTS and not new.keys() <= names.keys():
            # Clients beyond the limit are shown as numbers, instead of losing rounds.
            with suppress(BadInput):
                self._restate(names=dict(islice((names | new).items(), MOST_CLIENTS)))

    def _restate(self, **changes: object) -> None:
        recording = self.recording.model_copy(update=changes)
        write_recording(recording, self._folder)
        self.recording = recording

    def _by_number(self, values: ByClient[float]) -> dict[ClientId, float]:
        """Return values by client number, without clients that have none."""
        numbered = dict[ClientId, float]()
        for client, value in values.items():
            with suppress(BadInput):
                numbered[usable_number(client, self.recording.targets)] = value
        return numbered

    def _called(self, client: ClientId) -> str:
        return self.recording.names.get(client, str(client))

    def _refuse_faulty(self, entry: RoundEntry, answers: RoundData) -> None:
        """Raise if uploads are missing and the recording is strict or measures their sum."""
        missing = {c: why for c, why in entry.excluded.items() if c not in entry.kept_out}
        of_sum = self.recording.view == "sum" or (
            self.recording.view != "uploads" and answers.after is None
        )
        if (missing or entry.note) and (self._strict or of_sum):
            client, why = next(iter(missing.items()), (None, entry.note))
            raise BadInput(why if client is None else f"of client {self._called(client)}: {why}")

    def _reported(
        self, reported: ByClient[Mapping[str, float]], answered: Collection[ClientId]
    ) -> dict[ClientId, dict[Metric, float]]:
        """Return usable metrics of audited clients; a client may report anything."""
        # A gradient is computed at the model sent, while metrics are those of a trained model.
        if self._uploads == "gradients":
            return {}
        audited = {*self.recording.targets} & {*answered}
        metrics = dict[ClientId, dict[Metric, float]]()
        for client, values in reported.items():
            # An unusable metric must not lose a round.
            with suppress(BadInput):
                metrics[number_of(client)] = metrics_in(values)
        return {client: metrics[client] for client in sorted(audited) if metrics.get(client)}

    def _ingest(self, entry: RoundEntry, answers: RoundData) -> None:
        if self._other_run:
            raise BadInput(self._other_run)
        if not answers.uploads and not self.sees_uploads:
            self._measure_previous(entry, cast("Weights", answers.sent), answers.after)
            return
        if not answers.uploads:
            if entry.excluded:
                self._refuse_all(entry.excluded)
            raise BadInput("no client's upload came back")
        if entry.round % self.recording.every:
            bases = bases_of(answers.sent, sorted(answers.uploads), self._shape)[0]
            entry = entry.model_copy(update={"sent": digest_of_models(bases), "note": ""})
            if not self._is_repeated(entry):
                self._meet(entry)
                self._note(entry.logged())
            return
        checked = round_of_uploads(entry, answers, self._shape, self._uploads, self.recording.sizes)
        entry = _with_findings(entry, answers, checked)
        if self._is_repeated(entry):
            return
        if checked.round is None:
            self._refuse_all(entry.excluded)
        self._refuse_faulty(entry, answers)
        self._meet(entry)
        self._measure(checked.round, entry)
        self._warn_of_faulty(entry.round, entry.excluded)
        if entry.note:
            # If every audited client has replied, the other upload is of a client without audit.
            all_audited = {*self.recording.targets} <= {*entry.answered}
            how = "is recorded without an upload" if all_audited else "is not recorded in full"
            self._warn(plain(f"round {entry.round} {how}: {entry.note}"), entry.note)

    def _is_repeated(self, entry: RoundEntry) -> bool:
        """Return True if a round was recorded before; raise if the folder holds another run."""
        before = self._past.get(entry.round)
        if self._waiting is not None and self._waiting[1].round == entry.round:
            before = self._waiting[1]
        if before is None:
            return False
        pairs = ((before.sent, entry.sent), (before.uploads, entry.uploads))
        if not any(then and now and then != now for then, now in pairs):
            self._earlier.discard(entry.round)
            return True
        what = "models sent" if before.sent != entry.sent else "uploads"
        text = f"round {entry.round} was recorded before with other {what}"
        if entry.round in self._earlier:
            self._keep_conflict(
                entry.round,
                f"that of another run, with other {what}; no more of that run is measured",
            )
            self._other_run = (
                f"{text}: the folder has another run, which is kept, and this run is not recorded "
                "from now on; give it another folder"
            )
            raise BadInput(self._other_run)
        self._keep_conflict(
            entry.round, f"its second version, with other {what}; the first is measured"
        )
        text += " in this run, and these are kept; give each round another number"
        if self._strict:
            raise BadInput(text)
        self._warn(text, text)
        return True

    def _keep_conflict(self, index: int, reason: str) -> None:
        conflicts = self.recording.conflicts
        if index not in conflicts and len(conflicts) < MOST_CONFLICTS:
            with suppress(BadInput):
                self._restate(conflicts={**conflicts, index: reason})

    def _meet(self, entry: RoundEntry) -> None:
        """Warn, or raise, if no client so far is audited."""
        fault = self._attendance.fault(entry)
        if fault and self._strict:
            raise BadInput(fault)
        if fault:
            self._warn(fault, "no client is audited")

    def _refuse_all(self, faulty: Mapping[ClientId, str]) -> NoReturn:
        client, reason = next(iter(sorted(faulty.items())))
        raise BadInput(
            f"no upload can be measured; that of client {self._called(client)}: {reason}"
        )

    def _warn_of_faulty(self, index: int, faulty: Mapping[ClientId, str]) -> None:
        for client, why in faulty.items():
            called = self._called(client)
            text = plain(f"round {index} is recorded without client {called}: {why}")
            self._warn(text, f"{called}: {why}")

    def _measure_previous(self, entry: RoundEntry, sent: Weights, after: Weights | None) -> None:
        """Measure the previous round, which ends with the model sent in this one."""
        now = finite_model(sent, self._shape, f"the model sent in round {entry.round}")
        entry = entry.model_copy(update={"sent": digest_of_models({ALL_CLIENTS: now})})
        if self._is_repeated(entry):
            return
        if self._waiting is not None and entry.round < self._waiting[1].round:
            raise BadInput(
                f"it comes after round {self._waiting[1].round}, and without uploads a round ends "
                "with the next model that is sent; record rounds in their order"
            )
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            before, previous = waiting
            self._between(before, now, previous)
        if after is None:
            self._waiting = (now, entry)
        else:
            self._between(now, finite_model(after, self._shape, "the model afterwards"), entry)

    def _between(self, base: Model, after: Model, entry: RoundEntry) -> None:
        if entry.round % self.recording.every:
            self._note(entry)
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
                "send the whole state dict to measure the clients' own",
                "estimated statistics",
            )
        self._measuring.take(seen, entry)
        self._past[entry.round] = entry

    def _poll(self) -> None:
        """Warn of rounds that were not measured in full; raise if the recording is strict."""
        with self._never_raising():
            for index, _, error, faulty in self._measuring.outcomes():
                if error:
                    self._past.pop(index, None)
                    self._count(index, error)
                if self._strict and (error or faulty):
                    why = error or next(iter(faulty.values()))
                    raise BadInput(f"round {index} could not be measured: {why}")
                if error:
                    self._warn(plain(f"round {index} is not recorded: {error}"), error)
                self._warn_of_faulty(index, faulty)

    def _note(self, entry: RoundEntry) -> None:
        append_round(entry, self._folder)
        if not entry.failed:
            self._past[entry.round] = entry

    def _count(self, index: object, reason: str = "") -> None:
        """Store a round's reason for not being recorded; empty if it is."""
        self._attendance.reasons[str(index)[:80]] = reason

    def _failed(self, index: int, entry: RoundEntry | None, error: Exception) -> None:
        if self._strict:
            raise error
        reason = str(error) or type(error).__name__
        # The text is untrusted, as clients and names of parameters may be part of it.
        text = plain(f"round {index} is not recorded: {reason}")
        # Noted before the warning, which a loop may turn into an error. A recorded round stays.
        if entry is not None and index not in self._past:
            self._failed_quietly(entry, text)
        if not self._past and not any(self._attendance.reasons.values()):
            text += ". No round is recorded so far, and later ones will fail in the same way"
        self._count(index, reason)
        self._warn(text, reason)

    def _warn(self, text: str, reason: str) -> None:
        # A reason that concerns all rounds is reported once.
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

    def _failed_quietly(self, entry: RoundEntry, note: str) -> None:
        # The disk may be full, which may also be the cause of the failure.
        with suppress(Exception):
            self._note(entry.logged(note=note[:2000]))


def _with_findings(entry: RoundEntry, answers: RoundData, checked: CheckedRound) -> RoundEntry:
    """Return the entry with faulty uploads, digests and weights."""
    excluded = {**entry.excluded, **checked.faulty}
    kept_out = {*entry.kept_out}
    if answers.after is not None and checked.after_is_finite:
        # The next model is finite, so it was aggregated without uploads that are not finite.
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
    targets: Sequence[Called] = (),
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
        every: Measure only every so many rounds.
        keep: "signals" keeps measurements only, "full" also every update of measured rounds.
        uploads: What :meth:`Recorder.round` receives: clients' "models" after training, "updates"
            (differences from the model they were sent), or "gradients" at it.
        sizes: Training samples of each client; for attacks with a prior.
        loss: Per-sample loss of (logits, class indices) for classification.
        task: The clients' task: a name ("next-token"), a task of ``fedaudit.tasks``, or a
            per-sample loss of (outputs, targets).
        not_uploaded: Names, or patterns such as "head.*", of parameters and buffers that stay at
            the clients. They are measured as they were sent, else as in ``model``. Missing values
            of other names are refused, except running statistics, which are estimated.
        keep_samples: Store the audited samples' features in the recording, which the control with
            a classifier of inputs alone needs.
        strict: Whether a round that cannot be recorded stops the loop. By default a warning is
            given, and the record lists the round as missing.
        measure: "now" measures a round before the loop continues. "background" leaves it to a
            background process, for which a few rounds may wait, so that the loop only copies
            models. "after" stores all rounds and measures them when the recording is closed. The
            figures are the same.
        workers: Threads for the gradient signals.
        device: Where models are run, such as "cuda".
        log: Takes lines on the cost of a measured round and on progress; standard error by default.

    Raises:
        BadInput: Invalid settings or samples, a network that cannot be audited, or a folder that
            holds something else or is in use by another process.
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
    _refuse_unlisted("kind of uploads", uploads, get_args(Kind))
    if measure not in get_args(When):
        raise BadInput(f"measure is {measure!r}; give 'now', 'background' or 'after'")
    if not isinstance(samples, AuditSet):
        hint = "; give its attribute audit" if hasattr(samples, "audit") else ""
        raise BadInput(f"samples must be audited samples, got {type_of(samples)}{hint}")
    chosen = task_of(task, loss)
    possible, refused = attacks_in(view_named(view), attacks, chosen)
    owners = sorted(set(samples.owner[samples.owner >= 0].tolist()))
    for called in (targets, sizes or {}):
        refuse_otherwise_called(called, owners)
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


def _refuse_unlisted(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise unknown_name(what, value, allowed)


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
