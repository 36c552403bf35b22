"""Tensors by name in one file: safetensors, written whole or not at all, read with suspicion."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import parsed_json
from fedaudit.core.values import Params

MAX_BYTES = 16 * 2**30
MAX_TENSORS = 100_000
MAX_HEADER = 25_000_000
"""Bytes that say what a file holds; its notes tell of every client and sample of a round."""
_MOST_NOTES = 200_000
_MOST_AXES = 64
"""Of a tensor in torch."""
_LONGEST_LIST = 21 * _MOST_AXES
"""Characters in brackets: for each axis a number of 64 bits and a comma."""
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?"?', re.DOTALL)
"""Text of JSON in its quotation marks; one that is never ended, too, so that it is read once."""
_LONG_LIST = re.compile(rb"\[[^\[\]]{%d}" % _LONGEST_LIST)
_MOST_OF_NOTHING = 2**24
_ORDER = "fedaudit.order"
_HASH = "fedaudit.sha256"


def write_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    notes: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Writes all tensors to a temporary name, flushes it to the disk and renames it.

    Args:
        tensors: What to keep.
        path: Where; the folder must exist.
        notes: Short texts that travel with the tensors.
        durable: Whether it outlasts a power failure and carries a hash of its content; what is
            read again in seconds needs neither.

    Raises:
        BadInput: The disk is full or the folder cannot be written; what was there stays.
    """
    partial = path.with_name(path.name + ".partial")
    said = {**(notes or {}), _ORDER: json.dumps(list(tensors))}
    try:
        # What was left of it before, or a link to elsewhere, which would be followed.
        partial.unlink(missing_ok=True)
        hashed = {_HASH: digest_of(tensors, said)} if durable else {}
        save_file(_apart(tensors), partial, {**said, **hashed})
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error}); free some space or choose another folder, "
            "then start again: what was written before is kept"
        ) from error


def _apart(tensors: Mapping[str, Tensor]) -> Params:
    """The tensors in memory of their own: the format refuses two names for one piece of it."""
    found: Params = {}
    taken: set[int] = set()
    for name, value in tensors.items():
        memory = value.untyped_storage()
        alone = memory.data_ptr() not in taken and memory.nbytes() == value.nbytes
        if not (alone and value.is_contiguous()):
            found[name] = value.detach().clone(memory_format=torch.contiguous_format)
        else:
            found[name] = value.detach()
            taken.add(memory.data_ptr())
    return found


def read_tensors(path: Path) -> tuple[Params, dict[str, str]]:
    """Return the tensors of a file in the order they were written in, and its notes by name.

    Nothing in the file is executed. The order of the tensors matters, since sums over a model's
    layers are taken in it. safetensors returns notes in an order that differs between processes:
    they are sorted here, so that no result depends on the process that reads them.

    Raises:
        BadInput: There is no such file.
        Damaged: It is too large, not a whole safetensors file, or does not have the hash that it
            carries.
    """
    if not path.is_file():
        what = "is no regular file" if path.exists() else "is not there"
        raise BadInput(f"{path} {what}; check the path, or restore it from a copy")
    if path.stat().st_size > MAX_BYTES:
        raise Damaged(f"{path} is larger than {MAX_BYTES} bytes; nothing of ours is")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            refuse_heavy(length, file.read(min(length, MAX_HEADER)))
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            notes = dict(sorted((stored.metadata() or {}).items()))
            told = notes.pop(_HASH, None)
            order = _order(names, notes.get(_ORDER))
            for name in order:
                _refuse_endless(stored.get_slice(name).get_shape())
            found = {name: stored.get_tensor(name) for name in order}
        if told is not None and told != digest_of(found, notes):
            raise Damaged(
                f"{path} was altered after it was written: its tensors and notes do not have the "
                "hash that it carries; restore it from a copy, or make it again"
            )
        notes.pop(_ORDER, None)
        return found, notes
    except Damaged:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); restore it from a copy, "
            "or delete the folder of its run and start again"
        ) from error


def read_notes(path: Path) -> dict[str, str]:
    """Return the notes of a file without its tensors, which are not compared with its hash.

    Raises:
        Damaged: It is not a safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            refuse_heavy(length, file.read(min(length, MAX_HEADER)))
        with safe_open(path, framework="pt") as stored:
            return dict(stored.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); delete it"
        ) from error


def carries_hash(path: Path) -> bool:
    """True if a file that can be read has the hash of what it holds, as older ones have not."""
    with safe_open(path, framework="pt") as stored:
        return _HASH in (stored.metadata() or {})


def digest_of(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Return the SHA-256 of tensors by name and of notes, whatever the layout of a file."""
    digest = hashlib.sha256(json.dumps(sorted(notes.items())).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def refuse_heavy(length: int, header: bytes) -> None:
    """Refuses a header that would take far more memory than its text, before it is parsed.

    Args:
        length: Bytes that it is said to have.
        header: Its text, if that is of some length that is read at all.

    Raises:
        ValueError: It is longer than any of ours, or tells of more tensors, axes or notes.
    """
    tensors = header.count(b"{") - 2
    if length > MAX_HEADER or tensors > MAX_TENSORS:
        raise ValueError(
            f"its header has {length:,} bytes and tells of {tensors:,} tensors or more; at most "
            f"{MAX_HEADER:,} and {MAX_TENSORS:,} are read"
        )
    # A colon for each of a tensor's three entries and its name.
    if header.count(b":") > 4 * MAX_TENSORS + _MOST_NOTES:
        raise ValueError(f"its header holds more than {_MOST_NOTES:,} notes")
    # Each axis takes fifty times its two characters. Notes are text, and may list what they want.
    if _LONG_LIST.search(_TEXT.sub(b"", header)):
        raise ValueError(f"its header tells of a tensor of more than {_MOST_AXES} axes")


def _refuse_endless(shape: Sequence[int]) -> None:
    """Refuses a tensor without values that is longer than anybody can count."""
    if not is_countable(shape):
        raise ValueError(f"a tensor without values has the shape {str(list(shape))[:80]}")


def is_countable(shape: Sequence[int]) -> bool:
    """True if a tensor of this shape has values, or at most a few million of none.

    A file of a hundred bytes can announce more of none than torch has numbers for.
    """
    return 0 not in shape or prod(max(size, 1) for size in shape) <= _MOST_OF_NOTHING


def _order(names: list[str], noted: str | None) -> list[str]:
    """Return the names as they were written, or sorted for a file without that note."""
    if noted is None:
        return sorted(names)
    order = parsed_json(noted)
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(names):
        raise ValueError("it names other tensors than it holds")
    return [str(name) for name in order]
