"""Reading and writing of named tensors in safetensors files.

Files are written atomically, and validated when they are read. The folder of a run contains the
following files. ``measured`` always exists; the others depend on the setting ``keep``::

    measured/round-000010.safetensors              all signals of a round
    rounds/round-000010/server.safetensors         received and next global models
                                                   (keep = "snapshots" or "full")
    rounds/round-000010/client-000003.safetensors  a client's update in 16 bits (keep = "full")
"""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import PRIVATE_MODE, parse_json, path_without_links
from fedaudit.core.pretrained import check_header, is_allowed_shape
from fedaudit.core.values import ClientId, Params

Keep = Literal["signals", "snapshots", "full"]
"""Which data of a round are stored; see the module's docstring."""
MAX_ROUND = 999_999
"""Largest round number: file names contain six digits."""
_ROUND = re.compile(r"round-(\d{6})(\.safetensors)?")


def estimated_bytes(
    *, keep: Keep, rounds: int, clients: int, samples: int, signals: int, parameters: int
) -> int:
    """Estimate the disk space of a run."""
    values = clients * samples * signals
    total = rounds * round_bytes(keep=keep, clients=clients, values=values, parameters=parameters)
    # Two checkpoints: a new one is written before the old one is removed.
    return total + 2 * parameters * 4


def round_bytes(*, keep: Keep, clients: int, values: int, parameters: int) -> int:
    """Estimate the disk space of one measured round."""
    total = values * 8
    if keep != "signals":
        total += 2 * parameters * 4
    if keep == "full":
        total += clients * parameters * 2
    return total


def round_paths(folder: Path, ending: str) -> list[tuple[int, Path]]:
    """Return the numbers and paths of round files or folders, in ascending order.

    Raises:
        BadInput: The folder, or one of these paths, is a link.
    """
    path_without_links(folder.parent, folder.name)
    rounds = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _ROUND.fullmatch(path.name)
        if match and (match[2] or "") == ending:
            rounds.append((int(match[1]), path_without_links(folder, path.name)))
    return rounds


def group_pairs(group_of: Mapping[ClientId, ClientId]) -> Int[Tensor, "merged two"]:
    """Convert ``Round.group_of`` to a table of pairs; the inverse of :func:`groups_of`."""
    return torch.tensor(sorted(group_of.items()), dtype=torch.int64).reshape(-1, 2)


def client_ids_in(tensor: Tensor) -> tuple[ClientId, ...]:
    """Convert a tensor to client numbers.

    Raises:
        ValueError: The tensor is empty, does not contain integers, or contains a number twice.
    """
    numbers = tuple(int(client) for client in tensor.tolist())
    if tensor.dtype != torch.int64 or len(set(numbers)) < len(numbers) or not numbers:
        raise ValueError("its client numbers are missing or not unique")
    return numbers


def groups_of(pairs: Tensor, clients: Collection[ClientId]) -> dict[ClientId, ClientId]:
    """Return, for each merged client, the client whose number its group has.

    Raises:
        ValueError: A group does not have the number of one of its clients, or another client of the
            group is also listed separately.
    """
    if pairs.dtype != torch.int64 or pairs.shape[1:] != (2,):
        raise ValueError("its groups have an invalid shape")
    groups = {int(member): int(name) for member, name in pairs.tolist()}
    are_names_valid = all(groups.get(name) == name and name in clients for name in groups.values())
    are_merged = all(member == name or member not in clients for member, name in groups.items())
    if len(groups) < len(pairs) or not (are_names_valid and are_merged):
        raise ValueError("its groups of clients are invalid")
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
    owner_only: bool = False,
) -> None:
    """Write tensors to a temporary file, flush it to the disk and rename it.

    Args:
        tensors: The tensors by name.
        path: Path of the file; its folder must exist.
        notes: Short texts that are stored with the tensors.
        durable: Whether to store a hash of the content, and to flush the file so that it survives a
            power failure. Files that are read again within seconds need neither.
        owner_only: Whether only the file's owner may read the file, as for samples and their
            scores.

    Raises:
        BadInput: The disk is full, the folder cannot be written, or the file cannot be read back.
            An existing file at the path is kept.
    """
    partial = path.with_name(path.name + ".partial")
    metadata = {**(notes or {}), _ORDER: json.dumps(list(tensors))}
    try:
        # Delete a file from an interrupted write, or a link that another user created, since
        # writing would follow the link.
        partial.unlink(missing_ok=True)
        hashed = {_HASH: digest_of(tensors, metadata)} if durable else {}
        if owner_only:
            # Set the file's mode before safetensors writes any content to it.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))
        save_file(_copy_shared(tensors), partial, {**metadata, **hashed})
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        _raise_if_unreadable(partial, path)
        partial.replace(path)
    except BadInput:
        partial.unlink(missing_ok=True)
        raise
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error}); free some space or choose another folder, "
            "then start again: earlier files are kept"
        ) from error


