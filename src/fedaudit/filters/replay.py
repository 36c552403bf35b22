"""A filter of any kind as a function, called with the same draws and state as often as asked.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import count
from operator import setitem
from typing import NamedTuple, TypeAlias, cast
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, FedauditError, Unsupported, option, type_of
from fedaudit.core.importing import line_of
from fedaudit.core.seeds import seed_globally
from fedaudit.core.values import Architecture, Model
from fedaudit.filters.claim import Arrays, Claim, flat
from fedaudit.fl.hooks import Defense, Turn
from fedaudit.observe.round import Update

KINDS: dict[str, str] = {
    "function": "a function from update to update",
    "step": "a function from a batch of samples to an update",
    "defense": "a defense of uploads of fedaudit",
    "flower-mod": "a mod of Flower's clients",
    "nvflare-filter": "a filter of NVFlare",
}

# By name, since no room but the integrations knows a framework.
_FRAMEWORKS = {
    "flower-mod": ("fedaudit.integrations.flower.mods", "flower"),
    "nvflare-filter": ("fedaudit.integrations.nvflare.filter", "nvflare"),
}

PLAIN = {
    "first.weight": torch.zeros(32, 16),
    "first.bias": torch.zeros(32),
    "second.weight": torch.zeros(10, 32),
    "second.bias": torch.zeros(10),
}
"""Update of a small network, the default example."""


class Form:
    """Layout of an update: tensors or arrays, by name, in a list, or one within another.

    Attributes:
        values: The example's, by path ("0.weight"), fractions in double precision.
        shapes: Of each array.
        whole: Paths of arrays of whole numbers.
        rounding: Relative error of one operation in the coarsest precision there.
        largest: The largest number that every array of fractions holds.
    """

    def __init__(self, example: object) -> None:
        self._example = dict(example.state_dict()) if isinstance(example, nn.Module) else example
        leaves = leaves_of(self._example)
        bad = [path for path, leaf in leaves.items() if not is_array(leaf)]
        if bad or not leaves:
            what = f"{bad[0]!r} in it is {type_of(leaves[bad[0]])}" if bad else "it is empty"
            raise BadInput(
                f"{option('shape-from')} gives an example of an update: a network, or tensors or "
                f"arrays by name or in a list; {what}"
            )
        self.values: Arrays = {path: to_numpy(leaf) for path, leaf in leaves.items()}
        self.shapes = {path: value.shape for path, value in self.values.items()}
        self.whole = {path for path, value in self.values.items() if value.dtype.kind != "f"}
        limits = [_limits(leaf) for path, leaf in leaves.items() if path not in self.whole]
        self.rounding = max((float(one.eps) for one in limits), default=0.0)
        self.largest = min((float(one.max) for one in limits), default=0.0)

    def filled(self, values: Arrays) -> object:
        """An update of this form with other values, in memory of its own."""
        return _mapped(self._example, lambda path, leaf: _like(leaf, values[path]))


def kind_of(filter: object) -> str:
    """The kind of a filter, from its class or the number of its arguments."""
    if isinstance(filter, Defense):
        return "defense"
    if any(part.__module__.startswith("nvflare.") for part in type(filter).__mro__):
        return "nvflare-filter"
    arguments = required_arguments(filter)
    kinds = {1: "function", 2: "step", 3: "flower-mod"}
    if arguments not in kinds:
        raise BadInput(
            f"a filter is {', '.join(KINDS.values())}, got {type_of(filter)}"
            + (f" that takes {arguments} arguments" if arguments >= 0 else "")
            + f"; name one, or say which with {option('kind')}"
        )
    return kinds[arguments]


def required_arguments(value: object) -> int:
    """Number of arguments that a call has to give by place; -1 for what cannot be called."""
    if not callable(value):
        return -1
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(one.kind in by_place and one.default is one.empty for one in parameters)
    # A decorated function may say no more than that it passes arguments on.
    return required or int(any(one.kind is one.VAR_POSITIONAL for one in parameters))


def adapted(filter: object, kind: str, claim: Claim) -> object:
    """A filter of any kind as a function, with all that it keeps between rounds in it."""
    if kind == "defense":
        return _defending(cast(Defense, filter))
    if kind not in _FRAMEWORKS:
        return filter
    module, extra = _FRAMEWORKS[kind]
    try:
        found: Callable[[object, Claim], object] = import_module(module).filtered
    except ImportError as error:
        raise Unsupported(
            f"{KINDS[kind]} is called with its framework's own messages, which is not installed "
            f"({error}); pip install 'fedaudit[{extra}]'"
        ) from error
    return found(filter, claim)


def form_for(kind: str, example: object) -> Form:
    """The form of an example as this kind of filter gets it, by default of a small network."""
    if kind == "step" and example is None:
        raise BadInput(
            "a step takes a batch of samples; name a function that gives one with "
            f"{option('shape-from')}, as a tuple of what the step takes, samples in rows"
        )
    form = Form(PLAIN if example is None else example)
    if kind in _FRAMEWORKS:
        # Both frameworks send arrays of numpy by name, whatever a client trains.
        form = Form(form.values)
    if kind == "defense":
        form = Form({path: torch.as_tensor(value) for path, value in form.values.items()})
    return form


def _defending(defense: Defense) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The uploads of a defense as a function, which keeps its state from round to round."""
    in_training = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")
    hooks = [hook for hook in in_training if defense.acts_in(hook)]
    if hooks or Update not in defense.accepts:
        raise Unsupported(
            f"{type(defense).__name__} acts in {', '.join(hooks) or 'other uploads'}, and "
            "a check sees what it makes of an update; give a step that calls its gradient(), "
            "from a batch to an update"
        )
    rounds = count(1)

    def upload(update: dict[str, Tensor]) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(value) for name, value in update.items()}
        turn = Turn(
            round=next(rounds),
            rounds=0,
            client=0,
            cohort=(0,),
            weights={0: 1.0},
            seed=int(torch.randint(2**62, ())),
            received=Model(Architecture("none", nn.Identity), zeros, {}),
        )
        sent = defense.upload(Update(update, {}, samples=1), turn)
        assert isinstance(sent, Update)
        return sent.values

    return upload


