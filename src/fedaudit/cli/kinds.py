"""Kinds of file and folder, and the commands that take each."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.files import RECORDING_FILE, open_regular
from fedaudit.study.settings.values import read_toml

_MARK = re.compile(rb'"format":\s?"fedaudit-(\w+)"')
_MARKED_WITHIN = 200
"""Bytes at the start of a JSON file, within which it says what it is."""


class Kind(NamedTuple):
    """A kind of file or folder, and the commands that take it."""

    noun: str
    taken: str


STUDY = Kind("a study", "`fedaudit run` carries it out")
POLICY = Kind("a policy", "`fedaudit gate`, `summary` and `pack` take it as --policy")
RECORD = Kind(
    "the record of a run", "`fedaudit report`, `summary`, `compare`, `gate` and `pack` take it"
)
COMPARISON = Kind("a comparison", "`fedaudit compare` makes it again")
VERDICT = Kind("a verdict", "`fedaudit gate` gives it again, of a record and a policy")
PACK = Kind("a pack", "`fedaudit verify` checks its folder")
RUN = Kind(
    "the folder of a run",
    "`fedaudit report`, `summary`, `compare`, `gate`, `pack`, `attack` take it",
)
RECORDING = Kind("a live recording", "`fedaudit attack` attacks it")

HAVE_RECORDS = (RECORD, RUN, RECORDING, PACK)
"""Kinds that a command takes which is after a record."""

_BY_MARK = {b"record": RECORD, b"comparison": COMPARISON, b"verdict": VERDICT, b"pack": PACK}


@contextmanager
def meant_as(path: Path, *kinds: Kind) -> Iterator[None]:
    """Inside, a refusal says what the path is and which command takes it, if it is another kind.

    Args:
        path: What the command was given.
        *kinds: What it takes.

    Raises:
        BadInput: What was refused is of a kind that another command takes.
    """
    try:
        yield
    except FedauditError as error:
        found = _kind_at(path)
        if found is None or found in kinds:
            raise
        raise BadInput(f"{path} is {found.noun} and not {kinds[0].noun}; {found.taken}") from error


def _kind_at(path: Path) -> Kind | None:
    """The kind that a file or folder says it is of; None where it says none."""
    with suppress(OSError, FedauditError):
        return _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)
    return None


def _kind_of_folder(folder: Path) -> Kind | None:
    from fedaudit.pack.manifest import MANIFEST_FILE
    from fedaudit.study.running.folder import STUDY_FILE

    kinds = {MANIFEST_FILE: PACK, RECORDING_FILE: RECORDING, STUDY_FILE: RUN}
    return next((kind for name, kind in kinds.items() if (folder / name).is_file()), None)


def _kind_of_file(path: Path) -> Kind | None:
    with open_regular(path) as file:
        mark = _MARK.search(file.read(_MARKED_WITHIN))
    return _BY_MARK.get(mark[1]) if mark else _kind_of_tables(read_toml(path, "the file"))


def _kind_of_tables(tables: dict[str, object]) -> Kind | None:
    """A study or a policy, whichever has more of the tables."""
    from fedaudit.gate.policy import Policy
    from fedaudit.study.settings.games import GameStudy
    from fedaudit.study.settings.sections import Study

    of_study = len(tables.keys() & (Study.model_fields.keys() | GameStudy.model_fields.keys()))
    of_policy = len(tables.keys() & Policy.model_fields.keys())
    if of_study == of_policy:
        return None
    return STUDY if of_study > of_policy else POLICY
