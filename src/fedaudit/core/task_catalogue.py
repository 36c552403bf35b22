"""Catalogue of tasks, and look-up of tasks by name or loss.

:mod:`fedaudit.core.tasks` defines what a task is, and classification, which is the default.
"""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import cast

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedaudit.core.arguments import check_arguments
from fedaudit.core.denoising import denoising
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import look_up
from fedaudit.core.next_token import next_token
from fedaudit.core.tasks import (
    OutputKind,
    PerSampleLoss,
    Task,
    Utility,
    classification,
    cross_entropy,
    describe_tensor,
    is_correct,
    output_tensor_of,
)


@check_arguments
def binary() -> Task:
    """Binary classification with one logit z per sample.

    The logit is converted to two class logits, 0 and z. Their softmax is the sigmoid of z, and
    their cross-entropy is the binary cross-entropy of z.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.binary().utility.name
        'accuracy'
    """
    return Task(
        "binary",
        cross_entropy,
        Utility("accuracy", is_correct, is_accuracy=True),
        OutputKind.POSTERIOR,
        extract_outputs=two_logits,
        targets=_binary_classes,
        output_width=_single_output,
        classes=True,
    )


def two_logits(output: object) -> Tensor:
    """Return the logits 0 and z for each sample's logit z, of shape (samples,) or (samples, 1).

    Raises:
        BadInput: There are several logits per sample.
    """
    logits = output_tensor_of(output)
    if logits.numel() != len(logits):
        raise BadInput(
            f"a model for the task 'binary' must return one logit per sample, got shape "
            f"{tuple(logits.shape)}; use the task 'classification' for one logit per class"
        )
    return functional.pad(logits.reshape(-1, 1), (1, 0))


def _single_output(features: Tensor, targets: Tensor) -> int:
    return 1


def _binary_classes(features: Tensor, targets: Tensor) -> Tensor:
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] != 1 or not bool(((flat == 0) | (flat == 1)).all()):
        raise BadInput(
            "targets of the task 'binary' must be 0 or 1, one per sample, got "
            f"{describe_tensor(targets)}; use 'multi-label' for several labels per sample, or "
            "'classification' for several classes"
        )
    return flat[:, 0].long()


@check_arguments
def multi_label() -> Task:
    """Several binary labels per sample, with one logit per label and mean binary cross-entropy.

    Examples:
        >>> import fedaudit as fa
        >>> fa.tasks.multi_label().utility.name
        'label error'
    """
    return Task(
        "multi-label",
        _label_losses,
        Utility("label error", _label_errors),
        targets=_label_rows,
    )


