"""Atomic writes, reads of regular files up to a maximum size, and locks of folders."""

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
"""Result file (record) of a run, in its folder."""

RECORDING_FILE = "recording.json"
"""Description of a live recording, in its folder."""

ATTACKED_FOLDER = "attacked"
"""Default folder, in a recording, for the result file that ``fedaudit attack`` writes."""

REPORT_FILE = "report.html"
"""Report, next to its record."""

SCORES_FILE = "scores.safetensors"
"""Scores of all audited samples, next to their record."""

CHECKPOINT_FILE = "checkpoint.safetensors"
"""State of a simulated federation after its last complete round, in the folder of a run."""

MANIFEST_FILE = "manifest.json"
"""Manifest of an evidence pack, in its folder."""

PICTURES_FILE = "pictures.png"
"""Images of members and images that a model generates. They are only for the local report."""

MAX_USER_FILE_BYTES = 1_000_000
"""Maximum size in bytes of a file that people write: a study, a policy, a key."""

MAX_SETTINGS_BYTES = 64 * 2**20
"""Maximum size in bytes of a JSON file of settings that fedaudit writes next to its results.

A recording of 100,000 clients with names takes a third of it."""

MAX_LOG_BYTES = 96 * 2**20
"""Maximum size in bytes of a log of rounds."""

MAX_LOG_LINES = 300_000
"""Maximum number of lines of a log of rounds; a line of 60 characters takes 1 kB of memory."""

MAX_RESULT_BYTES = 256 * 2**20
"""Maximum size in bytes of a record, comparison or file of a pack."""

MAX_NAMED_TENSORS = 5000
"""Maximum number of tensors whose names a record lists."""

MAX_TENSOR_NAME = 300
"""Maximum number of characters of a tensor's name in a record."""

MAX_KEYS = 100_000
"""Maximum number of keys of a JSON object."""

MAX_INTEGER = 2**64
"""Largest absolute value of a whole number in a JSON text."""

MAX_JSON_VALUES = 4_000_000
"""Maximum number of values in a JSON text; three characters can take 100 bytes of memory."""


MAX_GIB_VARIABLE = "FEDAUDIT_MAX_GIB"
"""Environment variable with the maximum memory, in GiB, for reading one file or folder."""

_ALWAYS_ALLOWED = 2**27
"""Bytes of memory that reading a file of any size may take."""
_MAX_EXPANSION = 32
"""Maximum ratio of the memory for reading a larger file to its size on disk."""


class TooLarge(ValueError):
    """A file is larger than the maximum for its kind."""


_PARTIAL = re.compile(r".+\.[0-9a-f]{8}\.partial", re.DOTALL)
"""Names of the temporary files of :func:`write_atomically`."""


def delete_partial_files(folder: Path, *, before: float) -> None:
    """Delete temporary files of processes that were killed in :func:`write_atomically`.

    Args:
        folder: Folder; its subfolders are not searched.
        before: Time in seconds since the epoch. Only files that were last written earlier are
            deleted, since another process may be writing now.
    """
    for path in folder.glob("*.partial"):
        if _PARTIAL.fullmatch(path.name) and path.is_file() and path.lstat().st_mtime < before:
            path.unlink(missing_ok=True)


def path_without_links(root: Path, *names: str) -> Path:
    """Return the path of a file or subfolder, after checking that no part below the root is a link.

    Args:
        root: Folder that the user named, which may be a link.
        names: Names of the subfolders below the root, outermost first, and of the file.

    Raises:
        BadInput: One of these is a link.
    """
    path = root
    for name in names:
        path /= name
        if path.is_symlink():
            raise BadInput(
                f"{path} is a link, so files of {root} would be read or written "
                "elsewhere; remove it, or choose another folder"
            )
    return path


