"""Repeated calls of a filter with the same random draws, from the same state.

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
from fedaudit.filters.claim import Arrays, Claim, flatten
from fedaudit.fl.hooks import Defense, TrainingContext, apply_upload_hook
from fedaudit.observe.round import Update

KINDS: dict[str, str] = {
    "function": "a function from update to update",
    "step": "a function from a batch of samples to an update",
    "defense": "a defense of uploads of fedaudit",
    "flower-mod": "a mod of Flower's clients",
    "nvflare-filter": "a filter of NVFlare",
}

_FRAMEWORKS = {
    "flower-mod": ("fedaudit.integrations.flower.mods", "flower"),
    "nvflare-filter": ("fedaudit.integrations.nvflare.filter", "nvflare"),
}
"""The module that adapts each kind of filter of a framework, and the extra that it needs."""

DEFAULT_EXAMPLE = {
    "first.weight": torch.zeros(32, 16),
    "first.bias": torch.zeros(32),
    "second.weight": torch.zeros(10, 32),
    "second.bias": torch.zeros(10),
}
"""Update of a small network, the default example."""


class Form:
    """Layout of an update: tensors or arrays by name or in a list, possibly nested.

    Attributes:
        values: Arrays of the example by path, such as "0.weight", those with fractions in double
            precision.
        shapes: Shape of each array.
        integer_paths: Paths of integer arrays.
        rounding: Relative rounding error in the lowest precision of the arrays.
        max_value: Largest number that every floating-point array can hold.
    """

    def __init__(self, example: object) -> None:
        self._example = dict(example.state_dict()) if isinstance(example, nn.Module) else example
        leaves = leaves_of(self._example)
        bad = [path for path, leaf in leaves.items() if not is_array(leaf)]
        if bad or not leaves:
            reason = f"{bad[0]!r} in it is {type_of(leaves[bad[0]])}" if bad else "it is empty"
            raise BadInput(
                f"{option('shape-from')} gives no example of an update, since {reason}; give a "
                "network, or tensors or arrays by name or in a list"
            )
        self.values: Arrays = {path: to_numpy(leaf) for path, leaf in leaves.items()}
        self.shapes = {path: value.shape for path, value in self.values.items()}
        self.integer_paths = {
            path for path, value in self.values.items() if value.dtype.kind != "f"
        }
        limits = [
            _float_limits(leaf) for path, leaf in leaves.items() if path not in self.integer_paths
        ]
        self.rounding = max((float(limit.eps) for limit in limits), default=0.0)
        self.max_value = min((float(limit.max) for limit in limits), default=0.0)

    def with_values(self, values: Arrays) -> object:
        """Return a new update of this form with other values."""
        return _map_leaves(self._example, lambda path, leaf: _convert_like(leaf, values[path]))


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
            + f"; name one, or give its kind with {option('kind')}"
        )
    return kinds[arguments]


def required_arguments(value: object) -> int:
    """Return the number of required positional arguments; -1 for a value that is not callable."""
    if not callable(value):
        return -1
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.kind in positional and parameter.default is parameter.empty
        for parameter in parameters
    )
    # The wrapper of a decorated function may show only *args, which count as one argument.
    return required or int(
        any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    )


def as_function(filter: object, kind: str, claim: Claim) -> object:
    """Return a filter of any kind as a function, which keeps its state between calls."""
    if kind == "defense":
        return _defense_function(cast(Defense, filter))
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
    """Return the form of the example, by default of a small network, for this kind of filter."""
    if kind == "step" and example is None:
        raise BadInput(
            "a step needs a batch of samples; name a function that returns one with "
            f"{option('shape-from')}, as a tuple of the step's arguments, with samples in rows"
        )
    form = Form(DEFAULT_EXAMPLE if example is None else example)
    if kind in _FRAMEWORKS:
        # Updates of both frameworks are NumPy arrays by name.
        form = Form(form.values)
    if kind == "defense":
        form = Form({path: torch.as_tensor(value) for path, value in form.values.items()})
    return form


def _defense_function(defense: Defense) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return the effect of a defense on an upload as a function, one round per call."""
    in_training = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")
    hooks = [hook for hook in in_training if defense.acts_in(hook)]
    if hooks or Update not in defense.accepts:
        raise Unsupported(
            f"{type(defense).__name__} acts in {', '.join(hooks) or 'other uploads'}, and "
            "a check needs its effect on an update; give a step, from a batch to an update, that "
            "calls its gradient()"
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
    """Return the values in nested dictionaries and lists by path; a bare value is "update"."""
    leaves: dict[str, object] = {}
    _map_leaves(tree, leaves.__setitem__)
    return {path: leaf for path, leaf in leaves.items() if leaf is not None}


def _map_leaves(tree: object, change: Callable[[str, object], object], path: str = "") -> object:
    if not isinstance(tree, Mapping | list | tuple):
        return change(path or "update", tree)
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    parts = {
        key: _map_leaves(value, change, f"{path}.{key}" if path else str(key))
        for key, value in items
    }
    if isinstance(tree, Mapping):
        return parts
    return tuple(parts.values()) if isinstance(tree, tuple) else list(parts.values())


def _convert_like(leaf: object, value: np.ndarray) -> object:
    if isinstance(leaf, Tensor):
        return torch.as_tensor(np.array(value)).to(leaf.dtype)
    dtype = np.asarray(leaf).dtype
    return np.array(np.rint(value) if dtype.kind in "iu" else value).astype(dtype)


def is_array(value: object) -> bool:
    """Return True for tensors, and for arrays and numbers of numpy."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def to_numpy(value: object) -> np.ndarray:
    """Return a copy as an array, in double precision if it can hold fractions."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    array = np.array(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _float_limits(value: object) -> torch.finfo | np.finfo:
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype)
    return np.finfo(np.asarray(value).dtype)