def leaves_of(tree: object) -> dict[str, object]:
    """The contents of nested dictionaries and lists by path, "update" for a bare one."""
    found: dict[str, object] = {}
    _mapped(tree, found.__setitem__)
    return {path: leaf for path, leaf in found.items() if leaf is not None}


def _mapped(tree: object, change: Callable[[str, object], object], path: str = "") -> object:
    if not isinstance(tree, Mapping | list | tuple):
        return change(path or "update", tree)
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    parts = {
        key: _mapped(value, change, f"{path}.{key}" if path else str(key)) for key, value in items
    }
    if isinstance(tree, Mapping):
        return parts
    return tuple(parts.values()) if isinstance(tree, tuple) else list(parts.values())


def _like(leaf: object, value: np.ndarray) -> object:
    if isinstance(leaf, Tensor):
        return torch.as_tensor(np.array(value)).to(leaf.dtype)
    dtype = np.asarray(leaf).dtype
    return np.array(np.rint(value) if dtype.kind in "iu" else value).astype(dtype)


def is_array(value: object) -> bool:
    """True for tensors and for arrays and numbers of numpy."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def to_numpy(value: object) -> np.ndarray:
    """A copy, in double precision where it holds fractions."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    found = np.array(value)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _limits(value: object) -> torch.finfo | np.finfo:
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype)
    return np.finfo(np.asarray(value).dtype)


_NUMPY_SEEDS = 2**32
_APART = 1_000_003
"""Between the seeds of one draw and the next, so that two checks of other seeds share none."""
_MOST_KEPT = 4096


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Inside, all draws follow a seed, and nothing is printed, logged or warned of.

    Code that has taken ``urandom`` out of ``os`` by name, or draws in C, still draws afresh.
    """
    stream = random.Random(seed)
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    system = (os.urandom, random._urandom)  # type: ignore[attr-defined]
    disabled = logging.root.manager.disable
    # Hundreds of calls that print would drown a verdict.
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
            os.urandom, random._urandom = system  # type: ignore[attr-defined]
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)
            logging.disable(disabled)


class Snapshot:
    """The state of a filter before the check, from which every copy starts.

    A factory makes each copy anew, with the same draws; an object is copied, and what its functions
    keep outside of it is put back.
    """

    def __init__(self, given: object, *, made: bool) -> None:
        self._given, self._made = given, made
        self._outside = [] if made else list(_kept_outside(given))
        self._first = None if made else _copied(given)

    def fresh(self) -> object:
        """A filter that has seen nothing yet."""
        for put, _, first in self._outside:
            put(_copied(first))
        if self._made:
            with drawing(0):
                return cast(Callable[[], object], self._given)()
        return _copied(self._first)

    def close(self) -> None:
        """Puts back what the functions kept before the check."""
        for put, now, _ in self._outside:
            put(now)


def _copied(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadInput(
            f"the filter cannot be copied ({type(error).__name__}: {error}), and a check needs "
            "several in the same state; name a class or a function without arguments that "
            "makes one"
        ) from error


_Put: TypeAlias = Callable[[object], None]


def _kept_outside(given: object) -> Iterator[tuple[_Put, object, object]]:
    """Values that a filter's functions keep outside of it: setter, value and a copy of it."""
    waiting, seen = [*_functions(given)], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for value, put in _places(function):
            waiting += _functions(value, function.__module__)
            if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
                continue  # code is left alone
            # What cannot be copied stays; where it matters, equal draws do not give the same twice.
            with suppress(Exception):
                yield put, value, copy.deepcopy(value)


