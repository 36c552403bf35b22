"""Run of a study of games: read its points, play them, and write the record.

A *point* is one combination of settings: the study itself, a variant or an entry of its grid. The
result of each point is stored, so that a stopped study can resume, and other studies can use the
result.
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
from fedaudit.core.importing import convert_exits_to_errors
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.games.detection import detect
from fedaudit.games.mechanism import resolve_mechanism
from fedaudit.games.playing import (
    play_point,
    raise_if_invalid_settings,
    raise_if_too_few_samples,
    settings_as_text,
)
from fedaudit.games.samples import DrawnSamples, draw_samples
from fedaudit.plan.file import Point, points_of
from fedaudit.plan.games import GameStudy
from fedaudit.plan.identity import config_of, with_code
from fedaudit.plan.values import read_toml
from fedaudit.results.games import DESCRIPTIVE_SETTINGS, Detection, PointPlayed
from fedaudit.results.record import Record, games_record, write_record
from fedaudit.study.running.environment import Clock, describe_environment
from fedaudit.study.running.folder import mark_recorded, store_study

_POINTS = "points"
_VERSION = 8
"""Version of the games. A point that was played by another version is played again."""

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


@convert_exits_to_errors()
def run_games(
    points: Sequence[Point[GameStudy]],
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress = ignore_progress,
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
    # The digests of the code of custom parts belong to the key of a stored result.
    points = [replace(point, study=with_code(point.study)) for point in points]
    study = points[0].study
    for point in points:
        with _naming_point(point):
            raise_if_invalid_settings(point.study)
    session = _Session(out / _POINTS, data_dir, progress, log)
    # All points are checked before any is played. Otherwise, an error at a later point would appear
    # after hours of games.
    for point in points:
        with _naming_point(point):
            raise_if_too_few_samples(point.study, session.samples(point.study))
    store_study(out, study)
    for folder in (out, create_subfolder(out, _POINTS)):
        delete_partial_files(folder, before=clock.start_time)
    played = [
        session.play(point, f"{point.label or study.name} ({number} of {len(points)})")
        for number, point in enumerate(points, 1)
    ]
    detection = session.detect(points[0]) if study.detector.runs > 0 else None
    record = games_record(
        study.name, config_of(study), played, detection, describe_environment(clock)
    )
    with exclusive_access(out):
        # This raises if another process has written a different study to the folder.
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
        # Only the samples of one data set are cached, because several may fill the memory.
        self._cache: dict[str, DrawnSamples] = {}

    def samples(self, study: GameStudy) -> DrawnSamples:
        """Return the samples of a study, which are cached for the next point."""
        key = study.model_dump_json(include={"data", "samples", "seed"})
        if key not in self._cache:
            self._cache.clear()  # Frees the old samples before new ones are loaded.
            self._cache[key] = draw_samples(study, self._data_dir)
        return self._cache[key]

    def play(self, point: Point[GameStudy], title: str) -> PointPlayed:
        """Return the results of a point, which is played unless its results are stored."""
        study = point.study
        key = result_key(study, self.samples(study).digest, excluded=("detector",))
        with _naming_point(point):
            played = self._read_result(key, title, PointPlayed)
            if played is None:
                played = play_point(
                    point, self.samples(study).game_samples, progress=self._progress
                )
                self._write_result(key, played)
        if not _has_settings_of(played, study):
            raise Damaged(
                f"{self._folder / key}.json contains the result of other settings than those that "
                "its name encodes; delete the file to play the point again"
            )
        # The point may have been played by another study, in which it has another label.
        estimates = [e.model_copy(update={"point": point.label}) for e in played.estimates]
        settings = settings_as_text(point.changes)
        return played.model_copy(
            update={"label": point.label, "settings": settings, "estimates": estimates}
        )

    def detect(self, point: Point[GameStudy]) -> Detection:
        """Return the results of a study's detector, which runs unless its results are stored.

        A detector inspects models on a client, to find those in which a server planted a neuron.
        """
        study = point.study
        key = f"detector-{result_key(study, self.samples(study).digest)}"
        with _naming_point(point):
            detection = self._read_result(key, f"{study.name}, detector", Detection)
            if detection is None:
                detection = detect(study, self.samples(study).game_samples, progress=self._progress)
                self._write_result(key, detection)
        return detection

    def _read_result(self, key: str, title: str, kind: type[Result]) -> Result | None:
        """Return a stored result, or None if it must be computed; log the title in both cases."""
        path = self._folder / f"{key}.json"
        if not path.is_file():
            self._log(title)
            return None
        self._log(f"{title}: already played")
        try:
            return kind.model_validate(read_object(path))
        except (ValidationError, Damaged) as error:
            raise Damaged(
                f"{path} is not a result of a game; delete it to play it again"
            ) from error

    def _write_result(self, key: str, result: PointPlayed | Detection) -> None:
        write_object(self._folder / f"{key}.json", result.model_dump_json() + "\n")


def result_key(study: GameStudy, samples_digest: str, *, excluded: tuple[str, ...] = ()) -> str:
    """Return the key of a result: a digest of its settings and samples, which names its file.

    Args:
        study: Settings.
        samples_digest: Digest of the samples.
        excluded: Sections that have no effect on the games.
    """
    # Results of older versions, which had no section [code], thus keep their keys.
    unused = () if study.code else ("code",)
    settings = study.model_dump(mode="json", exclude={*DESCRIPTIVE_SETTINGS, *excluded, *unused})
    text = json.dumps([_VERSION, settings, samples_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _has_settings_of(played: PointPlayed, study: GameStudy) -> bool:
    """Return True if a stored point can be the result of these settings."""
    # The number of features affects only the actual epsilon, which is not compared.
    mechanism = resolve_mechanism(study.mechanism, features=1)
    return (
        played.mechanism == study.mechanism.name
        and played.claimed_epsilon == mechanism.nominal_epsilon
        and played.shared_mask == mechanism.shared_mask
        and played.delta == mechanism.delta
        and (played.targets, played.batch) == (study.game.targets, study.game.batch)
        # Results have a part on rounds only if games are played over whole rounds.
        and (played.rounds is not None) == (study.rounds.play == "rounds")
    )
