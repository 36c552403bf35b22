"""Text files that are written whole or not at all."""

import os
import secrets
from pathlib import Path

from fedaudit.errors import BadInput


def write_whole(path: Path, text: str) -> None:
    """Writes a text to a temporary name, flushes it to the disk and renames it.

    Line ends are written as they stand. A link of the file's name is replaced, never followed, so
    that nothing outside of the folder is touched.

    Args:
        path: Where; the folder must exist.
        text: The whole file.

    Raises:
        BadInput: The disk is full or the folder cannot be written; what was there stays.
    """
    # A name of its own, as studies that share a pool may write one file at once.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        # A full disk would otherwise stay full of what is of no use.
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error.strerror}); free some space or choose another "
            "folder, then start again: what was written before is kept"
        ) from error
