"""Tensors by name in one file: safetensors, written whole or not at all, read with suspicion."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedaudit.core import Params
from fedaudit.errors import BadInput, Damaged

MAX_BYTES = 16 * 2**30
MAX_TENSORS = 100_000


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, str] | None = None
) -> None:
    """Writes all tensors to a temporary name, flushes it to the disk and renames it.

    Args:
        tensors: What to keep.
        path: Where; the folder must exist.
        notes: Short texts that travel with the tensors.

    Raises:
        BadInput: The disk is full or the folder cannot be written; what was there stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(
            {name: value.detach().contiguous() for name, value in tensors.items()},
            partial,
            dict(notes or {}),
        )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{path} could not be written ({error}); free some space or choose another folder, "
            "then start again: what was written before is kept"
        ) from error


def read_tensors(path: Path) -> tuple[Params, dict[str, str]]:
    """The tensors of a file and its notes. Nothing in it is executed.

    Raises:
        BadInput: There is no such file.
        Damaged: It is too large, or not a whole safetensors file.
    """
    if not path.is_file():
        raise BadInput(f"there is no file {path}; check the path")
    if path.stat().st_size > MAX_BYTES:
        raise Damaged(f"{path} is larger than {MAX_BYTES} bytes; nothing of ours is")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) > MAX_TENSORS:
                raise Damaged(f"{path} claims {len(names)} tensors; at most {MAX_TENSORS} are read")
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise Damaged(
            f"{path} is damaged or not a safetensors file ({error}); restore it from a copy or "
            "delete it to make it anew"
        ) from error
