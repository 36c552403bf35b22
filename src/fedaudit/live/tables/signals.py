"""Signals in the columns of a table, and the attacks that they allow."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import Architecture, Model
from fedaudit.live.setup import attacks_in
from fedaudit.observe.views import View
from fedaudit.signals.outputs import (
    LARGEST_LOGIT,
    LOG_FLOOR,
    Confidence,
    Entropy,
    Loss,
    MaxPosterior,
    ModifiedEntropy,
    OutputSignal,
    PosteriorSpread,
    ScaledLogit,
)
from fedaudit.signals.updates import GradientCosine, GradientNorm, ProjectionResidual

_MAX_VALUE = 1e100
_MAX_NORM = 1e50
"""Largest gradient norm, whose square is a finite number."""


class SignalColumn(NamedTuple):
    """Column of a table that contains a signal, in the usual form of the quantity.

    Attributes:
        signal: Name of the signal.
        convert: Converts the column to the signal, which is larger for members.
        restore: Converts the signal to the column.
        low: Smallest value in the column.
        high: Largest value in the column.
    """

    signal: str
    convert: Callable[[ndarray], ndarray]
    restore: Callable[[ndarray], ndarray]
    low: float
    high: float


SIGNAL_COLUMNS: Mapping[str, SignalColumn] = {
    "loss": SignalColumn(Loss().name, np.negative, np.negative, -_MAX_VALUE, _MAX_VALUE),
    "confidence": SignalColumn(Confidence().name, np.positive, np.positive, 0.0, 1.0),
    "cosine": SignalColumn(GradientCosine().name, np.positive, np.positive, -1.0, 1.0),
    "gradient_norm": SignalColumn(
        GradientNorm().name,
        lambda v: -(v**2),
        lambda v: np.sqrt(np.maximum(-v, 0)),
        0.0,
        _MAX_NORM,
    ),
    "projection_residual": SignalColumn(
        ProjectionResidual().name, np.negative, np.negative, 0.0, 1.0
    ),
    "global_loss": SignalColumn(
        Loss("global").name, np.negative, np.negative, -_MAX_VALUE, _MAX_VALUE
    ),
    "global_confidence": SignalColumn(
        Confidence("global").name, np.positive, np.positive, 0.0, 1.0
    ),
}

CLASS_COLUMNS = {"logits": "logit", "probabilities": "probability"}
"""Name of an array with one column per class, and the prefix of these columns' names."""

_OUTPUT_SIGNALS: tuple[OutputSignal, ...] = (
    *(Loss(), Confidence(), ScaledLogit(), MaxPosterior()),
    *(PosteriorSpread(), Entropy(), ModifiedEntropy()),
)
"""Signals that are computed from outputs by class."""

_TOLERANCE, _SUM_TOLERANCE = 1e-6, 1e-3
"""Rounding error that is allowed in a value, and in the sum of a row's probabilities."""


def signals_of(columns: Mapping[str, ndarray]) -> dict[str, ndarray]:
    """Return the signals of a table's rows; values are larger for likelier members.

    Raises:
        BadInput: A value is out of its range, or a label is no class of the table.
    """
    signals = dict[str, ndarray]()
    for column, (name, convert, _, low, high) in SIGNAL_COLUMNS.items():
        if column not in columns:
            continue
        values = columns[column]
        if column.endswith("loss") and values.min() < 0 and values.max() <= 0:
            raise BadInput(
                f"{column} is never above 0, like a log-likelihood; give the loss, which is "
                "smaller for members, and add a constant if losses can be negative"
            )
        if bool(((values < low - _TOLERANCE) | (values > high + _TOLERANCE)).any()):
            raise BadInput(
                f"{column} has values from {values.min():g} to {values.max():g}; give values from "
                f"{low:g} to {high:g}"
            )
        signals[name] = convert(values)
    if class_columns := _class_columns(columns):
        # Columns of signals take precedence over signals that are computed from outputs.
        signals = _output_signals(columns, class_columns) | signals
    elif Confidence().name in signals:
        confidence = columns["confidence"].clip(LOG_FLOOR, 1.0)
        signals.setdefault(Loss().name, np.log(confidence))
        with np.errstate(divide="ignore"):
            logit = np.log(confidence) - np.log1p(-confidence)
        signals[ScaledLogit().name] = logit.clip(-LARGEST_LOGIT, LARGEST_LOGIT)
    if not signals:
        raise BadInput(
            f"the table has no signal; give at least one of the columns "
            f"{', '.join(SIGNAL_COLUMNS)}, or logit_0, logit_1, ... or probability_0, "
            "probability_1, ..."
        )
    return signals


