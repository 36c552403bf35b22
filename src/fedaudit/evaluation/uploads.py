"""Controls on the uploads of clients: norms of updates, and training metrics that clients report.

A client that returns the model it was sent, repeats another client's update or sends enormous
numbers changes the figures of every other client if an attack compares clients. Its values are
finite, so that nothing else notices.

A recorder that measures another network than the clients trained finds no leak. The clients' own
accuracy then lies far above the recorder's on the same data.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, log2, sqrt
from statistics import median
from typing import Final, Literal, NamedTuple

import scipy as sp
import torch

from fedaudit.core.devices import CPU
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import ClientId, Model, Params, Samples
from fedaudit.evaluation.truth import run_coordinates
from fedaudit.metrics.intervals import lower_limit, upper_limit
from fedaudit.observe.measurements import Stored
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import digest_of
from fedaudit.plan.parts import Setup
from fedaudit.results.record import ControlResult
from fedaudit.results.text import plain

PEERS = "peer updates"
_UPDATE = "update/client-"
_SMALLEST, _LARGEST = 0.01, 100.0
"""Share of the median norm of a round below and above which an update is degenerate. Clients with
twenty times the data of others, or a tenth of their local steps, stay well within."""

_FEWEST_CLIENTS = 3
"""Below so many clients in a round no median says which of them differs."""

_TOLERATED = 0.1
"""Share of a client's rounds that may be degenerate, as where its training failed once."""

_MOST_NAMED = 5

ACCURACY: Final = "accuracy"
LOSS: Final = "loss"
Metric = Literal["accuracy", "loss"]
Reported = Mapping[ClientId, Mapping[Metric, float]]

REPORTED = "reported training metrics"
_REPORT = "reported/client-"
_MOST_SAMPLES = 500
_FEWEST_SAMPLES = 10
_CONFIDENCE = 0.999
"""Of a one-sided limit of a client's accuracy."""

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


def _merged(round: Round) -> set[ClientId]:
    """Return the clients that are seen in a sum only, and those that sums are named after."""
    return {*round.stands_for, *round.stands_for.values()}


def update_notes(round: Round) -> dict[str, str]:
    """Return a note with norm and digest of each client's update, for :func:`peer_controls`.

    Args:
        round: As the adversary sees it; clients whose update it hides are left out.
    """
    updates = {c: round.exposed[c].update for c in sorted({*round.exposed} - _merged(round))}
    return {
        f"{_UPDATE}{client}": f"{_norm(update)!r} {digest_of(update, {})}"
        for client, update in updates.items()
        if update is not None
    }


def peer_controls(run: Setup, stored: Sequence[Stored]) -> Iterator[ControlResult]:
    """Compare the norms of clients' updates round by round, for attacks that compare clients."""
    rounds = [updates for one in stored if len(updates := _updates(one)) >= _FEWEST_CLIENTS]
    attacks = [name for name, attack in run.attacks.items() if attack.compares_clients]
    if not rounds or not attacks:
        return
    seen, odd = Counter[ClientId](), dict[ClientId, list[float]]()
    for updates in rounds:
        middle = median(update.norm for update in updates.values())
        times = Counter(update.digest for update in updates.values())
        for client, (norm, digest) in updates.items():
            seen[client] += 1
            share = norm / middle if middle > 0 else 1.0
            # Two trainings never end in the same update to the last digit.
            repeated = norm > 0 and digest != "" and times[digest] > 1
            if repeated or not _SMALLEST <= share <= _LARGEST:
                odd.setdefault(client, []).append(share)
    worst = {c: shares for c, shares in odd.items() if len(shares) > _TOLERATED * seen[c]}
    for name in attacks:
        yield ControlResult(
            **run_coordinates(run),
            control=PEERS,
            attack=name,
            clients=sorted(worst),
            expected="each client's update is its own and of the size of others",
            value=None,
            passed=not worst,
            note=_named(worst, run) if worst else f"{len(seen)} clients in {len(rounds)} rounds",
        )


