"""State of a recording in progress: its settings, its recorded rounds and its warnings."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId
from fedaudit.live.clients import ByClient, ClientRef, plain_name, valid_client_number
from fedaudit.live.recording import (
    MAX_CLIENTS,
    MAX_CONFLICTS,
    Recording,
    RoundEntry,
    write_recording,
)
from fedaudit.results.text import clean_text, log_line


class RecorderWarnings:
    """Warnings about rounds that cannot be recorded; a strict recorder raises errors instead.

    Attributes:
        strict: Whether a round that cannot be recorded stops the loop.
    """

    def __init__(self, *, strict: bool, log: Callable[[str], None]) -> None:
        self.strict, self._log = strict, log
        self._reasons = set[str]()

    def warn(self, text: str, reason: str) -> None:
        """Warn, unless an earlier warning had the same reason.

        For example, every round may fail for one reason.
        """
        if reason in self._reasons:
            return
        self._reasons.add(reason)
        text = log_line(text)
        try:
            warnings.warn(f"fedaudit: {text}", RuntimeWarning, stacklevel=4)
        # A loop that turns warnings into errors must not stop because of this one.
        except RuntimeWarning:
            with suppress(Exception):
                self._log(f"warning: {text}")

    def raise_or_warn(self, text: str, reason: str = "") -> None:
        """Raise an error if the recorder is strict, and warn otherwise."""
        if self.strict:
            raise BadInput(text)
        self.warn(text, reason or text)

    @contextmanager
    def unless_strict(self, operation: str) -> Iterator[None]:
        """Turn an error of the block into a warning that names ``operation``, unless strict."""
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            self.warn(clean_text(f"{operation}: {error}"), str(error))


class OpenRecording:
    """Settings of a recording in progress; every change is written to the recording's file."""

    def __init__(self, folder: Path, settings: Recording) -> None:
        self.folder, self.settings = folder, settings

    def update(self, **changes: object) -> None:
        """Change settings, if the changed file can be read back."""
        settings = self.settings.model_copy(update=changes)
        write_recording(settings, self.folder)
        self.settings = settings

    def keep_names(self, clients: Iterable[ClientRef]) -> None:
        """Store the names of clients that are identified by name."""
        names, new_names = self.settings.names, dict[ClientId, str]()
        for client in clients:
            name = plain_name(client) if isinstance(client, str) else ""
            if name and not name.isdecimal():
                with suppress(BadInput):
                    new_names[valid_client_number(name, self.settings.targets)] = name[:200]
        if len(names) < MAX_CLIENTS and not new_names.keys() <= names.keys():
            # Beyond the limit, show clients as numbers instead of losing rounds.
            with suppress(BadInput):
                self.update(names=dict(islice((names | new_names).items(), MAX_CLIENTS)))

    def keep_conflict(self, index: int, reason: str) -> None:
        """List a round as passed again with other data, with the first reason only."""
        conflicts = self.settings.conflicts
        if index not in conflicts and len(conflicts) < MAX_CONFLICTS:
            with suppress(BadInput):
                self.update(conflicts={**conflicts, index: reason})

    def by_valid_number(self, values: ByClient[float]) -> dict[ClientId, float]:
        """Return values by client number, without clients whose number or name is invalid."""
        numbered = dict[ClientId, float]()
        for client, value in values.items():
            with suppress(BadInput):
                numbered[valid_client_number(client, self.settings.targets)] = value
        return numbered

    def display_name(self, client: ClientId) -> str:
        """Return a client's name, or its number if it has no name."""
        return self.settings.names.get(client, str(client))


class RecordedRounds:
    """Log entries of the recorded rounds by number, with which repeated rounds are compared."""

    def __init__(
        self,
        earlier: Mapping[int, RoundEntry],
        recording: OpenRecording,
        warnings: RecorderWarnings,
    ) -> None:
        """Begin with the rounds that an earlier session recorded."""
        self.entries = dict(earlier)
        self._recording, self._warnings = recording, warnings
        self._from_earlier_session = {*earlier}
        self._other_run_error = ""

    def raise_if_other_run(self) -> None:
        """Raise if a round has shown that the folder has the recording of another run."""
        if self._other_run_error:
            raise BadInput(self._other_run_error)

    def is_repeated(self, entry: RoundEntry, earlier: RoundEntry | None = None) -> bool:
        """Return True if a round was passed before; raise if the folder has another run.

        Args:
            entry: The round.
            earlier: The earlier version of the round, by default the recorded version.
        """
        earlier = earlier or self.entries.get(entry.round)
        if earlier is None:
            return False
        # An empty digest is unknown, and agrees with any other.
        digests = ((earlier.sent, entry.sent), (earlier.uploads, entry.uploads))
        if not any(old and new and old != new for old, new in digests):
            self._from_earlier_session.discard(entry.round)
            return True
        repeated_part = "models sent" if earlier.sent != entry.sent else "uploads"
        text = f"round {entry.round} was recorded before with other {repeated_part}"
        if entry.round in self._from_earlier_session:
            self._recording.keep_conflict(
                entry.round,
                f"another run passed it with other {repeated_part}; no more of that run is "
                "measured",
            )
            self._other_run_error = (
                f"{text}: the folder has another run, which is kept, and this run is not recorded "
                "from now on; give it another folder"
            )
            raise BadInput(self._other_run_error)
        self._recording.keep_conflict(
            entry.round,
            f"it was passed again with other {repeated_part}; the first version is measured",
        )
        self._warnings.raise_or_warn(
            f"{text} in this run; the first version is kept: use each round number once"
        )
        return True
