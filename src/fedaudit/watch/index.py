"""Results in a folder and its subfolders, with their verdicts, main estimates and trends."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import (
    ATTACKED_FOLDER,
    RECORD_FILE,
    RECORDING_FILE,
    open_regular,
    raise_if_absent,
    read_object,
    record_at,
)
from fedaudit.core.metric_names import AUC
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.formatting.grid import Tile, shorten
from fedaudit.formatting.wording import format_count, format_interval, format_number
from fedaudit.live.decisions import DECISIONS_FILE, reason_nothing_was_sent
from fedaudit.observe.tensors import round_paths
from fedaudit.report.deciding.membership import highest_auc
from fedaudit.report.evidence import main_estimates
from fedaudit.report.figures.charts import Axis, Curve, style
from fedaudit.report.first import screen_of
from fedaudit.report.sources import kind_of
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.results.text import clean_text
from fedaudit.study.running.folder import STUDY_FILE
from fedaudit.study.running.pool import RUN_FILE
from fedaudit.watch.estimates import Stamp
from fedaudit.watch.reading import stamp_of

_MAX_RESULTS = 2_000
_MAX_FOLDERS = 50_000
_MAX_DEPTH = 12
_SKIPPED = (
    "measured",
    "rounds",
    "waiting",
    "untrained-1",
    "untrained-2",
    "shadow",
    ATTACKED_FOLDER,
)
"""Subfolders of an audit's folder that are not searched, since they contain no other audit."""
_MAX_REASON = 300


class AuditEntry(NamedTuple):
    """An audit found by the index, with or without a record.

    Attributes:
        folder: Folder of the audit.
        path: Path of its record relative to the folder of the index; without a record, path of
            the audit's folder.
        name: Name of the study or recording.
        kind: Kind of the audit.
        status: The verdict in a few words; without a readable record: "attacks not run", "not
            finished" or "cannot be read".
        css_class: Class of the page's style sheet that colours the verdict; empty without a record.
        date: Date of the audit, as YYYY-MM-DD; empty if unknown.
        main_tile: Tile of the report with its main value; None without a record.
        auc: The largest AUC and its limits, for the trend; None without attacks on membership.
        reason: Why there is no verdict; empty if there is one.
        is_finished: True if the audit has a record that can be read.
        is_comparable: True if it can be compared with other results; security games cannot.
    """

    folder: Path
    path: str
    name: str
    kind: str
    status: str
    css_class: str = ""
    date: str = ""
    main_tile: Tile | None = None
    auc: tuple[float, float | None, float | None] | None = None
    reason: str = ""
    is_finished: bool = False
    is_comparable: bool = False

    @property
    def shown_path(self) -> str:
        """The path for a page; names of folders may have bytes that are no text."""
        return clean_text(self.path)

    @property
    def auc_text(self) -> str:
        """The AUC with its limits; empty if no AUC was estimated."""
        if self.auc is None:
            return ""
        value, low, high = self.auc
        limits = format_interval(low, high, AUC)
        return f"{format_number(value)} ({limits})" if limits else format_number(value)


class Trend(NamedTuple):
    """AUCs of all results of one study over time, as a small chart.

    Attributes:
        path: Line through all results, as an SVG path in a box of 1,000 by 1,000.
        text: Dates and AUCs.
        mark: Position of this row's result, as fractions from the upper left.
    """

    path: str
    text: str
    mark: tuple[float, float]


class ResultRow(NamedTuple):
    """An audit with the trend of its study; None if the study has only one result."""

    result: AuditEntry
    trend: Trend | None


class Index:
    """Audits in a folder and its subfolders. A record is read again only if its file changes."""

    def __init__(self, root: Path) -> None:
        """Check the folder.

        Raises:
            BadInput: The folder does not exist.
        """
        raise_if_absent(root, "a folder that contains results")
        if not root.is_dir():
            raise BadInput(f"{root} is not a folder; give a folder that contains results")
        self.root = root
        self._cached_results: dict[Path, tuple[Stamp, AuditEntry]] = {}
        self.notes: list[str] = []
        """Sentences on folders that were not searched."""

    def rows(self, progress: Progress = ignore_progress) -> list[ResultRow]:
        """Return all results, newest first; results without a date come last."""
        self.notes.clear()
        folders = [*self._folders()]
        results = []
        progress("results", 0, len(folders))
        for count, folder in enumerate(folders, 1):
            results.append(self._result(folder))
            progress("results", count, len(folders))
        results.sort(key=lambda result: (result.date, result.path), reverse=True)
        return with_trends(results)

    def _folders(self) -> Iterator[Path]:
        """Yield the folders of audits, without following links."""
        n_audits, n_folders = 0, 0
        waiting = [(self.root, 0)]
        while waiting:
            folder, depth = waiting.pop()
            n_folders += 1
            if n_audits == _MAX_RESULTS or n_folders > _MAX_FOLDERS:
                self.notes.append(
                    f"The search stopped after {n_audits:,} results and {n_folders:,} folders; to "
                    "see others, give a subfolder."
                )
                return
            names = {name for name in _MARKERS if (folder / name).is_file()}
            if names:
                n_audits += 1
                yield folder
            try:
                children = sorted(folder.iterdir())
            except OSError as error:
                self.notes.append(clean_text(f"{folder} cannot be searched ({error.strerror})."))
                continue
            if depth < _MAX_DEPTH:
                waiting += [(c, depth + 1) for c in children if _may_contain_results(c, names)]

    def _result(self, folder: Path) -> AuditEntry:
        path = folder / RECORD_FILE
        if (folder / RECORDING_FILE).is_file():
            path = folder / ATTACKED_FOLDER / RECORD_FILE
        stamp = stamp_of(path)
        if stamp is None:
            return _unfinished(folder, self.root)
        cached = self._cached_results.get(path)
        if cached is None or cached[0] != stamp:
            cached = (stamp, _finished(folder, self.root))
            self._cached_results[path] = cached
        return cached[1]