def _named(worst: dict[ClientId, list[float]], run: Setup) -> str:
    names = run.names
    said = []
    for client, shares in sorted(worst.items())[:_MOST_NAMED]:
        middle = median(shares)
        repeated = ", the same as another client's," * (_SMALLEST <= middle <= _LARGEST)
        said.append(
            f"client {plain(names.get(client, str(client)))} sent updates of {middle:.2g} times "
            f"the median norm{repeated} in {len(shares)} rounds"
        )
    more = len(worst) - _MOST_NAMED
    said += [f"{more} more clients likewise"] if more > 0 else []
    return (
        f"{'; '.join(said)}: comparisons with such clients are distorted; find out why, or leave "
        "them out of the audit"
    )


def _norm(update: Params) -> float:
    return sqrt(sum(float(value.double().square().sum()) for value in update.values()))


class _Update(NamedTuple):
    """Norm and digest of a client's update; without a digest in older recordings."""

    norm: float
    digest: str


def _updates(stored: Stored) -> dict[ClientId, _Update]:
    """Return the updates of one round; malformed notes are left out."""
    found = dict[ClientId, _Update]()
    for name, note in stored.notes.items():
        number = name.removeprefix(_UPDATE)
        text, _, digest = note.partition(" ")
        if number != name and number.isdecimal():
            try:
                norm = float(text)
            except ValueError:
                continue
            if isfinite(norm) and norm >= 0:
                found[int(number)] = _Update(norm, digest)
    return found


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

    @property
    def accuracy(self) -> float:
        """Accuracy that was measured."""
        return (self.correct or 0) / self.samples


def metrics_in(values: object) -> dict[Metric, float]:
    """Return the usable metrics among the values that a client reported.

    Values that are not finite numbers are left out: a client chooses them. Whether an accuracy is a
    share or a percentage follows from the values of all rounds and clients.

    Args:
        values: A mapping with "accuracy", "loss" or both.
    """
    metrics = dict[Metric, float]()
    names: tuple[Metric, ...] = (ACCURACY, LOSS) if isinstance(values, Mapping) else ()
    for name in names:
        try:
            value = float(values[name])  # type: ignore[index]
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
    notes, merged = dict[str, str](), _merged(round)
    for client, metrics in sorted(reported.items()):
        exposed, samples = round.exposed.get(client), members.get(client)
        if exposed is None or exposed.local is None or client in merged:
            continue
        if not samples or not metrics:
            continue
        found = _measured(exposed.local, samples.take(slice(_MOST_SAMPLES)), dict(metrics), device)
        if found is not None:
            notes[f"{_REPORT}{client}"] = json.dumps(found)
    return notes


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
    """Return the comparison of a client in one round; None if its note is missing or malformed."""
    try:
        reported, samples, loss, error, correct = json.loads(stored.notes[f"{_REPORT}{client}"])
        numbers = [float(samples), float(loss), float(error), float(correct or 0)]
        possible = int(samples) > 0 and 0 <= int(correct or 0) <= int(samples)
        if not (all(map(isfinite, numbers)) and possible):
            return None
        known = None if correct is None else int(correct)
        return Comparison(metrics_in(reported), int(samples), float(loss), float(error), known)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def reported_controls(run: Setup, stored: Sequence[Stored]) -> Iterator[ControlResult]:
    """Compare reported with measured metrics, a control for each client that reported some.

    A control fails where the client's own figure is much better than the recorder's in most of its
    measured rounds. A worse one proves nothing: clients average over an epoch in which the model
    improves, with dropout and augmentation.

    An accuracy of 0.8 is 0.8 or 0.8 %. A control fails only where neither is near the recorder's.
    """
    for client in run.study.audit.targets:
        rounds = [comparison for one in stored if (comparison := _read(one, client))]
        if not rounds:
            continue
        value, passed, note = _compared(rounds, run.dataset.classes)
        if rounds[0].samples < _FEWEST_SAMPLES:
            passed = None
            note += f"; fewer than {_FEWEST_SAMPLES} audited members cannot decide"
        yield ControlResult(
            **run_coordinates(run),
            control=REPORTED,
            target=client,
            expected="the client's own training accuracy or loss is that of its upload on its "
            "members",
            value=value,
            passed=passed,
            note=f"{note}; {_CAUSES}" if passed is False else note,
        )


