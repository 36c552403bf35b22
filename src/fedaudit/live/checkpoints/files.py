"""Weights in checkpoint files of other programs, read without running code of the files."""

import os
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

import torch
from numpy import ndarray
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, type_of
from fedaudit.core.files import open_regular, refuse_oversized
from fedaudit.core.pretrained import MAX_HEADER, MAX_TENSORS
from fedaudit.datasets.formats.npz import read_npz
from fedaudit.observe.tensors import read_tensors

SUFFIXES = (".pt", ".pth", ".safetensors", ".npz", "")
"""Suffixes of checkpoints that are read; a file without a suffix is one of torch."""

StoredWeights = Mapping[str, Tensor] | Mapping[str, ndarray] | list[ndarray] | list[Tensor]

_MODEL_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "weights", "net")
"""Keys under which programs store a model next to its optimizer and settings."""

_PLAIN_NAME = re.compile(
    r"collections\.(OrderedDict|Counter)|builtins\.set|_codecs\.encode"
    r"|torch\._utils\._rebuild_(tensor_v2|parameter|parameter_with_state)"
    r"|torch\.(Size|device|serialization\._get_layout)"
    r"|torch\.(storage\.)?[A-Z][A-Za-z0-9]*Storage"
    r"|torch\.(b?float|u?int|bool|half|double|long|short|complex)[0-9a-z_]*"
)
"""Names in checkpoints of plain tensors. Torch allows more, such as functions that allocate memory
of any size."""

_CALLED = re.compile(r"numpy\.((_?core)\.multiarray\.(scalar|_reconstruct)|dtype|ndarray)")
"""Names that are called for NumPy values next to the weights, such as the best accuracy."""

_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_MOST_TUPLES, _TUPLES_PER_ENTRY = 10_000, 20
_MOST_FOREIGN = 1000
_PER_BYTE = 64
"""Largest memory of an object for each byte of a pickle."""


class _Inert:
    """Placeholder for an object of another class; nothing of that class is imported."""

    path = ""

    def __init__(self, *args: object) -> None:
        # Pickled objects are created without a call. A call runs code in an ordinary unpickler.
        if not _CALLED.fullmatch(self.path):
            raise _CalledError(self.path)

    def __new__(cls, *args: object) -> "_Inert":
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _CalledError(Exception):
    """A pickle calls a function."""


def read_checkpoint(path: Path, *, within: Path | None = None) -> StoredWeights:
    """Return the weights in a file of torch, safetensors or NumPy.

    Nothing in the file is executed. A pickled module is read as the tensors of its parameters and
    buffers. Sizes that the file declares are compared with its size on disk.

    Args:
        path: The file. Its suffix determines the format.
        within: Folder that must contain the file after all links are followed; None for any.

    Returns:
        Arrays by parameter name; in their order if an ``.npz`` file has only numbered ones.

    Raises:
        BadInput: The file runs code when it is unpickled, or has no weights or several models.
        Damaged: It cannot be read.
    """
    if path.suffix == ".safetensors":
        # Opened first for the check of links and other special files.
        with _opened(path, within):
            pass
        try:
            return read_tensors(path)[0]
        except Damaged as error:
            raise Damaged(
                f"{path} cannot be read as a safetensors file; remove it, or save the weights again"
            ) from error
    if path.suffix == ".npz":
        with _opened(path, within):
            pass
        return _in_order(read_npz(path))
    with _opened(path, within) as file:
        weights = _weights_in(_loaded(path, file), path)
    parts = list(weights.values()) if isinstance(weights, Mapping) else weights
    for value in parts:
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise BadInput(
                f"{path} has a {value.layout} tensor on {value.device}; store plain ones"
            )
    refuse_oversized(
        named_in(path),
        sum(value.numel() * value.element_size() for value in parts),
        on_disk=path.stat().st_size,
    )
    return weights


def named_in(path: Path) -> str:
    """Return a file's name with its folder, since files of all rounds may have one name."""
    return f"{path.parent.name}/{path.name}"


def _opened(path: Path, within: Path | None) -> BufferedReader:
    try:
        return open_regular(path, within=within)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); remove it") from error


def _in_order(arrays: Mapping[str, ndarray]) -> Mapping[str, ndarray] | list[ndarray]:
    """Return arrays that ``numpy.savez`` numbered as a list, and others by name."""
    numbered = [f"arr_{number}" for number in range(len(arrays))]
    return [arrays[name] for name in numbered] if {*numbered} == arrays.keys() else arrays


def _loaded(path: Path, file: BufferedReader) -> object:
    """Unpickle a checkpoint with placeholders for all classes but those of tensors."""
    try:
        foreign = _foreign_names(path, file)
        classes = [(type("_Foreign", (_Inert,), {"path": name}), name) for name in sorted(foreign)]
        file.seek(0)
        with warnings.catch_warnings(), torch.serialization.safe_globals([*classes]):
            # Torch warns of old protocols and storages, which are read all the same.
            warnings.simplefilter("ignore")
            loaded: object = torch.load(file, map_location="cpu", weights_only=True)
            return loaded
    except (BadInput, Damaged, MemoryError):
        raise
    except _CalledError as error:
        raise _runs_code(path, str(error)) from None
    # The unpickler and the readers of archives can raise anything with a damaged file.
    except Exception as error:
        if isinstance(error.__cause__ or error.__context__, _CalledError):
            raise _runs_code(path, str(error.__cause__ or error.__context__)) from None
        reason = " ".join(str(error).split())
        if isinstance(error, pickle.UnpicklingError) and "blocked" in reason:
            raise _runs_code(path, "a function of the operating system") from None
        raise Damaged(
            f"{path} cannot be read as a checkpoint of torch ({reason[:200]}); remove it from the "
            "folder, or save the model's state_dict with torch.save"
        ) from error


