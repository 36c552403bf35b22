"""Functions for all frameworks: open rounds, checks of uploads, training metrics, warnings."""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeGuard, TypeVar

import numpy as np
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.live.audited import Split, fair_split
from fedaudit.live.clients import ClientRef
from fedaudit.live.weights import NOT_FINITE, as_cpu_tensor
from fedaudit.results.text import log_line

if TYPE_CHECKING:
    from fedaudit.live.recorder import Recorder


Values: TypeAlias = Mapping[str, Tensor | np.ndarray] | Sequence[np.ndarray]
"""Arrays of a model, by name or in their order."""

NO_COMMON_MODEL = (
    "clients send something other than the model (no array has the shape of one that they were "
    "sent), as in vertical federated learning or split learning, where they send embeddings or "
    "activations, or in second-order methods, where they send statistics. A recorder "
    "measures models and updates of one network that all clients train, so that no round of such a "
    "run can be recorded"
)


def raise_if_not_finite(upload: Values, sent: Callable[[], Values | None]) -> None:
    """Raise if an upload has NaN or infinite values, or arrays without real numbers.

    An array that equals the sent one may have such values: some masks contain minus infinity.
    ``sent`` returns the model that was sent; it is called only if it is needed.
    """
    for name, value in _items(upload):
        tensor = as_cpu_tensor(value, f"its {name!r}")
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        sent_value = dict(_items(sent() or {})).get(name)
        if sent_value is None or not np.array_equal(
            tensor.double().numpy(),
            as_cpu_tensor(sent_value, "it").double().numpy(),
            equal_nan=True,
        ):
            raise BadInput(f"its {name!r} has {NOT_FINITE}")


def _items(arrays: Values) -> Iterable[tuple[str, Tensor | np.ndarray]]:
    if isinstance(arrays, Mapping):
        return arrays.items()
    return ((str(position), value) for position, value in enumerate(arrays))


Key = TypeVar("Key", int, str)


@dataclass
class OpenRound(Generic[Key]):
    """Answers of nodes or tasks in the round in progress.

    ``lost`` has errors and ``excluded`` answers that cannot be measured, each with the reason.
    """

    index: int
    uploads: dict[Key, Values] = field(default_factory=dict)
    weights: dict[Key, float] = field(default_factory=dict)
    reported: dict[Key, Mapping[str, float]] = field(default_factory=dict)
    answered: set[Key] = field(default_factory=set)
    lost: dict[Key, str] = field(default_factory=dict)
    excluded: dict[Key, str] = field(default_factory=dict)

    def pass_to(
        self,
        recorder: "Recorder",
        index: int,
        selected: Collection[Key],
        clients: Mapping[Key, ClientRef],
        chosen: Mapping[ClientRef, Key],
        models: Mapping[ClientRef, Values],
        *,
        after: Values | None,
        fault: str,
        unreadable: Mapping[ClientRef, str],
        unattributed_fault: str,
    ) -> None:
        """Pass the round to a recorder, or the ``fault`` because of which it cannot be recorded.

        ``selected`` are the nodes or tasks that were sent the model, ``clients`` their known
        clients.
        ``chosen`` has the node or task of each client to measure, ``models`` the model that each
        client was sent. For the others, see :meth:`fedaudit.live.recorder.Recorder.round`.
        """
        selected_clients = {clients[key] for key in selected if key in clients}
        unnamed = sum(key not in clients for key in selected)
        if not fault and share_no_shape(
            models.values(), [self.uploads[k] for k in chosen.values()]
        ):
            fault = NO_COMMON_MODEL
        if fault:
            known = {clients[key] for key in self.answered if key in clients}
            answered = known if self.answered <= clients.keys() else None
            recorder.missed(
                index, fault, selected=selected_clients, answered=answered, unnamed=unnamed
            )
            return
        first = next(iter(models.values()))
        if not recorder.sees_uploads:
            recorder.round(index, sent=first, after=after)
            return
        weights = {c: self.weights[key] for c, key in chosen.items() if key in self.weights}
        recorder.round(
            index,
            sent=first if all(model is first for model in models.values()) else models,
            uploads={client: self.uploads[key] for client, key in chosen.items()},
            weights=weights if sum(weights.values()) > 0 else None,
            selected=selected_clients,
            unnamed=unnamed,
            after=after,
            unreadable=unreadable,
            unattributed_fault=unattributed_fault,
            reported={client: self.reported.get(key, {}) for client, key in chosen.items()},
        )


