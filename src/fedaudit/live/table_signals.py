"""Signals of tables: which column gives which signal, and the attacks that they allow."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks import attack_named
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
from fedaudit.signals.updates import GradientCosine, GradientNorm

_LARGEST = 1e100


def _negative(values: ndarray) -> ndarray:
    return -values


def _unchanged(values: ndarray) -> ndarray:
    return values


def _negative_square(values: ndarray) -> ndarray:
    squares: ndarray = -np.square(values)
    return squares


COLUMNS: Mapping[str, tuple[str, Callable[[ndarray], ndarray], float, float]] = {
    "loss": (Loss().name, _negative, -_LARGEST, _LARGEST),
    "confidence": (Confidence().name, _unchanged, 0.0, 1.0),
    "cosine": (GradientCosine().name, _unchanged, -1.0, 1.0),
    "gradient_norm": (GradientNorm().name, _negative_square, 0.0, 1e50),
    "global_loss": (Loss("global").name, _negative, -_LARGEST, _LARGEST),
    "global_confidence": (Confidence("global").name, _unchanged, 0.0, 1.0),
}
"""For each column, its signal, the function that makes it larger for members, and the range of the
column."""

PER_CLASS = {"logits": "logit", "probabilities": "probability"}
"""Arrays with one column per class, and the names of these columns in tables."""

_OF_OUTPUTS: tuple[OutputSignal, ...] = (
    *(Loss(), Confidence(), ScaledLogit(), MaxPosterior()),
    *(PosteriorSpread(), Entropy(), ModifiedEntropy()),
)
_SLACK = 1e-6


def signals_of(columns: Mapping[str, ndarray]) -> dict[str, ndarray]:
    """Return signals, larger for likelier members, in the order of the rows.

    Raises:
        BadInput: A value is out of its range, or classes and labels do not fit together.
    """
    signals = dict[str, ndarray]()
    for column, (name, convert, low, high) in COLUMNS.items():
        if column not in columns:
            continue
        values = columns[column]
        if column.endswith("loss") and values.min() < 0 and values.max() <= 0:
            raise BadInput(
                f"{column} is never above 0, like a log-likelihood; give the loss, which is "
                "smaller for members, and add a constant if losses can be negative"
            )
        if bool(((values < low - _SLACK) | (values > high + _SLACK)).any()):
            raise BadInput(
                f"{column} has values from {values.min():g} to {values.max():g}; give values from "
                f"{low:g} to {high:g}"
            )
        signals[name] = convert(values)
    if of_classes := _class_columns(columns):
        signals = _of_outputs(columns, of_classes) | signals
    elif Confidence().name in signals:
        confidence = columns["confidence"].clip(LOG_FLOOR, 1.0)
        signals.setdefault(Loss().name, np.log(confidence))
        with np.errstate(divide="ignore"):
            logit = np.log(confidence) - np.log1p(-confidence)
        signals[ScaledLogit().name] = logit.clip(-LARGEST_LOGIT, LARGEST_LOGIT)
    if not signals:
        raise BadInput(
            f"the table has no signal; give at least one of the columns {', '.join(COLUMNS)}, or "
            "logit_0, logit_1, ... or probability_0, probability_1, ..."
        )
    return signals


def _class_columns(columns: Mapping[str, ndarray]) -> list[str]:
    """Return the columns of logits or probabilities by class; empty if there are none."""
    families = {
        stem: [name for name in columns if name.rpartition("_")[0] == stem]
        for stem in PER_CLASS.values()
    }
    present = [stem for stem, names in families.items() if names]
    if len(present) > 1:
        raise BadInput("the table has logits and probabilities; give one of them")
    if not present:
        return []
    (stem,) = present
    names = [f"{stem}_{number}" for number in range(len(families[stem]))]
    if {*names} != {*families[stem]} or len(names) < 2:
        raise BadInput(f"the columns {stem}_0, {stem}_1, ... have a gap; give one for each class")
    return names


def _of_outputs(columns: Mapping[str, ndarray], names: Sequence[str]) -> dict[str, ndarray]:
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
        if outputs.min() < -_SLACK or bool((np.abs(sums - 1) > 1e-3).any()):
            raise BadInput(
                f"the probabilities of a row are at least {outputs.min():g} and sum to "
                f"{sums.min():g} to {sums.max():g}; give values from 0 that sum to 1"
            )
        outputs = np.log(outputs.clip(LOG_FLOOR))
    model = Model(Architecture("table", _no_model, task=CLASSIFICATION), {}, {})
    logits, targets = torch.from_numpy(outputs), torch.from_numpy(labels)
    return {
        signal.name: _finite(signal.of(model, logits, targets), signal.name)
        for signal in _OF_OUTPUTS
    }


def _finite(values: Tensor, name: str) -> ndarray:
    if not bool((values.abs() <= _LARGEST).all()):
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
    """Return the attacks that signals allow, and the reason against each other one.

    Args:
        signals: Signals of the table.
        names: Attacks, which must be possible; those of the default set if empty.
        task: The clients' task.
        view: The adversary's view.
        is_separate: Whether clients were measured on different samples.
        reference_fault: Returns why the reference models do not suit an attack that needs some.

    Raises:
        NotVisible: A named attack is not possible, or none is.
    """
    seen, refused = attacks_in(view, names, task)
    for name in seen:
        reason = _reason_against(name, signals, is_separate=is_separate)
        if not reason and reference_fault is not None and attack_named(name).needs_references:
            reason = reference_fault(attack_named(name))
        if reason:
            refused[name] = reason
    possible = [name for name in seen if name not in refused]
    if refused and (names or not possible):
        raise NotVisible(next(iter(refused.values())))
    return possible, refused


_COLUMN_OF = {name: column for column, (name, *_) in COLUMNS.items()}


def _reason_against(name: str, signals: Mapping[str, ndarray], *, is_separate: bool) -> str:
    attack = attack_named(name)
    if absent := [signal.name for signal in attack.signals if signal.name not in signals]:
        column = _COLUMN_OF.get(absent[0], "")
        if absent[0] in {signal.name for signal in _OF_OUTPUTS}:
            column = " or ".join(filter(None, [column, "logit_0, logit_1, ..."]))
        how = f"give the column {column}, or leave the attack out" if column else "leave it out"
        return f"the attack {name!r} needs the signal {absent[0]!r}, which the table lacks; {how}"
    if is_separate and (attack.compares_clients or attack.infers_source):
        return (
            f"the attack {name!r} compares all clients at each sample, and each client was "
            "measured on its own samples only; measure every client's model on all samples, or "
            "leave it out"
        )
    return ""
