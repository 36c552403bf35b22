"""Weights in checkpoint files, read without running code of the files."""

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
from fedaudit.core.files import open_regular, raise_if_oversized
from fedaudit.core.pretrained import MAX_HEADER, MAX_TENSORS
from fedaudit.datasets.formats.npz import read_npz
from fedaudit.observe.tensors import read_tensors

SUFFIXES = (".pt", ".pth", ".safetensors", ".npz", "")
"""Suffixes of checkpoints that are read; a file without a suffix is read as one of torch."""

StoredWeights = Mapping[str, Tensor] | Mapping[str, ndarray] | list[ndarray] | list[Tensor]

_ADVICE = "save the model's state_dict"
"""Advice in messages about files that are refused."""

_MODEL_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "weights", "net")
"""Keys under which frameworks store a model next to its optimizer and settings."""

_TENSOR_NAME = re.compile(
    r"collections\.(OrderedDict|Counter)|builtins\.set|_codecs\.encode"
    r"|torch\._utils\._rebuild_(tensor_v2|parameter|parameter_with_state)"
    r"|torch\.(Size|device|serialization\._get_layout)"
    r"|torch\.(storage\.)?[A-Z][A-Za-z0-9]*Storage"
    r"|torch\.(b?float|u?int|bool|half|double|long|short|complex)[0-9a-z_]*"
)
"""Classes and functions in checkpoints of plain tensors. Torch allows more, such as functions that
allocate memory of any size."""

_NUMPY_CONSTRUCTOR = re.compile(
    r"numpy\.((_?core)\.multiarray\.(scalar|_reconstruct)|dtype|ndarray)"
)
"""Constructors of NumPy values that frameworks store next to the weights, such as an accuracy."""

_START_OF_ARCHIVE = b"PK\x03\x04"

_TUPLE_CODES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_MAX_TUPLES, _TUPLES_PER_ENTRY = 10_000, 20
_MAX_CLASSES = 1000
_MEMORY_PER_BYTE = 64
"""Largest number of bytes in memory for each byte of a pickle."""


class _Placeholder:
    """Placeholder for an object in a pickle that is no tensor; its class is not imported."""

    path = ""

    def __init__(self, *args: object) -> None:
        # An unpickler creates objects without a call, so a call is code that would run.
        if not _NUMPY_CONSTRUCTOR.fullmatch(self.path):
            raise _CodeError(self.path)

    def __new__(cls, *args: object) -> "_Placeholder":
        # The unpickler passes arguments of the replaced class, which are ignored.
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _CodeError(Exception):
    """A pickle calls a function."""


def read_checkpoint(path: Path, *, within: Path | None = None) -> StoredWeights:
    """Return the weights in a file of torch, safetensors or NumPy.

    Nothing in the file is executed. A pickled module is read as the tensors of its parameters and
    buffers. Sizes that the file declares are compared with its size on disk.

    Args:
        path: The file. Its suffix determines the format.
        within: Folder that must contain the file after all links are followed; None for any.

    Returns:
        Arrays by parameter name, or a list of arrays if an ``.npz`` file has only numbered arrays.

    Raises:
        BadInput: The file runs code when it is unpickled, or has no weights or several models.
        Damaged: The file cannot be read.
    """
    try:
        # Every format is opened here, since this refuses links out of the folder and devices.
        file = open_regular(path, within=within)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); remove it") from error
    with file:
        if path.suffix == ".npz":
            return _in_order(_read_arrays(path))
        if path.suffix != ".safetensors":
            return _read_torch(path, file)
    try:
        return read_tensors(path)[0]
    except Damaged as error:
        raise Damaged(
            f"{path} cannot be read as a safetensors file: it is damaged, or changed; remove it, "
            "or save the weights again"
        ) from error


def _read_arrays(path: Path) -> Mapping[str, ndarray]:
    try:
        return read_npz(path)
    except Damaged as error:
        raise Damaged(
            f"{path} cannot be read as an .npz file; copy it again, or remove it from the folder"
        ) from error


def path_in_folder(path: Path) -> str:
    """Return a file's name with its folder, since the files of all rounds may have one name."""
    return f"{path.parent.name}/{path.name}"


