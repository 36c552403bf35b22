"""Where a study's record may be written: never over one of other settings."""

from collections.abc import Mapping
from pathlib import Path

from fedaudit.errors import BadInput, Refusal
from fedaudit.files import RECORD_FILE, REPORT_FILE
from fedaudit.study.config import Study
from fedaudit.study.identity import settings_of
from fedaudit.study.outputs import refuse_foreign_page
from fedaudit.study.reading import read_record
from fedaudit.study.text import made_plain
from fedaudit.study.values import study_from


def refuse_other_record(folder: Path, study: Study) -> None:
    """Lets a study's record replace one of the same settings only.

    Args:
        folder: Where the record is to be written.
        study: Its settings.

    Raises:
        BadInput: The folder holds a record of other settings, or one that cannot be read, or a
            report.html that is no HTML.
    """
    refuse_foreign_page(folder / REPORT_FILE)
    path = folder / RECORD_FILE
    if not path.exists():
        return
    try:
        there = study_from(read_record(path).config, source=str(path))
    except Refusal as refusal:
        raise BadInput(
            f"{folder} holds a {RECORD_FILE} that is not of this study as far as can be read; "
            "give another folder with --out, or delete the file"
        ) from refusal
    other, ours = (made_plain(settings_of(one)) for one in (there, study))
    if other != ours:
        raise BadInput(
            f"{folder} holds the record of other settings ({_difference(other, ours)}), which "
            "would be lost; give another folder with --out, or delete it"
        )


def _difference(there: object, here: object, name: str = "") -> str:
    """The first setting that differs, by its dotted name, with both values."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                inner = f"{name}.{key}" if name else str(key)
                return _difference(there.get(key), here.get(key), inner)
    return f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
