"""Methods with which results show themselves, and which a higher package implements."""

from importlib import import_module
from typing import Any


def repr_html(self: object) -> str:
    """Return the result as an HTML fragment for a notebook."""
    return str(_display().html_of(self))


def describe(result: object) -> str:
    """Return a result in one or two lines: what it is, its size, its verdict, and the next call."""
    # A debugger or a failed assertion may print a result that is not valid.
    try:
        return str(_display().text_of(result))
    except Exception:
        return object.__repr__(result)


def conclusion(result: object) -> str:
    """Return the conclusion of a record or comparison as lines of at most 80 characters."""
    return str(_display().conclusion_of(result))


def _display() -> Any:
    # The classes of results are in lower packages than the reports that render them.
    return import_module("fedaudit.display")