_NUMPY_SEEDS = 2**32
_SEED_STEP = 1_000_003
"""Difference between the seeds of successive draws; checks with other seeds share no draws."""
_MAX_KEPT_ENTRIES = 4096


@contextmanager
def seeding_draws(seed: int) -> Iterator[None]:
    """Seed all random draws, and suppress output, logs and warnings.

    Code that imported ``urandom`` from ``os`` by name, or draws in C, is not seeded.
    """
    stream = random.Random(seed)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    system_sources = (os.urandom, random._urandom)  # type: ignore[attr-defined]
    log_level = logging.root.manager.disable
    # Otherwise the output of hundreds of calls would bury the verdict.
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
    values that its functions keep outside it are restored.
    """

    def __init__(self, source: object, *, is_factory: bool) -> None:
        self._source, self._is_factory = source, is_factory
        self._kept = [] if is_factory else list(_kept_values(source))
        self._initial = None if is_factory else _copy(source)

    def new_filter(self) -> object:
        """Return a filter in its initial state."""
        for set_value, _, initial in self._kept:
            set_value(_copy(initial))
        if self._is_factory:
            with seeding_draws(0):
                return cast(Callable[[], object], self._source)()
        return _copy(self._initial)

    def close(self) -> None:
        """Restore the values that the filter's functions kept before the check."""
        for set_value, original, _ in self._kept:
            set_value(original)