def _in_order(arrays: Mapping[str, ndarray]) -> Mapping[str, ndarray] | list[ndarray]:
    """Return arrays as a list if ``numpy.savez`` numbered all of them, otherwise by name."""
    numbered = [f"arr_{number}" for number in range(len(arrays))]
    return [arrays[name] for name in numbered] if {*numbered} == arrays.keys() else arrays


def _read_torch(path: Path, file: BufferedReader) -> Mapping[str, Tensor] | list[Tensor]:
    weights = _weights_in(_unpickled(path, file), path)
    tensors = list(weights.values()) if isinstance(weights, Mapping) else weights
    for value in tensors:
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise BadInput(
                f"{path} has a {value.layout} tensor on {value.device}; store plain tensors"
            )
    # A tensor may have more values than its storage, as expanded tensors do.
    raise_if_oversized(
        path_in_folder(path),
        sum(value.numel() * value.element_size() for value in tensors),
        file_bytes=path.stat().st_size,
    )
    return weights


def _unpickled(path: Path, file: BufferedReader) -> object:
    """Unpickle a checkpoint, with placeholders for all objects but tensors."""
    try:
        names = sorted(_names_to_replace(path, file))
        classes = [(type("_Replaced", (_Placeholder,), {"path": name}), name) for name in names]
        file.seek(0)
        with warnings.catch_warnings(), torch.serialization.safe_globals([*classes]):
            # Torch warns of old protocols and storages, but reads them.
            warnings.simplefilter("ignore")
            loaded: object = torch.load(file, map_location="cpu", weights_only=True)
            return loaded
    except (BadInput, Damaged, MemoryError):
        raise
    except _CodeError as error:
        raise _runs_code(path, str(error)) from None
    # The unpickler and the readers of archives can raise any error for a damaged file.
    except Exception as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, _CodeError):
            raise _runs_code(path, str(cause)) from None
        reason = " ".join(str(error).split())
        if isinstance(error, pickle.UnpicklingError) and "blocked" in reason:
            raise _runs_code(path, "a function of the operating system") from None
        raise Damaged(
            f"{path} cannot be read as a checkpoint of torch ({reason[:200]}); remove it from the "
            f"folder, or {_ADVICE} with torch.save"
        ) from error


def _runs_code(path: Path, function: str) -> BadInput:
    return BadInput(
        f"{path} calls {function[:200]} when it is unpickled, which a checkpoint of weights does "
        f"not; do not load it, and {_ADVICE} instead"
    )


def _names_to_replace(path: Path, file: BufferedReader) -> Collection[str]:
    """Return the names of classes and functions in a checkpoint that tensors do not need.

    Raises:
        BadInput: The file uses too many such names, functions of torch that plain tensors do not
            need, or too much memory.
        Damaged: The file is not an archive of torch.
    """
    size = os.fstat(file.fileno()).st_size
    if not zipfile.is_zipfile(file):
        file.seek(0)
        if size == 0 or file.read(len(_START_OF_ARCHIVE)) == _START_OF_ARCHIVE:
            state = "is incomplete, since its end is missing" if size else "is empty"
            raise Damaged(f"{path} {state}; copy it again, or remove it from the folder")
        raise Damaged(
            f"{path} is not a checkpoint of torch 1.6 or newer; {_ADVICE} with torch.save"
        )
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if any(name.endswith("/constants.pkl") for name in names):
            raise BadInput(f"{path} is a TorchScript program; {_ADVICE} instead")
        is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not is_stored or len(pickles) != 1 or len({*names}) < len(names):
            raise Damaged(f"{path} is not an archive that torch.save writes; save it again")
        (entry,) = pickles
        if len(entries) > MAX_TENSORS or entry.file_size > MAX_HEADER:
            raise BadInput(
                f"{path} has {len(entries):,} entries and {entry.file_size:,} bytes of names; at "
                f"most {MAX_TENSORS:,} and {MAX_HEADER:,} are read"
            )
        needed = sum(entry.file_size for entry in entries) + _MEMORY_PER_BYTE * entry.file_size
        raise_if_oversized(path_in_folder(path), needed, file_bytes=size)
        imported_names = set(_imported_names(path, archive.read(entry), len(entries)))
        # Torch writes checksums, and does not compare them when it reads a file.
        if (changed := archive.testzip()) is not None:
            raise Damaged(
                f"{path} is damaged, since the checksum of {changed[:200]!r} is wrong; copy it "
                f"again, or {_ADVICE} again, with checksums"
            )
    file.seek(0)
    # Names that torch does not allow are replaced. The remaining names must be those of tensors.
    unsafe = {*torch.serialization.get_unsafe_globals_in_checkpoint(file)}
    if unexpected := sorted(
        name for name in imported_names - unsafe if not _TENSOR_NAME.fullmatch(name)
    ):
        raise BadInput(
            f"{path} uses {unexpected[0][:200]}, which no checkpoint of plain tensors does; "
            f"{_ADVICE} instead"
        )
    if len(unsafe) > _MAX_CLASSES:
        raise BadInput(f"{path} names {len(unsafe):,} classes; {_ADVICE} instead")
    return unsafe