def _label_losses(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    _raise_unless_same_shape("multi-label", outputs, targets)
    losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return losses.flatten(1).mean(1)


def _label_errors(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    return ((outputs > 0) != (targets > 0.5)).float().flatten(1).mean(1)


def _label_rows(features: Tensor, targets: Tensor) -> Tensor:
    if targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
        raise BadInput(
            "targets of the task 'multi-label' must be one row of zeros and ones per sample, with "
            f"one column per label, got {describe_tensor(targets)}"
        )
    return targets.float()


@check_arguments
def regression() -> Task:
    """Regression of one or several numbers per sample, with the mean squared error.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> outputs, targets = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
        >>> fa.tasks.regression().losses(outputs, targets)
        tensor([0., 4.])
    """
    return Task(
        "regression",
        _squared_errors,
        Utility("squared error", _squared_errors),
        targets=_target_rows,
    )


def _squared_errors(outputs: Tensor, targets: Tensor) -> Float[Tensor, " samples"]:
    outputs = outputs.reshape(len(outputs), -1)
    _raise_unless_same_shape("regression", outputs, targets)
    return (outputs - targets).square().mean(1)


def _target_rows(features: Tensor, targets: Tensor) -> Tensor:
    rows = targets.reshape(len(targets), -1).float()
    if not bool(rows.isfinite().all()):
        raise BadInput(
            f"{int((~rows.isfinite()).any(1).sum())} of {len(rows)} targets of the task "
            "'regression' are not finite numbers; leave these samples out"
        )
    return rows


def _raise_unless_same_shape(name: str, outputs: Tensor, targets: Tensor) -> None:
    if outputs.shape != targets.shape:
        raise BadInput(
            f"a model for the task {name!r} must return one number per target; expected shape "
            f"{tuple(targets.shape)}, got {tuple(outputs.shape)}"
        )


TASKS: dict[str, Callable[..., Task]] = {
    "classification": classification,
    "binary": binary,
    "multi-label": multi_label,
    "regression": regression,
    "next-token": next_token,
    "denoising": denoising,
}


@check_arguments
def of_loss(name: str, losses: PerSampleLoss) -> Task:
    """Return a task that uses one function as both loss and utility.

    Args:
        name: Name of the loss.
        losses: Function of (outputs, targets) that returns one number per sample.

    Examples:
        >>> import fedaudit as fa
        >>> from torch import nn
        >>> import torch
        >>> from torch.nn.functional import mse_loss
        >>> def squared(outputs, targets):
        ...     return mse_loss(outputs, targets, reduction="none").mean(1)
        >>> fa.tasks.of_loss("squared", squared).utility.is_accuracy
        False
    """
    return Task(name, losses, Utility("loss", losses))


_TASK_OF_LOSS = {
    "binary_cross_entropy_with_logits": "multi-label",
    "BCEWithLogitsLoss": "multi-label",
    "cross_entropy": "classification",
    "CrossEntropyLoss": "classification",
    "mse_loss": "regression",
    "MSELoss": "regression",
}
"""Maps the name of a torch loss to the task that computes the same loss for each sample."""


def raise_if_mean_loss(loss: Callable[..., object], settings: Mapping[str, object]) -> None:
    """Raise if a loss is a class, or a torch loss whose reduction is not "none"."""
    if isinstance(loss, type):
        fault = "is a class"
    elif settings.get("reduction", _default_reduction(loss)) != "none":
        fault = "returns one number for all samples"
    else:
        return
    name = getattr(loss, "__name__", "loss")
    task = _TASK_OF_LOSS.get(name)
    raise BadInput(
        f"the loss {name} {fault}, but the loss of a task must be a function of outputs and "
        "targets that returns one number per sample (reduction='none'); pass "
        f"{f'the task {task!r} instead' if task else 'such a function'}"
    )


def _default_reduction(loss: Callable[..., object]) -> object:
    try:
        return signature(loss).parameters["reduction"].default
    except (KeyError, ValueError):  # A function without this parameter, or without a signature.
        return "none"


def task_named(name: str, settings: Mapping[str, int | float | str | bool]) -> Task:
    """Look up a task in the catalogue, an installed package or custom code.

    Args:
        name: Catalogue name, or ``module:object`` for a task, or for a loss of (outputs, targets)
            that returns one number per sample.
        settings: Settings of the task, or keyword arguments of the loss.

    Raises:
        BadInput: There is no such task, or the task does not have these settings.
    """
    part: Task | Callable[..., Task] | PerSampleLoss = look_up(
        "task",
        name,
        TASKS,
        expected="a fedaudit.tasks.Task, or a loss of outputs and targets per sample",
        is_valid=lambda part: isinstance(part, Task) or callable(part),
    )
    if isinstance(part, Task):
        return part
    if part in TASKS.values():
        return cast(Callable[..., Task], part)(**settings)
    loss = cast(PerSampleLoss, part)
    raise_if_mean_loss(loss, settings)
    try:
        signature(loss).bind(None, None, **settings)
    except TypeError as error:
        raise BadInput(
            f"the loss {name!r} cannot be called with outputs, targets and the settings "
            f"{', '.join(settings) or 'none'}: {error}"
        ) from error
    except ValueError:  # Some compiled functions have no signature.
        pass
    return of_loss(name, partial(loss, **settings) if settings else loss)
