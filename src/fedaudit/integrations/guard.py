"""Containment of an audit's errors: they never end somebody's training."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedaudit.results.text import one_line, without_commands


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
        text = without_commands(one_line(f"fedaudit: {what}: {error}"))
        warnings.warn(text, RuntimeWarning, stacklevel=4)
