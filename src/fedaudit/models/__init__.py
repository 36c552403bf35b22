"""Models of the catalogue with their settings, and architectures that are built of them.

>>> import fedaudit as fa
>>> model = fa.models.CNN(channels="16,32")

Each class is one model of ``fedaudit list models``, in a file of that name.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.importing import called, imported, installed, is_own, unknown_part
from fedaudit.core.lazy import Catalogue, lazy_names
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import Architecture, Setting
from fedaudit.models.base import ConfiguredModel as ConfiguredModel
from fedaudit.models.base import spelled

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

MOST_PARAMETERS = 2**31
"""Largest model that is built: 8 GiB of 32-bit numbers, many times over in a federation."""

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
    """An architecture from the catalogue, or of the user's own, fitted to the samples.

    All settings are recorded, also those left at their defaults, so that two spellings of the
    same network compare as equal and a record can be read without this code.

    Args:
        name: A key of ``MODELS``, or ``module:callable``: see :func:`architecture_from_path`.
        task: What it is trained for.
        shape: Shape of one sample, without the sample axis.
        classes: Number of outputs: of classes, at least 2, where the task tells some apart.
        settings: Settings of the architecture; see the class in ``MODELS``.

    Raises:
        BadInput: Unknown name, unknown or ill-typed setting, or samples that do not fit.

    Examples:
        >>> architecture("mlp", shape=(2,), classes=3, hidden="16").name
        'mlp'
    """
    if name not in MODELS and (is_own(name) or name in installed("model")):
        return _from_path(name, shape, classes, settings, task)
    if name not in MODELS:
        raise unknown_part("model", name, MODELS)
    _check_samples(shape, classes, task)
    kind = MODELS[name]
    defaults: dict[str, Setting] = vars(kind())
    _refuse_unknown(name, settings, defaults)
    given = {key: _as_type(value, type(defaults[key])) for key, value in settings.items()}
    complete = {**defaults, **given}
    build = kind(**complete).for_samples(shape, classes)
    # Built without memory, so that what does not fit is refused here, not in the middle of a study.
    try:
        with torch.device("meta"), _Undrawn():
            size = sum(value.numel() for value in build().parameters())
    except RuntimeError as error:  # sizes that overflow
        raise _too_large(name, complete, "more numbers than can be addressed") from error
    if size > MOST_PARAMETERS:
        raise _too_large(name, complete, f"{size:,} parameters")
    return Architecture(name, build, _recorded(shape, classes, complete), task)


class _Undrawn(TorchFunctionMode):
    """Skip drawing normal initial values, as for embeddings, of a model that is only counted.

    To draw them on the meta device, torch imports its compiler, which takes seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


def architecture_from_path(
    path: str,
    task: Task = CLASSIFICATION,
    /,
    *,
    shape: tuple[int, ...],
    classes: int,
    **settings: Setting,
) -> Architecture:
    """An architecture of the user's own, from where it can be imported.

    The callable (a class or a function) is given ``shape`` and ``classes`` where its signature
    takes them, and the settings.

    Args:
        path: ``package.module:callable``; importable by every worker process too.
        task: What it is trained for.
        shape: Shape of one sample, without the sample axis.
        classes: Number of outputs: of classes, at least 2, where the task tells some apart.
        settings: Keyword settings for the callable.

    Raises:
        BadInput: The path cannot be imported, the callable does not take the settings, or
            what it makes is not a ``torch.nn.Module``.

    Examples:
        >>> found = architecture_from_path(
        ...     "torch.nn:Linear", shape=(4,), classes=2, in_features=4, out_features=2
        ... )
        >>> found.built()
        Linear(in_features=4, out_features=2, bias=True)
    """
    return _from_path(path, shape, classes, settings, task)


def _from_path(
    path: str,
    shape: tuple[int, ...],
    classes: int,
    settings: Mapping[str, Setting],
    task: Task,
) -> Architecture:
    _check_samples(shape, classes, task)
    if not is_own(path) and path not in installed("model"):
        raise BadInput(
            f"a model of your own is named 'package.module:callable', got {path!r}; "
            f"catalogue models ({', '.join(MODELS)}) are made by architecture()"
        )
    function = cast(Callable[..., nn.Module], imported(path, "model"))
    samples: dict[str, object] = {"shape": shape, "classes": classes}
    parameters = inspect.signature(function).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        named = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
        samples = {key: value for key, value in samples.items() if key in named}
        _refuse_unknown(path, settings, [name for name in named if name not in samples])
    build = partial(function, **samples, **settings)
    with torch.random.fork_rng(devices=[]):
        module = called("model", path, build)
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"{path!r} made {type_of(module)}, not a torch.nn.Module; give a class "
            "derived from it, or a function that returns one"
        )
    return Architecture(path, build, _recorded(shape, classes, settings), task)


def _too_large(name: str, settings: Mapping[str, Setting], size: str) -> BadInput:
    chosen = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return BadInput(
        f"model {name!r} with {chosen} has {size} and at most {MOST_PARAMETERS:,} parameters are "
        "built; choose smaller settings"
    )


def _check_samples(shape: tuple[int, ...], classes: int, task: Task) -> None:
    if not shape or min(shape) < 1:
        raise BadInput(f"the shape of a sample has at least one side, each at least 1, got {shape}")
    if classes < (2 if task == CLASSIFICATION else 1):
        raise BadInput(f"a model tells at least 2 classes apart, got classes={classes}")


def _refuse_unknown(model: str, settings: Mapping[str, Setting], known: Collection[str]) -> None:
    for key in settings:
        if key not in known:
            if not known:
                raise BadInput(f"model {model!r} has no settings, got {key!r}; leave it out")
            raise unknown_name(f"setting of model {model!r}", key, known)


def _as_type(value: Setting, kind: type[Setting]) -> Setting:
    """The value in its setting's type: whole numbers may stand for floats and for lists of one."""
    return kind(value) if type(value) is int and kind in (float, str) else value


def _recorded(
    shape: tuple[int, ...], classes: int, settings: Mapping[str, Setting]
) -> tuple[tuple[str, Setting], ...]:
    return tuple(sorted({**settings, "shape": spelled(shape), "classes": classes}.items()))
