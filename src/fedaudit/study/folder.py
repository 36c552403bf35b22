"""A study's own folder: which study it holds, and whether another may have it."""

import json
from pathlib import Path

from fedaudit.errors import BadInput, Damaged
from fedaudit.files import write_whole
from fedaudit.study.config import Study
from fedaudit.study.identity import settings_of
from fedaudit.study.outputs import refuse_other_record
from fedaudit.study.study_file import MAX_BYTES
from fedaudit.study.values import study_from

STUDY_FILE = "study.json"


def recorded_study(recording: Path) -> Study:
    """The settings of the study that a folder holds.

    Raises:
        BadInput: There is no study in it.
        Damaged: The settings cannot be read.
    """
    path = recording / STUDY_FILE
    if not path.is_file():
        what = (
            f"its {STUDY_FILE} is no regular file" if path.exists() else f"it has no {STUDY_FILE}"
        )
        raise BadInput(f"{recording} is no recording: {what}; check the path")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Damaged(f"{path} has more than {MAX_BYTES} bytes; it is not a study's")
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(values, dict):
        raise Damaged(f"{path} does not hold a study's settings; restore it from a copy")
    return study_from(values, source=str(path))


def claim(out: Path, study: Study) -> None:
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
        there = recorded_study(out)
        if settings_of(there) != settings_of(study):
            raise BadInput(
                f"{out} holds a study with other settings ({there.name!r}); choose another "
                "folder with --out, or delete it"
            )
    refuse_other_record(out, study)
    write_whole(out / STUDY_FILE, study.model_dump_json(indent=1) + "\n")
