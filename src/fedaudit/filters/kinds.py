"""Kinds of filters, and their conversion to functions."""

import inspect
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import cast

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported, format_option, type_of
from fedaudit.core.values import Architecture, Model
from fedaudit.filters.claim import Claim
from fedaudit.fl.hooks import Defense, TrainingContext, apply_upload_hook
from fedaudit.observe.round import Update

FILTER_KINDS: dict[str, str] = {
    "function": "a function from update to update",
    "step": "a function from a batch of samples to an update",
    "defense": "a fedaudit defense that changes uploads",
    "flower-mod": "a Flower client mod",
    "nvflare-filter": "an NVFlare filter",
}

_FRAMEWORKS = {
    "flower-mod": ("fedaudit.integrations.flower.mods", "flower"),
    "nvflare-filter": ("fedaudit.integrations.nvflare.filter", "nvflare"),
}
"""For each kind of another framework: the module with its adapter, and the extra to install."""


def kind_of(filter: object) -> str:
    """Return the kind of a filter, from its class or the number of its arguments."""
    if isinstance(filter, Defense):
        return "defense"
    if any(base.__module__.startswith("nvflare.") for base in type(filter).__mro__):
        return "nvflare-filter"
    n_arguments = required_arguments(filter)
    kinds = {1: "function", 2: "step", 3: "flower-mod"}
    if n_arguments not in kinds:
        raise BadInput(
            f"a filter is one of: {', '.join(FILTER_KINDS.values())}; got {type_of(filter)}"
            + (f" that takes {n_arguments} arguments" if n_arguments >= 0 else "")
            + f"; give a filter, or its kind with {format_option('kind')}"
        )
    return kinds[n_arguments]


def required_arguments(value: object) -> int:
    """Return the number of required positional arguments; -1 for a value that is not callable."""
    if not callable(value):
        return -1
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in positional and p.default is p.empty for p in parameters)
    # The wrapper of a decorated function may show only *args, which count as one argument.
    return required or int(any(p.kind is p.VAR_POSITIONAL for p in parameters))


def as_function(filter: object, kind: str, claim: Claim) -> object:
    """Convert a filter of any kind to a function that keeps the filter's state between calls."""
    if kind == "defense":
        return _defense_function(cast(Defense, filter))
    if kind not in _FRAMEWORKS:
        return filter
    module, extra = _FRAMEWORKS[kind]
    try:
        adapter: Callable[[object, Claim], object] = import_module(module).as_update_function
    except ImportError as error:
        raise Unsupported(
            f"{FILTER_KINDS[kind]} needs a framework that is not installed ({error}); run "
            f"pip install 'fedaudit[{extra}]'"
        ) from error
    return adapter(filter, claim)


def _what_it_changes(hooks: list[str]) -> str:
    return f"training (in {', '.join(hooks)})" if hooks else "uploads other than updates"


def _defense_function(defense: Defense) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Convert a defense to a function from update to update, which counts a round per call."""
    in_training = ("prepare", "select", "batches", "batch", "loss", "gradient", "after")
    hooks = [hook for hook in in_training if defense.acts_in(hook)]
    if hooks or Update not in defense.accepts:
        raise Unsupported(
            f"{type(defense).__name__} changes {_what_it_changes(hooks)}, but the check needs a "
            "defense that changes the update after training; give a function from a batch to an "
            "update that calls the defense's gradient()"
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
