"""A study's own folder: the study it holds, and guards against writing over another's."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedaudit.core.errors import BadInput, Refusal, option
from fedaudit.core.files import (
    RECORD_FILE,
    REPORT_FILE,
    SCORES_FILE,
    read_object,
    refuse_absent,
    write_whole,
)
from fedaudit.results.older import settled
from fedaudit.results.text import made_plain
from fedaudit.study.running.identity import FOR_PEOPLE, settings_of
from fedaudit.study.running.outputs import refuse_page_alone
from fedaudit.study.settings.games import GameStudy, Plan, plan_from
from fedaudit.study.settings.sections import Study

STUDY_FILE = "study.json"
RECORDING = "the folder of a study that was carried out, or of a live recording"


def recorded_study(recording: Path) -> Study:
    """The settings of the study that a folder holds, whose measurements can be attacked.

    Raises:
        BadInput: There is none in it.
        Damaged: The settings cannot be read.
    """
    study = _recorded(recording)
    if isinstance(study, GameStudy):
        raise BadInput(
            f"{recording} holds security games, which keep no rounds that could be attacked; "
            "change the study and run it again"
        )
    return study


def _recorded(recording: Path) -> Plan:
    refuse_absent(recording, RECORDING)
    path = recording / STUDY_FILE
    if not path.is_file():
        what = (
            f"its {STUDY_FILE} is no regular file" if path.exists() else f"it has no {STUDY_FILE}"
        )
        raise BadInput(f"{recording} is no recording: {what}; check the path")
    return plan_from(settled(read_object(path)), source=str(path))


def claim(out: Path, study: Plan) -> None:
    """Makes a folder this study's own.

    Raises:
        BadInput: It holds another study or its record, or cannot be written.
        Damaged: What it holds cannot be read.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = (out / STUDY_FILE).exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{out} cannot be used ({error}); choose another folder") from error
    if taken:
        there, here = settings_of(_recorded(out)), settings_of(study)
        if there != here:
            raise BadInput(
                f"{out} holds a study with other settings ({difference(there, here)}); choose "
                f"another folder with {option('out')}, or delete it"
            )
    refuse_other_record(out, study)
    write_whole(out / STUDY_FILE, study.model_dump_json(indent=1) + "\n")


def refuse_other_record(folder: Path, ours: Plan | Mapping[str, object]) -> None:
    """Lets a record replace one of the same settings only.

    Args:
        folder: Where the record is to be written.
        ours: Its settings: a study, or what the record of a live recording says of it.

    Raises:
        BadInput: The folder holds a record of other settings, or one that cannot be read, or a
            report.html that is no HTML or not of a record, or scores without a record.
    """
    path = folder / RECORD_FILE
    refuse_page_alone(folder / REPORT_FILE, path)
    if not path.exists():
        if (folder / SCORES_FILE).exists():
            raise BadInput(
                f"{folder} holds a {SCORES_FILE} without a {RECORD_FILE}, so that it may be "
                "somebody else's and is not replaced; rename it, or write elsewhere with "
                f"{option('out')}"
            )
        return
    from fedaudit.results.read import read_record

    try:
        found = read_record(path)
        config = found.config
        there = config if found.watched else plan_from(settled(config), source=str(path))
    except Refusal as refusal:
        raise BadInput(
            f"{folder} holds a {RECORD_FILE} that is not of this study as far as can be read; "
            f"give another folder with {option('out')}, or delete the file"
        ) from refusal
    other, own = (_settled(one) for one in (there, ours))
    if other != own:
        raise BadInput(
            f"{folder} holds the record of other settings ({difference(other, own)}), which "
            f"would be lost; give another folder with {option('out')}, or delete it"
        )


def _settled(given: Plan | Mapping[str, object]) -> object:
    """Settings as they come back from a record's file."""
    if isinstance(given, Mapping):
        values = {name: value for name, value in given.items() if name not in FOR_PEOPLE}
    else:
        values = settings_of(given)
    return json.loads(json.dumps(made_plain(values)))


def difference(there: object, here: object, name: str = "") -> str:
    """The first setting that differs, by its dotted name, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                inner = f"{name}.{key}" if name else str(key)
                return difference(there.get(key), here.get(key), inner)
    return f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: object) -> str:
    """A setting's value for a message; a table without settings, such as an attack's, is named."""
    if value is None:
        return "left out"
    if value == {}:
        return "named"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
