"""A study of games from its file to its record; what was played before is not played again."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from fedaudit.core.errors import BadInput, Damaged, Refusal
from fedaudit.core.files import RECORD_FILE, own_folder, read_object, write_whole
from fedaudit.core.importing import is_own, sources_of
from fedaudit.core.progress import Progress, quiet
from fedaudit.datasets.catalog import READERS
from fedaudit.games.detection import detect
from fedaudit.games.mechanism import given
from fedaudit.games.playing import play_point, refuse_misfit, refuse_too_few
from fedaudit.games.records import Dealt, Drawn, dealt, drawn
from fedaudit.games.settings import GameStudy
from fedaudit.results.detector import Detection
from fedaudit.results.games import FOR_PEOPLE, PointPlayed
from fedaudit.results.record import Record, games_record, write_record
from fedaudit.results.text import made_plain, plain
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.folder import refuse_other_record
from fedaudit.study.settings.file import read_variants
from fedaudit.study.settings.values import settings_from

_POINTS = "points"
_VERSION = 7
"""Of what is played; a point that another version played is played again."""


class Point(NamedTuple):
    """One of a study's points.

    Attributes:
        label: Empty for the study's own settings.
        changed: Settings in which it differs, as texts.
        study: All settings.
    """

    label: str
    changed: dict[str, str]
    study: GameStudy


def read_points(path: Path, overrides: dict[str, object] | None = None) -> list[Point]:
    """The points of a TOML file: the study itself, its variants and its grid.

    Args:
        path: The file.
        overrides: Values by dotted name, for all points.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting; or an override of what tells the
            points apart.
    """
    variants = read_variants(path, overrides)
    for name in overrides or {}:
        if any(name in one.changes for one in variants):
            raise BadInput(
                f"{name} is what tells points of {path} apart, and they would all be the same; "
                "change the file"
            )
    return [
        Point(
            one.label,
            {name: plain(str(value)) for name, value in one.changes.items()},
            settings_from(
                one.values, GameStudy, source=one.source(path), overrides=overrides or ()
            ),
        )
        for one in variants
    ]


def run_games(
    points: Sequence[Point],
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
    points = [one._replace(study=_with_code(one.study)) for one in points]
    study = points[0].study
    for point in points:
        with _about(point):
            refuse_misfit(point.study)
    _claim(out, study)
    records = _Records(data_dir)
    # Before hours of games, which a later point would end.
    for point in points:
        with _about(point):
            refuse_too_few(point.study, records.drawn(point.study))
    played = []
    for place, point in enumerate(points, 1):
        kept = out / _POINTS / f"{_digest(point.study, records.digest(point.study))}.json"
        said = f"{point.label or study.name} ({place} of {len(points)})"
        if kept.is_file():
            log(f"{said}: played before")
            found = _read_point(kept, point)
        else:
            log(said)
            dealt_ = records.dealt(point.study)
            with _about(point):
                found = play_point(
                    point.study, dealt_, point.label, point.changed, progress=progress
                )
            write_whole(kept, found.model_dump_json() + "\n")
        played.append(found)
    record = games_record(
        study.name,
        _config(study),
        played,
        _detector(points[0], out, records, progress=progress, log=log),
        environment(clock),
    )
    write_record(record, out / RECORD_FILE)
    return record


@contextmanager
def _about(point: Point) -> Iterator[None]:
    """A refusal says which point it is about."""
    try:
        yield
    except Refusal as refusal:
        raise type(refusal)(f"{point.study.name}: {refusal}") from refusal


def _claim(out: Path, study: GameStudy) -> None:
    """Makes a folder this study's own."""
    try:
        own_folder(out, _POINTS)
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{out} cannot be used ({error}); choose another folder") from error
    refuse_other_record(out, _config(study))


def _read_point(path: Path, point: Point) -> PointPlayed:
    try:
        found = PointPlayed.model_validate(read_object(path))
    except (ValidationError, Damaged) as error:
        raise Damaged(f"{path} is no point of fedaudit's; delete it to play it again") from error
    if not _is_of(found, point.study):
        raise Damaged(
            f"{path} holds a point of other settings than its name stands for; delete it to play "
            "it again"
        )
    figures = [one.model_copy(update={"point": point.label}) for one in found.estimates]
    named = {"label": point.label, "settings": point.changed, "estimates": figures}
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


class _Records:
    """Records that points are played with, kept for the next point that has the same."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._drawn: dict[str, tuple[Drawn, str]] = {}
        self._dealt: dict[str, Dealt] = {}

    def drawn(self, study: GameStudy) -> Drawn:
        """The samples of a study."""
        return self._samples(study)[0]

    def digest(self, study: GameStudy) -> str:
        """Names the samples of a study; features need not be made for that."""
        return self._samples(study)[1]

    def dealt(self, study: GameStudy) -> Dealt:
        """The records of a study, as features."""
        what = _settings(study, "data", "records", "seed")
        if what not in self._dealt:
            # One at a time: records of a whole data set may fill the memory.
            self._dealt = {what: dealt(study, self._samples(study)[0])}
        return self._dealt[what]

    def _samples(self, study: GameStudy) -> tuple[Drawn, str]:
        what = _settings(study, "data", "records", "seed")
        if what not in self._drawn:
            found = drawn(study, self._data_dir)
            self._drawn = {what: (found, found.digest)}
        return self._drawn[what]


def _detector(
    point: Point,
    out: Path,
    records: _Records,
    *,
    progress: Progress,
    log: Callable[[str], None],
) -> Detection | None:
    """The study's detector, if it has one; kept beside the points."""
    if not point.study.detector.runs:
        return None
    samples = records.digest(point.study)
    text = json.dumps([_VERSION, _config(point.study, FOR_PEOPLE), samples], sort_keys=True)
    kept = out / _POINTS / f"detector-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if kept.is_file():
        log(f"{point.study.name}, detector: measured before")
        try:
            return Detection.model_validate(read_object(kept))
        except (ValidationError, Damaged) as error:
            raise Damaged(
                f"{kept} is no detector of fedaudit's; delete it to measure it again"
            ) from error
    log(f"{point.study.name}, detector")
    with _about(point):
        found = detect(point.study, records.dealt(point.study), progress=progress)
    write_whole(kept, found.model_dump_json() + "\n")
    return found


def _config(study: GameStudy, without: Collection[str] = ()) -> dict[str, object]:
    """All settings; no detector or code where there is none, as in records from before."""
    off = set() if study.detector.runs else {"detector"}
    off |= set() if study.code else {"code"}
    values = study.model_dump(mode="json", exclude={*without, *off})
    return {name: made_plain(value) for name, value in values.items()}


def _with_code(study: GameStudy) -> GameStudy:
    """The study with the digests of all modules that its own parts are named in."""
    given = (
        ("data set", study.data.name, READERS),
        ("extractor", study.records.features, ()),
        ("defense", study.rounds.defense, ()),
    )
    own = [(kind, name) for kind, name, formats in given if is_own(name, formats)]
    return study.model_copy(update={"code": sources_of(own)})


def _settings(study: GameStudy, *sections: str) -> str:
    return json.dumps(study.model_dump(mode="json", include=set(sections)), sort_keys=True)


def _digest(study: GameStudy, samples: str) -> str:
    off = set() if study.code else {"code"}
    settings = study.model_dump(mode="json", exclude={*FOR_PEOPLE, "detector", *off})
    text = json.dumps([_VERSION, settings, samples], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
