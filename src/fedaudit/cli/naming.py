"""The file that is meant where a folder is named."""

from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.files import ATTACKED, RECORD_FILE, RECORDING_FILE, own_place


def record_at(path: Path) -> Path:
    """The record that a path is, or that the folder holds.

    A live recording has none of its own; what is meant is that of the attacks on it.

    Args:
        path: A file or a folder.

    Raises:
        BadInput: The folder holds a live recording that was not attacked, or whose folder of
            attacks is a link.
    """
    if not path.is_dir():
        return path
    record = path / RECORD_FILE
    return record if record.exists() else _of_recording(path) or record


def _of_recording(path: Path) -> Path | None:
    """The record of the attacks on a live recording; None where the folder is no recording."""
    if not (path / RECORDING_FILE).is_file():
        return None
    attacked = own_place(path, ATTACKED) / RECORD_FILE
    if not attacked.exists():
        raise BadInput(
            f"{path} is a live recording without a record in {path / ATTACKED}; make it with "
            f"`fedaudit attack {path}`, or name the folder that was given to it with --out"
        )
    return attacked
