"""Files of pretrained models, and limits on headers of safetensors files."""

import os
import re
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, setting
from fedaudit.core.files import open_regular

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


def check_header(path: Path) -> None:
    """Raise if a file is not regular, or its header takes far more memory than its bytes."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        refuse_heavy(length, file.read(min(length, MAX_HEADER)))


def refuse_heavy(length: int, header: bytes) -> None:
    """Raise if parsing a header would take far more memory than its text.

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


def is_countable(shape: Sequence[int]) -> bool:
    """Return True if a tensor of this shape has values, or few entries along its other axes.

    A file of a hundred bytes can announce an empty tensor that is too large for torch.
    """
    return 0 not in shape or prod(max(size, 1) for size in shape) <= _MOST_OF_NOTHING


PRETRAINED_VARIABLE = "FEDAUDIT_PRETRAINED"
"""Environment variable: folder of the values that networks were trained to beforehand."""

_MINILM = "all_minilm_l6_v2"


def refuse_missing(what: str, extra: str, *packages: str) -> None:
    """Raise if packages are not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise BadInput(
                f"{what} needs {package}, which is not installed; pip install 'fedaudit[{extra}]'"
            )


def of_minilm(name: str, *needs: str) -> bytes:
    """Read a file of MiniLM from the package that contains it."""
    refuse_missing("MiniLM", "text", _MINILM, *needs)
    package = find_spec(_MINILM)
    assert package is not None
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "model.zip") as files:
        return files.read(name)


def pretrained_file(name: str) -> Path:
    """Return the file of pretrained values: in their folder, or at a path.

    The folder is that of ``FEDAUDIT_PRETRAINED``, or ``fedaudit/pretrained`` in the user's cache.
    """
    path = Path(name)
    if path.suffix == ".safetensors":
        return path.expanduser()
    stated = os.environ.get(PRETRAINED_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        Path(stated).expanduser() if stated else cache / "fedaudit" / "pretrained"
    ) / f"{name}.safetensors"


def pretrained(name: str) -> dict[str, Tensor]:
    """Read pretrained values by parameter name.

    Raises:
        BadInput: It is not there.
        Damaged: It cannot be read.
    """
    file = pretrained_file(name)
    if not file.is_file():
        raise BadInput(
            f"the pretrained values {file} are not there; 'fedaudit run' makes those of a study "
            f"that has a [pretraining] table, and {setting('model.options.weights')} names a file "
            "of your own"
        )
    try:
        check_header(file)
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(
            f"{file} cannot be read ({error}); delete it, to have it made anew"
        ) from error
