"""Uploads of one round: in memory as far as there is room for them, the others on the disk."""

import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import TypeVar

from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.values import ClientId
from fedaudit.engines.base import packed
from fedaudit.observe.by_client import LazyByClient
from fedaudit.observe.round import Gradient, Update, Upload

HELD_BYTES = 2**27
"""Bytes of a round's uploads that are held in memory, whatever the number of clients."""

HELD_CLIENTS = 16
"""Clients whose uploads are held in memory however large they are: cross-silo federations train
few large models, which are faster in memory."""

Value = TypeVar("Value")


class StoredUploads(Mapping[ClientId, Upload]):
    """Uploads of a round, the first of them in memory and the others in a file without a name.

    What is read back is what was added, to the bit. In another process it is a dictionary.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Start without uploads.

        Args:
            folder: Where the file lies; None for the system's folder of temporary files.
        """
        self._folder = folder
        self._held, self._room = dict[ClientId, Upload](), HELD_BYTES
        self._places = dict[ClientId, tuple[int, int]]()
        self._end, self._lock = 0, Lock()

    def add(self, client: ClientId, upload: Upload) -> None:
        """Keep a client's upload.

        Raises:
            BadInput: The disk is full.
        """
        size = _size(upload)
        if size <= self._room or len(self._held) < HELD_CLIENTS:
            self._held[client], self._room = upload, self._room - size
            return
        # No later one is held either, so that memory depends on the clients' order alone.
        self._room = 0
        content = packed(upload)
        try:
            if not self._places:
                self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                # A file that is left to the garbage collector is a warning.
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            view = memoryview(content)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise BadInput(
                f"a round's updates of {len(self) + 1} clients take more memory than "
                f"{HELD_BYTES >> 20} MB and cannot be written to the disk: {error}; free some "
                "space, or lower training.participation"
            ) from error
        self._places[client] = self._end, len(content)
        self._end += len(content)

    @property
    def all_held(self) -> bool:
        """True if every upload is in memory."""
        return not self._places

    def __getitem__(self, client: ClientId) -> Upload:
        """Return a client's upload, from memory or from the file."""
        if client in self._held:
            return self._held[client]
        start, size = self._places[client]
        with self._lock:
            self._file.seek(start)
            content = bytearray(size)
            view = memoryview(content)
            while view:
                view = view[self._file.readinto(view) :]
        # The file has no name, so that nobody but this process ever wrote to it.
        upload: Upload = pickle.loads(content)
        return upload

    def __contains__(self, client: object) -> bool:
        """Return whether a client's upload is there; reads nothing."""
        return client in self._held or client in self._places

    def __iter__(self) -> Iterator[ClientId]:
        """Iterate over clients in the order in which they were added."""
        yield from self._held
        yield from self._places

    def __len__(self) -> int:
        """Number of clients."""
        return len(self._held) + len(self._places)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[dict[ClientId, Upload]]]:
        """Pickle as a dictionary of all uploads."""
        return dict, (dict(self),)

    def settled(self) -> Mapping[ClientId, Upload]:
        """Return a dictionary if every upload is in memory, else these."""
        return self._held if self.all_held else self


def made_of(
    uploads: Mapping[ClientId, Upload], make: Callable[[ClientId, Upload], Value]
) -> Mapping[ClientId, Value]:
    """Return what is made of each client's upload, by client, ascending.

    Args:
        uploads: Of a dictionary all are made now; of :class:`StoredUploads` one at a time, when
            it is asked for.
        make: Of client and upload.
    """
    clients = sorted(uploads)
    if isinstance(uploads, dict):
        return {client: make(client, uploads[client]) for client in clients}
    return LazyByClient(clients, lambda client: make(client, uploads[client]))


def _size(upload: Upload) -> int:
    """Bytes of an upload's tensors."""
    tensors: list[Tensor] = [*upload.values.values()]
    if isinstance(upload, Update | Gradient):
        tensors += upload.buffers.values()
    return sum(tensor.nbytes for tensor in tensors)
