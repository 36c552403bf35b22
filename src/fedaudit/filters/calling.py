"""Filters of every kind as one thing: arrays by name in, arrays by name out."""

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Refusal, Unsupported, option, type_of
from fedaudit.core.values import Architecture, Model
from fedaudit.defenses.base import Defense, Turn
from fedaudit.filters.claim import Arrays, Claim
from fedaudit.filters.freezing import quietly
from fedaudit.observe.round import Update

Kind: TypeAlias = Literal["function", "step", "defense", "flower-mod", "nvflare-filter"]

KINDS: dict[str, str] = {
    "function": "a function from update to update",
    "step": "a function from a batch of samples to an update",
    "defense": "a defense of uploads of fedaudit",
    "flower-mod": "a mod of Flower's clients",
    "nvflare-filter": "a filter of NVFlare",
}

# By name, since no room but the integrations knows a framework.
_ADAPTERS = {
    "flower-mod": ("fedaudit.integrations.flower.filtered", "flower"),
    "nvflare-filter": ("fedaudit.integrations.nvflare.filtered", "nvflare"),
}

PLAIN: dict[str, tuple[int, ...]] = {
    "first.weight": (32, 16),
    "first.bias": (32,),
    "second.weight": (10, 32),
    "second.bias": (10,),
}
"""What a filter is tried on by default: the update of a small network."""


class Form:
    """How an update is laid out: tensors or arrays, by name, in a list, or one within another.

    Attributes:
        shapes: Of each array, by its path ("0.weight").
        whole: Those of whole numbers.
        values: The example's, fractions in double precision.
        rounding: Relative error of one operation in the coarsest precision there.
        largest: The largest number that every array of fractions holds.
        tensors: Whether it holds tensors, and not arrays of numpy.

    Args:
        example: An update, or a network whose state dict is one.

    Raises:
        BadInput: It holds no arrays.
    """

    def __init__(self, example: object) -> None:
        self._example = dict(example.state_dict()) if isinstance(example, nn.Module) else example
        leaves = dict(_leaves(self._example))
        bad = [path for path, leaf in leaves.items() if not _is_array(leaf)]
        if bad or not leaves:
            what = f"{bad[0]!r} in it is {type_of(leaves[bad[0]])}" if bad else "it is empty"
            raise BadInput(
                f"{option('shape-from')} gives an example of an update: a network, or tensors or "
                f"arrays by name or in a list; {what}"
            )
        self.shapes = {path: tuple(np.shape(_numpy(leaf))) for path, leaf in leaves.items()}
        self.whole = {path for path, leaf in leaves.items() if _limits(leaf) is None}
        self.values: Arrays = {path: _numpy(leaf) for path, leaf in leaves.items()}
        limits = [one for leaf in leaves.values() if (one := _limits(leaf)) is not None]
        self.rounding = max((float(one.eps) for one in limits), default=0.0)
        self.largest = min((float(one.max) for one in limits), default=0.0)
        self.tensors = any(isinstance(leaf, Tensor) for leaf in leaves.values())

    @property
    def entries(self) -> int:
        """Of all arrays together."""
        return sum(value.size for value in self.values.values())

    def filled(self, values: Arrays) -> object:
        """An update of this form with other values, in memory of its own."""
        return _filled(self._example, values, "")


class Sent(NamedTuple):
    """What came out of a filter.

    Attributes:
        arrays: The update, in double precision.
        beside: Whatever else.
    """

    arrays: Arrays
    beside: dict[str, object]


@dataclass(frozen=True)
class Call:
    """One call of a filter of any kind.

    Attributes:
        kind: What the filter is.
        form: Of what it is given.
        name: For refusals.
    """

    kind: Kind
    form: Form
    name: str

    def __call__(self, filter: object, values: Arrays) -> Sent:
        """What the filter makes of an update, or of a batch.

        Raises:
            BadInput: It fails, or returns no update.
        """
        given = self.form.filled(values)
        function = cast(Callable[..., object], filter)
        step = self.kind == "step" and isinstance(given, Sequence)
        try:
            with quietly():
                result = function(*cast(Sequence[object], given)) if step else function(given)
        except Refusal:
            raise
        # A filter may end the program, and the code that it ends with must not pass for a verdict.
        except (Exception, SystemExit) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise BadInput(
                f"the filter {self.name!r} fails: {type(error).__name__}: {error} "
                f"(in {Path(last.filename).name}, line {last.lineno})"
            ) from error
        # A filter that returns nothing has changed what it was given.
        return self._sent(given if result is None and self.kind != "step" else result)

    def _sent(self, result: object) -> Sent:
        others: dict[str, object] = {}
        if isinstance(result, tuple) and len(result) > 1 and not _is_array(result[0]):
            others = dict(_leaves(result[1] if len(result) == 2 else result[1:]))
            result = result[0]
        found = dict(_leaves(result))
        ours = {
            path: value
            for path, value in found.items()
            if _is_array(value) and (path in self.form.shapes or self.kind == "step")
        }
        if not ours:
            raise BadInput(
                f"the filter {self.name!r} returned {type_of(result)} with none of the arrays that "
                f"it was given ({', '.join(self.form.shapes)[:100]}); it has to return an update"
            )
        others |= {path: value for path, value in found.items() if path not in ours}
        return Sent(
            {path: _numpy(value).astype(np.float64) for path, value in ours.items()},
            {path: _told(value) for path, value in others.items()},
        )


