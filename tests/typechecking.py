"""Runtime type checks in tests: jaxtyping for named axes, otherwise beartype.

jaxtyping binds the arguments of a call by name, checks them twice and opens a scope for the names
of axes. A function needs the scope alone, and where it names no axes not that either; the rest took
half of the tests' time.
"""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial, update_wrapper, wraps
from inspect import isgeneratorfunction
from types import CodeType, FunctionType
from typing import Any, get_args

import jaxtyping

_by_jaxtyping = jaxtyping.jaxtyped


def install() -> None:
    """Takes the place of jaxtyping's decorator; before anything is imported that it decorates."""
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]


def _checked(given: object = None, *, typechecker: Callable[[object], object]) -> object:
    if given is None:
        return partial(_checked, typechecker=typechecker)
    if isinstance(given, FunctionType) and not any(map(_is_read_late, _hints_of(given))):
        if not any(map(_names_axes, _hints_of(given))):
            return _by_types(given, typechecker)
        # A generator's arguments are looked at when it is first asked, out of any scope made here.
        if not isgeneratorfunction(given):
            return _in_a_scope(_by_types(given, typechecker))
    if isinstance(given, type) and is_dataclass(given):
        init = vars(given).get("__init__")
        # A class that inherits it, or wrote it itself, has one that is checked already.
        if isinstance(init, FunctionType) and not hasattr(init, "__wrapped__"):
            type.__setattr__(given, "__init__", _checked(init, typechecker=typechecker))
        return given
    return _by_jaxtyping(given, typechecker=typechecker)  # type: ignore[call-overload]


def _in_a_scope(checked: Any) -> object:
    """Names of axes stand for one size each within a call."""

    @wraps(checked)
    def scoped(*args: object, **kwargs: object) -> object:
        with _by_jaxtyping("context"):
            return checked(*args, **kwargs)

    return scoped


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


def _hints_of(function: FunctionType) -> Iterator[object]:
    """All parts of its annotations; less the class that it is written in, which has no axes."""
    own = function.__qualname__.split(".")
    waiting: list[object] = list(function.__annotations__.values())
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, list | tuple):
            waiting += hint
        elif hint not in own:
            yield hint
            waiting += get_args(hint)


def _is_read_late(hint: object) -> bool:
    """A text may be of what only a type checker imports, which jaxtyping alone passes over."""
    return isinstance(hint, str) or hasattr(hint, "__forward_arg__")


def _names_axes(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
