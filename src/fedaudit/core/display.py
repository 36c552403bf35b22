"""Methods with which results show themselves, and which a higher package implements."""

from importlib import import_module
from typing import Any


def repr_html(self: object) -> str:
    """Return the result as an HTML fragment for a notebook."""
    return str(_module("dispatch").html_of(self))


def describe(result: object) -> str:
    """Return a result in one or two lines: what it is, its size, its verdict, and the next call."""
    # A debugger or a failed assertion may print a result that is not valid.
    try:
        return str(_module("dispatch").text_of(result))
    except Exception:
        return object.__repr__(result)


def conclusion(result: object) -> str:
    """Return the conclusion of a record or comparison as lines of at most 80 characters."""
    return str(_module("audits").conclusion_of(result))


def _module(name: str) -> Any:
    # The classes of results are in lower packages than the reports that render them.
    return import_module(f"fedaudit.display.{name}")
