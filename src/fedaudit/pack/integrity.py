"""Integrity of a pack's files: names, sizes, hashes, manifest and signature.

No link is followed, and no file outside the pack is opened.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedaudit.core.files import (
    MANIFEST_FILE,
    MAX_RESULT_BYTES,
    MAX_SETTINGS_BYTES,
    open_regular,
    raise_if_many_values,
    read_bytes,
    read_text,
)
from fedaudit.formatting.grid import shorten
from fedaudit.pack.choices import MOST_NAMED
from fedaudit.pack.manifest import (
    SIGNATURE_BYTES,
    SIGNATURE_FILE,
    Manifest,
    digest_of,
    is_signed,
    manifest_text,
)
from fedaudit.pack.packing import FILES, OPTIONAL_FILES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


def signature_fault(folder: Path, key: "Ed25519PublicKey") -> str:
    """Return the reason why the signature of a key is not valid; empty if it is valid."""
    fault = reading_fault(folder / SIGNATURE_FILE, limit=SIGNATURE_BYTES)
    if fault:
        return f"{SIGNATURE_FILE} {fault}: the pack is not signed by that key"
    content = read_bytes(folder / MANIFEST_FILE, max_bytes=MAX_SETTINGS_BYTES)
    signature = read_bytes(folder / SIGNATURE_FILE, max_bytes=SIGNATURE_BYTES)
    if not is_signed(content, signature, key):
        return f"{SIGNATURE_FILE} is not that key's signature of {MANIFEST_FILE}"
    return ""


def read_manifest(path: Path) -> Manifest | str:
    """Return the manifest, or the reason why it is invalid."""
    try:
        text = read_text(path, max_bytes=MAX_SETTINGS_BYTES)
        raise_if_many_values(text)
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        return f"is not a manifest of this version ({shorten(field)}: {shorten(first['msg'])})"
    except (OSError, ValueError) as error:
        return f"cannot be read ({shorten(str(error), 120)})"
    if manifest_text(manifest) != text:
        return "is not in the canonical form of a manifest (a space, a key or a number differs)"
    return manifest


def digest_faults(manifest: Manifest, digest: str) -> Iterator[str]:
    """Describe differences between the manifest, its digest and the receiver's digest, if any."""
    if digest_of(manifest) != manifest.digest:
        yield "does not match its digest: it was changed"
    if digest and manifest.digest != digest:
        yield "does not have the given digest: the pack was replaced or changed"


def wrong_names(manifest: Manifest) -> Iterator[str]:
    """Describe wrong file names in the manifest. Files with these names are never opened."""
    names = [file.name for file in manifest.files]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{MANIFEST_FILE} names {shorten(name)!r}, which is not a plain file name"
        elif name not in FILES | OPTIONAL_FILES:
            yield f"{MANIFEST_FILE} names {name}, which no pack has"
    for name in sorted(FILES - set(names)):
        yield f"{MANIFEST_FILE} does not name {name}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{MANIFEST_FILE} names {shorten(name)} twice"


def unexpected_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Describe files in the folder that the manifest does not name."""
    optional = OPTIONAL_FILES & {file.name for file in manifest.files}
    expected = {*FILES, *optional, MANIFEST_FILE, SIGNATURE_FILE}
    with os.scandir(folder) as entries:
        extra = sorted(entry.name for entry in entries if entry.name not in expected)
    for name in extra[:MOST_NAMED]:
        yield f"{shorten(name)} is not in the manifest"
    if len(extra) > MOST_NAMED:
        yield f"{len(extra) - MOST_NAMED} more are not in the manifest"


def changed_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Describe files whose size or hash is not that of the manifest."""
    for file in manifest.files:
        if file.name not in FILES | OPTIONAL_FILES:
            continue
        path = folder / file.name
        fault = reading_fault(path)
        if fault:
            yield f"{file.name} {fault}"
            continue
        size, sha256 = _size_and_hash(path)
        if size != file.bytes:
            yield f"{file.name} has {size:,} bytes, but {file.bytes:,} in the manifest"
        elif sha256 != file.sha256:
            yield f"{file.name} was changed: its SHA-256 is {sha256}, which the manifest lacks"


def reading_fault(path: Path, *, limit: int = MAX_RESULT_BYTES) -> str:
    """Return the reason why a file cannot be read; empty if it can. Links are not followed."""
    try:
        status = path.lstat()
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link, which no pack has"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size > limit:
        return f"is larger than {limit:,} bytes"
    return ""


def _size_and_hash(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
