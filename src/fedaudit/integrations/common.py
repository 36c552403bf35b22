"""Shared by recorders in any framework: checks of uploads, reported metrics, errors as warnings."""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.live.rounds import NOT_FINITE
from fedaudit.live.weights import tensor_of
from fedaudit.results.text import log_line


class Shaped(Protocol):
    """An array or a tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Length of each axis."""


Values: TypeAlias = Mapping[str, Tensor | np.ndarray] | Sequence[np.ndarray]
Arrays: TypeAlias = Mapping[str, Shaped] | Sequence[Shaped]

NO_COMMON_MODEL = (
    "clients send something other than the model (no array has the shape of one that they were "
    "sent), as in vertical federated learning or split learning, where they send embeddings or "
    "activations, or in second-order methods, where they send statistics. A recorder "
    "measures models and updates of one network that all clients train, so that no round of such a "
    "run can be recorded"
)


def refuse_not_finite(upload: Values, sent: Callable[[], Values | None]) -> None:
    """Raise if an upload holds NaN or infinite values, or no real numbers at all.

    An array that came back as it was sent may hold them: some masks are buffers of minus infinity.

    Args:
        upload: What a client sends back.
        sent: Returns the model that it was sent; called only if there are such values.

    Raises:
        BadInput: It does.
    """
    for name, value in _items(upload):
        tensor = tensor_of(value, f"its {name!r}")
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        known = dict(_items(sent() or {})).get(name)
        is_same = known is not None and np.array_equal(
            _numbers(value), _numbers(known), equal_nan=True
        )
        if not is_same:
            raise BadInput(f"its {name!r} has {NOT_FINITE}")


def _numbers(value: Tensor | np.ndarray) -> np.ndarray:
    found: np.ndarray = tensor_of(value, "it").double().numpy()
    return found


def _items(arrays: Values) -> Iterable[tuple[str, Tensor | np.ndarray]]:
    if isinstance(arrays, Mapping):
        return arrays.items()
    return ((str(place), value) for place, value in enumerate(arrays))


def share_no_shape(sent: Iterable[Arrays], uploads: Collection[Arrays]) -> bool:
    """Return True if no array of any upload has the shape of an array that was sent."""
    shapes = {shape for model in sent for shape in _shapes(model)}
    return bool(uploads and shapes) and all(shapes.isdisjoint(_shapes(one)) for one in uploads)


def _shapes(arrays: Arrays) -> set[tuple[int, ...]]:
    values = arrays.values() if isinstance(arrays, Mapping) else arrays
    return {tuple(value.shape) for value in values}


def warn(text: str, *, stacklevel: int) -> None:
    """Warn in one line that steers neither a screen nor a CI system.

    Args:
        text: May quote what clients sent.
        stacklevel: As of :func:`warnings.warn`, counted from the caller of this function.
    """
    warnings.warn(log_line(f"fedaudit: {text}"), RuntimeWarning, stacklevel=stacklevel + 1)


@contextmanager
def warn_of_errors(what: str, *, strict: bool) -> Iterator[None]:
    """Turn any error of the block into a warning.

    Args:
        what: What the audit could not do, for the warning.
        strict: Whether errors are raised instead.
    """
    try:
        yield
    # Whoever has warnings raised asked for it.
    except Warning:
        raise
    except Exception as error:
        if strict:
            raise
        warn(f"{what}: {error}", stacklevel=4)


_BARE = {
    "loss": ("loss",),
    "accuracy": ("accuracy", "acc"),
}
_OF_TRAINING = {
    "loss": ("train_loss", "training_loss", "loss_train"),
    "accuracy": (
        "train_accuracy",
        "train_acc",
        "training_accuracy",
        "training_acc",
        "accuracy_train",
        "acc_train",
    ),
}
_EVALUATION = re.compile(r"(^|[^a-z])(e?val|evaluat\w*|valid\w*|test\w*|held\w*)([^a-z]|$)")


def is_evaluation(name: str) -> bool:
    """Return True if a metric, or a record of metrics, is named after an evaluation."""
    return _EVALUATION.search(name.lower()) is not None


def training_metrics(values: Mapping[str, object], *, bare: bool = True) -> dict[str, float]:
    """Return "loss" and "accuracy" on training data, as far as the metrics hold them.

    Args:
        values: Metrics by name; a client chooses them, so they may be anything.
        bare: Whether "loss" and "accuracy" alone are taken to be on training data.

    Returns:
        Finite numbers only. Names that speak of training come before bare ones.
    """
    by_name = {_normalised(name): value for name, value in values.items() if _is_number(value)}
    metrics = dict[str, float]()
    for metric, names in _OF_TRAINING.items():
        for name in (*names, *(_BARE[metric] if bare else ())):
            if name in by_name:
                metrics[metric] = float(by_name[name])
                break
    return metrics


def _normalised(name: object) -> str:
    return re.sub(r"[^a-z]+", "_", str(name)[:200].lower()).strip("_")


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e15 and isfinite(value)