def create_subfolder(root: Path, *names: str) -> Path:
    """Create a subfolder if it does not exist, and return its path; see :func:`path_without_links`.

    Raises:
        BadInput: One of the folders is a link or a file, or cannot be created.
    """
    folder = path_without_links(root, *names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error
    return folder


def open_to_append(path: Path) -> FileIO:
    """Open a regular file for appending, unbuffered; links are not followed.

    Raises:
        OSError: It is a link, a pipe or a folder, or cannot be written.
    """
    # O_NONBLOCK avoids waiting for the reader of a pipe. Windows has neither flag.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "a link, which is not followed", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(descriptor, "ab")


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Append a line to a log. If the whole line cannot be written, leave the log unchanged.

    The caller checks the maximum size of the log.

    Args:
        path: Regular file; it is created if it does not exist.
        line: Text of the line, without the line end.
        durable: Whether the line is flushed to the disk, to survive a power failure.

    Raises:
        OSError: The file cannot be written, or the disk is full.
    """
    data = f"{line}\n".encode()
    with open_to_append(path) as file:
        old_size = file.tell()
        if file.write(data) != len(data):
            # Otherwise the next line would be appended to a part of this one, and neither could
            # be read.
            file.truncate(old_size)
            raise OSError(errno.ENOSPC, "No space left on device")
        if durable:
            os.fsync(file.fileno())
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names of new files in a folder to the disk, on systems where that is possible."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def raise_if_absent(path: Path, expected: str) -> None:
    """Raise if a path does not exist.

    Args:
        path: The path.
        expected: What the path should be, for the message: "the folder of a pack".
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist; give {expected}")


def resolve_links(path: Path) -> Path:
    """Return a path with all links followed.

    Raises:
        OSError: A link points to itself.
    """
    try:
        return path.resolve()
    # Python up to 3.12 raises this in place of the operating system's error.
    except RuntimeError as error:
        raise OSError(errno.ELOOP, "a link that points to itself", str(path)) from error


def regular_size(path: Path, *, within: Path | None = None) -> int:
    """Return the size of a regular file in bytes, without opening it.

    Args:
        path: Path of the file. Links are followed.
        within: Folder that must contain the file after all links are followed; None for any.

    Raises:
        OSError: The path does not exist, points outside that folder, or is a pipe, a device or a
            folder.
    """
    if within is not None and not resolve_links(path).is_relative_to(resolve_links(within)):
        raise OSError(errno.ELOOP, f"a link that points outside {within}", str(path))
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


def raise_if_not_regular(path: Path, *, within: Path | None = None) -> None:
    """Raise if a path is not that of a regular file; arguments are those of :func:`regular_size`.

    Raises:
        OSError: As for :func:`regular_size`.
    """
    regular_size(path, within=within)


def open_regular(path: Path, *, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading bytes. Every file that a user names is opened with this.

    Args:
        path: Path of the file. Links are followed.
        within: Folder that must contain the file after all links are followed; None for any.

    Raises:
        OSError: As for :func:`regular_size`, or the file cannot be read.
    """
    # The path is checked before it is opened, since opening a device can change its state.
    raise_if_not_regular(path, within=within)
    # O_NONBLOCK avoids waiting for a writer if a pipe has replaced the file since the check.
    flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bytes(path: Path, *, max_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file that is not too large.

    Raises:
        TooLarge: The file is larger.
        OSError: As for :func:`open_regular`.
    """
    # The size is not read from the file system, since the file may grow before it is read.
    with open_regular(path, within=within) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLarge(f"{path} has more than {max_bytes} bytes")
    return data


PAGE_SUFFIXES = (".html", ".htm")
"""Suffixes of HTML files."""


def read_text(path: Path, *, max_bytes: int) -> str:
    """Return the UTF-8 text of a regular file that is not too large.

    Raises:
        TooLarge: The file is larger than ``max_bytes``.
        OSError: The file does not exist, cannot be read, or is not a regular file, such as a pipe.
        UnicodeDecodeError: The file is not UTF-8.
    """
    return read_bytes(path, max_bytes=max_bytes).decode("utf-8")


def raise_if_other_suffix(path: Path, *suffixes: str, format_name: str) -> None:
    """Raise if a file name has a suffix of another format.

    Args:
        path: File to be written. A name without a suffix is allowed.
        suffixes: Allowed suffixes with their dot, the usual one first.
        format_name: Format of the file, for the message ("an HTML page").
    """
    if path.suffix and path.suffix.lower() not in suffixes:
        raise BadInput(
            f"{path} would be {format_name}, but its name ends in {path.suffix!r}; give a name "
            f"that ends in {suffixes[0]}, such as {path.with_suffix(suffixes[0]).name}"
        )


def raise_if_oversized(subject: str, needed: int, *, file_bytes: int) -> None:
    """Raise if a file would take far more memory than its size on disk.

    By default, up to 32 times the size on disk is allowed, and 128 MiB for any file: images take
    four times as much memory in 32-bit numbers as in bytes, and PNG or ``.npz`` can compress them
    to a tenth. ``FEDAUDIT_MAX_GIB`` sets another limit.

    Args:
        subject: The file, for the message.
        needed: Memory in bytes, computed from the file's headers.
        file_bytes: Size of the file in bytes.

    Raises:
        BadInput: The file needs more memory, or ``FEDAUDIT_MAX_GIB`` is not a number above 0.
    """
    setting = os.environ.get(MAX_GIB_VARIABLE)
    limit = (
        _parse_gib(setting) * 2**30
        if setting
        else max(_ALWAYS_ALLOWED, _MAX_EXPANSION * file_bytes)
    )
    if needed > limit:
        # A header of a hundred bytes can state a number that is too large to be printed.
        needed = min(needed, 2**80)
        raise BadInput(
            f"{subject} would take {needed / 2**30:,.2f} GiB of memory for {file_bytes:,} bytes on "
            "the "
            f"disk, but a file of this size may take at most {limit / 2**30:,.2f}; if you trust "
            f"the file, set {MAX_GIB_VARIABLE}={-(-needed // 2**30) + 1} in the environment"
        )


def _parse_gib(setting: str) -> float:
    try:
        gib = float(setting)
    except ValueError:
        gib = 0.0
    if not 0 < gib < float("inf"):
        raise BadInput(
            f"{MAX_GIB_VARIABLE} is a number of GiB above 0, got {setting[:40]!r}; set it to 8, or "
            "leave it out"
        )
    return gib


def parse_json(
    text: str,
    *,
    parse_int: Callable[[str], int] | None = None,
    parse_float: Callable[[str], float] | None = None,
    parse_constant: Callable[[str], object] | None = None,
) -> object:
    """Parse a JSON text. Duplicate keys raise an error, since JSON readers treat them differently.

    Args:
        text: The text.
        parse_int: Function that parses whole numbers; by default, up to 64 bits are accepted.
        parse_float: Function that parses other numbers.
        parse_constant: Function that parses ``NaN``, ``Infinity`` and ``-Infinity``.

    Raises:
        ValueError: The text is not JSON, or has a duplicate key, a number that is too large, or too
            many values.
        RecursionError: The text is nested too deeply.
    """
    raise_if_many_values(text)
    parsed: object = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_int=parse_int or _parse_int64,
        parse_float=parse_float,
        parse_constant=parse_constant,
    )
    return parsed


def raise_if_many_values(text: str) -> None:
    """Raise ``ValueError`` if a JSON text has too many values."""
    # Values are counted before parsing, since a value takes far more memory than its text. This
    # upper bound also counts commas in strings.
    values = text.count(",") + text.count("[") + text.count("{")
    if values > MAX_JSON_VALUES:
        raise ValueError(
            f"it has about {values:,} values, but at most {MAX_JSON_VALUES:,} are read"
        )


def _parse_int64(digits: str) -> int:
    # The length is checked before parsing, since parsing thousands of digits is slow.
    if len(digits) > len(f"-{MAX_INTEGER}") or abs(int(digits)) > MAX_INTEGER:
        raise ValueError(f"the number {digits[:40]}... has over 64 bits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"an object has {len(pairs):,} keys, but at most {MAX_KEYS:,} are read")
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} occurs twice in one object")
            seen.add(key)
    return entries


def read_object(path: Path) -> dict[str, object]:
    """Read the JSON object that :func:`write_object` wrote to a file.

    Raises:
        Damaged: The file is too large, cannot be read, or does not contain a JSON object.
    """
    try:
        values = parse_json(read_text(path, max_bytes=MAX_SETTINGS_BYTES))
    except TooLarge as error:
        raise Damaged(f"{error}; fedaudit did not write it") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it from a copy") from error
    if not isinstance(values, dict):
        raise Damaged(f"{path} was not written by fedaudit; restore it from a copy")
    return values


def write_object(path: Path, text: str) -> None:
    """Write a JSON object that :func:`read_object` can read.

    Raises:
        BadInput: The text is too large to be read back, or :func:`write_atomically` cannot write
            it.
    """
    raise_if_unreadable(path, text)
    write_atomically(path, text)


def raise_if_unreadable(
    path: Path, text: str, *, max_bytes: int | None = None, remedy: str = ""
) -> None:
    """Raise if a JSON text is too large to be read back.

    Args:
        path: File that would be written.
        text: The text.
        max_bytes: Maximum size; None for the maximum size of settings.
        remedy: What to do, for the message.
    """
    size, max_bytes = len(text.encode("utf-8")), max_bytes or MAX_SETTINGS_BYTES
    remedy = remedy or "name fewer clients, or give shorter names and settings"
    if size > max_bytes:
        raise BadInput(
            f"{path} would have {size:,} bytes, but at most {max_bytes:,} are read back; {remedy}"
        )
    try:
        raise_if_many_values(text)
        # An object with too many keys has a colon for each. Other texts need no slow parsing.
        if text.count(":") > MAX_KEYS:
            parse_json(text)
    except ValueError as error:
        raise BadInput(f"{path} could not be read back ({error}); {remedy}") from error


PRIVATE_MODE = 0o600
"""Permissions of a file that only its owner may read and write, on systems that have them."""


def write_atomically(path: Path, content: str | bytes, *, owner_only: bool = False) -> None:
    """Write a file atomically: to a temporary file, which is then renamed.

    Line ends are not converted. A link at the path is replaced and not followed, so that no file
    outside the folder is changed.

    Args:
        path: File, in a folder that exists.
        content: Content of the file; a text is encoded in UTF-8.
        owner_only: Whether only the file's owner may read the file, as for results of single
            samples.

    Raises:
        BadInput: The disk is full or the folder is not writable; an earlier file stays unchanged.
    """
    # A random name, since two studies that share a pool may write the same file at the same time.
    partial = path.with_name(f"{path.name}.{os.urandom(4).hex()}.partial")
    try:
        mode = PRIVATE_MODE if owner_only else 0o666
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        # A useless partial file would take space on a full disk.
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error.strerror}); free some space or choose another "
            "folder, then start again: files that were already written are kept"
        ) from error


