"""A study of games from its file to its record; points that were played before are kept."""

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
    delete_partial_files,
    exclusive_access,
    own_folder,
    read_object,
    write_object,
)
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import Progress, quiet
from fedaudit.games.detection import detect
from fedaudit.games.mechanism import resolve_mechanism
from fedaudit.games.playing import play_point, refuse_misfit, refuse_too_few, texts_of
from fedaudit.games.records import Drawn, drawn
from fedaudit.plan.file import Point, points_of
from fedaudit.plan.games import GameStudy
from fedaudit.plan.identity import config_of, with_code
from fedaudit.plan.values import read_toml
from fedaudit.results.games import DESCRIPTIVE_SETTINGS, Detection, PointPlayed
from fedaudit.results.record import Record, games_record, write_record
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.folder import claim, claim_record

_POINTS = "points"
_VERSION = 7
"""Version of the games; a point that another version played is played again."""

_ADDED = {"game": {"background_copies": 1}, "neuron": {"batch_size": 0}}
"""Settings that older versions lack, with the values that they used."""

Made = TypeVar("Made", PointPlayed, Detection)


def read_points(path: Path, overrides: dict[str, object] | None = None) -> list[Point[GameStudy]]:
    """Read the points of a TOML file: the study itself, its variants and its grid.

    Args:
        path: The file.
        overrides: Values by dotted name, for all points.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting; or an override of a setting by which
            points differ.
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
    """Play all points and write their record; points that were played before are kept.

    Args:
        points: Points of one study, the study itself first.
        out: Folder to write to.
        data_dir: Folder of data sets.
        progress: Function that is called with (phase, done, total).
        log: Function that is called with lines for the user.

    Raises:
        BadInput: Settings that make no game, or a folder that holds other games.
        Damaged: What the folder holds cannot be read.
    """
    clock = Clock()
    points = [replace(point, study=with_code(point.study)) for point in points]
    study = points[0].study
    for point in points:
        with _about(point):
            refuse_misfit(point.study)
    session = _Session(out / _POINTS, data_dir, progress, log)
    # Checks come before hours of games, which an error at a later point would end.
    for point in points:
        with _about(point):
            refuse_too_few(point.study, session.records(point.study))
    claim(out, study)
    for folder in (out, own_folder(out, _POINTS)):
        delete_partial_files(folder, before=clock.start_time)
    played = [
        session.played(point, f"{point.label or study.name} ({number} of {len(points)})")
        for number, point in enumerate(points, 1)
    ]
    detected = session.detected(points[0]) if study.detector.runs else None
    record = games_record(study.name, config_of(study), played, detected, environment(clock))
    with exclusive_access(out):
        # Another process may have written a record in the meantime.
        claim_record(out, study)
        write_record(record, out / RECORD_FILE)
    return record


@contextmanager
def _about(point: Point[GameStudy]) -> Iterator[None]:
    """Name the point in errors."""
    try:
        yield
    except FedauditError as refusal:
        raise type(refusal)(f"{point.study.name}: {refusal}") from refusal


class _Session:
    """Player that stores each point by its settings and samples, and plays it once."""

    def __init__(
        self, folder: Path, data_dir: Path | None, progress: Progress, log: Callable[[str], None]
    ) -> None:
        self._folder, self._data_dir = folder, data_dir
        self._progress, self._log = progress, log
        # One at a time: records of a whole data set may fill the memory.
        self._drawn: tuple[str, Drawn] | None = None

    def records(self, study: GameStudy) -> Drawn:
        """Return the records of a study, cached for the next point."""
        key = study.model_dump_json(include={"data", "records", "seed"})
        if self._drawn is None or key != self._drawn[0]:
            self._drawn = None
            self._drawn = key, drawn(study, self._data_dir)
        return self._drawn[1]

    def played(self, point: Point[GameStudy], title: str) -> PointPlayed:
        """Return a point with its figures."""
        study = point.study
        name = played_key(study, self.records(study).digest, "detector")
        with _about(point):
            played = self._kept(
                name,
                title,
                PointPlayed,
                lambda: play_point(point, self.records(study).dealt, progress=self._progress),
            )
        if not _is_of(played, study):
            raise Damaged(
                f"{self._folder / name}.json contains a point with other settings than its name "
                "says; delete it to play it again"
            )
        # Another study may have played it, under another label.
        figures = [figure.model_copy(update={"point": point.label}) for figure in played.estimates]
        changes = texts_of(point.changes)
        return played.model_copy(
            update={"label": point.label, "settings": changes, "estimates": figures}
        )

    def detected(self, point: Point[GameStudy]) -> Detection:
        """Return the detector of a study."""
        study = point.study
        with _about(point):
            return self._kept(
                f"detector-{played_key(study, self.records(study).digest)}",
                f"{study.name}, detector",
                Detection,
                lambda: detect(study, self.records(study).dealt, progress=self._progress),
            )

    def _kept(self, name: str, title: str, kind: type[Made], make: Callable[[], Made]) -> Made:
        """Return a stored result; otherwise make and store it."""
        path = self._folder / f"{name}.json"
        if path.is_file():
            self._log(f"{title}: played before")
            try:
                return kind.model_validate(read_object(path))
            except (ValidationError, Damaged) as error:
                raise Damaged(
                    f"{path} is not a result of a game; delete it to play it again"
                ) from error
        self._log(title)
        result = make()
        write_object(path, result.model_dump_json() + "\n")
        return result


def played_key(study: GameStudy, samples: str, *without: str) -> str:
    """Return a file name that identifies settings and samples.

    ``samples`` is a digest. Sections in ``without`` have no effect on the games.
    """
    off = () if study.code else ("code",)
    settings = study.model_dump(mode="json", exclude={*DESCRIPTIVE_SETTINGS, *without, *off})
    for section, added in _ADDED.items():
        present = {n: v for n, v in settings[section].items() if (n, v) not in added.items()}
        settings[section] = present
    text = json.dumps([_VERSION, settings, samples], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _is_of(played: PointPlayed, study: GameStudy) -> bool:
    """Return True if a stored point can result from the settings."""
    mechanism = resolve_mechanism(study.mechanism, 1)
    return (
        played.mechanism == study.mechanism.name
        and played.claimed_epsilon == mechanism.nominal_epsilon
        and played.shared_mask == mechanism.shared_mask
        and played.delta == mechanism.delta
        and (played.targets, played.batch) == (study.game.targets, study.game.batch)
        and (played.rounds is not None) == (study.rounds.play == "rounds")
    )