def _class_columns(columns: Mapping[str, ndarray]) -> list[str]:
    """Return the names of the columns of logits or probabilities; empty without such columns."""
    names_by_prefix = {
        prefix: [name for name in columns if name.rpartition("_")[0] == prefix]
        for prefix in CLASS_COLUMNS.values()
    }
    columns_by_prefix = [(prefix, names) for prefix, names in names_by_prefix.items() if names]
    if len(columns_by_prefix) > 1:
        raise BadInput("the table has logits and probabilities; give one of them")
    if not columns_by_prefix:
        return []
    ((prefix, unordered),) = columns_by_prefix
    names = [f"{prefix}_{number}" for number in range(len(unordered))]
    if {*names} != {*unordered} or len(names) < 2:
        raise BadInput(
            f"the columns {prefix}_0, {prefix}_1, ... have a gap; give one for each class"
        )
    return names


def _output_signals(columns: Mapping[str, ndarray], names: Sequence[str]) -> dict[str, ndarray]:
    if "label" not in columns:
        raise BadInput("outputs by class need the column label, the true class as a number from 0")
    outputs = np.stack([columns[name] for name in names], axis=1)
    labels = columns["label"].astype(np.int64)
    if labels.min() < 0 or labels.max() >= len(names):
        raise BadInput(
            f"label has values from {labels.min()} to {labels.max()} and the table {len(names)} "
            f"classes; give classes from 0 to {len(names) - 1}"
        )
    if names[0].startswith("probability"):
        sums = outputs.sum(1)
        if outputs.min() < -_TOLERANCE or bool((np.abs(sums - 1) > _SUM_TOLERANCE).any()):
            raise BadInput(
                f"the probabilities of a row are at least {outputs.min():g} and sum to "
                f"{sums.min():g} to {sums.max():g}; give values from 0 that sum to 1"
            )
        # The softmax of log-probabilities gives the probabilities again.
        outputs = np.log(outputs.clip(LOG_FLOOR))
    model = Model(Architecture("table", _no_model, task=CLASSIFICATION), params={}, buffers={})
    logits, targets = torch.from_numpy(outputs), torch.from_numpy(labels)
    return {
        signal.name: _finite(signal.of(model, logits, targets), signal.name)
        for signal in _OUTPUT_SIGNALS
    }


def _finite(values: Tensor, name: str) -> ndarray:
    if not bool((values.abs() <= _MAX_VALUE).all()):
        raise BadInput(f"the signal {name!r} is not finite; give smaller logits")
    return values.double().numpy()


def _no_model() -> torch.nn.Module:
    raise BadInput("a table has no model to run, only signals that were measured before")


def attacks_on(
    signals: Mapping[str, ndarray],
    names: Sequence[str],
    task: Task,
    *,
    view: View,
    is_separate: bool,
    reference_fault: Callable[[Attack], str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the attacks that signals allow, and for each excluded attack the reason.

    Args:
        signals: Signals of the table.
        names: Attacks that must be possible. If empty, the attacks of the default set are tried.
        task: The clients' task.
        view: The adversary's view.
        is_separate: Whether clients were measured on different samples.
        reference_fault: Returns why an attack cannot use the reference models; empty if it can.

    Raises:
        NotVisible: An attack in ``names`` is not possible, or no attack is.
    """
    visible, refused = attacks_in(view, names, task)
    for name in visible:
        reason = _reason_against(name, signals, is_separate=is_separate)
        if not reason and reference_fault is not None and resolve_attack(name).needs_references:
            reason = reference_fault(resolve_attack(name))
        if reason:
            refused[name] = reason
    possible = [name for name in visible if name not in refused]
    if refused and (names or not possible):
        raise NotVisible(next(iter(refused.values())))
    return possible, refused


def _reason_against(name: str, signals: Mapping[str, ndarray], *, is_separate: bool) -> str:
    """Return why an attack cannot run on the table; empty if it can."""
    attack = resolve_attack(name)
    if missing_signals := [signal.name for signal in attack.signals if signal.name not in signals]:
        columns = [
            name for name, column in SIGNAL_COLUMNS.items() if column.signal == missing_signals[0]
        ]
        if missing_signals[0] in {signal.name for signal in _OUTPUT_SIGNALS}:
            columns.append("logit_0, logit_1, ...")
        advice = f"give the column {' or '.join(columns)}, or " if columns else ""
        return (
            f"the attack {name!r} needs the signal {missing_signals[0]!r}, which the table lacks; "
            f"{advice}leave the attack out"
        )
    if is_separate and (attack.compares_clients or attack.infers_source):
        return (
            f"the attack {name!r} compares all clients at each sample, but each client was "
            "measured only on its own samples; measure every client's model on all samples, or "
            "leave the attack out"
        )
    return ""