class _Outcome(NamedTuple):
    """The recorder's accuracy, whether the client's metric is near its own, and both in words."""

    value: float | None
    passed: bool | None
    note: str


def _compared(rounds: Sequence[Comparison], classes: int) -> _Outcome:
    counted = [one for one in rounds if ACCURACY in one.reported and one.correct is not None]
    # Losses have no scale that all clients share: accuracy decides where it is known.
    if not counted:
        return _losses(rounds)
    percent = [
        one._replace(reported={**one.reported, ACCURACY: one.reported[ACCURACY] / 100})
        for one in counted
    ]
    if any(one.reported.get(ACCURACY, 0) > 1 for one in rounds):
        return _accuracies(percent)
    found = _accuracies(counted)
    # No model is far below chance. What other clients report says nothing of this one: a single
    # client could switch the alarms of all others off.
    theirs = median(one.reported[ACCURACY] for one in percent)
    below = (
        lower_limit(one.correct or 0, one.samples, confidence=_CONFIDENCE) - one.reported[ACCURACY]
        for one in percent
    )
    may_be_percent = theirs * classes >= _LEAST_OF_CHANCE and median(below) <= _ACCURACY_MARGIN
    if found.passed is False and may_be_percent:
        note = f"{found.note}; whether this is a share or in percent is not known"
        return found._replace(passed=None, note=note)
    return found


def _accuracies(rounds: Sequence[Comparison]) -> _Outcome:
    own = median(one.accuracy for one in rounds)
    theirs = median(one.reported[ACCURACY] for one in rounds)
    above = (
        one.reported[ACCURACY] - upper_limit(one.correct or 0, one.samples, confidence=_CONFIDENCE)
        for one in rounds
    )
    passed = median(above) <= _ACCURACY_MARGIN
    return _Outcome(
        own, passed, f"accuracy reported {theirs:.2f}, measured {own:.2f}{_over(rounds)}"
    )


def _losses(rounds: Sequence[Comparison]) -> _Outcome:
    known = [one for one in rounds if LOSS in one.reported]
    if not known:
        return _Outcome(None, None, "no accuracy or loss that can be compared")
    own, theirs = median(one.loss for one in known), median(one.reported[LOSS] for one in known)
    note = f"loss reported {theirs:.3g}, measured {own:.3g}{_over(known)}"
    errors = float(sp.special.ndtri(_CONFIDENCE))
    gaps = [
        one.loss - errors * one.loss_error - (_LOSS_FACTOR * one.reported[LOSS] + _LOSS_MARGIN)
        for one in known
    ]
    if median(gaps) <= 0:
        return _Outcome(None, True, note)
    if len(known) < _FEWEST_ROUNDS:
        why = "one round cannot tell another network from another scale"
        return _Outcome(None, None, f"{note}; {why}")
    ratios = [log2(one.loss / max(one.reported[LOSS], 1e-12)) for one in known]
    if max(ratios) - min(ratios) <= _SAME_SCALE:
        why = "the ratio is the same in all rounds, as of another scale"
        return _Outcome(None, None, f"{note}; {why}")
    return _Outcome(None, False, note)


def _over(rounds: Sequence[Comparison]) -> str:
    count = len(rounds)
    members = f"{rounds[-1].samples} audited members"
    return f" on {members}" + (f" (medians of {count} rounds)" if count > 1 else "")
