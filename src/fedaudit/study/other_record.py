"""Paths that a record may be written to: never over one of other settings."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedaudit.core.errors import BadInput, Refusal, option
from fedaudit.core.files import RECORD_FILE, REPORT_FILE, SCORES_FILE
from fedaudit.results.older import settled
from fedaudit.results.read import read_record
from fedaudit.results.text import made_plain
from fedaudit.study.config import Study
from fedaudit.study.identity import settings_of
from fedaudit.study.outputs import refuse_page_alone
from fedaudit.study.values import study_from


def refuse_other_record(folder: Path, ours: Study | Mapping[str, object]) -> None:
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
    try:
        found = read_record(path)
        config = found.config
        there = config if found.watched else study_from(settled(config), source=str(path))
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


def _settled(given: Study | Mapping[str, object]) -> object:
    """Settings as they come back from a record's file."""
    values = settings_of(given) if isinstance(given, Study) else dict(given)
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
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
