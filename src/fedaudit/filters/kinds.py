"""Kinds of filters, and their conversion to functions."""

import inspect
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import cast

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported, option, type_of
from fedaudit.core.values import Architecture, Model
from fedaudit.filters.claim import Claim
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
            f"a filter is {', '.join(KINDS.values())}, got {type_of(filter)}"
            + (f" that takes {n_arguments} arguments" if n_arguments >= 0 else "")
            + f"; name one, or give its kind with {option('kind')}"
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