def _places(function: types.FunctionType) -> Iterator[tuple[object, _Put]]:
    """Each value that a function can keep something in, with its setter."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing in it yet
            yield cell.cell_contents, partial(setattr, cell, "cell_contents")
    yield function.__defaults__, partial(setattr, function, "__defaults__")
    for names, space in (
        (sorted(function.__dict__), function.__dict__),
        (sorted(_names(function.__code__) & function.__globals__.keys()), function.__globals__),
    ):
        for name in names:
            yield space[name], partial(setitem, space, name)


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _functions(value: object, module: str = "") -> list[types.FunctionType]:
    """The functions that a call of something may run; of one module only, where one is given."""
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__self__
    parts = (value if isinstance(value, type) else type(value)).__mro__
    members = (
        [value]
        if isinstance(value, types.FunctionType)
        else [one for part in parts for one in vars(part).values()]
    )
    found = [one for one in members if isinstance(one, types.FunctionType)]
    wanted = module or (found[0].__module__ if found else "")
    return [one for one in found if one.__module__ == wanted]


class Release(NamedTuple):
    """The output of one call.

    Attributes:
        arrays: The update, in double precision.
        beside: All else, as text that can be compared.
    """

    arrays: Arrays
    beside: dict[str, str]

    def is_finite(self) -> bool:
        """True if every entry is a number."""
        return all(bool(np.isfinite(value).all()) for value in self.arrays.values())

    def minus(self, other: "Release") -> Arrays:
        """The difference of each array; one that only one of them has is taken from zeros."""
        both = _stacked([self.arrays, other.arrays])
        return {name: np.asarray(one - two) for name, (one, two) in both.items()}


@dataclass(frozen=True)
class Replay:
    """One filter with its claim, called from the same state and with draws at will."""

    name: str
    kind: str
    form: Form
    snapshot: Snapshot
    claim: Claim
    seed: int

    def release(self, values: Arrays, *, draw: int = 1, before: Sequence[Arrays] = ()) -> Release:
        """The output of a new filter after earlier rounds; equal numbers draw equal noise."""
        filter = adapted(self.snapshot.fresh(), self.kind, self.claim)
        with drawing(self.seed + _APART * draw):
            for earlier in before:
                self._call(filter, earlier)
        with drawing(self.seed + _APART * (draw + 1)):
            return self._call(filter, values)

    def draws(self, values: Arrays, calls: int, *, draw: int) -> Arrays:
        """Outputs of one filter for the same input, a call a row, corners of large arrays."""
        filter = adapted(self.snapshot.fresh(), self.kind, self.claim)
        found: list[Arrays] = []
        with drawing(self.seed + _APART * draw):
            for _ in range(calls):
                arrays = self._call(filter, values).arrays
                # A copy, since a view would keep the whole.
                found.append({name: corner(value).copy() for name, value in arrays.items()})
        return _stacked(found)

    def rounding(self, *releases: Release) -> float:
        """Distance at which outputs may lie apart because they are rounded."""
        lengths = (float(np.linalg.norm(flat(one.arrays))) for one in releases)
        return 4 * self.form.rounding * sum(lengths)

    def _call(self, filter: object, values: Arrays) -> Release:
        given = self.form.filled(values)
        function = cast(Callable[..., object], filter)
        step = self.kind == "step" and isinstance(given, Sequence)
        try:
            result = function(*cast(Sequence[object], given)) if step else function(given)
        except FedauditError:
            raise
        # A filter may end the program, and the code that it ends with must not pass for a verdict.
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"the filter {self.name!r} fails: {type(error).__name__}: {error} "
                f"({line_of(error)})"
            ) from error
        # A filter that returns nothing has changed what it was given.
        result = given if result is None and self.kind != "step" else result
        beside: dict[str, object] = {}
        if isinstance(result, tuple) and len(result) > 1 and not is_array(result[0]):
            beside = leaves_of(result[1] if len(result) == 2 else result[1:])
            result = result[0]
        found = leaves_of(result)
        arrays = {
            path: to_numpy(value).astype(np.float64)
            for path, value in found.items()
            if is_array(value) and (path in self.form.shapes or self.kind == "step")
        }
        if not arrays:
            raise BadInput(
                f"the filter {self.name!r} returned {type_of(result)} with none of the arrays that "
                f"it was given ({', '.join(self.form.shapes)[:100]}); it has to return an update"
            )
        beside |= {path: value for path, value in found.items() if path not in arrays}
        return Release(
            arrays,
            {p: repr(to_numpy(v).tolist() if is_array(v) else v) for p, v in beside.items()},
        )


def corner(value: np.ndarray) -> np.ndarray:
    """A part of an array that is kept of every call, at most 4,096 entries."""
    sides = list(value.shape)
    while np.prod(sides) > _MOST_KEPT:
        longest = int(np.argmax(sides))
        sides[longest] = (sides[longest] + 1) // 2
    return np.asarray(value[tuple(slice(side) for side in sides)])


def _stacked(calls: Sequence[Arrays]) -> Arrays:
    """The arrays of several calls, a call a row; zeros where one was not sent."""
    found: Arrays = {}
    for name in dict.fromkeys(name for one in calls for name in one):
        shapes = {one[name].shape for one in calls if name in one}
        if len(shapes) > 1:
            raise BadInput(
                f"the filter sends arrays of one name in shapes {shapes}, which cannot be "
                "compared; check what it does before it changes their shapes"
            )
        nothing = np.zeros(shapes.pop())
        found[name] = np.stack([one.get(name, nothing) for one in calls])
    return found
