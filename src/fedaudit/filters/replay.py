"""A filter of any kind as a function that can be called repeatedly with the same draws and state.

The generators of torch, numpy and Python are seeded, and the operating system's random bytes, which
seed other generators, come from a seeded stream. Generators that a filter keeps are copied with it,
as are values that its functions keep in globals, closures, defaults and attributes.
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
from fedaudit.core.importing import location_of
from fedaudit.core.seeds import seed_globally
from fedaudit.core.values import Architecture, Model
from fedaudit.filters.claim import Arrays, Claim, flat
from fedaudit.fl.hooks import Defense, TrainingContext, apply_upload_hook
from fedaudit.observe.round import Update

KINDS: dict[str, str] = {
    "function": "a function from update to update",
    "step": "a function from a batch of samples to an update",
    "defense": "a defense of uploads of fedaudit",
    "flower-mod": "a mod of Flower's clients",
    "nvflare-filter": "a filter of NVFlare",
}

# By name, since only the integrations import frameworks.
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
    """Layout of an update: tensors or arrays by name or in a list, possibly nested.

    Attributes:
        values: Values of the example by path ("0.weight"), fractions in double precision.
        shapes: Shape of each array.
        whole: Paths of integer arrays.
        rounding: Relative error of one operation in the lowest precision.
        largest: Largest number that every floating-point array can hold.
    """

    def __init__(self, example: object) -> None:
        self._example = dict(example.state_dict()) if isinstance(example, nn.Module) else example
        leaves = leaves_of(self._example)
        bad = [path for path, leaf in leaves.items() if not is_array(leaf)]
        if bad or not leaves:
            what = f"{bad[0]!r} in it is {type_of(leaves[bad[0]])}" if bad else "it is empty"
            raise BadInput(
                f"{option('shape-from')} gives no example of an update, as {what}; give a network, "
                "or tensors or arrays by name or in a list"
            )
        self.values: Arrays = {path: to_numpy(leaf) for path, leaf in leaves.items()}
        self.shapes = {path: value.shape for path, value in self.values.items()}
        self.whole = {path for path, value in self.values.items() if value.dtype.kind != "f"}
        limits = [_limits(leaf) for path, leaf in leaves.items() if path not in self.whole]
        self.rounding = max((float(limit.eps) for limit in limits), default=0.0)
        self.largest = min((float(limit.max) for limit in limits), default=0.0)

    def filled(self, values: Arrays) -> object:
        """Return an update of this form with other values, in new memory."""
        return _mapped(self._example, lambda path, leaf: _like(leaf, values[path]))


def kind_of(filter: object) -> str:
    """Return the kind of a filter, from its class or the number of its arguments."""
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
    """Return the number of required positional arguments; -1 if not callable."""
    if not callable(value):
        return -1
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.kind in by_place and parameter.default is parameter.empty
        for parameter in parameters
    )
    # A decorated function may say no more than that it passes arguments on.
    return required or int(
        any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    )


def adapted(filter: object, kind: str, claim: Claim) -> object:
    """Return a filter of any kind as a function that keeps its state between rounds."""
    if kind == "defense":
        return _defending(cast(Defense, filter))
    if kind not in _FRAMEWORKS:
        return filter
    module, extra = _FRAMEWORKS[kind]
    try:
        adapter: Callable[[object, Claim], object] = import_module(module).filtered
    except ImportError as error:
        raise Unsupported(
            f"{KINDS[kind]} needs its framework, which is not installed ({error}); run "
            f"pip install 'fedaudit[{extra}]'"
        ) from error
    return adapter(filter, claim)


def form_for(kind: str, example: object) -> Form:
    """Return the form of an example for this kind of filter; of a small network by default."""
    if kind == "step" and example is None:
        raise BadInput(
            "a step needs a batch of samples; name a function that returns one with "
            f"{option('shape-from')}, as a tuple of the step's arguments, with samples in rows"
        )
    form = Form(PLAIN if example is None else example)
    if kind in _FRAMEWORKS:
        # Both frameworks send NumPy arrays by name, whatever a client trains.
        form = Form(form.values)
    if kind == "defense":
        form = Form({path: torch.as_tensor(value) for path, value in form.values.items()})
    return form


def _defending(defense: Defense) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return the uploads of a defense as a function, which keeps its state."""
    in_training = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")
    hooks = [hook for hook in in_training if defense.acts_in(hook)]
    if hooks or Update not in defense.accepts:
        raise Unsupported(
            f"{type(defense).__name__} acts in {', '.join(hooks) or 'other uploads'}, and "
            "a check needs its effect on an update; give a step that calls its gradient(), "
            "from a batch to an update"
        )
    rounds = count(1)

    def upload(update: dict[str, Tensor]) -> dict[str, Tensor]:
        zeros = {name: torch.zeros_like(value) for name, value in update.items()}
        context = TrainingContext(
            round=next(rounds),
            rounds=0,
            client=0,
            cohort=(0,),
            weights={0: 1.0},
            seed=int(torch.randint(2**62, ())),
            received=Model(Architecture("none", nn.Identity), zeros, {}),
        )
        sent = apply_upload_hook(defense, Update(update, {}, samples=1), context)
        assert isinstance(sent, Update)
        return sent.values

    return upload


