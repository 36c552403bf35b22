"""Catalogue of models, and functions that build architectures from them.

>>> import fedaudit as fa
>>> model = fa.models.CNN(channels="16,32")

Each class is a model of ``fedaudit list models``, and is defined in a file of that name.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.importing import (
    call_reporting_errors,
    import_callable,
    installed_entry_points,
    is_custom,
    unknown_part,
)
from fedaudit.core.lazy import Catalogue, lazy_names
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import Architecture, Setting
from fedaudit.models.base import ConfiguredModel as ConfiguredModel
from fedaudit.models.base import format_shape

if TYPE_CHECKING:
    from fedaudit.models.alexnet import AlexNet as AlexNet
    from fedaudit.models.cnn import CNN as CNN
    from fedaudit.models.diffusion import Diffusion as Diffusion
    from fedaudit.models.minilm import MiniLM as MiniLM
    from fedaudit.models.mlp import MLP as MLP
    from fedaudit.models.resnet18 import ResNet18 as ResNet18
    from fedaudit.models.transformer import Transformer as Transformer
    from fedaudit.models.vgg11 import VGG11 as VGG11
    from fedaudit.models.wide_resnet import WideResNet as WideResNet
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, "MODELS", "ConfiguredModel", "architecture", "architecture_from_path"
    )

MAX_PARAMETERS = 2**31
"""Maximum number of parameters of a model: 8 GiB of 32-bit numbers."""

MODELS: Catalogue[type[ConfiguredModel]] = Catalogue("fedaudit.models")
"""Every model by its catalogue name."""


def architecture(
    name: str,
    task: Task = CLASSIFICATION,
    /,
    *,
    shape: tuple[int, ...],
    classes: int,
    **settings: Setting,
) -> Architecture:
    """Return an architecture of the catalogue, or a custom one, for samples of a shape.

    The architecture includes all settings with their values, also those at their defaults. So two
    architectures of the same network are equal, and records list all settings.

    Args:
        name: A key of ``MODELS``, or ``module:callable`` (see :func:`architecture_from_path`).
        task: Task that the model is trained for.
        shape: Shape of a sample, without the sample axis.
        classes: Number of outputs, at least 2 in classification.
        settings: Settings of the architecture; see the class in ``MODELS``.

    Raises:
        BadInput: The name or a setting is unknown, a setting has the wrong type, or the model does
            not accept samples of this shape.

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.architecture("mlp", shape=(2,), classes=3, hidden="16").name
        'mlp'
    """
    if name not in MODELS and (is_custom(name) or name in installed_entry_points("model")):
        return architecture_from_path(name, task, shape=shape, classes=classes, **settings)
    if name not in MODELS:
        raise unknown_part("model", name, MODELS)
    _check_shape_and_classes(shape, classes, task)
    model_class = MODELS[name]
    defaults: dict[str, Setting] = vars(model_class())
    _raise_if_unknown(name, settings, defaults)
    converted = {key: _as_type(value, type(defaults[key])) for key, value in settings.items()}
    all_settings = {**defaults, **converted}
    build = model_class(**all_settings).for_samples(shape, classes)
    # Build the model on the meta device (without memory), so that errors occur before training.
    try:
        with torch.device("meta"), _SkipNormalInit():
            size = sum(value.numel() for value in build().parameters())
    # torch raises this error if a size overflows.
    except RuntimeError as error:
        raise _too_large(name, all_settings, "more parameters than torch can count") from error
    if size > MAX_PARAMETERS:
        raise _too_large(name, all_settings, f"{size:,} parameters")
    return Architecture(name, build, _setting_items(shape, classes, all_settings), task)


class _SkipNormalInit(TorchFunctionMode):
    """Mode that skips ``normal_`` initialisation, for models whose parameters are only counted.

    On the meta device, ``normal_`` makes torch import its compiler, which takes seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        keywords = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return keywords["tensor"] if "tensor" in keywords else args[0]
        return func(*args, **keywords)


def architecture_from_path(
    path: str,
    task: Task = CLASSIFICATION,
    /,
    *,
    shape: tuple[int, ...],
    classes: int,
    **settings: Setting,
) -> Architecture:
    """Return a custom architecture by its import path.

    The callable, a class or a function, is called with the settings, and with ``shape`` and
    ``classes`` if its signature has them.

    Args:
        path: ``package.module:callable``, which every worker process can import.
        task: Task that the model is trained for.
        shape: Shape of a sample, without the sample axis.
        classes: Number of outputs, at least 2 in classification.
        settings: Keyword settings of the callable.

    Raises:
        BadInput: The path cannot be imported, the callable does not take the settings, or it
            returns no ``torch.nn.Module``.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> linear = fa.models.architecture_from_path(
        ...     "torch.nn:Linear", shape=(4,), classes=2, in_features=4, out_features=2
        ... )
        >>> linear.build_module()
        Linear(in_features=4, out_features=2, bias=True)
    """
    _check_shape_and_classes(shape, classes, task)
    if not is_custom(path) and path not in installed_entry_points("model"):
        raise BadInput(
            f"the path of a custom model has the form 'package.module:callable', got {path!r}; "
            f"use architecture() for models of the catalogue ({', '.join(MODELS)})"
        )
    function = cast(Callable[..., nn.Module], import_callable(path, "model"))
    arguments: dict[str, object] = {"shape": shape, "classes": classes}
    parameters = inspect.signature(function).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
        arguments = {key: value for key, value in arguments.items() if key in names}
        _raise_if_unknown(path, settings, [name for name in names if name not in arguments])
    build = partial(function, **arguments, **settings)
    with torch.random.fork_rng(devices=[]):
        module = call_reporting_errors("model", path, build)
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"{path!r} returned {type_of(module)}, not a torch.nn.Module; give a subclass of it, "
            "or a function that returns one"
        )
    return Architecture(path, build, _setting_items(shape, classes, settings), task)


def _too_large(name: str, settings: Mapping[str, Setting], size: str) -> BadInput:
    listed_settings = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return BadInput(
        f"model {name!r} with {listed_settings} has {size}, and at most {MAX_PARAMETERS:,} "
        "parameters are allowed; choose smaller settings"
    )


def _check_shape_and_classes(shape: tuple[int, ...], classes: int, task: Task) -> None:
    if not shape or min(shape) < 1:
        raise BadInput(
            f"the shape of a sample must have at least one axis, each of at least 1, got {shape}"
        )
    if classes < (2 if task == CLASSIFICATION else 1):
        raise BadInput(f"a classifier needs at least 2 classes, got classes={classes}")


def _raise_if_unknown(
    model: str, settings: Mapping[str, Setting], allowed: Collection[str]
) -> None:
    for key in settings:
        if not allowed:
            raise BadInput(f"model {model!r} has no settings, got {key!r}; remove it")
        if key not in allowed:
            raise unknown_name(f"setting of model {model!r}", key, allowed)


def _as_type(value: Setting, setting_type: type[Setting]) -> Setting:
    """Convert an integer to a float or string, if the setting has this type."""
    if type(value) is int and setting_type in (float, str):
        return setting_type(value)
    return value


def _setting_items(
    shape: tuple[int, ...], classes: int, settings: Mapping[str, Setting]
) -> tuple[tuple[str, Setting], ...]:
    return tuple(sorted({**settings, "shape": format_shape(shape), "classes": classes}.items()))
