"""State of an audit from its folder: a study, a live recording, a guard, or only a record."""

import time
from collections.abc import Callable
from pathlib import Path

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import RECORD_FILE, RECORDING_FILE, raise_if_absent, record_at
from fedaudit.core.importing import code_named_in
from fedaudit.report.first import FirstScreen, screen_of
from fedaudit.results.record import Record
from fedaudit.study.running.folder import STUDY_FILE
from fedaudit.watch.reading import Reader, stamp_of
from fedaudit.watch.recording import RecordingFolder
from fedaudit.watch.state import WatchState
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
