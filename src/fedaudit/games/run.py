"""A study of games from its file to its record; what was played before is not played again."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import RECORD_FILE, own_folder, read_object, sweep, write_object
from fedaudit.core.importing import refusing_exits
from fedaudit.core.progress import Progress, quiet
from fedaudit.games.detection import detect
from fedaudit.games.mechanism import given
from fedaudit.games.playing import play_point, refuse_misfit, refuse_too_few, texts_of
from fedaudit.games.records import Drawn, drawn
from fedaudit.results.detector import Detection
from fedaudit.results.games import FOR_PEOPLE, PointPlayed
from fedaudit.results.record import Record, games_record, write_record
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.folder import claim
from fedaudit.study.running.identity import config_of, with_code
from fedaudit.study.settings.file import Point, points_of
from fedaudit.study.settings.games import GameStudy
from fedaudit.study.settings.toml import read_toml

_POINTS = "points"
_VERSION = 7
"""Of what is played; a point that another version played is played again."""

_ADDED = {"game": {"background_copies": 1}, "neuron": {"batch_size": 0}}
"""Settings that older versions did not have, with the value under which a point is what it was."""

Made = TypeVar("Made", PointPlayed, Detection)


def read_points(path: Path, overrides: dict[str, object] | None = None) -> list[Point[GameStudy]]:
    """The points of a TOML file: the study itself, its variants and its grid.

    Args:
        path: The file.
        overrides: Values by dotted name, for all points.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting; or an override of what tells the
            points apart.
    """
    points = points_of(read_toml(path, "the study"), GameStudy, str(path), overrides)
    for name in overrides or {}:
        if any(name in one.changes for one in points):
            raise BadInput(
                f"{name} is what tells points of {path} apart, and they would all be the same; "
                "change the file"
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
    """Plays all points and writes their record; goes on where it was stopped.

    Args:
        points: Of one study, itself first.
        out: Folder to write to.
        data_dir: Where data sets lie.
        progress: Called with (phase, done, total) as the work goes on.
        log: Takes lines of text for the user.

    Raises:
        BadInput: Settings that make no game, or a folder that holds other games.
        Damaged: What the folder holds cannot be read.
    """
    clock = Clock()
    points = [replace(one, study=with_code(one.study)) for one in points]
    study = points[0].study
    for point in points:
        with _about(point):
            refuse_misfit(point.study)
    records = _Records(data_dir)
    # Before hours of games, which a later point would end.
    for point in points:
        with _about(point):
            refuse_too_few(point.study, records.of(point.study))
    claim(out, study)
    kept = own_folder(out, _POINTS)
    for folder in (out, kept):
        sweep(folder, before=clock.at)

    def said(at: int) -> str:
        return f"{points[at].label or study.name} ({at + 1} of {len(points)})"

    record = games_record(
        study.name,
        config_of(study),
        [
            _played(point, _Kept(kept, said(at), log), records, progress)
            for at, point in enumerate(points)
        ],
        _detected(points[0], _Kept(kept, f"{study.name}, detector", log), records, progress)
        if study.detector.runs
        else None,
        environment(clock),
    )
    write_record(record, out / RECORD_FILE)
    return record


@contextmanager
def _about(point: Point[GameStudy]) -> Iterator[None]:
    """A refusal says which point it is about."""
    try:
        yield
    except FedauditError as refusal:
        raise type(refusal)(f"{point.study.name}: {refusal}") from refusal


class _Records:
    """Records that points are played with, kept for the next point that has the same."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._key = ""
        self._drawn: Drawn | None = None

    def of(self, study: GameStudy) -> Drawn:
        """The records of a study."""
        key = study.model_dump_json(include={"data", "records", "seed"})
        if self._drawn is None or key != self._key:
            # One at a time: records of a whole data set may fill the memory.
            self._key, self._drawn = key, drawn(study, self._data_dir)
        return self._drawn


class _Kept(NamedTuple):
    """A point that was played before, in a file that its settings name."""

    folder: Path
    said: str
    log: Callable[[str], None]

    def made(self, name: str, kind: type[Made], make: Callable[[], Made]) -> Made:
        """That of this name; made now, and kept, where it is not there."""
        path = self.folder / f"{name}.json"
        if path.is_file():
            self.log(f"{self.said}: played before")
            try:
                return kind.model_validate(read_object(path))
            except (ValidationError, Damaged) as error:
                raise Damaged(
                    f"{path} is nothing that fedaudit played; delete it to play it again"
                ) from error
        self.log(self.said)
        found = make()
        write_object(path, found.model_dump_json() + "\n")
        return found


def _played(
    point: Point[GameStudy], kept: _Kept, records: _Records, progress: Progress
) -> PointPlayed:
    name = _digest(point.study, records, "detector")
    with _about(point):
        found = kept.made(
            name,
            PointPlayed,
            lambda: play_point(point, records.of(point.study).dealt, progress=progress),
        )
    if not _is_of(found, point.study):
        raise Damaged(
            f"{kept.folder / name}.json holds a point of other settings than its name stands for; "
            "delete it to play it again"
        )
    # Another study may have played it, under another label.
    figures = [one.model_copy(update={"point": point.label}) for one in found.estimates]
    named = {"label": point.label, "settings": texts_of(point.changes), "estimates": figures}
    return found.model_copy(update=named)


def _is_of(played: PointPlayed, study: GameStudy) -> bool:
    """True if a point that was played before can be of these settings."""
    asked = given(study.mechanism, 1)
    claims = (study.mechanism.name, asked.nominal_epsilon, asked.shared_mask, asked.delta)
    return (
        (played.mechanism, played.claimed_epsilon, played.shared_mask, played.delta) == claims
        and (played.targets, played.batch) == (study.game.targets, study.game.batch)
        and (played.rounds is not None) == (study.rounds.play == "rounds")
    )


def _detected(
    point: Point[GameStudy], kept: _Kept, records: _Records, progress: Progress
) -> Detection:
    with _about(point):
        return kept.made(
            f"detector-{_digest(point.study, records)}",
            Detection,
            lambda: detect(point.study, records.of(point.study).dealt, progress=progress),
        )


def _digest(study: GameStudy, records: _Records, *without: str) -> str:
    """Names what is played by its settings and samples: a file of one name may hold others."""
    off = () if study.code else ("code",)
    settings = study.model_dump(mode="json", exclude={*FOR_PEOPLE, *without, *off})
    for section, added in _ADDED.items():
        kept = {n: v for n, v in settings[section].items() if (n, v) not in added.items()}
        settings[section] = kept
    text = json.dumps([_VERSION, settings, records.of(study).digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
