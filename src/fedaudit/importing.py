"""Functions and classes of the user's own, from where they can be imported.

A folder that somebody else made may name any module of this machine, and importing one runs it.
:func:`imported` is the only way from a name to code, and :func:`code_named_in` says whether what
names it is trusted.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter

from fedaudit.errors import BadInput

_distrusted: ContextVar[str | None] = ContextVar("distrusted", default=None)
"""What names code that must not be run, for the refusal; None where code may be imported."""


@contextmanager
def code_named_in(source: object, *, trusted: bool) -> Iterator[None]:
    """Inside, code that a file or folder names is imported only if that is trusted.

    Contexts nest, and the innermost holds. In Python outside of any, code is imported: the
    command line is inside of one that trusts nothing, and only the commands that carry out a study
    file, or are given ``--trust``, open another.

    Args:
        source: What names the code, for the refusal: a path.
        trusted: Whether whoever asks trusts it.
    """
    token = _distrusted.set(None if trusted else str(source))
    try:
        yield
    finally:
        _distrusted.reset(token)


def imported(path: str, kind: str) -> Callable[..., object]:
    """What stands at a path.

    Args:
        path: ``package.module:callable``.
        kind: What it is wanted as, for the message ("model", "filter").

    Raises:
        BadInput: The path is spelt otherwise, cannot be imported or is nothing to call, or what
            names it is not trusted; nothing is imported then.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"a {kind} of your own is named 'package.module:callable', got {path!r}")
    source = _distrusted.get()
    if source is not None:
        raise BadInput(
            f"{source} names the {kind} {path[:200]!r}, and to import the module "
            f"{module_name[:200]!r} is to run it; read it first, and give --trust "
            "(trust=True in Python) if it is what you expect"
        )
    try:
        found: object = attrgetter(attribute)(importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"cannot import {path!r}: {error}; check the spelling, and that the package is "
            "installed or its folder is on PYTHONPATH"
        ) from error
    # A module that is imported runs, and can fail or even exit in any way at all.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the module {module_name!r} cannot be imported, since it raises "
            f"{type(error).__name__} ({error}); mend it, or name another {kind}"
        ) from error
    if not callable(found):
        raise BadInput(f"{path!r} is a {type(found).__name__}, not a class or function")
    return found
