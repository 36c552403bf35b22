"""Fuzz targets, changes of their inputs, and the folder of their files."""

import atexit
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import NamedTuple

from fedaudit.core.errors import FedauditError

SHM = Path("/dev/shm")
FOLDER = Path(mkdtemp(prefix="fedaudit-fuzz-", dir=SHM if SHM.is_dir() else None))


class Document(NamedTuple):
    """A JSON document in the content of a file.

    Attributes:
        text: The document.
        replace_document: Returns the content with another document instead of this one.
    """

    text: bytes
    replace_document: Callable[[bytes], bytes]


def whole_document(content: bytes) -> Document:
    """Return the document of a file that consists of one document."""
    return Document(content, lambda other: other)


def header(content: bytes) -> Document:
    """Return the header of a file in the format of safetensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    rest = content[end:]
    return Document(content[8:end], lambda other: len(other).to_bytes(8, "little") + other + rest)


class Target(NamedTuple):
    """A reader of untrusted files.

    Attributes:
        read: Reads the content of a file, or raises an error of fedaudit.
        seeds: Returns valid contents.
        document: Returns the JSON document in a content; None if the format has none.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    document: Callable[[bytes], Document] | None = None


TOKENS = (b".a", b"[", b"{", b"(", b'"', b",", b"9", b"0x", b"\\", b"\n", b"\0", b'{"":', b"]")
"""Tokens of file formats. Parsers take longest over many repetitions of one token."""


def stretched(seed: bytes, token: bytes, rng: Random, length: int = 500_000) -> bytes:
    """Return a content with many repetitions of a token, which small changes cannot produce.

    In half of the cases, the token is inserted after the first word of a line, such as a key.
    """
    words = [match.end() for match in re.finditer(rb"^\[*\w+", seed, re.MULTILINE)]
    positions = words if words and rng.random() < 0.5 else range(len(seed) + 1)
    position = rng.choice(positions)
    return seed[:position] + token * (length // len(token)) + seed[position:]


_TEXTS = (b"", b"-1", b"0", b"1e999", b"9" * 19, b"null", b'"', b"[")


def damaged(seed: bytes, rng: Random) -> bytes:
    """Return a content with bytes or numbers changed, removed or doubled, or the end cut off."""
    content = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice((1, 1, 2, 8, 40)))
        change = rng.randrange(5)
        if change == 0:
            content[start:end] = rng.randbytes(end - start)
        elif change == 1:
            content[start:end] = rng.choice((b"\x00", b"\x7f", b"\xff")) * (end - start)
        elif change == 2:
            content[start:start] = content[start:end]
        elif change == 3:
            content[start:end] = rng.choice(_TEXTS)
        elif rng.random() < 0.2:
            del content[start:]
    return bytes(content)


def refused(read: Callable[[bytes], object], content: bytes) -> bool:
    """Return whether a reader raises an error of fedaudit; other errors are not caught."""
    try:
        read(content)
    except FedauditError:
        return True
    return False


def file(name: str, content: bytes) -> Path:
    """Write a file with this content, and return its path."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file is overwritten: creating a new file for each input would take most of the time.
    with path.open("wb") as stream:
        stream.write(content)
    return path


def remove_folder() -> None:
    """Remove the folder with all files."""
    shutil.rmtree(FOLDER, ignore_errors=True)


atexit.register(remove_folder)
