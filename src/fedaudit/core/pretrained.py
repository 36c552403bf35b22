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
from fedaudit.core.importing import refuse_missing

MAX_TENSORS = 100_000
MAX_HEADER = 25_000_000
"""Maximum size in bytes of a header; its notes list every client and sample of a round."""
_MAX_NOTES = 200_000
_MAX_AXES = 64
"""Maximum number of axes of a tensor in torch."""
_MAX_LIST = 21 * _MAX_AXES
"""Maximum length of a shape in brackets: a 64-bit number and a comma for each axis."""
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?"?', re.DOTALL)
"""A JSON string. An unterminated string also matches, so that matching takes linear time."""
_LONG_LIST = re.compile(rb"\[[^\[\]]{%d}" % _MAX_LIST)
_MAX_EMPTY = 2**24


def check_header(path: Path) -> None:
    """Raise if a file is not regular, or its header would take far more memory than its size."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        refuse_heavy(length, file.read(min(length, MAX_HEADER)))


def refuse_heavy(length: int, header: bytes) -> None:
    """Raise if parsing a header would take far more memory than its size."""
    tensors = header.count(b"{") - 2
    if length > MAX_HEADER or tensors > MAX_TENSORS:
        raise ValueError(
            f"its header has {length:,} bytes and lists {tensors:,} tensors or more; at most "
            f"{MAX_HEADER:,} and {MAX_TENSORS:,} are read"
        )
    # A tensor has four colons: after its name and after each of its three entries.
    if header.count(b":") > 4 * MAX_TENSORS + _MAX_NOTES:
        raise ValueError(f"its header has more than {_MAX_NOTES:,} notes")
    # Each axis takes fifty times the memory of its two characters. Notes are strings, and may have
    # lists of any length.
    if _LONG_LIST.search(_TEXT.sub(b"", header)):
        raise ValueError(f"its header lists a tensor of more than {_MAX_AXES} axes")


def is_countable(shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape is not empty, or small along its other axes.

    A file of a hundred bytes can announce an empty tensor that is too large for torch.
    """
    return 0 not in shape or prod(max(size, 1) for size in shape) <= _MAX_EMPTY


PRETRAINED_VARIABLE = "FEDAUDIT_PRETRAINED"
"""Environment variable with the folder of pretrained weights."""

_MINILM = "all_minilm_l6_v2"


def read_minilm_file(name: str, *needs: str) -> bytes:
    """Read a file of MiniLM from its package."""
    refuse_missing("MiniLM", "text", _MINILM, *needs)
    package = find_spec(_MINILM)
    assert package is not None
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "model.zip") as files:
        return files.read(name)


def pretrained_file(name: str) -> Path:
    """Return the file of pretrained weights, by its name or path.

    Names are of files in the folder ``FEDAUDIT_PRETRAINED``, or ``fedaudit/pretrained`` in the
    user's cache.
    """
    path = Path(name)
    if path.suffix == ".safetensors":
        return path.expanduser()
    configured = os.environ.get(PRETRAINED_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(configured).expanduser() if configured else cache / "fedaudit" / "pretrained"
    return folder / f"{name}.safetensors"


def pretrained(name: str) -> dict[str, Tensor]:
    """Read pretrained weights by parameter name.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file cannot be read.
    """
    file = pretrained_file(name)
    if not file.is_file():
        raise BadInput(
            f"the pretrained weights {file} do not exist; 'fedaudit run' trains those of a study "
            f"with a [pretraining] table, and {setting('model.options.weights')} names another file"
        )
    try:
        check_header(file)
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{file} cannot be read ({error}); delete it to train it again") from error
