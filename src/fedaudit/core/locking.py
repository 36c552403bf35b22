"""A folder for one process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from fedaudit.core.errors import BadInput
from fedaudit.core.files import opened_to_append, resolved

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
        """Takes the folder; says whether it could.

        Args:
            wait: Until another process lets it go.
        """
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