def _raise_if_unreadable(partial: Path, path: Path) -> None:
    """Raise if a new file is too large to be read, or has an invalid header."""
    try:
        check_header(partial)
        if partial.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    except ValueError as error:
        raise BadInput(
            f"{path} was not saved, because it could not be read again later ({error}); audit "
            "fewer clients or samples, or measure fewer rounds"
        ) from error


def _copy_shared(tensors: Mapping[str, Tensor]) -> Params:
    """Copy tensors that share memory, because safetensors does not accept them."""
    result: Params = {}
    used_storages: set[int] = set()
    for name, value in tensors.items():
        memory = value.untyped_storage()
        is_sole_user = memory.data_ptr() not in used_storages and memory.nbytes() == value.nbytes
        if not (is_sole_user and value.is_contiguous()):
            result[name] = value.detach().clone(memory_format=torch.contiguous_format)
        else:
            result[name] = value.detach()
            used_storages.add(memory.data_ptr())
    return result


def read_tensors(path: Path) -> tuple[Params, dict[str, str]]:
    """Return the tensors of a file in the order of writing, and its notes sorted by name.

    Nothing in the file is executed. The order of the tensors matters, because the rounding of sums
    over a model's layers depends on it. Notes are sorted, because their order in safetensors
    differs between processes.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file is too large, is not a complete safetensors file, or does not match its
            hash.
    """
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "does not exist"
        raise BadInput(f"{path} {problem}; check the path, or restore it from a copy")
    if path.stat().st_size > MAX_BYTES:
        raise Damaged(
            f"{path} is larger than {MAX_BYTES:,} bytes, which fedaudit never writes; restore it "
            "from a copy"
        )
    try:
        check_header(path)
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            notes = dict(sorted((stored.metadata() or {}).items()))
            expected = notes.pop(_HASH, None)
            order = _order(names, notes.get(_ORDER))
            for name in order:
                shape = stored.get_slice(name).get_shape()
                if not is_allowed_shape(shape):
                    # Torch cannot read some empty tensors with a very large dimension.
                    raise ValueError(
                        "an empty tensor has impossibly large dimensions: its shape is "
                        f"{str(list(shape))[:80]}"
                    )
            tensors = {name: stored.get_tensor(name) for name in order}
        if expected is not None and expected != digest_of(tensors, notes):
            raise Damaged(
                f"{path} was altered after it was written: its tensors and notes do not match its "
                "hash; restore it from a copy, or create it again"
            )
        notes.pop(_ORDER, None)
        return tensors, notes
    except Damaged:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); restore it from a copy, "
            "or delete the folder of its run and start again"
        ) from error


def read_notes(path: Path) -> dict[str, str]:
    """Return the notes of a file without reading its tensors or checking its hash.

    Raises:
        Damaged: The file is not a safetensors file.
    """
    try:
        check_header(path)
        with safe_open(path, framework="pt") as stored:
            return dict(stored.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); delete it"
        ) from error


def has_hash(path: Path) -> bool:
    """Return True if a file contains a hash of its content; files of older versions do not."""
    check_header(path)
    with safe_open(path, framework="pt") as stored:
        return _HASH in (stored.metadata() or {})


def digest_of(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Return a SHA-256 over named tensors and notes, independent of their order in the file."""
    digest = hashlib.sha256(json.dumps(sorted(notes.items())).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_of_tensor(value: Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and values."""
    return digest_of({"": value}, {})


def _order(names: list[str], note: str | None) -> list[str]:
    """Return the names in the order of writing, or sorted for a file without a note about it."""
    if note is None:
        return sorted(names)
    order = parse_json(note)
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(names):
        raise ValueError("its list of tensors does not match its tensors")
    return [str(name) for name in order]
