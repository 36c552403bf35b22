"""Text files: written whole or not at all, and read only up to a size."""

import errno
import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from fedaudit.errors import BadInput, Damaged

RECORD_FILE = "record.json"
"""A record, in the folder of its run."""

GAMES_FILE = "games.json"
"""A record of games, in theirs."""

RECORDING_FILE = "recording.json"
"""What a live recording says of itself, in its folder."""

REPORT_FILE = "report.html"
"""The report beside either."""

SHORT = 1_000_000
"""Bytes of the longest file that holds settings; all of them are far shorter."""


LARGEST = 2**64
"""Largest whole number that a file's text may spell out, on either side of zero."""

MOST_VALUES = 2_000_000
"""Most values in a JSON text: of the smallest, three characters take a hundred bytes of memory."""


class TooLarge(ValueError):
    """A file has more bytes than any of its kind."""


_PARTIAL = re.compile(r".+\.[0-9a-f]{8}\.partial", re.DOTALL)
"""What :func:`write_whole` calls a file that is not whole yet."""


def sweep(folder: Path, *, before: float) -> None:
    """Deletes what processes that were killed in the middle of :func:`write_whole` left behind.

    Args:
        folder: Which one; its own folders are not looked into.
        before: Seconds since the epoch. Only what was last written before that is deleted, since
            another process may be writing now.
    """
    for path in folder.glob("*.partial"):
        if _PARTIAL.fullmatch(path.name) and path.is_file() and path.lstat().st_mtime < before:
            path.unlink(missing_ok=True)


def read_text(path: Path, *, max_bytes: int) -> str:
    """The UTF-8 text of a regular file that is not too large.

    Args:
        path: Of the file.
        max_bytes: Of the largest that is read at all.

    Raises:
        TooLarge: It is larger than that.
        OSError: It is not there, cannot be read or is no regular file, such as a pipe.
        UnicodeDecodeError: It is not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file")
    # Read, not asked for its size, which may change in between.
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLarge(f"{path} has more than {max_bytes} bytes")
    return data.decode("utf-8")


def parsed_json(
    text: str,
    *,
    whole: Callable[[str], int] | None = None,
    real: Callable[[str], float] | None = None,
    constant: Callable[[str], object] | None = None,
) -> object:
    """What a JSON text says; of a key that stands there twice, readers would differ in that.

    Args:
        text: The text.
        whole: From the digits of a whole number to the number; up to 64 bits by default.
        real: From the digits of another number to the number.
        constant: From ``NaN``, ``Infinity`` or ``-Infinity`` to what it stands for.

    Raises:
        ValueError: It is no JSON, has a key twice in one object, a number that is too large, or
            more values than any file of fedaudit's.
        RecursionError: It is nested too deep.
    """
    # Counted first, as each takes far more memory than its text. Commas in texts count too.
    values = text.count(",") + text.count("[") + text.count("{")
    if values > MOST_VALUES:
        raise ValueError(f"it holds {values:,} values or so, and at most {MOST_VALUES:,} are read")
    parsed: object = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_int=whole or _of_64_bits,
        parse_float=real,
        parse_constant=constant,
    )
    return parsed


def _of_64_bits(digits: str) -> int:
    # Counted first, since reading thousands of digits takes long.
    if len(digits) > len(f"-{LARGEST}") or abs(int(digits)) > LARGEST:
        raise ValueError(f"the number {digits[:40]}... has over 64 bits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return entries


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a short file of fedaudit's own.

    Raises:
        Damaged: It is too large, cannot be read, or holds something else.
    """
    try:
        values = parsed_json(read_text(path, max_bytes=SHORT))
    except TooLarge as error:
        raise Damaged(f"{error}; it is not fedaudit's") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(values, dict):
        raise Damaged(f"{path} is not fedaudit's; restore it from a copy")
    return values


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