def kind_of(filter: object) -> Kind:
    """What a filter is, by its class or by how many arguments it takes.

    Raises:
        BadInput: It is none that is known.
    """
    if isinstance(filter, Defense):
        return "defense"
    if any(part.__module__.startswith("nvflare.") for part in type(filter).__mro__):
        return "nvflare-filter"
    count = needed(filter)
    kinds: dict[int, Kind] = {1: "function", 2: "step", 3: "flower-mod"}
    if count not in kinds:
        raise BadInput(
            f"a filter is {', '.join(KINDS.values())}, got {type_of(filter)}"
            + (f" that takes {count} arguments" if count >= 0 else "")
            + f"; name one, or say which with {option('kind')}"
        )
    return kinds[count]


def needed(value: object) -> int:
    """How many arguments a call has to give by place; -1 for what cannot be called."""
    if not callable(value):
        return -1
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(one.kind in by_place and one.default is one.empty for one in parameters)
    # A decorated function may say no more than that it passes arguments on.
    return count or int(any(one.kind is one.VAR_POSITIONAL for one in parameters))


def adapted(filter: object, kind: Kind, claim: Claim) -> object:
    """A filter of any kind as a function, with all that it keeps between rounds in it.

    Raises:
        Unsupported: Its framework is not installed, or the defense is none of uploads.
    """
    if kind == "defense":
        return _Defending(cast(Defense, filter))
    if kind not in _ADAPTERS:
        return filter
    module, extra = _ADAPTERS[kind]
    try:
        found: Callable[[object, Claim], object] = import_module(module).filtered
    except ImportError as error:
        raise Unsupported(
            f"{KINDS[kind]} is called with its framework's own messages, which is not installed "
            f"({error}); pip install 'fedaudit[{extra}]'"
        ) from error
    return found(filter, claim)


def form_for(kind: Kind, example: object) -> Form:
    """The form of an example, or of what a filter of this kind is tried on without one.

    Raises:
        BadInput: The filter takes a batch, of which there is no example.
    """
    if kind == "step" and example is None:
        raise BadInput(
            "a step takes a batch of samples; name a function that gives one with "
            f"{option('shape-from')}, as a tuple of what the step takes, samples in rows"
        )
    if example is None:
        example = plain_example()
    if kind in _ADAPTERS:
        # Both frameworks send arrays of numpy by name, whatever a client trains.
        example = dict(Form(example).values)
    if kind == "defense":
        example = {path: torch.as_tensor(v) for path, v in Form(example).values.items()}
    return Form(example)


def plain_example(**more: tuple[int, ...]) -> dict[str, Tensor]:
    """An update of a small network, of tensors by name, with further ones of these shapes."""
    return {name: torch.zeros(shape) for name, shape in (PLAIN | more).items()}


class _Defending:
    """A defense of uploads as a function, which keeps its state from round to round."""

    def __init__(self, defense: Defense) -> None:
        elsewhere = [hook for hook in _IN_TRAINING if defense.acts_in(hook)]
        if elsewhere or Update not in defense.accepts:
            raise Unsupported(
                f"{type(defense).__name__} acts in {', '.join(elsewhere) or 'other uploads'}, and "
                "a check sees what it makes of an update; give a step that calls its gradient(), "
                "from a batch to an update"
            )
        self._defense, self._round = defense, 0

    def __call__(self, update: dict[str, Tensor]) -> dict[str, Tensor]:
        self._round += 1
        net = Architecture("none", nn.Identity)
        turn = Turn(
            round=self._round,
            rounds=0,
            client=0,
            cohort=(0,),
            weights={0: 1.0},
            seed=int(torch.randint(2**62, ())),
            received=Model(net, {name: torch.zeros_like(v) for name, v in update.items()}, {}),
        )
        sent = self._defense.upload(Update(update, {}, samples=1), turn)
        assert isinstance(sent, Update)
        return sent.values


_IN_TRAINING = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Whatever is in dictionaries and lists, with where it is."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list | tuple):
        for place, value in enumerate(tree):
            yield from _leaves(value, f"{path}.{place}" if path else str(place))
    elif tree is not None:
        yield path or "update", tree


def _filled(tree: object, values: Arrays, path: str) -> object:
    if isinstance(tree, Mapping):
        below = partial(_below, path)
        return {name: _filled(value, values, below(name)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_filled(value, values, _below(path, at)) for at, value in enumerate(tree)]
        return tuple(parts) if isinstance(tree, tuple) else parts
    value = values[path or "update"]
    if isinstance(tree, Tensor):
        return torch.as_tensor(np.array(value)).to(tree.dtype)
    dtype = np.asarray(tree).dtype
    return np.array(np.rint(value) if dtype.kind in "iu" else value).astype(dtype)


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _numpy(value: object) -> np.ndarray:
    """A copy, in double precision where it holds fractions."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    found = np.array(value)
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _limits(value: object) -> torch.finfo | np.finfo | None:
    """The precision of what an array holds; None for whole numbers."""
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype) if value.is_floating_point() else None
    dtype = np.asarray(value).dtype
    return np.finfo(dtype) if dtype.kind == "f" else None


def _told(value: object) -> object:
    """What was sent beside the arrays, as something that can be compared."""
    if _is_array(value):
        found = _numpy(value)
        return found.item() if found.size == 1 else found.tobytes()
    return value if isinstance(value, bool | int | float | str | bytes) else repr(value)
