"""The user's function that makes a recorder, named so that another process finds it."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from fedaudit.core.errors import BadInput, type_of
from fedaudit.live.recorder import Recorder

Makes = Callable[[Path], Recorder]

_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def name_of(makes: Makes | str) -> str:
    """The name of a function as ``module:function``.

    Args:
        makes: The function, or its name.

    Raises:
        BadInput: It cannot be found by name: a lambda, a method, or of the script that is run.
    """
    if isinstance(makes, str):
        name = makes
    else:
        name = f"{getattr(makes, '__module__', '')}:{getattr(makes, '__qualname__', '')}"
    if not _NAMED.fullmatch(name) or name.startswith("__main__:"):
        raise BadInput(
            f"the recorder is made in the server's process, which cannot find {name!r}; give a "
            'function of a module (not of the script that is run), or its name as "module:function"'
        )
    return name


def made(name: str, folder: Path) -> Recorder:
    """The recorder that a function makes for a folder.

    Args:
        name: As :func:`name_of` gives it.
        folder: For the recording.

    Raises:
        BadInput: There is no such function, or it makes no recorder of models.
    """
    module, _, function = name_of(name).partition(":")
    try:
        makes = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"{name!r} is not found in the server's process ({error}); add its file to the job "
            "with add_server_file"
        ) from error
    recorder: object = makes(folder)
    if not isinstance(recorder, Recorder):
        raise BadInput(f"{name!r} makes {type_of(recorder)}; return what fedaudit.record returns")
    if recorder.uploads != "models":
        raise BadInput(
            f"{name!r} makes a recorder of {recorder.uploads}; leave uploads out, since "
            "differences are added to the model that was sent"
        )
    return recorder
