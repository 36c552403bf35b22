"""Filters of every kind as functions, and the form of their updates."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported, option, type_of
from fedaudit.core.values import Architecture, Model
from fedaudit.filters.claim import Arrays, Claim
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
