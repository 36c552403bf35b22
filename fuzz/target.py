"""What a target is, and where its files are."""

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
    """A JSON document in a content.

    Attributes:
        text: It.
        within: The content with another document in its place.
    """

    text: bytes
    within: Callable[[bytes], bytes]


def alone(content: bytes) -> Document:
    """A content that is a document."""
    return Document(content, lambda other: other)


def header(content: bytes) -> Document:
    """What a content in the format of safetensors says of its tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    rest = content[end:]
    return Document(content[8:end], lambda other: len(other).to_bytes(8, "little") + other + rest)


class Target(NamedTuple):
    """A reader.

    Attributes:
        read: Takes the content of a file; raises a refusal or nothing.
        seeds: Contents that are as they should be, to start from.
        document: Finds the document in a content, whose parts can be exchanged one by one.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    document: Callable[[bytes], Document] | None = None


TOKENS = (b".a", b"[", b"{", b"(", b'"', b",", b"9", b"0x", b"\\", b"\n", b"\0", b'{"":', b"]")
"""Of what files are made; many of one kind are what parsers take longest over."""


def stretched(seed: bytes, token: bytes, rng: Random, length: int = 500_000) -> bytes:
    """A content with very many of one token somewhere in it, which no small change leads to.

    Every second time that is behind the first word of a line, such as a key.
    """
    words = [found.end() for found in re.finditer(rb"^\[*\w+", seed, re.MULTILINE)]
    places = words if words and rng.random() < 0.5 else range(len(seed) + 1)
    at = rng.choice(places)
    return seed[:at] + token * (length // len(token)) + seed[at:]


_WORDS = (b"", b"-1", b"0", b"1e999", b"9" * 19, b"null", b'"', b"[")


def damaged(seed: bytes, rng: Random) -> bytes:
    """A content with some bytes or numbers changed, taken out or doubled, or cut off."""
    content = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 1, 2, 8, 40)))
        how = rng.randrange(5)
        if how == 0:
            content[at:end] = rng.randbytes(end - at)
        elif how == 1:
            content[at:end] = rng.choice((b"\x00", b"\x7f", b"\xff")) * (end - at)
        elif how == 2:
            content[at:at] = content[at:end]
        elif how == 3:
            content[at:end] = rng.choice(
                (b"", b"-1", b"0", b"1e999", b"9" * 19, b"null", b'"', b"[")
            )
        elif rng.random() < 0.2:
            del content[at:]
    return bytes(content)


def refused(read: Callable[[bytes], object], content: bytes) -> bool:
    """Whether a reader refuses; anything else that it raises goes through."""
    try:
        read(content)
    except FedauditError:
        return True
    return False


def file(name: str, content: bytes) -> Path:
    """A file with this content."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written in place: a new file for each of a million would take longest of all.
    with path.open("wb") as opened:
        opened.write(content)
    return path


def sweep() -> None:
    """Takes the folder away again."""
    shutil.rmtree(FOLDER, ignore_errors=True)


atexit.register(sweep)
