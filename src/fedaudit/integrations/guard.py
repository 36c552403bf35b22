"""Containment of an audit's errors: they never end somebody's training."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedaudit.results.text import log_line


def warn(text: str, *, stacklevel: int) -> None:
    """Warn in one line that steers neither a screen nor a CI system.

    Args:
        text: May quote what clients sent.
        stacklevel: As of :func:`warnings.warn`, counted from the caller of this function.
    """
    warnings.warn(log_line(f"fedaudit: {text}"), RuntimeWarning, stacklevel=stacklevel + 1)


@contextmanager
def warn_of_errors(what: str, *, strict: bool) -> Iterator[None]:
    """Turn any error of the block into a warning.

    Args:
        what: What the audit could not do, for the warning.
        strict: Whether errors are raised instead.
    """
    try:
        yield
    # Whoever has warnings raised asked for it.
    except Warning:
        raise
    except Exception as error:
        if strict:
            raise
        warn(f"{what}: {error}", stacklevel=4)
