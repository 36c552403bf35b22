"""Functions and classes of the user's own, from where they can be imported."""

import importlib
from collections.abc import Callable
from operator import attrgetter

from fedaudit.errors import BadInput


def imported(path: str, kind: str) -> Callable[..., object]:
    """What stands at a path.

    Args:
        path: ``package.module:callable``.
        kind: What it is wanted as, for the message ("model", "filter").

    Raises:
        BadInput: The path is spelt otherwise, cannot be imported or is nothing to call.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"a {kind} of your own is named 'package.module:callable', got {path!r}")
    try:
        found: object = attrgetter(attribute)(importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"cannot import {path!r}: {error}; check the spelling, and that the package is "
            "installed or its folder is on PYTHONPATH"
        ) from error
    if not callable(found):
        raise BadInput(f"{path!r} is a {type(found).__name__}, not a class or function")
    return found
