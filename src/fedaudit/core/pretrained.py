"""Files of pretrained models, and limits on headers of safetensors files."""

import os
import re
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, format_setting
from fedaudit.core.files import open_regular
from fedaudit.core.importing import raise_if_missing

MAX_TENSORS = 100_000
MAX_HEADER = 25_000_000
"""Maximum size of a header in bytes.

In fedaudit's files, the metadata in the header list every client and sample of a round."""
_MAX_METADATA = 200_000
_MAX_AXES = 64
"""Maximum number of axes of a tensor in torch."""
_MAX_SHAPE_LENGTH = 21 * _MAX_AXES
"""Maximum length of a shape in brackets: a 64-bit number and a comma for each axis."""
_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+\\?"?', re.DOTALL)
"""A JSON string. An unterminated string also matches, so that matching takes linear time."""
_LONG_LIST = re.compile(rb"\[[^\[\]]{%d}" % _MAX_SHAPE_LENGTH)
_MAX_EMPTY = 2**24
"""Maximum product of the other axes of an empty tensor."""


def check_header(path: Path) -> None:
    """Raise if a file is not regular, or its header would take far more memory than its size."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        raise_if_costly_header(length, file.read(min(length, MAX_HEADER)))


def raise_if_costly_header(length: int, header: bytes) -> None:
    """Raise if parsing a header would take far more memory than its size.

    Args:
        length: Length of the header that the file states, in bytes.
        header: Content of the header, up to ``MAX_HEADER`` bytes.
    """
    # The header and its metadata are JSON objects, as is the entry of each tensor.
    tensors = header.count(b"{") - 2
    if length > MAX_HEADER or tensors > MAX_TENSORS:
        raise ValueError(
            f"its header has {length:,} bytes and lists {tensors:,} tensors or more; at most "
            f"{MAX_HEADER:,} and {MAX_TENSORS:,} are read"
        )
    # A tensor has four colons: after its name and after each of its three entries.
    if header.count(b":") > 4 * MAX_TENSORS + _MAX_METADATA:
        raise ValueError(f"its header has more than {_MAX_METADATA:,} entries of metadata")
    # Parsing an axis takes fifty times the memory of its two characters. Strings are removed
    # first, since those of the metadata may contain lists of any length.
    if _LONG_LIST.search(_JSON_STRING.sub(b"", header)):
        raise ValueError(f"its header lists a tensor of more than {_MAX_AXES} axes")


def is_allowed_shape(shape: Sequence[int]) -> bool:
    """Return False for an empty tensor whose other axes are too large.

    A file of a hundred bytes can announce an empty tensor with axes that torch cannot represent.
    """
    return 0 not in shape or prod(max(size, 1) for size in shape) <= _MAX_EMPTY


PRETRAINED_VARIABLE = "FEDAUDIT_PRETRAINED"
"""Environment variable that names the folder of pretrained weights."""

_MINILM = "all_minilm_l6_v2"


def read_minilm_file(name: str, *required_packages: str) -> bytes:
    """Read a file of MiniLM from its package, after checking that other packages are installed."""
    raise_if_missing(_MINILM, *required_packages, needed_by="MiniLM", extra="text")
    package = find_spec(_MINILM)
    assert package is not None
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "model.zip") as files:
        return files.read(name)


def pretrained_file(name: str) -> Path:
    """Return the path of pretrained weights.

    Args:
        name: Path that ends in ``.safetensors``, or name of a file without this suffix. A named
            file is in the folder ``FEDAUDIT_PRETRAINED``, by default ``fedaudit/pretrained`` in
            the user's cache.
    """
    path = Path(name)
    if path.suffix == ".safetensors":
        return path.expanduser()
    configured = os.environ.get(PRETRAINED_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(configured).expanduser() if configured else cache / "fedaudit" / "pretrained"
    return folder / f"{name}.safetensors"


def load_pretrained(name: str) -> dict[str, Tensor]:
    """Read pretrained weights by parameter name.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file cannot be read.
    """
    file = pretrained_file(name)
    if not file.is_file():
        raise BadInput(
            f"the pretrained weights {file} do not exist; 'fedaudit run' trains those of a study "
            f"with a [pretraining] table, and {format_setting('model.options.weights')} names "
            "another file"
        )
    try:
        check_header(file)
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{file} cannot be read ({error}); delete it to train it again") from error


cached_pretrained = lru_cache(maxsize=2)(load_pretrained)
"""Like :func:`load_pretrained`, but a file is read once. Callers must not change the tensors."""
