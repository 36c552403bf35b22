"""Runtime type checks in tests: jaxtyping for named axes, otherwise beartype.

jaxtyping binds the arguments of a call by name, checks them twice and opens a scope for the names
of axes. A function needs only the scope, and none if it names no axes; the other steps took half of
the tests' time.
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
    """Replace jaxtyping's decorator; call this before any import of decorated code."""
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]


def _checked(decorated: object = None, *, typechecker: Callable[[object], object]) -> object:
    if decorated is None:
        return partial(_checked, typechecker=typechecker)
    if isinstance(decorated, FunctionType) and not any(map(_is_read_late, _hints_of(decorated))):
        if not any(map(_names_axes, _hints_of(decorated))):
            return _by_types(decorated, typechecker)
        # A generator checks its arguments at the first item, outside any scope opened here.
        if not isgeneratorfunction(decorated):
            return _in_a_scope(_by_types(decorated, typechecker))
    if isinstance(decorated, type) and is_dataclass(decorated):
        init = vars(decorated).get("__init__")
        # An inherited or handwritten method is checked already.
        if isinstance(init, FunctionType) and not hasattr(init, "__wrapped__"):
            type.__setattr__(decorated, "__init__", _checked(init, typechecker=typechecker))
        return decorated
    return _by_jaxtyping(decorated, typechecker=typechecker)  # type: ignore[call-overload]


def _in_a_scope(checked: Any) -> object:
    """Open a scope in which each name of an axis has one size during a call."""

    @wraps(checked)
    def scoped(*args: object, **kwargs: object) -> object:
        with _by_jaxtyping("context"):
            return checked(*args, **kwargs)

    return scoped


_first: dict[CodeType, tuple[FunctionType, object]] = {}


def _by_types(function: FunctionType, typechecker: Callable[[object], object]) -> object:
    """Check only types, and compile the check of a nested function only once.

    beartype stores the checked function as a default of a keyword, so its check can be reused for
    other functions with the same code and types.
    """
    before, checked = _first.setdefault(function.__code__, (function, None))
    if isinstance(checked, FunctionType) and before.__annotations__ == function.__annotations__:
        defaults = checked.__kwdefaults__ or {}
        reused = FunctionType(
            checked.__code__,
            checked.__globals__,
            checked.__name__,
            checked.__defaults__,
            checked.__closure__,
        )
        reused.__kwdefaults__ = {
            key: function if defaults[key] is before else defaults[key] for key in defaults
        }
        if function in reused.__kwdefaults__.values():
            return update_wrapper(reused, function)
    compiled = typechecker(function)
    if "<locals>" in function.__qualname__:
        _first[function.__code__] = (function, compiled)
    return compiled


def _hints_of(function: FunctionType) -> Iterator[object]:
    """Yield all parts of the annotations except the enclosing class, which has no axes."""
    qualified_names = function.__qualname__.split(".")
    waiting: list[object] = list(function.__annotations__.values())
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, list | tuple):
            waiting += hint
        elif hint not in qualified_names:
            yield hint
            waiting += get_args(hint)


def _is_read_late(hint: object) -> bool:
    """Return True for text, which may name types that only type checkers import."""
    return isinstance(hint, str) or hasattr(hint, "__forward_arg__")


def _names_axes(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
