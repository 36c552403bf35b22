"""Run of a study of games: read its points, play them, and write the record.

The results of points are stored, so that a stopped study resumes and studies share points.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import (
    RECORD_FILE,
    create_subfolder,
    delete_partial_files,
    exclusive_access,
    read_object,
    write_object,
)
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import Progress, quiet
from fedaudit.games.detection import detect
from fedaudit.games.mechanism import resolve_mechanism
from fedaudit.games.playing import play_point, refuse_misfit, refuse_too_few, texts_of
from fedaudit.games.records import DrawnSamples, draw_samples
from fedaudit.plan.file import Point, points_of
from fedaudit.plan.games import GameStudy
from fedaudit.plan.identity import config_of, with_code
from fedaudit.plan.values import read_toml
from fedaudit.results.games import DESCRIPTIVE_SETTINGS, Detection, PointPlayed
from fedaudit.results.record import Record, games_record, write_record
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.folder import mark_recorded, store_study

_POINTS = "points"
_VERSION = 7
"""Version of the games. A point that was played by another version is played again."""

_ADDED_SETTINGS = {"game": {"background_copies": 1}, "neuron": {"batch_size": 0}}
"""Settings that older versions lack, with the values that match their behaviour."""

Result = TypeVar("Result", PointPlayed, Detection)


def read_points(path: Path, overrides: dict[str, object] | None = None) -> list[Point[GameStudy]]:
    """Read the points of a TOML file: the study itself, its variants and its grid.

    Args:
        path: The file.
        overrides: Values by dotted name, for all points.

    Raises:
        BadInput: The file does not exist or is not TOML, a setting is wrong, or an override sets a
            setting in which points differ.
    """
    points = points_of(read_toml(path, "the study"), GameStudy, str(path), overrides)
    for name in overrides or {}:
        if any(name in point.changes for point in points):
            raise BadInput(
                f"{name} distinguishes the points of {path}, which would then be identical; change "
                "the file instead"
            )
    return points


@refusing_exits()
def run_games(
    points: Sequence[Point[GameStudy]],
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress = quiet,
    log: Callable[[str], None] = lambda text: None,
) -> Record:
    """Play all points and write their record. Stored results of points are reused.

    Args:
        points: Points of one study. The study itself comes first.
        out: Folder of the record and the points.
        data_dir: Folder of data sets.
        progress: Called with (phase, done, total).
        log: Called with lines of text for the user.

    Raises:
        BadInput: No games can be played with the settings, or the folder has other games.
        Damaged: A file in the folder cannot be read.
    """
    clock = Clock()
    points = [replace(point, study=with_code(point.study)) for point in points]
    study = points[0].study
    for point in points:
        with _naming_point(point):
            refuse_misfit(point.study)
    session = _Session(out / _POINTS, data_dir, progress, log)
    # All points are checked first, since an error at a later point would come after hours of games.
    for point in points:
        with _naming_point(point):
            refuse_too_few(point.study, session.samples(point.study))
    store_study(out, study)
    for folder in (out, create_subfolder(out, _POINTS)):
        delete_partial_files(folder, before=clock.start_time)
    played = [
        session.play(point, f"{point.label or study.name} ({number} of {len(points)})")
        for number, point in enumerate(points, 1)
    ]
    detection = session.detect(points[0]) if study.detector.runs else None
    record = games_record(study.name, config_of(study), played, detection, environment(clock))
    with exclusive_access(out):
        # Raises if another process has written a different study to the folder meanwhile.
        mark_recorded(out, study)
        write_record(record, out / RECORD_FILE)
    return record


@contextmanager
def _naming_point(point: Point[GameStudy]) -> Iterator[None]:
    """Add the name of the point to errors within the context."""
    try:
        yield
    except FedauditError as error:
        raise type(error)(f"{point.study.name}: {error}") from error


class _Session:
    """Player of points, which stores each result under a key of its settings and samples."""

    def __init__(
        self, folder: Path, data_dir: Path | None, progress: Progress, log: Callable[[str], None]
    ) -> None:
        self._folder, self._data_dir = folder, data_dir
        self._progress, self._log = progress, log
        # Only the last samples are cached, since those of several data sets may fill the memory.
        self._cached: tuple[str, DrawnSamples] | None = None

    def samples(self, study: GameStudy) -> DrawnSamples:
        """Return the samples of a study, which are cached for the next point."""
        key = study.model_dump_json(include={"data", "records", "seed"})
        if self._cached is None or key != self._cached[0]:
            self._cached = None  # Frees the old samples before new ones are loaded.
            self._cached = key, draw_samples(study, self._data_dir)
        return self._cached[1]

    def play(self, point: Point[GameStudy], title: str) -> PointPlayed:
        """Return the results of a point, which is played unless its results are stored."""
        study = point.study
        name = played_key(study, self.samples(study).digest, "detector")
        with _naming_point(point):
            played = self._stored_or_computed(
                name,
                title,
                PointPlayed,
                lambda: play_point(point, self.samples(study).records, progress=self._progress),
            )
        if not _is_of(played, study):
            raise Damaged(
                f"{self._folder / name}.json contains a point with other settings than its name "
                "states; delete it to play it again"
            )
        # The point may have been played by another study, in which it has another label.
        estimates = [e.model_copy(update={"point": point.label}) for e in played.estimates]
        changes = texts_of(point.changes)
        return played.model_copy(
            update={"label": point.label, "settings": changes, "estimates": estimates}
        )

    def detect(self, point: Point[GameStudy]) -> Detection:
        """Return the results of a study's detector, which runs unless its results are stored."""
        study = point.study
        with _naming_point(point):
            return self._stored_or_computed(
                f"detector-{played_key(study, self.samples(study).digest)}",
                f"{study.name}, detector",
                Detection,
                lambda: detect(study, self.samples(study).records, progress=self._progress),
            )

    def _stored_or_computed(
        self, name: str, title: str, kind: type[Result], compute: Callable[[], Result]
    ) -> Result:
        """Return a stored result; otherwise compute and store it."""
        path = self._folder / f"{name}.json"
        if path.is_file():
            self._log(f"{title}: already played")
            try:
                return kind.model_validate(read_object(path))
            except (ValidationError, Damaged) as error:
                raise Damaged(
                    f"{path} is not a result of a game; delete it to play it again"
                ) from error
        self._log(title)
        result = compute()
        write_object(path, result.model_dump_json() + "\n")
        return result


def played_key(study: GameStudy, samples_digest: str, *excluded: str) -> str:
    """Return a file name that identifies settings and samples.

    Args:
        study: Settings.
        samples_digest: Digest of the samples.
        excluded: Sections that have no effect on the games.
    """
    unused = () if study.code else ("code",)
    settings = study.model_dump(mode="json", exclude={*DESCRIPTIVE_SETTINGS, *excluded, *unused})
    for section, added in _ADDED_SETTINGS.items():
        settings[section] = {
            name: value
            for name, value in settings[section].items()
            if (name, value) not in added.items()
        }
    text = json.dumps([_VERSION, settings, samples_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _is_of(played: PointPlayed, study: GameStudy) -> bool:
    """Return True if a stored point can be the result of these settings."""
    mechanism = resolve_mechanism(study.mechanism, 1)
    return (
        played.mechanism == study.mechanism.name
        and played.claimed_epsilon == mechanism.nominal_epsilon
        and played.shared_mask == mechanism.shared_mask
        and played.delta == mechanism.delta
        and (played.targets, played.batch) == (study.game.targets, study.game.batch)
        and (played.rounds is not None) == (study.rounds.play == "rounds")
    )
