"""Text files, written whole or not at all and read only up to a size, and locks of folders."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from weakref import WeakValueDictionary

from fedaudit.core.errors import BadInput, Damaged

RECORD_FILE = "record.json"
"""A record, in the folder of its run."""

RECORDING_FILE = "recording.json"
"""What a live recording says of itself, in its folder."""

ATTACKED = "attacked"
"""Folder, within a recording, of the record that ``fedaudit attack`` makes by default."""

REPORT_FILE = "report.html"
"""The report beside it."""

SCORES_FILE = "scores.safetensors"
"""What each attack scored each audited sample with, beside a record."""

PICTURES_FILE = "pictures.png"
"""Images of members and images that a model draws, beside a record: for the local report alone."""

SHORT = 1_000_000
"""Bytes of the longest file that people write: a study, a policy, a key."""

LONGEST_SETTINGS = 64 * 2**20
"""Bytes of the longest JSON file of settings and facts that fedaudit writes next to its results.

A recording of 100,000 clients with names takes a third of it."""

LONGEST_LOG = 96 * 2**20
"""Bytes of the longest log of rounds."""

MOST_ROUNDS = 300_000
"""Most lines of a log of rounds: one of sixty characters takes a kilobyte of memory."""

LONGEST_RESULT = 256 * 2**20
"""Bytes of the longest record, comparison or file of a pack."""

MOST_KEYS = 100_000
"""Most keys of one JSON object."""

LARGEST = 2**64
"""Largest whole number that a file's text may spell out, on either side of zero."""

MOST_VALUES = 4_000_000
"""Most values in a JSON text: of the smallest, three characters take a hundred bytes of memory."""


MAX_GIB_VARIABLE = "FEDAUDIT_MAX_GIB"
"""Environment variable: GiB of memory that what is read of one file or folder may take."""

_ALWAYS = 2**27
_TIMES = 32


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


def own_place(root: Path, *names: str) -> Path:
    """A folder within one that is fedaudit's, be it there or not; a link is not followed.

    Args:
        root: That somebody has named, who may have made it a link.
        names: From there to the folder.

    Raises:
        BadInput: One of them is a link.
    """
    place = root
    for name in names:
        place /= name
        if place.is_symlink():
            raise BadInput(
                f"{place} is a link, and what belongs into {root} would be read or written "
                "elsewhere; remove it, or choose another folder"
            )
    return place


def own_folder(root: Path, *names: str) -> Path:
    """The same, made where it is not there.

    Raises:
        BadInput: One of the folders is a link or a file, or cannot be made.
    """
    place = own_place(root, *names)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{place} cannot be used ({error}); choose another folder") from error
    return place


def opened_to_append(path: Path) -> FileIO:
    """A regular file to write to the end of, unbuffered; no link is followed.

    Raises:
        OSError: It is a link, a pipe or a folder, or cannot be written.
    """
    # Not to wait for somebody who reads a pipe; Windows has neither flag.
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | careful, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "a link, which is not followed", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return FileIO(number, "ab")


def refuse_absent(path: Path, meant: str) -> None:
    """Refuses a path at which there is nothing.

    Args:
        path: That was given.
        meant: What it should be of, for the message: "the folder of a pack".

    Raises:
        BadInput: Nothing is there.
    """
    if not path.exists():
        raise BadInput(f"{path} is not there; give {meant}")


def resolved(path: Path) -> Path:
    """Return a path with all links followed.

    Raises:
        OSError: A link leads to itself.
    """
    try:
        return path.resolve()
    # What Python up to 3.12 raises in place of the operating system's error.
    except RuntimeError as error:
        raise OSError(errno.ELOOP, "a link that leads to itself", str(path)) from error


def regular_size(path: Path, *, within: Path | None = None) -> int:
    """Return the size of a regular file in bytes, without opening it.

    Args:
        path: Of the file. Links are followed.
        within: Folder that the file must be in once all links are followed; None for anywhere.

    Raises:
        OSError: It does not exist, leads out of that folder, or is a pipe, a device or a folder.
    """
    if within is not None and not resolved(path).is_relative_to(resolved(within)):
        raise OSError(errno.ELOOP, f"a link that leads out of {within}", str(path))
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return status.st_size


