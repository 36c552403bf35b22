"""A study's own folder: which study it holds, and whether another may have it."""

from pathlib import Path

from fedaudit.core.errors import BadInput, option
from fedaudit.core.files import read_object, write_whole
from fedaudit.results.older import settled
from fedaudit.study.config import Study
from fedaudit.study.identity import settings_of
from fedaudit.study.other_record import difference, refuse_other_record
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
    return study_from(settled(read_object(path)), source=str(path))


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
                f"{out} holds a study with other settings "
                f"({difference(settings_of(there), settings_of(study))}); choose another folder "
                f"with {option('out')}, or delete it"
            )
    refuse_other_record(out, study)
    write_whole(out / STUDY_FILE, study.model_dump_json(indent=1) + "\n")