def _imported_names(path: Path, text: bytes, n_entries: int) -> Iterator[str]:
    """Yield the names that a pickle imports, without running it."""
    n_tuples = 0
    for code, argument, _ in pickletools.genops(text):
        # Limit the tuples, since hashing deeply nested tuples overflows the stack of the process.
        n_tuples += code.name in _TUPLE_CODES
        if n_tuples > _MAX_TUPLES + _TUPLES_PER_ENTRY * n_entries:
            raise BadInput(f"{path} has over {n_tuples - 1:,} tuples; {_ADVICE}")
        if code.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            yield f"{module.replace('__builtin__', 'builtins')}.{name}"


def _weights_in(stored: object, path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """Return the weights of the only model in a checkpoint."""
    keys = [key for key in _MODEL_KEYS if _may_be_model(stored, key)]
    model = stored[keys[0]] if isinstance(stored, Mapping) and len(keys) == 1 else stored
    if isinstance(model, _Placeholder):
        return _weights_of_module(model, path)
    if isinstance(model, list) and model and all(isinstance(value, Tensor) for value in model):
        return model
    entries = model if isinstance(model, Mapping) else {}
    tensors = {name: value.detach() for name, value in entries.items() if isinstance(value, Tensor)}
    if len(keys) > 1 or not tensors or not all(isinstance(name, str) for name in tensors):
        content = ", ".join(str(key)[:40] for key in list(entries)[:5]) or type_of(model)
        raise BadInput(
            f"{path} holds {content}, and not the weights of one model; {_ADVICE}, or a dictionary "
            "that has it under the key 'model'"
        )
    return tensors


def _may_be_model(stored: object, key: str) -> bool:
    return isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping | _Placeholder)


def _weights_of_module(module: _Placeholder, path: Path) -> dict[str, Tensor]:
    """Return parameters and buffers of a pickled module, named as in its state dict."""
    tensors = dict[str, Tensor]()
    # Use an explicit stack instead of recursion, since a file may contain very deep nesting.
    stack, visited = [("", module)], {id(module)}
    while stack:
        prefix, part = stack.pop()
        state = getattr(part, "state", None)
        if not isinstance(state, Mapping) or not isinstance(state.get("_parameters"), Mapping):
            content = f"{prefix}{part.path}" if prefix else f"a {part.path}"
            raise BadInput(f"{path} holds {content[:200]}, which is no module of torch; {_ADVICE}")
        hidden = state.get("_non_persistent_buffers_set")
        hidden = hidden if isinstance(hidden, set) else set()
        for values in (state["_parameters"], state.get("_buffers")):
            for name, value in values.items() if isinstance(values, Mapping) else ():
                if isinstance(value, Tensor) and name not in hidden:
                    tensors[f"{prefix}{name}"] = value.detach()
        children = state.get("_modules")
        for name, value in children.items() if isinstance(children, Mapping) else ():
            if isinstance(value, _Placeholder) and id(value) not in visited:
                visited.add(id(value))
                stack.append((f"{prefix}{name}.", value))
    if not tensors:
        raise BadInput(f"{path} holds a module without parameters; {_ADVICE}")
    return tensors