def fair_split_of_clients(
    data: Mapping[int, tuple[Tensor, Tensor]], audited: int, *, seed: int
) -> Split:
    """Split the samples of clients by fair coins, and audit at most half of each client's samples.

    Args:
        data: Features and classes of each client.
        audited: Number of audited samples per client, if it has twice as many.
        seed: Seed of the coins.
    """
    counts: dict[ClientRef, int] = {
        client: min(audited, len(classes) // 2) for client, (_, classes) in data.items()
    }
    return fair_split(data, audited=counts, seed=seed)


def share_no_shape(sent: Iterable[Values], uploads: Collection[Values]) -> bool:
    """Return True if no array of any upload has the shape of an array that was sent."""
    shapes = {shape for model in sent for shape in _shapes(model)}
    return bool(uploads and shapes) and all(
        shapes.isdisjoint(_shapes(upload)) for upload in uploads
    )


def _shapes(arrays: Values) -> set[tuple[int, ...]]:
    return {tuple(value.shape) for _, value in _items(arrays)}


def warn(text: str, *, stacklevel: int) -> None:
    """Warn in one line, without the terminal or CI commands that texts of clients may contain."""
    warnings.warn(log_line(f"fedaudit: {text}"), RuntimeWarning, stacklevel=stacklevel + 1)


def delegated(name: str) -> Callable[..., Any]:
    """Return a method that calls the method ``name`` of the wrapped object, ``self.inner``."""

    def method(self: Any, *args: object, **kwargs: object) -> object:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


@contextmanager
def warn_of_errors(what: str, *, strict: bool) -> Iterator[None]:
    """Turn an error of the block into a warning that begins with ``what``, unless strict."""
    try:
        yield
    # Warnings are raised as errors only if the user has configured this.
    except Warning:
        raise
    except Exception as error:
        if strict:
            raise
        warn(f"{what}: {error}", stacklevel=4)


_PLAIN_NAMES = {"loss": ("loss",), "accuracy": ("accuracy", "acc")}
_TRAINING_NAMES = {
    "loss": ("train_loss", "training_loss", "loss_train"),
    "accuracy": (
        *("train_accuracy", "train_acc", "training_accuracy"),
        *("training_acc", "accuracy_train", "acc_train"),
    ),
}
_EVALUATION = re.compile(r"(^|[^a-z])(e?val|evaluat\w*|valid\w*|test\w*|held\w*)([^a-z]|$)")


def is_evaluation(name: str) -> bool:
    """Return True if a metric, or a record of metrics, is named after an evaluation."""
    return _EVALUATION.search(name.lower()) is not None


def training_metrics(values: Mapping[str, object], *, bare: bool = True) -> dict[str, float]:
    """Return the finite "loss" and "accuracy" on training data among a client's metrics.

    Names that mention training take precedence. If ``bare`` is True, metrics named only "loss" or
    "accuracy" are used, too.
    """
    by_name = {_normalised(name): value for name, value in values.items() if _is_number(value)}
    metrics = dict[str, float]()
    for metric, names in _TRAINING_NAMES.items():
        for name in (*names, *(_PLAIN_NAMES[metric] if bare else ())):
            if name in by_name:
                metrics[metric] = float(by_name[name])
                break
    return metrics


_MAX_METRICS = 100
_MAX_NAME = 100


def numbers_in(metrics: object) -> dict[str, float]:
    """Return the metrics that are numbers; raise if there are too many to be metrics."""
    if not isinstance(metrics, Mapping) or len(metrics) > _MAX_METRICS:
        raise BadInput(f"its metrics are not at most {_MAX_METRICS} numbers by name")
    return {
        str(name)[:_MAX_NAME]: float(value)
        for name, value in metrics.items()
        if isinstance(value, np.number) or _is_number(value)
    }


def _normalised(name: object) -> str:
    return re.sub(r"[^a-z]+", "_", str(name)[:200].lower()).strip("_")


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e15 and isfinite(value)
