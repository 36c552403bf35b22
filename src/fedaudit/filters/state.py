"""Control of random draws and of a filter's state, so that calls can be repeated exactly."""

import copy
import inspect
import logging
import os
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from io import StringIO
from operator import setitem
from typing import NamedTuple, cast
from warnings import catch_warnings, simplefilter

import numpy as np
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_globally

_NUMPY_SEEDS = 2**32


@contextmanager
def seeding_draws(seed: int) -> Iterator[None]:
    """Seed all random draws within the context, and suppress output, logs and warnings.

    Code that imported ``urandom`` from ``os`` by name, or draws in C, is not seeded.
    """
    stream = random.Random(seed)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    system_sources = (os.urandom, random._urandom)  # type: ignore[attr-defined]
    log_level = logging.root.manager.disable
    # The output of hundreds of calls would hide the verdict.
    with torch.random.fork_rng(devices=[]), catch_warnings(), redirect_stdout(StringIO()):
        simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        seed_globally(seed)
        np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002
        random.seed(seed)
        os.urandom = random._urandom = stream.randbytes  # type: ignore[attr-defined]
        try:
            yield
        finally:
            os.urandom, random._urandom = system_sources  # type: ignore[attr-defined]
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            logging.disable(log_level)


class Snapshot:
    """Initial state of a filter, from which every copy starts.

    A factory is called for each copy, with the same random draws. An object is copied, and the
    values that its functions store elsewhere, such as in globals, are restored.
    """

    def __init__(self, source: object, *, is_factory: bool) -> None:
        self._source, self._is_factory = source, is_factory
        self._variables = [] if is_factory else list(_variables_of(source))
        self._initial = None if is_factory else _copy(source)

    def new_filter(self) -> object:
        """Return a filter in its initial state."""
        for variable in self._variables:
            variable.set_value(_copy(variable.copy))
        if self._is_factory:
            with seeding_draws(0):
                return cast(Callable[[], object], self._source)()
        return _copy(self._initial)

    def close(self) -> None:
        """Restore the values that the filter's variables had before the check."""
        for variable in self._variables:
            variable.set_value(variable.original)


def _copy(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadInput(
            f"the filter cannot be copied ({type(error).__name__}: {error}), but the check needs "
            "several copies in the same state; give a class, or a function without arguments that "
            "returns the filter"
        ) from error


class _Variable(NamedTuple):
    """Variable outside the filter object in which its functions may store state.

    Attributes:
        set_value: Function that sets the variable.
        original: Its value before the check.
        copy: A copy of that value, to which no function of the filter has access.
    """

    set_value: Callable[[object], None]
    original: object
    copy: object


def _variables_of(filter: object) -> Iterator[_Variable]:
    """Yield the variables outside the filter object that its functions use, even indirectly."""
    queue, visited = [*_functions(filter)], set[int]()
    while queue:
        function = queue.pop()
        if id(function) in visited:
            continue
        visited.add(id(function))
        for value, set_value in _values_used(function):
            queue += _functions(value, function.__module__)
            if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
                continue
            # A value that cannot be copied is not restored. If the output depends on it, the check
            # reports that calls with equal draws return different outputs.
            with suppress(Exception):
                yield _Variable(set_value, value, copy.deepcopy(value))


def _values_used(
    function: types.FunctionType,
) -> Iterator[tuple[object, Callable[[object], None]]]:
    """Yield each value in which a function may store state, and a function that sets it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # The cell is empty.
            yield cell.cell_contents, partial(setattr, cell, "cell_contents")
    yield function.__defaults__, partial(setattr, function, "__defaults__")
    for name, value in sorted(function.__dict__.items()):
        yield value, partial(setitem, function.__dict__, name)
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        yield function.__globals__[name], partial(setitem, function.__globals__, name)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function uses, including functions that it defines."""
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _functions(value: object, module: str = "") -> list[types.FunctionType]:
    """Return the functions of a function, method, object or class that a module defines.

    Args:
        value: A function, method, object or class.
        module: Name of the module; by default, the module of the first function.
    """
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__self__
    members = [value]
    if not isinstance(value, types.FunctionType):
        classes = (value if isinstance(value, type) else type(value)).__mro__
        members = [member for class_ in classes for member in vars(class_).values()]
    functions = [member for member in members if isinstance(member, types.FunctionType)]
    module_name = module or (functions[0].__module__ if functions else "")
    return [function for function in functions if function.__module__ == module_name]
