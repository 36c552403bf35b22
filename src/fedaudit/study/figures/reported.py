"""Comparison of training metrics that clients report with those of the models they uploaded.

A recorder that measures another network than the clients trained finds no leak. The clients' own
accuracy then lies far above the recorder's on the same data.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, log2
from statistics import median
from typing import Final, Literal, NamedTuple

import scipy as sp
import torch

from fedaudit.core.devices import CPU
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import ClientId, Model, Samples
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.results.record import ControlResult
from fedaudit.study.setup.parts import Setup

ACCURACY: Final = "accuracy"
LOSS: Final = "loss"
Metric = Literal["accuracy", "loss"]
Reported = Mapping[ClientId, Mapping[Metric, float]]

CONTROL = "reported training metrics"
_PREFIX = "reported/client-"
_MOST_SAMPLES = 500
_FEWEST_SAMPLES = 10
_TAIL = 0.001
"""Probability that the limits of a client's accuracy miss the true one, on either side."""

_ACCURACY_MARGIN = 0.1
"""Gap beyond sampling error that is let pass: clients report averages within an epoch, and batch
statistics lag behind."""

_LEAST_OF_CHANCE = 0.5
"""Share of the accuracy of guessing, one in the number of classes, that trained models exceed."""

_LOSS_FACTOR, _LOSS_MARGIN = 2.0, 0.5
_SAME_SCALE = 0.5
"""Losses whose ratio stays within a factor of 2 ** 0.5 over the rounds differ by their scale alone,
such as a mean that was divided by the batch size once more."""

_FEWEST_ROUNDS = 2
_CAUSES = (
    "likely causes: the client's loader normalises samples and the audited ones are raw, batch "
    "statistics or layers stay at the client, the client counted in training mode while the "
    "running statistics of its batch normalisation still lag, noise or clipping is applied after "
    "the client counted, or another network was given to the recorder"
)


class Comparison(NamedTuple):
    """Metrics of one client in one round: reported, and measured on its audited members.

    Attributes:
        reported: By name, "accuracy" (a share, or in percent) and "loss".
        samples: Number of audited members that were measured.
        loss: Mean loss of the uploaded model on them.
        loss_error: Standard error of that mean.
        correct: Number of correct predictions; None for tasks without accuracy.
    """

    reported: dict[Metric, float]
    samples: int
    loss: float
    loss_error: float
    correct: int | None


def metrics_in(values: object) -> dict[Metric, float]:
    """Return the usable metrics among the values that a client reported.

    Values that are not finite numbers are left out: a client chooses them. Whether an accuracy is a
    share or a percentage follows from the values of all rounds and clients.

    Args:
        values: A mapping with "accuracy", "loss" or both.
    """
    if not isinstance(values, Mapping):
        return {}
    metrics = dict[Metric, float]()
    names: tuple[Metric, ...] = (ACCURACY, LOSS)
    for name in names:
        try:
            value = float(values[name])
        # Missing, or of any type: a client chooses it.
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if isfinite(value) and value >= 0 and (name == LOSS or value <= 100):
            metrics[name] = value
    return metrics


def reported_notes(
    reported: Reported,
    members: Mapping[ClientId, Samples],
    round: Round,
    device: torch.device = CPU,
) -> dict[str, str]:
    """Measure the uploads of clients that reported metrics on their audited members.

    Args:
        reported: Metrics by client.
        members: Audited members of each client.
        round: As the adversary sees it; clients whose model it hides are left out.
        device: Where models are run.

    Returns:
        A note for each client, for :func:`reported_controls`.
    """
    notes = dict[str, str]()
    # The sum over a group is named after one of its clients, and is no client's model.
    merged = {*round.stands_for, *round.stands_for.values()}
    for client, metrics in sorted(reported.items()):
        exposed, samples = round.exposed.get(client), members.get(client)
        if exposed is None or exposed.local is None or client in merged:
            continue
        if not samples or not metrics:
            continue
        found = _measured(exposed.local, samples.take(slice(_MOST_SAMPLES)), dict(metrics), device)
        if found is not None:
            notes[f"{_PREFIX}{client}"] = json.dumps(found)
    return notes


def reported_controls(run: Setup, stored: Sequence[Stored]) -> Iterator[ControlResult]:
    """Compare reported with measured metrics, a control for each client that reported some.

    A control fails where the client's own figure is much better than the recorder's in most of its
    measured rounds. A worse one proves nothing: clients average over an epoch in which the model
    improves, with dropout and augmentation.

    An accuracy of 0.8 is 0.8 or 0.8 %. A control fails only where neither is near the recorder's.

    Args:
        run: The run.
        stored: Its measured rounds.
    """
    for client in run.study.audit.targets:
        rounds = [comparison for one in stored if (comparison := _read(one, client))]
        if rounds:
            yield _compared(run, client, rounds)


def _measured(
    model: Model, samples: Samples, reported: dict[Metric, float], device: torch.device
) -> Comparison | None:
    outputs, task = outputs_of(model, samples.features, device), model.architecture.task
    losses = task.losses(outputs, samples.targets).double()
    if not bool(losses.isfinite().all()):
        return None
    correct = int(task.utility.of(outputs, samples.targets).sum()) if task.classes else None
    error = float(losses.std(correction=0)) / len(samples) ** 0.5
    return Comparison(reported, len(samples), float(losses.mean()), error, correct)