def record_at(path: Path) -> Path:
    """Return the path of a record: the path itself, or the record in the folder at the path.

    For the folder of a live recording, return the record of the attacks on it.

    Raises:
        BadInput: The folder has a live recording without a record of attacks, the folder of this
            record is a link, or the folder contains several recordings.
    """
    record = path / RECORD_FILE
    if not path.is_dir():
        return path
    if record.exists() or not (path / RECORDING_FILE).is_file():
        if not record.exists():
            raise_if_folder_of_recordings(path)
        return record
    attack_record = path_without_links(path, ATTACKED_FOLDER) / RECORD_FILE
    if not attack_record.exists():
        raise BadInput(
            f"{path} is a live recording without a record in {path / ATTACKED_FOLDER}; write it "
            f"with `fedaudit attack {path}`, or name the folder that you gave with --out"
        )
    return attack_record


def raise_if_folder_of_recordings(path: Path) -> None:
    """Raise if the subfolders of a folder are recordings, as of the jobs of a guard.

    Raises:
        BadInput: The message names one of the recordings.
    """
    if recordings := sorted(path.glob(f"*/{RECORDING_FILE}")):
        raise BadInput(
            f"{path} contains recordings of runs; give the folder of one of them, such as "
            f"{recordings[-1].parent}"
        )