def open_regular(path: Path, *, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading bytes. Every file that somebody names is opened here.

    Args:
        path: Of the file. Links are followed.
        within: Folder that the file must be in once all links are followed; None for anywhere.

    Raises:
        OSError: See :func:`regular_size`, or the file cannot be read.
    """
    # Looked at before it is opened, since opening a device can already change its state.
    regular_size(path, within=within)
    # And not to wait for a writer, should a pipe have taken its place by now.
    without_waiting = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, os.O_RDONLY | without_waiting), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def read_bytes(path: Path, *, max_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file that is not too large.

    Args:
        path: Of the file.
        max_bytes: Of the largest that is read at all.
        within: See :func:`open_regular`.

    Raises:
        TooLarge: It is larger than that.
        OSError: See :func:`open_regular`.
    """
    # Read, not asked for its size, which may change in between.
    with open_regular(path, within=within) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLarge(f"{path} has more than {max_bytes} bytes")
    return data


PAGE_SUFFIXES = (".html", ".htm")
"""Endings of the names of pages."""


def read_text(path: Path, *, max_bytes: int) -> str:
    """The UTF-8 text of a regular file that is not too large.

    Raises:
        TooLarge: It is larger than that.
        OSError: It is not there, cannot be read or is no regular file, such as a pipe.
        UnicodeDecodeError: It is not UTF-8.
    """
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8")


def refuse_other_suffix(path: Path, *suffixes: str, what: str) -> None:
    """Raise if a file's name ends otherwise than files of its format do.

    Args:
        path: The file to be written.
        suffixes: Endings that are right, with their dot, the usual one first. A name without any
            ending is right too.
        what: Its format, for the message ("an HTML page").

    Raises:
        BadInput: The name has another ending.
    """
    if path.suffix and path.suffix.lower() not in suffixes:
        raise BadInput(
            f"{path} would be {what}, and its name ends in {path.suffix!r}; give a name that "
            f"ends in {suffixes[0]}, such as {path.with_suffix(suffixes[0]).name}"
        )


def hold_to_budget(what: str, needed: int, *, on_disk: int) -> None:
    """Refuses what would take far more memory than lies on the disk, before any is set aside.

    What is read may take 32 times its size on the disk, and 128 MiB in any case: pictures in bytes
    become four times as much in 32-bit numbers, and packed as PNG or ``.npz`` they have been a
    tenth of that. ``FEDAUDIT_MAX_GIB`` sets another limit.

    Args:
        what: The file, for the refusal.
        needed: Bytes, by what its headers announce.
        on_disk: Bytes that it has.

    Raises:
        BadInput: It is more, or ``FEDAUDIT_MAX_GIB`` is no number above 0.
    """
    stated = os.environ.get(MAX_GIB_VARIABLE)
    most = max(_ALWAYS, _TIMES * on_disk) if not stated else _gib(stated) * 2**30
    if needed > most:
        # A header of some hundred bytes can announce what is too large to be printed.
        needed = min(needed, 2**80)
        raise BadInput(
            f"{what} would take {needed / 2**30:,.2f} GiB of memory for {on_disk:,} bytes on the "
            f"disk, and at most {most / 2**30:,.2f} are taken for these; if the file is to be "
            f"trusted, set {MAX_GIB_VARIABLE}={-(-needed // 2**30) + 1} in the environment"
        )


def _gib(stated: str) -> float:
    try:
        most = float(stated)
    except ValueError:
        most = 0.0
    if not 0 < most < float("inf"):
        raise BadInput(
            f"{MAX_GIB_VARIABLE} is a number of GiB above 0, got {stated[:40]!r}; set it to 8, or "
            "leave it out"
        )
    return most


def parsed_json(
    text: str,
    *,
    whole: Callable[[str], int] | None = None,
    real: Callable[[str], float] | None = None,
    constant: Callable[[str], object] | None = None,
) -> object:
    """The value of a JSON text; refuses a key that stands there twice, as readers would differ.

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
    refuse_many_values(text)
    parsed: object = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_int=whole or _of_64_bits,
        parse_float=real,
        parse_constant=constant,
    )
    return parsed


def refuse_many_values(text: str) -> None:
    """Raise if a JSON text holds more values than are read.

    Raises:
        ValueError: It does.
    """
    # Counted first, as each takes far more memory than its text. Commas in texts count too.
    values = text.count(",") + text.count("[") + text.count("{")
    if values > MOST_VALUES:
        raise ValueError(f"it holds {values:,} values or so, and at most {MOST_VALUES:,} are read")


def _of_64_bits(digits: str) -> int:
    # Counted first, since reading thousands of digits takes long.
    if len(digits) > len(f"-{LARGEST}") or abs(int(digits)) > LARGEST:
        raise ValueError(f"the number {digits[:40]}... has over 64 bits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > MOST_KEYS:
        raise ValueError(f"an object has {len(pairs):,} keys, and at most {MOST_KEYS:,} are read")
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return entries


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file of settings of fedaudit's own, see :func:`write_object`.

    Raises:
        Damaged: It is too large, cannot be read, or holds something else.
    """
    try:
        values = parsed_json(read_text(path, max_bytes=LONGEST_SETTINGS))
    except TooLarge as error:
        raise Damaged(f"{error}; it is not fedaudit's") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(values, dict):
        raise Damaged(f"{path} is not fedaudit's; restore it from a copy")
    return values


def write_object(path: Path, text: str) -> None:
    """Write a JSON object that :func:`read_object` reads back, or nothing.

    Args:
        path: Where; the folder must exist.
        text: The JSON text.

    Raises:
        BadInput: It is larger than what is read back, or :func:`write_whole` cannot write it.
    """
    refuse_unreadable(path, text)
    write_whole(path, text)


def refuse_unreadable(
    path: Path, text: str, *, max_bytes: int | None = None, remedy: str = ""
) -> None:
    """Raise if a JSON text could not be read back from a file: whoever writes it holds the limits.

    Args:
        path: Where it is to be written.
        text: The text.
        max_bytes: Of the largest that is read; None for that of settings.
        remedy: What to do about it.

    Raises:
        BadInput: It is too large, or one of its objects has more keys than are read.
    """
    size, max_bytes = len(text.encode("utf-8")), max_bytes or LONGEST_SETTINGS
    remedy = remedy or "name fewer clients, or give shorter names and settings"
    if size > max_bytes:
        raise BadInput(
            f"{path} would have {size:,} bytes, and at most {max_bytes:,} are read back; {remedy}"
        )
    try:
        refuse_many_values(text)
        # Only a text of that many colons can have an object of that many keys.
        if text.count(":") > MOST_KEYS:
            parsed_json(text)
    except ValueError as error:
        raise BadInput(f"{path} could not be read back ({error}); {remedy}") from error


PRIVATE_MODE = 0o600
"""Permissions of a file that only its owner reads and writes, where the system has such."""


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Writes a text to a temporary name, flushes it to the disk and renames it.

    Line ends are written as they stand. A link of the file's name is replaced, never followed, so
    that nothing outside of the folder is touched.

    Args:
        path: Where; the folder must exist.
        text: The whole file.
        private: Whether only the owner of the file may read it, as for results that name samples.

    Raises:
        BadInput: The disk is full or the folder cannot be written; what was there stays.
    """
    # A name of its own, as studies that share a pool may write one file at once.
    partial = path.with_name(f"{path.name}.{os.urandom(4).hex()}.partial")
    try:
        mode = PRIVATE_MODE if private else 0o666
        number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(number, "w", encoding="utf-8", newline="") as file:
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


def record_at(path: Path) -> Path:
    """Return the file of a record: the path itself, or the one in the folder.

    The record of a live recording is that of the attacks on it.

    Raises:
        BadInput: The folder holds a live recording that was not attacked, or whose folder of
            attacks is a link.
    """
    if not path.is_dir():
        return path
    record = path / RECORD_FILE
    return record if record.exists() else _of_recording(path) or record


def _of_recording(path: Path) -> Path | None:
    """Return the record of the attacks on a recording; None if the folder is no recording."""
    if not (path / RECORDING_FILE).is_file():
        return None
    attacked = own_place(path, ATTACKED) / RECORD_FILE
    if not attacked.exists():
        raise BadInput(
            f"{path} is a live recording without a record in {path / ATTACKED}; make it with "
            f"`fedaudit attack {path}`, or name the folder that was given to it with --out"
        )
    return attacked


try:
    import fcntl
except ImportError:  # Windows, where two processes must be kept apart by hand.
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "lock"


class Lock:
    """Keeps a folder to this process for as long as it lives.

    It goes with its process, so that one that was killed leaves nothing behind but an empty file.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the file; nothing is kept yet.

        Args:
            folder: Which must be there.

        Raises:
            BadInput: Its file is a link or a pipe, or cannot be written.
        """
        try:
            self._file = opened_to_append(folder / LOCK_FILE)
        except OSError as error:
            raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error

    @property
    def number(self) -> int:
        """Of the open file, for a copy of this process that is to keep the folder too."""
        return self._file.fileno()

    def taken(self, *, wait: bool = False) -> bool:
        """Takes the folder; says whether it could."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Lets the folder go."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


_mine: WeakValueDictionary[Path, Lock] = WeakValueDictionary()


def kept_to_this_process(folder: Path, *, wait: bool = False) -> Lock:
    """A folder's lock, the same one for whoever asks in this process; it goes with the last.

    Args:
        folder: Which must be there.
        wait: Until another process lets it go.

    Raises:
        BadInput: Another process has it, or it cannot be written.
    """
    place = resolved(folder)
    lock = _mine.get(place)
    if lock is None:
        lock = Lock(place)
        if not lock.taken(wait=wait):
            raise BadInput(
                f"another process is writing to {folder}; stop that one, or choose another folder"
            )
        _mine[place] = lock
    return lock


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder meanwhile, after waiting for one that does.

    Args:
        folder: Which must be there.

    Raises:
        BadInput: Its lock is a link or a pipe, or cannot be written.
    """
    lock = kept_to_this_process(folder, wait=True)
    try:
        yield
    finally:
        # By name, since the traceback of an error would keep it.
        del lock