_MARKERS = (STUDY_FILE, RECORDING_FILE, RECORD_FILE)


def _may_contain_results(path: Path, markers: set[str]) -> bool:
    if path.is_symlink() or path.name.startswith(".") or not path.is_dir():
        return False
    if markers and (path.name in _SKIPPED or path.name.startswith("seed-")):
        return False
    # Runs in a pool belong to several studies, and have no result.
    return not (path / RUN_FILE).is_file()


def _finished(folder: Path, root: Path) -> AuditEntry:
    """Return the entry of an audit with a record; an unreadable record gives the reason."""
    try:
        path = record_at(folder)
        record = read_record(path)
        first_screen, auc = screen_of(record), _auc_of(record)
    except (FedauditError, OSError) as error:
        return _without_record(folder, root, "cannot be read", str(error))
    return AuditEntry(
        folder=folder,
        path=path.relative_to(root).as_posix(),
        name=shorten(record.name, 80),
        kind=kind_of(record) + " of a recording" * record.watched,
        status=first_screen.status,
        css_class=first_screen.look.replace(" ", "-"),
        date=record.environment.started[:10],
        main_tile=first_screen.numbers[0] if first_screen.numbers else None,
        auc=auc,
        is_finished=True,
        is_comparable=record.kind != "games",
    )


def _auc_of(record: Record) -> tuple[float, float | None, float | None] | None:
    estimate = highest_auc(main_estimates(record))
    return None if estimate is None else (estimate.number, estimate.low, estimate.high)


def _unfinished(folder: Path, root: Path) -> AuditEntry:
    """Return the entry of an audit without a record: its progress, and the next step."""
    try:
        n_measured = len(round_paths(folder / "measured", ".safetensors"))
        if (folder / DECISIONS_FILE).is_file():
            reason = reason_nothing_was_sent(folder)
            reason = reason or f"{format_count(n_measured, 'upload')} sent; run `fedaudit attack`"
            return _without_record(folder, root, "attacks not run", reason)
        if (folder / RECORDING_FILE).is_file():
            reason = f"{format_count(n_measured, 'round')} measured; run `fedaudit attack`"
            return _without_record(folder, root, "attacks not run", reason)
        if (folder / STUDY_FILE).is_file():
            read_object(folder / STUDY_FILE)
        runs = [path for path in sorted(folder.glob("seed-*")) if path.is_dir()]
        counts = [len(round_paths(run / "measured", ".safetensors")) for run in runs]
    except (FedauditError, OSError) as error:
        return _without_record(folder, root, "cannot be read", str(error))
    reason = f"{format_count(sum(counts), 'round')} measured in {format_count(len(runs), 'seed')}"
    return _without_record(folder, root, "not finished", reason if runs else "")


def _without_record(folder: Path, root: Path, status: str, reason: str) -> AuditEntry:
    is_recording = (folder / RECORDING_FILE).is_file()
    is_guard = (folder / DECISIONS_FILE).is_file()
    kind = "Study" if (folder / STUDY_FILE).is_file() else "Record"
    if is_recording:
        kind = "Guard" if is_guard else "Live recording"
    path = folder.relative_to(root).as_posix()
    return AuditEntry(
        folder=folder,
        path=path,
        name=shorten(_stated_name(folder) or folder.name or path, 80),
        kind=kind,
        status=status,
        reason=shorten(reason, _MAX_REASON),
    )


def _stated_name(folder: Path) -> str:
    """Return the name in the file of a study or a recording; empty if it cannot be read."""
    for file in (STUDY_FILE, RECORDING_FILE):
        if (folder / file).is_file():
            try:
                with open_regular(folder / file) as stream:
                    values = json.loads(stream.read(_MAX_JSON_BYTES))
            except (OSError, ValueError, RecursionError):
                return ""
            name = values.get("name") if isinstance(values, dict) else ""
            return name if isinstance(name, str) else ""
    return ""


_MAX_JSON_BYTES = 2_000_000


def with_trends(results: Sequence[AuditEntry]) -> list[ResultRow]:
    """Return results with the trend of the AUC over all results of the same name and kind."""
    by_name = defaultdict[tuple[str, str], list[AuditEntry]](list)
    for result in sorted(results, key=lambda result: (result.date, result.path)):
        if result.auc is not None:
            by_name[result.name, result.kind].append(result)
    trends = {
        result.path: trend
        for results_of_study in by_name.values()
        if len(results_of_study) > 1
        for result, trend in zip(results_of_study, _trends(results_of_study), strict=True)
    }
    return [ResultRow(result, trends.get(result.path)) for result in results]


def _trends(results: Sequence[AuditEntry]) -> Iterator[Trend]:
    """Yield the trend for each result of a study, oldest first."""
    values = [result.auc[0] for result in results if result.auc is not None]
    x, y = Axis("", 0.0, len(values) - 1.0), Axis("", min(0.5, *values), max(0.6, *values))
    positions = [float(position) for position in range(len(values))]
    dated_values = ", ".join(
        f"{result.date} {format_number(value)}"
        for result, value in zip(results, values, strict=True)
    )
    path, text = (
        Curve("", positions, values, style(0)).path(x, y),
        f"AUC: {shorten(dated_values, 400)}",
    )
    for position, value in zip(positions, values, strict=True):
        yield Trend(path, text, (x.at(position), 1 - y.at(value)))
