"""Tensors by name in one file: safetensors, written whole or not at all, read with suspicion.

The folder of a run holds::

    measured/round-000010.safetensors    all signals of a round
    rounds/round-000010/server.safetensors        base and next global model ("snapshots")
    rounds/round-000010/client-000003.safetensors a client's update in 16 bits ("full")
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import PRIVATE_MODE, own_place, parsed_json
from fedaudit.core.pretrained import check_header, is_countable
from fedaudit.core.values import ClientId, Params

Keep = Literal["signals", "snapshots", "full"]
MAX_ROUND = 999_999
"""The last round that file names, of six digits, can tell."""
_ROUND = re.compile(r"round-(\d{6})(\.safetensors)?")


def estimated_bytes(
    *, keep: Keep, rounds: int, clients: int, samples: int, signals: int, parameters: int
) -> int:
    """About how much disk a run will take."""
    values = clients * samples * signals
    total = rounds * round_bytes(keep=keep, clients=clients, values=values, parameters=parameters)
    # The checkpoint, and room for its successor while both are there.
    return total + 2 * parameters * 4


def round_bytes(*, keep: Keep, clients: int, values: int, parameters: int) -> int:
    """About how much disk one measured round takes."""
    total = values * 8
    if keep != "signals":
        total += 2 * parameters * 4
    if keep == "full":
        total += clients * parameters * 2
    return total


def numbered(folder: Path, ending: str) -> list[tuple[int, Path]]:
    """The files or folders of rounds with an ending, and each one's round, ascending.

    Raises:
        BadInput: The folder, or one of these, is a link.
    """
    own_place(folder.parent, folder.name)
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _ROUND.fullmatch(path.name)
        if match and (match[2] or "") == ending:
            found.append((int(match[1]), own_place(folder, path.name)))
    return found


def pairs(stands_for: Mapping[ClientId, ClientId]) -> Int[Tensor, "merged two"]:
    """Merged clients, each with the one that its group is named after, as files have them."""
    return torch.tensor(sorted(stands_for.items()), dtype=torch.int64).reshape(-1, 2)


def numbers_of(tensor: Tensor) -> tuple[ClientId, ...]:
    """Numbers of clients, each once.

    Raises:
        ValueError: They are not.
    """
    numbers = tuple(int(client) for client in tensor.tolist())
    if tensor.dtype != torch.int64 or len(set(numbers)) < len(numbers) or not numbers:
        raise ValueError("its clients are not numbered each once")
    return numbers


def groups_of(pairs: Tensor, clients: Collection[ClientId]) -> dict[ClientId, ClientId]:
    """For each merged client the one that its group is named after, which alone is still there.

    Raises:
        ValueError: No clients can be grouped so.
    """
    if pairs.dtype != torch.int64 or pairs.shape[1:] != (2,):
        raise ValueError("it has groups of odd shape")
    groups = {int(member): int(name) for member, name in pairs.tolist()}
    named = all(groups.get(name) == name and name in clients for name in groups.values())
    gone = all(member == name or member not in clients for member, name in groups.items())
    if len(groups) < len(pairs) or not (named and gone):
        raise ValueError("it has groups of clients that cannot be")
    return groups


MAX_BYTES = 16 * 2**30
_ORDER = "fedaudit.order"
_HASH = "fedaudit.sha256"


def write_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    notes: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
    private: bool = False,
) -> None:
    """Writes all tensors to a temporary name, flushes it to the disk and renames it.

    Args:
        tensors: What to keep.
        path: Where; the folder must exist.
        notes: Short texts that travel with the tensors.
        durable: Whether it outlasts a power failure and carries a hash of its content; what is
            read again in seconds needs neither.
        private: Whether only the owner of the file may read it, as for samples and their scores.

    Raises:
        BadInput: The disk is full or the folder cannot be written, or the file could not be read
            back; what was there stays.
    """
    partial = path.with_name(path.name + ".partial")
    said = {**(notes or {}), _ORDER: json.dumps(list(tensors))}
    try:
        # What was left of it before, or a link to elsewhere, which would be followed.
        partial.unlink(missing_ok=True)
        hashed = {_HASH: digest_of(tensors, said)} if durable else {}
        if private:
            # Before the tensors are in it; safetensors writes into the file that is there.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))
        save_file(_apart(tensors), partial, {**said, **hashed})
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        _refuse_unreadable(partial, path)
        partial.replace(path)
    except BadInput:
        partial.unlink(missing_ok=True)
        raise
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error}); free some space or choose another folder, "
            "then start again: what was written before is kept"
        ) from error


def _refuse_unreadable(partial: Path, path: Path) -> None:
    """Raise if a file that was just written is larger than what its reader takes."""
    try:
        check_header(partial)
        if partial.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    except ValueError as error:
        raise BadInput(
            f"{path} could not be read back ({error}), and is not written; audit fewer clients or "
            "samples, or measure fewer rounds"
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
        check_header(path)
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
        check_header(path)
        with safe_open(path, framework="pt") as stored:
            return dict(stored.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); delete it"
        ) from error


def carries_hash(path: Path) -> bool:
    """True if a file that can be read has the hash of what it holds, as older ones have not."""
    check_header(path)
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


def _refuse_endless(shape: Sequence[int]) -> None:
    """Refuses a tensor without values that is longer than anybody can count."""
    if not is_countable(shape):
        raise ValueError(f"a tensor without values has the shape {str(list(shape))[:80]}")


def _order(names: list[str], noted: str | None) -> list[str]:
    """Return the names as they were written, or sorted for a file without that note."""
    if noted is None:
        return sorted(names)
    order = parsed_json(noted)
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(names):
        raise ValueError("it names other tensors than it holds")
    return [str(name) for name in order]