def _runs_code(path: Path, what: str) -> BadInput:
    return BadInput(
        f"{path} calls {what[:200]} when it is unpickled, which a checkpoint of weights does not; "
        "do not load it, and save the model's state_dict instead"
    )


def _foreign_names(path: Path, file: BufferedReader) -> Collection[str]:
    """Return names of classes and functions that a checkpoint uses other than those of tensors.

    Raises:
        BadInput: It has too many of them, calls others of torch, or would take too much memory.
        Damaged: It is not an archive of torch.
    """
    size = os.fstat(file.fileno()).st_size
    if not zipfile.is_zipfile(file):
        raise Damaged(
            f"{path} is not a checkpoint of torch 1.6 or newer; save the model's state_dict with "
            "torch.save"
        )
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if any(name.endswith("/constants.pkl") for name in names):
            raise BadInput(f"{path} is a TorchScript program; save the model's state_dict instead")
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or len(pickles) != 1 or len({*names}) < len(names):
            raise Damaged(f"{path} is not an archive that torch.save writes; save it again")
        (entry,) = pickles
        if len(entries) > MAX_TENSORS or entry.file_size > MAX_HEADER:
            raise BadInput(
                f"{path} has {len(entries):,} entries and {entry.file_size:,} bytes of names; at "
                f"most {MAX_TENSORS:,} and {MAX_HEADER:,} are read"
            )
        declared = sum(entry.file_size for entry in entries)
        refuse_oversized(named_in(path), declared + _PER_BYTE * entry.file_size, on_disk=size)
        used = set(_names_in(path, archive.read(entry), len(entries)))
    file.seek(0)
    unsafe = {*torch.serialization.get_unsafe_globals_in_checkpoint(file)}
    if odd := sorted(name for name in used - unsafe if not _PLAIN_NAME.fullmatch(name)):
        raise BadInput(
            f"{path} uses {odd[0][:200]}, which no checkpoint of plain tensors does; save the "
            "model's state_dict instead"
        )
    if len(unsafe) > _MOST_FOREIGN:
        raise BadInput(f"{path} names {len(unsafe):,} classes; save the model's state_dict instead")
    return unsafe


def _names_in(path: Path, text: bytes, entries: int) -> Iterator[str]:
    """Yield the names that a pickle imports, without running it."""
    tuples = 0
    for code, argument, _ in pickletools.genops(text):
        # Hashing deeply nested tuples overflows the stack of the process.
        tuples += code.name in _TUPLES
        if tuples > _MOST_TUPLES + _TUPLES_PER_ENTRY * entries:
            raise BadInput(f"{path} has over {tuples - 1:,} tuples; save the model's state_dict")
        if code.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            yield f"{module.replace('__builtin__', 'builtins')}.{name}"


def _weights_in(stored: object, path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """Return the weights of the only model in a checkpoint."""
    keys = [key for key in _MODEL_KEYS if _may_be_model(stored, key)]
    model = stored[keys[0]] if isinstance(stored, Mapping) and len(keys) == 1 else stored
    if isinstance(model, _Inert):
        return _of_module(model, path)
    if isinstance(model, list) and model and all(isinstance(v, Tensor) for v in model):
        return model
    entries = model if isinstance(model, Mapping) else {}
    tensors = {name: value.detach() for name, value in entries.items() if isinstance(value, Tensor)}
    if len(keys) > 1 or not tensors or not all(isinstance(name, str) for name in tensors):
        held = ", ".join(str(key)[:40] for key in list(entries)[:5]) or type_of(model)
        raise BadInput(
            f"{path} holds {held}, and not the weights of one model; save the model's state_dict, "
            "alone or under the key 'model'"
        )
    return tensors


def _may_be_model(stored: object, key: str) -> bool:
    return isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping | _Inert)


def _of_module(module: _Inert, path: Path) -> dict[str, Tensor]:
    """Return parameters and buffers of a pickled module, named as in its state dict."""
    tensors = dict[str, Tensor]()
    # A list of parts instead of recursion, since a file may nest modules without end.
    parts, seen = [("", module)], {id(module)}
    while parts:
        prefix, part = parts.pop()
        state = getattr(part, "state", None)
        if not isinstance(state, Mapping) or not isinstance(state.get("_parameters"), Mapping):
            what = f"a {part.path}"[:200] if not prefix else f"{prefix}{part.path}"[:200]
            raise BadInput(f"{path} holds {what}, which is no module of torch; save a state_dict")
        hidden = state.get("_non_persistent_buffers_set")
        hidden = hidden if isinstance(hidden, set) else set()
        for values in (state["_parameters"], state.get("_buffers")):
            for name, value in values.items() if isinstance(values, Mapping) else ():
                if isinstance(value, Tensor) and name not in hidden:
                    tensors[f"{prefix}{name}"] = value.detach()
        inner = state.get("_modules")
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            if isinstance(value, _Inert) and id(value) not in seen:
                seen.add(id(value))
                parts.append((f"{prefix}{name}.", value))
    if not tensors:
        raise BadInput(f"{path} holds a module without parameters; save a state_dict")
    return tensors