try:
    import fcntl
except ImportError:  # Windows has no file locks: users must not start two processes at once.
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "lock"


class Lock:
    """A lock on a folder for this process.

    The operating system releases the lock when the process ends. The empty lock file remains.
    """

    def __init__(self, folder: Path) -> None:
        """Open the lock file without locking it.

        Raises:
            BadInput: The lock file is a link or a pipe, or cannot be written.
        """
        try:
            self._file = open_to_append(folder / LOCK_FILE)
        except OSError as error:
            raise BadInput(f"{folder} cannot be used ({error}); choose another folder") from error

    @property
    def descriptor(self) -> int:
        """Descriptor of the lock file, which a fork of this process may need to close."""
        return self._file.fileno()

    def acquire(self, *, wait: bool = False) -> bool:
        """Lock the folder, and return whether this succeeded."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the folder."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


_locks: WeakValueDictionary[Path, Lock] = WeakValueDictionary()


def lock_folder(folder: Path, *, wait: bool = False) -> Lock:
    """Lock a folder for this process until the last reference to the lock is deleted.

    Raises:
        BadInput: Another process has locked the folder, or it is not writable.
    """
    path = resolve_links(folder)
    lock = _locks.get(path)
    if lock is None:
        lock = Lock(path)
        if not lock.acquire(wait=wait):
            raise BadInput(
                f"another process is writing to {folder}; stop it, or choose another folder"
            )
        _locks[path] = lock
    return lock


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """Lock a folder within the context, after waiting for any other process that has locked it.

    Raises:
        BadInput: The lock file is a link or a pipe, or cannot be written.
    """
    lock = lock_folder(folder, wait=True)
    try:
        yield
    finally:
        # Deleted explicitly, since the traceback of an error would keep the lock referenced.
        del lock
