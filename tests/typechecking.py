"""Types are checked while tests run: by jaxtyping where axes are named, else by beartype alone.

jaxtyping binds the arguments of a call by name, checks them twice and opens a scope for the names
of axes. Where a function names none all that is for nothing, and took a third of the tests' time.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from types import CodeType, FunctionType
from typing import get_args

import jaxtyping

_by_jaxtyping = jaxtyping.jaxtyped


def install() -> None:
    """Takes the place of jaxtyping's decorator; before anything is imported that it decorates."""
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]


def _checked(given: object = None, *, typechecker: Callable[[object], object]) -> object:
    if given is None:
        return partial(_checked, typechecker=typechecker)
    if isinstance(given, FunctionType) and not _names_axes_somewhere(given):
        return _by_types(given, typechecker)
    if isinstance(given, type) and is_dataclass(given):
        init = vars(given).get("__init__")
        # A class that inherits it, or wrote it itself, has one that is checked already.
        if not isinstance(init, FunctionType) or hasattr(init, "__wrapped__"):
            return given
        if not _names_axes_somewhere(init):
            type.__setattr__(given, "__init__", typechecker(init))
            return given
    return _by_jaxtyping(given, typechecker=typechecker)  # type: ignore[call-overload]


_first: dict[CodeType, tuple[FunctionType, object]] = {}


def _by_types(given: FunctionType, typechecker: Callable[[object], object]) -> object:
    """Checked by types alone; a function within a function is compiled into a check only once.

    beartype keeps the function that it checks as a default of a keyword, so that its check serves
    whatever else is made of the same code with the same types.
    """
    before, checked = _first.setdefault(given.__code__, (given, None))
    if isinstance(checked, FunctionType) and before.__annotations__ == given.__annotations__:
        kept = checked.__kwdefaults__ or {}
        again = FunctionType(
            checked.__code__,
            checked.__globals__,
            checked.__name__,
            checked.__defaults__,
            checked.__closure__,
        )
        again.__kwdefaults__ = {key: given if kept[key] is before else kept[key] for key in kept}
        if given in again.__kwdefaults__.values():
            return update_wrapper(again, given)
    found = typechecker(given)
    if "<locals>" in given.__qualname__:
        _first[given.__code__] = (given, found)
    return found


def _names_axes_somewhere(function: FunctionType) -> bool:
    return any(map(_names_axes, function.__annotations__.values()))


def _names_axes(hint: object) -> bool:
    """Whether an annotation names axes, or is a text, which jaxtyping alone reads if it can."""
    if isinstance(hint, list | tuple):
        return any(map(_names_axes, hint))
    if isinstance(hint, str) or hasattr(hint, "__forward_arg__"):
        return True
    array = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return array or any(map(_names_axes, get_args(hint)))