def _copy(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadInput(
            f"the filter cannot be copied ({type(error).__name__}: {error}), and a check needs "
            "several copies in the same state; name a class or a function without arguments that "
            "returns one"
        ) from error


_Setter: TypeAlias = Callable[[object], None]


def _kept_values(filter: object) -> Iterator[tuple[_Setter, object, object]]:
    """Yield the values that a filter's functions keep outside it: setter, value and a copy."""
    queue, visited = [*_functions(filter)], set[int]()
    while queue:
        function = queue.pop()
        if id(function) in visited:
            continue
        visited.add(id(function))
        for value, set_value in _stored_values(function):
            queue += _functions(value, function.__module__)
            if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
                continue
            # A value that cannot be copied is not restored. If the output depends on it, the check
            # finds that equal draws have other outputs.
            with suppress(Exception):
                yield set_value, value, copy.deepcopy(value)


def _stored_values(function: types.FunctionType) -> Iterator[tuple[object, _Setter]]:
    """Yield each value in which a function may keep state, and its setter."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # The cell is empty.
            yield cell.cell_contents, partial(setattr, cell, "cell_contents")
    yield function.__defaults__, partial(setattr, function, "__defaults__")
    used = _names(function.__code__) & function.__globals__.keys()
    for names, namespace in (
        (sorted(function.__dict__), function.__dict__),
        (sorted(used), function.__globals__),
    ):
        for name in names:
            yield namespace[name], partial(setitem, namespace, name)


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function uses, those of functions inside it included."""
    inner = [
        _names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return {*code.co_names}.union(*inner)


def _functions(value: object, module: str = "") -> list[types.FunctionType]:
    """Return the functions in a function, method, object or class that one module defines.

    By default, it is the module of the first function.
    """
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
    """Output of one call: its arrays in double precision, and the rest as text."""

    arrays: Arrays
    extras: dict[str, str]

    def is_finite(self) -> bool:
        """Return True if every entry is finite."""
        return all(bool(np.isfinite(value).all()) for value in self.arrays.values())

    def minus(self, other: "Release") -> Arrays:
        """Return the difference of each array; a missing array counts as zeros."""
        both = _stack([self.arrays, other.arrays])
        return {name: np.asarray(left - right) for name, (left, right) in both.items()}


@dataclass(frozen=True)
class Replay:
    """A filter that can be called from its initial state with chosen random draws."""

    name: str
    kind: str
    form: Form
    snapshot: Snapshot
    claim: Claim
    seed: int

    def release(self, values: Arrays, *, draw: int = 1, before: Sequence[Arrays] = ()) -> Release:
        """Return the output of a new filter for one input.

        Args:
            values: The input.
            draw: Number that selects the random draws.
            before: Inputs of earlier rounds.
        """
        filter = as_function(self.snapshot.new_filter(), self.kind, self.claim)
        with seeding_draws(self.seed + _SEED_STEP * draw):
            for earlier in before:
                self._call(filter, earlier)
        with seeding_draws(self.seed + _SEED_STEP * (draw + 1)):
            return self._call(filter, values)

    def draws(self, values: Arrays, calls: int, *, draw: int) -> Arrays:
        """Return outputs of a new filter for repeated calls with one input, one row per call.

        Only a part of large arrays is returned; see :func:`corner`.
        """
        filter = as_function(self.snapshot.new_filter(), self.kind, self.claim)
        outputs: list[Arrays] = []
        with seeding_draws(self.seed + _SEED_STEP * draw):
            for _ in range(calls):
                arrays = self._call(filter, values).arrays
                # A copy, since a view would keep the whole array in memory.
                outputs.append({name: corner(value).copy() for name, value in arrays.items()})
        return _stack(outputs)

    def rounding(self, *releases: Release) -> float:
        """Return the largest difference between these outputs that rounding may cause."""
        norms = (float(np.linalg.norm(flatten(release.arrays))) for release in releases)
        return 4 * self.form.rounding * sum(norms)

    def _call(self, filter: object, values: Arrays) -> Release:
        update = self.form.with_values(values)
        function = cast(Callable[..., object], filter)
        is_batch = self.kind == "step" and isinstance(update, Sequence)
        try:
            result = function(*cast(Sequence[object], update)) if is_batch else function(update)
        except FedauditError:
            raise
        # The filter may exit, and its exit code must not look like a verdict.
        except (Exception, SystemExit) as error:
            raise BadInput(
                f"the filter {self.name!r} fails: {type(error).__name__}: {error} "
                f"({location_of(error)})"
            ) from error
        # A filter that returns nothing has changed its argument in place.
        result = update if result is None and self.kind != "step" else result
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
    """Return the first entries along each axis, at most 4,096 in total."""
    sides = list(value.shape)
    while np.prod(sides) > _MAX_KEPT_ENTRIES:
        longest = int(np.argmax(sides))
        sides[longest] = (sides[longest] + 1) // 2
    return np.asarray(value[tuple(slice(side) for side in sides)])


def _stack(calls: Sequence[Arrays]) -> Arrays:
    """Stack the arrays of several calls; missing arrays are zeros."""
    stacked: Arrays = {}
    for name in dict.fromkeys(name for arrays in calls for name in arrays):
        shapes = {arrays[name].shape for arrays in calls if name in arrays}
        if len(shapes) > 1:
            raise BadInput(
                f"the filter sends arrays of one name in shapes {shapes}, which cannot be "
                "compared; check the part of the filter before their shapes change"
            )
        zeros = np.zeros(shapes.pop())
        stacked[name] = np.stack([arrays.get(name, zeros) for arrays in calls])
    return stacked
