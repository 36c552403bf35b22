"""Which file is meant where a folder is named."""

from pathlib import Path

from fedaudit.errors import BadInput
from fedaudit.files import GAMES_FILE, RECORD_FILE


def record_at(path: Path) -> Path:
    """The record that a path is, or that the folder holds: of games where there is no other.

    Raises:
        BadInput: The folder holds both.
    """
    if not path.is_dir():
        return path
    record, games = path / RECORD_FILE, path / GAMES_FILE
    if record.exists() and games.exists():
        raise BadInput(f"{path} holds {RECORD_FILE} and {GAMES_FILE}; name one of them")
    return games if games.exists() else record
