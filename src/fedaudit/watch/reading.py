"""Reads files of an audit that another process may be writing at the same time."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import Damaged, FedauditError
from fedaudit.observe.measurements import StoredRound, read_round
from fedaudit.observe.tensors import round_paths
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.results.text import clean_text
from fedaudit.watch.estimates import RunEstimates, Stamp
from fedaudit.watch.pace import Milestone

_SETTLED_SECONDS = 3.0
"""A file that changed this recently may still be incomplete, for example while it is copied."""
_MAX_PROBLEM = 600


class RoundFile(NamedTuple):
    """File of a measured round."""

    round: int
    path: Path
    stamp: Stamp

    @property
    def milestone(self) -> Milestone:
        """The round, with the time at which it was measured."""
        return Milestone(self.round, self.stamp.changed / 1e9)


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it does not exist."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return Stamp(status.st_mtime_ns, status.st_size)


class Reader:
    """Reads files of one folder, and collects the problems of unreadable files.

    A file that cannot be read is named, unless it has just been written or has disappeared: it is
    then read again later.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.problems: list[str] = []
        self._damaged: dict[Path, tuple[Stamp, str]] = {}
        self._records: dict[Path, tuple[Stamp, Record]] = {}

    def report(self, text: str) -> None:
        """Add a problem, once."""
        text = clean_text(text)[:_MAX_PROBLEM]
        if text not in self.problems:
            self.problems.append(text)

    @contextmanager
    def naming_damage(self, path: Path) -> Iterator[None]:
        """Turn an error in the context into a problem, if a file is damaged and settled."""
        try:
            yield
        except (FedauditError, OSError) as error:
            if self._is_settled(path):
                self.report(str(error))

    def measured_files(self, folder: Path) -> list[RoundFile]:
        """Return the files of a run's measured rounds, ascending."""
        files: list[RoundFile] = []
        with self.naming_damage(folder):
            for index, path in round_paths(folder / "measured", ".safetensors"):
                if stamp := stamp_of(path):
                    files.append(RoundFile(index, path, stamp))
        return files

    def update(
        self,
        figures: RunEstimates,
        files: Sequence[RoundFile],
        check: Callable[[StoredRound], str],
    ) -> None:
        """Add new measured rounds to the figures of a run.

        Args:
            figures: Figures of the run.
            files: Files of its measured rounds, ascending.
            check: Function that returns why a round does not belong to the run; empty if it does.
        """
        good = [file for file in files if not self._is_known_damage(file)]
        unchanged = figures.n_unchanged([file.stamp for file in good])
        figures.keep(unchanged)
        for file in good[unchanged:]:
            try:
                stored = read_round(file.path, file.round)
                if fault := check(stored):
                    raise Damaged(f"{file.path} is damaged: {fault}; restore it from a copy")
            except (FedauditError, OSError) as error:
                if self._is_settled(file.path):
                    self._damaged[file.path] = (file.stamp, str(error))
                    self.report(str(error))
                continue
            figures.add(stored.measured, file.stamp)

    def record(self, path: Path) -> Record | None:
        """Return the record at a path; None if it is missing or cannot be read."""
        stamp = stamp_of(path)
        if stamp is None:
            return None
        cached = self._records.get(path)
        if cached and cached[0] == stamp:
            return cached[1]
        with self.naming_damage(path):
            record = read_record(path)
            self._records[path] = (stamp, record)
            return record
        return None

    def _is_known_damage(self, file: RoundFile) -> bool:
        cached = self._damaged.get(file.path)
        if cached is None or cached[0] != file.stamp:
            return False
        self.report(cached[1])
        return True

    def _is_settled(self, path: Path) -> bool:
        stamp = stamp_of(path)
        return stamp is not None and self.clock() - stamp.changed / 1e9 > _SETTLED_SECONDS
