"""A filter's randomness and memory in our hands: the same draws, the same state, as often as asked.

Draws are frozen at their sources: the generators of torch, numpy and Python are seeded, and the
operating system's random bytes, by which generators without a seed begin, come from a seeded
stream. Generators that a filter keeps are copied with it, and so is what its functions keep in
globals, closures, defaults and attributes.
"""

import copy
import inspect
import logging
import os
import random
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from operator import setitem
from typing import NamedTuple

import numpy as np
import torch

from fedaudit.core.errors import BadInput

_NUMPY_SEEDS = 2**32


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Inside, all that draws at random draws what the seed says; outside nothing has changed.

    Code that has taken ``urandom`` out of ``os`` by name, or draws in C, still draws afresh.

    Args:
        seed: At least 0.
    """
    stream = random.Random(seed)
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    system = (os.urandom, random._urandom)  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002
        random.seed(seed)
        os.urandom = random._urandom = stream.randbytes  # type: ignore[attr-defined]
        try:
            yield
        finally:
            os.urandom, random._urandom = system  # type: ignore[attr-defined]
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, nothing is printed, logged or warned of: hundreds of calls would drown a verdict."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


class _Kept(NamedTuple):
    """A value that a function keeps between its calls."""

    first: object
    now: object
    put: Callable[[object], None]


class Copies:
    """Filters that are all as the given one was at first.

    A factory makes each anew, with the same draws; an object is copied, and what its functions
    keep outside of it is put back.

    Args:
        given: The filter, or a factory.
        made: Whether it is a factory.
    """

    def __init__(self, given: object, *, made: bool) -> None:
        self._given, self._made = given, made
        self._kept = [] if made else list(_keeping(given))
        self._first = None if made else self._copy(given)

    def fresh(self, seed: int = 0) -> object:
        """A filter that has seen nothing yet.

        Args:
            seed: Of what a factory draws.
        """
        self._put_back(lambda kept: _copied(kept.first, kept.first))
        if self._made:
            with drawing(seed), quietly():
                return self._given()  # type: ignore[operator]
        return self._copy(self._first)

    def close(self) -> None:
        """Puts back what the functions kept before the check."""
        self._put_back(lambda kept: kept.now)

    def _put_back(self, value: Callable[[_Kept], object]) -> None:
        for kept in self._kept:
            kept.put(value(kept))

    def _copy(self, value: object) -> object:
        try:
            return copy.deepcopy(value)
        except Exception as error:
            raise BadInput(
                f"the filter cannot be copied ({type(error).__name__}: {error}), and a check needs "
                "several in the same state; name a class or a function without arguments that "
                "makes one"
            ) from error


def _copied(value: object, otherwise: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception:
        return otherwise


def _keeping(given: object) -> Iterator[_Kept]:
    """What a filter's functions keep outside of the filter, of which copies would share one."""
    waiting, seen = [*_functions(given)], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for cell in function.__closure__ or ():
            content = _content(cell)
            yield from _held(content, partial(setattr, cell, "cell_contents"))
            waiting += _functions(content, function.__module__)
        yield from _held(function.__defaults__, partial(setattr, function, "__defaults__"))
        for name, value in function.__dict__.items():
            yield from _held(value, partial(setattr, function, name))
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            yield from _held(value, partial(setitem, function.__globals__, name))
            waiting += _functions(value, function.__module__)


def _names(code: types.CodeType) -> set[str]:
    """Names that a function's code uses, with those of functions within it."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing in it yet
        return None


def _held(value: object, put: Callable[[object], None]) -> Iterator[_Kept]:
    """A value that may be changed, or another put in its place; code is left alone."""
    if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
        return
    first = _copied(value, None)
    # What cannot be copied stays; where it matters, the same draws do not give the same twice.
    if first is not None or value is None:
        yield _Kept(first, value, put)


def _functions(value: object, module: str = "") -> list[types.FunctionType]:
    """The functions that a call of something may run; of one module only, where one is given."""
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__self__
    if isinstance(value, types.FunctionType):
        found = [value]
    else:
        kind = value if isinstance(value, type) else type(value)
        found = [
            one
            for part in kind.__mro__
            for one in vars(part).values()
            if isinstance(one, types.FunctionType)
        ]
    wanted = module or (found[0].__module__ if found else "")
    return [one for one in found if one.__module__ == wanted]