def leaves_of(tree: object) -> dict[str, object]:
    """Flatten nested dictionaries and lists to values by path; "update" for a bare one."""
    leaves: dict[str, object] = {}
    _mapped(tree, leaves.__setitem__)
    return {path: leaf for path, leaf in leaves.items() if leaf is not None}


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
    """Return True for tensors, and for arrays and numbers of numpy."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def to_numpy(value: object) -> np.ndarray:
    """Return a copy, in double precision if it holds fractions."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array = np.array(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


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
    """Seed all draws inside, and suppress output, logs and warnings.

    Code that imported ``urandom`` from ``os`` by name, or draws in C, is not seeded.
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
    """Initial state of a filter, from which every copy starts.

    A factory is called for each copy, with the same draws. An object is copied, and values that its
    functions keep elsewhere are restored.
    """

    def __init__(self, source: object, *, is_factory: bool) -> None:
        self._source, self._is_factory = source, is_factory
        self._outside = [] if is_factory else list(_kept_outside(source))
        self._first = None if is_factory else _copied(source)

    def fresh(self) -> object:
        """Return a filter in its initial state."""
        for put, _, first in self._outside:
            put(_copied(first))
        if self._is_factory:
            with drawing(0):
                return cast(Callable[[], object], self._source)()
        return _copied(self._first)

    def close(self) -> None:
        """Restore what the functions kept before the check."""
        for put, now, _ in self._outside:
            put(now)


def _copied(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadInput(
            f"the filter cannot be copied ({type(error).__name__}: {error}), and a check needs "
            "several copies in the same state; name a class or a function without arguments that "
            "returns one"
        ) from error


_Put: TypeAlias = Callable[[object], None]


def _kept_outside(filter: object) -> Iterator[tuple[_Put, object, object]]:
    """Yield values that a filter's functions keep elsewhere: setter, value and a copy."""
    waiting, seen = [*_functions(filter)], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for value, put in _places(function):
            waiting += _functions(value, function.__module__)
            if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
                continue  # code is left alone
            # Objects that cannot be copied stay; if they matter, equal draws give other outputs.
            with suppress(Exception):
                yield put, value, copy.deepcopy(value)


def _places(function: types.FunctionType) -> Iterator[tuple[object, _Put]]:
    """Yield each value that a function may keep state in, with its setter."""
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
    inner = [
        _names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return {*code.co_names}.union(*inner)


def _functions(value: object, module: str = "") -> list[types.FunctionType]:
    """Return the functions that a call may run, of the filter's module only."""
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, types.MethodType):
        value = value.__self__
    parts = (value if isinstance(value, type) else type(value)).__mro__
    members = (
        [value]
        if isinstance(value, types.FunctionType)
        else [member for part in parts for member in vars(part).values()]
    )
    functions = [member for member in members if isinstance(member, types.FunctionType)]
    module_name = module or (functions[0].__module__ if functions else "")
    return [member for member in functions if member.__module__ == module_name]


class Release(NamedTuple):
    """Output of one call: its arrays in double precision, and all else as text."""

    arrays: Arrays
    extras: dict[str, str]

    def is_finite(self) -> bool:
        """Return True if every entry is finite."""
        return all(bool(np.isfinite(value).all()) for value in self.arrays.values())

    def minus(self, other: "Release") -> Arrays:
        """Return the difference of each array; a missing array counts as zeros."""
        both = _stacked([self.arrays, other.arrays])
        return {name: np.asarray(left - right) for name, (left, right) in both.items()}


