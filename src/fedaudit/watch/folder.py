"""State of an audit from its folder: a study, a live recording, a guard, or only a record."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from fedaudit.attacks import resolve_attack
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import (
    ATTACKED_FOLDER,
    RECORD_FILE,
    RECORDING_FILE,
    raise_if_absent,
    record_at,
)
from fedaudit.core.importing import code_named_in, is_custom
from fedaudit.core.values import Architecture, ClientId
from fedaudit.live.decisions import DECISIONS_FILE, Decision, read_decisions
from fedaudit.live.files import AUDIT_FILE, read_audit, waiting_rounds
from fedaudit.live.recording import LOG_FILE, Recording, RoundEntry, read_recording, read_round_log
from fedaudit.live.setup import setup_of_recording
from fedaudit.observe.measurements import StoredRound
from fedaudit.plan.parts import RecordingInfo
from fedaudit.report.first import FirstScreen, screen_of
from fedaudit.results.record import Record
from fedaudit.results.text import clean_text
from fedaudit.study.running.folder import STUDY_FILE
from fedaudit.watch.estimates import RunEstimates, Stamp, is_provisional
from fedaudit.watch.ladder import place_on_leak_ladder
from fedaudit.watch.pace import is_silent, seconds_per_round
from fedaudit.watch.reading import Reader, RoundFile, stamp_of
from fedaudit.watch.state import GuardedUpload, GuardState, Participation, RunState, WatchState
from fedaudit.watch.study import StudyFolder


def is_audit(folder: Path) -> bool:
    """Return True if a folder has a study, a live recording or a record."""
    return any((folder / name).is_file() for name in (RECORDING_FILE, STUDY_FILE, RECORD_FILE))


def state_of(folder: Path) -> WatchState:
    """Return the state of an audit, without changing anything in its folder.

    Custom code that the folder names is not imported.

    Raises:
        BadInput: The folder has no study, recording or record.
        Damaged: The file that describes the audit cannot be read.
    """
    return AuditFolder(folder).state()


class AuditFolder:
    """An audit's folder. Figures of measured rounds are kept between calls of :meth:`state`."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Recognise the folder.

        Raises:
            BadInput: The folder has no study, recording or record.
        """
        raise_if_absent(folder, "the folder of an audit that has started")
        self.folder, self._reader = folder, Reader(clock)
        self._result: tuple[Record, FirstScreen] | None = None
        self._kind: StudyFolder | RecordingFolder | None = None
        if (folder / RECORDING_FILE).is_file():
            self._kind = RecordingFolder(folder, self._reader)
        elif (folder / STUDY_FILE).is_file():
            self._kind = StudyFolder(folder, self._reader)
        elif not (folder / RECORD_FILE).is_file():
            raise BadInput(
                f"{folder} has no {STUDY_FILE}, {RECORDING_FILE} or {RECORD_FILE}; give the folder "
                "of a study, of a live recording or of a guard, after it has started"
            )

    def state(self) -> WatchState:
        """Return the current state; see :func:`state_of`.

        Raises:
            BadInput: The folder was removed.
            Damaged: The file that describes the audit cannot be read.
        """
        self._reader.problems.clear()
        # Threads of a server start without the context of the command line, which trusts nothing.
        with code_named_in(self.folder, trusted=False):
            state = self._state_of_record() if self._kind is None else self._kind.state()
            if state.is_final and (record := self.record()):
                if self._result is None or self._result[0] is not record:
                    self._result = (record, screen_of(record))
                state = state._replace(result=self._result[1])
        return state._replace(problems=tuple(self._reader.problems))

    def record(self) -> Record | None:
        """Return the record of the audit; None if it is missing or cannot be read."""
        try:
            path = record_at(self.folder)
        except FedauditError:
            return None
        return self._reader.record(path)

    def _state_of_record(self) -> WatchState:
        path = self.folder / RECORD_FILE
        stamp, record = stamp_of(path), self._reader.record(path)
        return WatchState(
            name=record.name if record else self.folder.name,
            kind="result",
            phase="finished",
            last_change=stamp.changed / 1e9 if stamp else 0.0,
            has_report=record is not None,
            is_final=record is not None,
        )


class RecordingFolder:
    """Folder of a recording, whose estimates are computed once for each measured round."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self._folder, self._reader = folder, reader
        self._key: tuple[object, ...] = ()
        self._estimates: RunEstimates | None = None

    def state(self) -> WatchState:
        """Return the current state of the recording.

        Raises:
            FedauditError: The recording's file cannot be read.
        """
        folder, reader = self._folder, self._reader
        is_guard = (folder / DECISIONS_FILE).exists()
        recording, log = read_recording(folder), list[RoundEntry]()
        with reader.naming_damage(folder / LOG_FILE):
            log = read_round_log(folder)
        files = reader.measured_files(folder)
        record = reader.record(folder / ATTACKED_FOLDER / RECORD_FILE)
        guard = None
        if is_guard:
            with reader.naming_damage(folder / DECISIONS_FILE):
                guard = _guard_state(read_decisions(folder))
        run = RunState("", max([entry.round for entry in log], default=0), None)
        if not is_guard and files:
            run = self._with_estimates(run, recording, files)
        pace = seconds_per_round(file.milestone for file in files)
        last_change = max((stamp.changed / 1e9 for stamp in self._stamps(files)), default=0.0)
        is_closed = recording.is_closed is True
        attacked = record.coverage.last_measured if record and record.coverage else 0
        is_final = is_closed and bool(files) and attacked >= files[-1].round
        sentence, expected = "", None
        if self._estimates is not None:
            sentence, expected = place_on_leak_ladder(self._estimates.study, run.estimates)
        return WatchState(
            name=recording.name,
            kind="guard" if is_guard else "recording",
            phase="finished" if is_closed else "recording" if log or files else "waiting",
            runs=(run,),
            current=0,
            seconds_per_round=pace,
            last_change=last_change,
            is_silent=not is_closed
            and is_silent(last_change, reader.clock(), pace, recording.every),
            clients=None if is_guard else _participation(recording, log),
            ladder=sentence,
            expected=expected,
            guard=guard,
            has_report=record is not None,
            is_final=is_final,
            notes=(
                *run.omitted,
                # A guard's log has a reason for each upload that was withheld.
                *([] if is_guard else _notes(folder, recording, log)),
                *_report_note(record, is_final),
            ),
        )

    def _stamps(self, files: Sequence[RoundFile]) -> list[Stamp]:
        names = (RECORDING_FILE, LOG_FILE, DECISIONS_FILE)
        stamps = [stamp_of(self._folder / name) for name in names]
        return [*(file.stamp for file in files), *(stamp for stamp in stamps if stamp)]

    def _with_estimates(
        self, run: RunState, recording: Recording, files: Sequence[RoundFile]
    ) -> RunState:
        audit_file = self._folder / AUDIT_FILE
        key = (stamp_of(audit_file), recording.key, recording.targets, recording.names)
        if key != self._key:
            self._estimates = None
            with self._reader.naming_damage(audit_file):
                self._estimates = _estimates_of(self._folder, recording)
                self._key = key
        estimates = self._estimates
        if estimates is None:
            return run

        def check(stored: StoredRound) -> str:
            if stored.notes.get("run") != recording.key:
                return "it belongs to another recording"
            return estimates.reason_invalid(stored.measured)

        self._reader.update(estimates, files, check)
        return run._replace(estimates=estimates.estimates(), omitted=estimates.omitted())


