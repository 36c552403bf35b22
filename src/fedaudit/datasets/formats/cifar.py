"""CIFAR-10 and CIFAR-100 in their Python format: pickles, read without executing anything."""

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import KW_ONLY
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import TooLarge, read_bytes
from fedaudit.datasets.arrays import Arrays, from_arrays
from fedaudit.datasets.dataset import DataFile, Dataset

_USUAL_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_MAX_BATCH_BYTES = 2**28
_MAX_STEPS = 2_000_000
"""Limit of the steps of a pickle, ten times as many as the largest CIFAR batch has."""
_MAX_CALLS = 16
"""Limit of the calls in a pickle, each of which may copy the whole file; an array needs five."""

_rebuild_array = cast(Callable[..., ndarray], np.empty(0).__reduce__()[0])


def _empty_array(kind: object, shape: object, code: object) -> ndarray:
    """Return an array without values; the pickle sets shape and values later.

    The requested shape is ignored, because it could exhaust memory.
    """
    return _rebuild_array(ndarray, (0,), b"b")


def _as_latin1(text: str, codec: str) -> bytes:
    """Return bytes that old pickles store as text.

    Other codecs are refused, because Python would search modules for them.
    """
    if codec != "latin1":
        raise Damaged(f"the batch requests the codec {codec!r:.40}; fetch it again")
    return text.encode("latin1")


# Names in a pickle are looked up in this table instead of being imported, so that no code runs. It
# has what an array of bytes needs, under the module names of NumPy 1 and 2.
_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    # Pickles only pass this class on. None replaces it, since a call could allocate any shape.
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _as_latin1,
}


_FORBIDDEN_STEPS = {
    # Steps that allocate memory or use external buffers.
    *("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"),
    # Steps that create other objects.
    *("PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
}
"""Steps of a pickle that are refused, because no array of pixels needs them."""


@dataclass(frozen=True)
class cifar(DataFile):
    """CIFAR-10 from ``cifar-10-batches-py``, or CIFAR-100 from ``cifar-100-python``.

    Attributes:
        path: The folder.
        coarse: Whether CIFAR-100 is labelled by its 20 superclasses.
        standardise: Whether pixels are scaled to mean 0 and standard deviation 1 for each channel.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.cifar("cifar-100-python", coarse=True).named_part().options
        {'coarse': True}
    """

    expected_layout: ClassVar[str] = "NAME/data_batch_1 or NAME/meta"

    _: KW_ONLY
    coarse: bool = False
    standardise: bool = True

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the folder ``NAME``, or CIFAR's usual folder, if it contains CIFAR's batches."""
        for path in (folder / name, folder / _USUAL_FOLDERS.get(name, name)):
            if (path / "data_batch_1").is_file() or (path / "meta").is_file():
                return path
        return None

    def read(self, seed: int) -> Dataset:
        """Return the data set, whose split the files define.

        Raises:
            BadInput: A batch is missing.
            Damaged: A batch is truncated, requests code, or contains no CIFAR images.
        """
        path = self.file
        is_cifar10 = (path / "data_batch_1").is_file()
        if is_cifar10 and self.coarse:
            raise BadInput("CIFAR-10 has no superclasses; set coarse to false, or use CIFAR-100")
        if is_cifar10:
            train_names, test_name = (
                [f"data_batch_{number}" for number in range(1, 6)],
                "test_batch",
            )
            key = "labels"
        else:
            train_names, test_name = ["train"], "test"
            key = "coarse_labels" if self.coarse else "fine_labels"
        train = [_batch(path, name, key) for name in train_names]
        test = _batch(path, test_name, key)
        images, labels = zip(*train, strict=True)
        arrays = Arrays(np.concatenate(images), np.concatenate(labels), test.images, test.labels)
        return from_arrays(path.name, arrays, standardise=self.standardise)


class _Batch(NamedTuple):
    """Images and labels of one file."""

    images: UInt8[ndarray, "samples 32 32 3"]
    labels: Int[ndarray, " samples"]


class _ArraysOnly(pickle.Unpickler):
    """Unpickler of numbers, texts, lists, dictionaries and arrays; it refuses anything else."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise Damaged(
                f"the batch requests {module}.{name}, which no array of pixels needs; it was "
                "altered or is not a CIFAR batch, so nothing of it was executed: fetch it again"
            )
        return _ALLOWED[module, name]


def _batch(folder: Path, name: str, key: str) -> _Batch:
    path = folder / name
    if not path.is_file():
        raise BadInput(f"{folder} has no file {name}; unpack the whole archive there")
    stored = _unpickle(path)
    if not isinstance(stored, dict):
        raise Damaged("a CIFAR batch must be a dictionary; fetch the files again")
    # Python 2 pickles have keys of bytes.
    entries = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in stored.items()}
    data, labels = entries.get("data"), entries.get(key)
    if not isinstance(data, ndarray) or data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise Damaged(f"{name} has no rows of 3,072 pixels under 'data'; fetch it again")
    are_labels = isinstance(labels, list) and all(type(label) is int for label in labels)
    if data.dtype != np.uint8 or not are_labels:
        raise Damaged(
            f"{name} has no bytes under 'data' or no labels under {key!r}; fetch it again"
        )
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _Batch(images, np.asarray(labels, dtype=np.int64))


def _unpickle(path: Path) -> object:
    calls = 0
    try:
        content = read_bytes(path, max_bytes=_MAX_BATCH_BYTES, within=path.parent)
        for number, (step, argument, _) in enumerate(pickletools.genops(content)):
            calls += step.name in ("REDUCE", "BUILD")
            if number > _MAX_STEPS or calls > _MAX_CALLS:
                raise Damaged(
                    f"{path.name} has more steps than any array of pixels needs; it was altered or "
                    "is not a CIFAR batch, so nothing of it was executed: fetch it again"
                )
            # A memo index above the file's size would only allocate memory.
            is_huge = step.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content)
            if is_huge or step.name in _FORBIDDEN_STEPS:
                raise Damaged(
                    f"{path.name} has a step ({step.name}) that no array of pixels needs; it was "
                    "altered or is not a CIFAR batch, so nothing of it was executed: fetch it again"
                )
        loaded: object = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Damaged:
        raise
    except TooLarge as error:
        raise BadInput(
            f"{path.name} is larger than any CIFAR batch; use the original files"
        ) from error
    # A malicious pickle can raise any exception.
    except Exception as error:
        raise Damaged(f"{path.name} cannot be read ({error}); fetch it again") from error
    return loaded