def _read(stored: Stored, client: ClientId) -> Comparison | None:
    """The comparison of a client in one round; None where the note is missing or malformed."""
    try:
        reported, samples, loss, error, correct = json.loads(stored.notes[f"{_PREFIX}{client}"])
        numbers = [float(samples), float(loss), float(error), float(correct or 0)]
        if not (all(map(isfinite, numbers)) and 0 <= int(correct or 0) <= int(samples)):
            return None
        known = None if correct is None else int(correct)
        return Comparison(metrics_in(reported), int(samples), float(loss), float(error), known)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _above_one(rounds: Sequence[Comparison]) -> bool:
    return any(one.reported.get(ACCURACY, 0) > 1 for one in rounds)


def _compared(run: Setup, client: ClientId, rounds: Sequence[Comparison]) -> ControlResult:
    counted = [one for one in rounds if ACCURACY in one.reported and one.correct is not None]
    # Losses have no scale that all clients share: accuracy decides where it is known.
    if not counted:
        value, passed, note = _losses(rounds)
    elif _above_one(rounds):
        value, passed, note = _accuracies(_from_percent(counted))
    else:
        value, passed, note = _accuracies(counted)
        percent = _from_percent(counted)
        # No model is far below chance. What other clients report says nothing of this one: a single
        # client could switch the alarms of all others off.
        low = _reported(percent) * run.dataset.classes < _LEAST_OF_CHANCE
        if passed is False and not low and not _is_worse(percent):
            passed, note = None, f"{note}; whether this is a share or in percent is not known"
    if rounds[0].samples < _FEWEST_SAMPLES:
        passed = None
        note += f"; fewer than {_FEWEST_SAMPLES} audited members cannot decide"
    return ControlResult(
        control=CONTROL,
        defense=run.study.defense.label,
        target=client,
        seed=run.seed,
        expected="the client's own training accuracy or loss is that of its upload on its members",
        value=value,
        passed=passed,
        note=f"{note}; {_CAUSES}" if passed is False else note,
    )


def _from_percent(rounds: Sequence[Comparison]) -> list[Comparison]:
    """The rounds with reported accuracies as shares, if they are percentages."""
    return [
        one._replace(reported={**one.reported, ACCURACY: one.reported[ACCURACY] / 100})
        for one in rounds
    ]


def _reported(rounds: Sequence[Comparison]) -> float:
    return median(one.reported[ACCURACY] for one in rounds)


def _is_worse(rounds: Sequence[Comparison]) -> bool:
    """True if the client's accuracy is much below the recorder's."""
    gaps = [_lower_limit(one) - one.reported[ACCURACY] for one in rounds]
    return median(gaps) > _ACCURACY_MARGIN


def _accuracies(rounds: Sequence[Comparison]) -> tuple[float | None, bool | None, str]:
    """The recorder's accuracy, whether the client's is near it, and both in words."""
    own, theirs = median((one.correct or 0) / one.samples for one in rounds), _reported(rounds)
    gaps = [one.reported[ACCURACY] - _upper_limit(one) for one in rounds]
    passed = median(gaps) <= _ACCURACY_MARGIN
    return own, passed, f"accuracy reported {theirs:.2f}, measured {own:.2f}{_over(rounds)}"


def _upper_limit(one: Comparison) -> float:
    """The Clopper-Pearson upper limit of the accuracy on all data that the client trains on."""
    correct = one.correct or 0
    if correct >= one.samples:
        return 1.0
    return float(sp.stats.beta.isf(_TAIL, correct + 1, one.samples - correct))


def _lower_limit(one: Comparison) -> float:
    """The Clopper-Pearson lower limit of the same."""
    correct = one.correct or 0
    if not correct:
        return 0.0
    return float(sp.stats.beta.ppf(_TAIL, correct, one.samples - correct + 1))


def _losses(rounds: Sequence[Comparison]) -> tuple[float | None, bool | None, str]:
    known = [one for one in rounds if LOSS in one.reported]
    if not known:
        return None, None, "no accuracy or loss that can be compared"
    own, theirs = median(one.loss for one in known), median(one.reported[LOSS] for one in known)
    note = f"loss reported {theirs:.3g}, measured {own:.3g}{_over(known)}"
    errors = float(sp.special.ndtri(1 - _TAIL))
    gaps = [
        one.loss - errors * one.loss_error - (_LOSS_FACTOR * one.reported[LOSS] + _LOSS_MARGIN)
        for one in known
    ]
    if median(gaps) <= 0:
        return None, True, note
    if len(known) < _FEWEST_ROUNDS:
        return None, None, f"{note}; one round cannot tell another network from another scale"
    ratios = [log2(one.loss / max(one.reported[LOSS], 1e-12)) for one in known]
    if max(ratios) - min(ratios) <= _SAME_SCALE:
        return None, None, f"{note}; the ratio is the same in all rounds, as of another scale"
    return None, False, note


def _over(rounds: Sequence[Comparison]) -> str:
    count = len(rounds)
    members = f"{rounds[-1].samples} audited members"
    return f" on {members}" + (f" (medians of {count} rounds)" if count > 1 else "")