@dataclass(frozen=True)
class Replay:
    """One filter with its claim, called from the same state and with chosen draws."""

    name: str
    kind: str
    form: Form
    snapshot: Snapshot
    claim: Claim
    seed: int

    def release(self, values: Arrays, *, draw: int = 1, before: Sequence[Arrays] = ()) -> Release:
        """Return the output of a fresh filter after earlier rounds; ``draw`` selects the noise."""
        filter = adapted(self.snapshot.fresh(), self.kind, self.claim)
        with drawing(self.seed + _APART * draw):
            for earlier in before:
                self._call(filter, earlier)
        with drawing(self.seed + _APART * (draw + 1)):
            return self._call(filter, values)

    def draws(self, values: Arrays, calls: int, *, draw: int) -> Arrays:
        """Return outputs of one filter for one input, one call per row; large arrays are cut."""
        filter = adapted(self.snapshot.fresh(), self.kind, self.claim)
        outputs: list[Arrays] = []
        with drawing(self.seed + _APART * draw):
            for _ in range(calls):
                arrays = self._call(filter, values).arrays
                # A copy, since a view would keep the whole array in memory.
                outputs.append({name: corner(value).copy() for name, value in arrays.items()})
        return _stacked(outputs)

    def rounding(self, *releases: Release) -> float:
        """Return the distance of outputs that rounding may cause."""
        lengths = (float(np.linalg.norm(flat(release.arrays))) for release in releases)
        return 4 * self.form.rounding * sum(lengths)

    def _call(self, filter: object, values: Arrays) -> Release:
        sent = self.form.filled(values)
        function = cast(Callable[..., object], filter)
        step = self.kind == "step" and isinstance(sent, Sequence)
        try:
            result = function(*cast(Sequence[object], sent)) if step else function(sent)
        except FedauditError:
            raise
        # A filter may end the program, whose exit code must not be taken for a verdict.
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"the filter {self.name!r} fails: {type(error).__name__}: {error} "
                f"({location_of(error)})"
            ) from error
        # A filter that returns nothing has changed its argument in place.
        result = sent if result is None and self.kind != "step" else result
        extras: dict[str, object] = {}
        if isinstance(result, tuple) and len(result) > 1 and not is_array(result[0]):
            extras = leaves_of(result[1] if len(result) == 2 else result[1:])
            result = result[0]
        leaves = leaves_of(result)
        arrays = {
            path: to_numpy(value).astype(np.float64)
            for path, value in leaves.items()
            if is_array(value) and (path in self.form.shapes or self.kind == "step")
        }
        if not arrays:
            raise BadInput(
                f"the filter {self.name!r} returned {type_of(result)} with none of its input "
                f"arrays ({', '.join(self.form.shapes)[:100]}); it has to return an update"
            )
        extras |= {path: value for path, value in leaves.items() if path not in arrays}
        return Release(
            arrays,
            {p: repr(to_numpy(v).tolist() if is_array(v) else v) for p, v in extras.items()},
        )


def corner(value: np.ndarray) -> np.ndarray:
    """Return a part of an array with at most 4,096 entries."""
    sides = list(value.shape)
    while np.prod(sides) > _MOST_KEPT:
        longest = int(np.argmax(sides))
        sides[longest] = (sides[longest] + 1) // 2
    return np.asarray(value[tuple(slice(side) for side in sides)])


def _stacked(calls: Sequence[Arrays]) -> Arrays:
    """Stack the arrays of several calls; missing arrays are zeros."""
    stacked: Arrays = {}
    for name in dict.fromkeys(name for arrays in calls for name in arrays):
        shapes = {arrays[name].shape for arrays in calls if name in arrays}
        if len(shapes) > 1:
            raise BadInput(
                f"the filter sends arrays of one name in shapes {shapes}, which cannot be "
                "compared; check the part of it before their shapes change"
            )
        nothing = np.zeros(shapes.pop())
        stacked[name] = np.stack([arrays.get(name, nothing) for arrays in calls])
    return stacked