def _estimates_of(folder: Path, recording: Recording) -> RunEstimates:
    """Return the estimates of a recording, without custom attacks and attacks with references."""
    names = [
        name
        for name in recording.attacks
        if not is_custom(name) and is_provisional(resolve_attack(name))
    ]
    info = RecordingInfo(
        untrained=(),
        config={},
        limitations=(),
        names=recording.names,
        has_models=not recording.table,
        is_separate=recording.table == "separate",
    )
    architecture = Architecture(recording.model, _no_model, task=recording.measured_task())
    return RunEstimates(
        setup_of_recording(
            recording, read_audit(folder), architecture, attacks=names, recording_info=info
        )
    )


def _no_model() -> torch.nn.Module:
    raise RuntimeError("a watched recording has no model to run")


def _participation(recording: Recording, log: Sequence[RoundEntry]) -> Participation | None:
    """Return the clients in the last logged round; None before the first."""
    if not log:
        return None
    last = max(log, key=lambda entry: entry.round)
    absent_clients = sorted({*last.selected} - {*last.answered})
    missing = [_name(recording.names, client) for client in absent_clients]
    if last.unnamed:
        missing.append(f"{last.unnamed} unidentified")
    expected = len(last.selected) + last.unnamed
    return Participation(last.round, len(last.answered), expected, tuple(missing))


def _name(names: Mapping[ClientId, str], client: ClientId) -> str:
    return clean_text(names.get(client, f"client {client}"))


def _notes(folder: Path, recording: Recording, log: Sequence[RoundEntry]) -> list[str]:
    """Return sentences on rounds, uploads and clients that are not measured."""
    notes = []
    try:
        n_waiting = len(waiting_rounds(folder))
    except (FedauditError, OSError):
        n_waiting = 0
    if n_waiting:
        notes.append(f"Rounds that wait for measurement: {n_waiting}.")
    if failed := [entry for entry in log if entry.failed]:
        notes.append(
            f"Rounds that could not be measured: {len(failed)}. {clean_text(failed[-1].note)}"
        )
    for client in sorted({client for entry in log for client in entry.excluded})[:_MAX_LISTED]:
        faulty = [entry for entry in log if client in entry.excluded]
        notes.append(
            f"Uploads of {_name(recording.names, client)} that were not measured: {len(faulty)}. "
            f"{clean_text(faulty[-1].excluded[client])}"
        )
    for name, reason in [*recording.unaudited.items()][:_MAX_LISTED]:
        notes.append(f"Not audited: {clean_text(name)} ({clean_text(reason)}).")
    if recording.conflicts:
        notes.append(f"Rounds that were passed again with other data: {len(recording.conflicts)}.")
    return notes


_MAX_LISTED = 10


def _report_note(record: Record | None, is_final: bool) -> list[str]:
    if record is None or is_final:
        return []
    last = record.coverage.last_measured if record.coverage else 0
    return [f"The report is of an earlier attack on the rounds up to round {last}."]


def _guard_state(decisions: Sequence[Decision]) -> GuardState | None:
    if not decisions:
        return None
    last = decisions[-1]
    uploads = tuple(
        GuardedUpload(decision.round, decision.outcome, decision.worst) for decision in decisions
    )
    return GuardState(last.limit, last.decide_by, uploads, clean_text(str(last)))
