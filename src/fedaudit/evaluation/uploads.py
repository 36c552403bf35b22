"""Controls on clients' updates: their norms, and the training metrics that clients report.

The first control finds clients that return the model that they received, repeat another client's
update, or send huge numbers. In attacks that compare clients, such updates distort the results of
all other clients.

The second control finds recorders that measure a different network than the clients train, and
therefore miss leaks. Such a recorder measures a much lower accuracy than clients report on the same
data.
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
from fedaudit.evaluation.truth import fields_of_run
from fedaudit.metrics.intervals import clopper_pearson_lower, clopper_pearson_upper
from fedaudit.observe.measurements import StoredRound
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import digest_of
from fedaudit.plan.parts import Setup
from fedaudit.results.record import ControlResult
from fedaudit.results.text import clean_text

_PEER_CONTROL = "peer updates"
_UPDATE = "update/client-"
_MIN_NORM, _MAX_NORM = 0.01, 100.0
"""Smallest and largest norm of a valid update, relative to the median norm of its round.

A client with twenty times the data of others, or a tenth of their local steps, is well within the
limits."""

_MIN_CLIENTS = 3
"""Smallest number of clients in a round for which the median norm is meaningful."""

_MAX_DEGENERATE = 0.1
"""Tolerated fraction of degenerate updates of a client, since training can fail occasionally."""

_MAX_LISTED = 5
"""Maximum number of clients that a note describes."""

ACCURACY: Final = "accuracy"
LOSS: Final = "loss"
Metric = Literal["accuracy", "loss"]
ReportedMetrics = Mapping[ClientId, Mapping[Metric, float]]

_REPORTED_CONTROL = "reported training metrics"
_REPORT = "reported/client-"
_MAX_SAMPLES, _MIN_SAMPLES = 500, 10
"""Maximum number of members on which a client's model is measured, and minimum number for a
conclusive control."""

_CONFIDENCE = 0.999
"""Confidence of the one-sided limit of a client's accuracy."""

_ACCURACY_MARGIN = 0.1
"""Tolerated difference in addition to sampling error.

Clients report averages over an epoch, and running batch statistics lag behind."""

_MIN_ACCURACY_IN_CHANCE_LEVELS = 0.5
"""Smallest plausible accuracy of a trained model, as a multiple of the chance level."""

_LOSS_FACTOR, _LOSS_MARGIN = 2.0, 0.5
"""A measured loss above factor x reported loss + margin disagrees with the reported loss."""

_MAX_LOG_RATIO_RANGE = 0.5
"""Largest range over rounds (maximum minus minimum) of log2(measured loss / reported loss), up to
which losses count as differing by a constant factor.

Such a factor occurs, for example, if a client divides a mean by the batch size."""

_MIN_ROUNDS = 2
"""Minimum number of rounds for the detection of a constant factor."""

_CAUSES = (
    "likely causes: the client's loader normalises samples and the audited ones are raw, batch "
    "statistics or layers stay at the client, the client measured in training mode while the "
    "running statistics of its batch normalisation still lag, noise or clipping is applied after "
    "the client measured, or the recorder has another network"
)


def _clients_in_sums(round: Round) -> set[ClientId]:
    """Return the clients whose updates are visible only as a sum over several clients."""
    return {*round.group_of, *round.group_of.values()}


def update_notes(round: Round) -> dict[str, str]:
    """Return a note with norm and digest of each visible update, for :func:`peer_controls`."""
    notes = {}
    for client in sorted({*round.observed} - _clients_in_sums(round)):
        update = round.observed[client].update
        if update is not None:
            notes[f"{_UPDATE}{client}"] = f"{_norm(update)!r} {digest_of(update, {})}"
    return notes


def peer_controls(run: Setup, stored: Sequence[StoredRound]) -> Iterator[ControlResult]:
    """Yield a control on degenerate updates for each attack that compares clients."""
    rounds = [updates for updates in map(_updates, stored) if len(updates) >= _MIN_CLIENTS]
    attacks = [name for name, attack in run.attacks.items() if attack.compares_clients]
    if not rounds or not attacks:
        return
    # Norms of degenerate updates, relative to the median norm of their round.
    relative_norms = dict[ClientId, list[float]]()
    n_rounds = Counter[ClientId]()
    for updates in rounds:
        median_norm = median(update.norm for update in updates.values())
        digest_counts = Counter(update.digest for update in updates.values())
        for client, (norm, digest) in updates.items():
            n_rounds[client] += 1
            relative_norm = norm / median_norm if median_norm > 0 else 1.0
            # Independent training of two clients never gives exactly the same update.
            is_repeated = norm > 0 and digest != "" and digest_counts[digest] > 1
            if is_repeated or not _MIN_NORM <= relative_norm <= _MAX_NORM:
                relative_norms.setdefault(client, []).append(relative_norm)
    flagged = {
        client: norms
        for client, norms in relative_norms.items()
        if len(norms) > _MAX_DEGENERATE * n_rounds[client]
    }
    note = f"{len(n_rounds)} clients in {len(rounds)} rounds"
    for name in attacks:
        yield ControlResult(
            **fields_of_run(run),
            control=_PEER_CONTROL,
            attack=name,
            clients=sorted(flagged),
            expected="every client's update differs from all others and has a similar norm",
            value=None,
            passed=not flagged,
            note=_describe(flagged, run) if flagged else note,
        )


def _describe(flagged: dict[ClientId, list[float]], run: Setup) -> str:
    """Describe clients with degenerate updates; ``flagged`` has these updates' relative norms."""
    sentences = []
    for client, ratios in sorted(flagged.items())[:_MAX_LISTED]:
        ratio = median(ratios)
        repeated = ", the same as another client's," * (_MIN_NORM <= ratio <= _MAX_NORM)
        sentences.append(
            f"client {clean_text(run.names.get(client, str(client)))} sent updates of {ratio:.2g} "
            f"times the median norm{repeated} in {len(ratios)} rounds"
        )
    n_further = len(flagged) - _MAX_LISTED
    if n_further > 0:
        clients = "further clients" if n_further > 1 else "further client"
        sentences.append(f"{n_further} {clients} also sent degenerate updates")
    return (
        f"{'; '.join(sentences)}: comparisons with such clients are distorted; find out why, or "
        "leave them out of the audit"
    )


def _norm(update: Params) -> float:
    return sqrt(sum(float(value.double().square().sum()) for value in update.values()))


class _Update(NamedTuple):
    """Norm and digest of a client's update; the digest is empty in older recordings."""

    norm: float
    digest: str


def _updates(stored: StoredRound) -> dict[ClientId, _Update]:
    """Return each client's update in one round, and skip malformed notes."""
    updates = dict[ClientId, _Update]()
    for key, note in stored.notes.items():
        client = key.removeprefix(_UPDATE)
        norm_text, _, digest = note.partition(" ")
        if client != key and client.isdecimal():
            try:
                norm = float(norm_text)
            except ValueError:
                continue
            if isfinite(norm) and norm >= 0:
                updates[int(client)] = _Update(norm, digest)
    return updates


class MetricComparison(NamedTuple):
    """Metrics of one client in one round: reported, and measured on its audited members.

    Attributes:
        reported: Reported "accuracy" (a fraction or a percentage) and "loss".
        samples: Number of audited members on which the uploaded model was measured.
        loss: Mean loss of the uploaded model on them.
        loss_error: Standard error of the mean loss.
        correct: Number of correct predictions; None for tasks without accuracy.
    """

    reported: dict[Metric, float]
    samples: int
    loss: float
    loss_error: float
    correct: int | None

    @property
    def accuracy(self) -> float:
        """Measured accuracy."""
        return (self.correct or 0) / self.samples


def metrics_in(values: object) -> dict[Metric, float]:
    """Return the valid metrics among the values that a client reported.

    Values that are negative or not finite, and accuracies above 100, are left out. An accuracy may
    be a fraction or a percentage; the control infers which from the values of all rounds.
    """
    metrics = dict[Metric, float]()
    if not isinstance(values, Mapping):
        return metrics
    names: tuple[Metric, ...] = (ACCURACY, LOSS)
    for name in names:
        try:
            value = float(values[name])
        # A client may omit the value or send any type.
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if isfinite(value) and value >= 0 and (name == LOSS or value <= 100):
            metrics[name] = value
    return metrics


def reported_notes(
    reported: ReportedMetrics,
    members: Mapping[ClientId, Samples],
    round: Round,
    device: torch.device = CPU,
) -> dict[str, str]:
    """Return a note for each reporting client, with the metrics of its model on its members.

    Args:
        reported: Metrics that clients reported.
        members: Audited members of each client.
        round: The round in the adversary's view.
        device: Device for models.
    """
    notes, summed = dict[str, str](), _clients_in_sums(round)
    for client, metrics in sorted(reported.items()):
        observed, samples = round.observed.get(client), members.get(client)
        if observed is None or observed.local is None or client in summed:
            continue
        if not samples or not metrics:
            continue
        comparison = _compare(
            observed.local, samples.take(slice(_MAX_SAMPLES)), dict(metrics), device
        )
        if comparison is not None:
            notes[f"{_REPORT}{client}"] = json.dumps(comparison)
    return notes


def _compare(
    model: Model, samples: Samples, reported: dict[Metric, float], device: torch.device
) -> MetricComparison | None:
    """Return the metrics of a model on samples; None if a loss is not finite."""
    task = model.architecture.task
    outputs = outputs_of(model, samples.features, device)
    losses = task.losses(outputs, samples.targets).double()
    if not bool(losses.isfinite().all()):
        return None
    correct = int(task.utility.per_sample(outputs, samples.targets).sum()) if task.classes else None
    standard_error = float(losses.std(correction=0)) / len(samples) ** 0.5
    return MetricComparison(reported, len(samples), float(losses.mean()), standard_error, correct)


def _read(stored: StoredRound, client: ClientId) -> MetricComparison | None:
    """Return the comparison of a client in one round; None if its note is missing or malformed."""
    try:
        reported, samples, loss, error, correct = json.loads(stored.notes[f"{_REPORT}{client}"])
        numbers = [float(samples), float(loss), float(error), float(correct or 0)]
        is_possible = int(samples) > 0 and 0 <= int(correct or 0) <= int(samples)
        if not (all(map(isfinite, numbers)) and is_possible):
            return None
        count = None if correct is None else int(correct)
        return MetricComparison(
            metrics_in(reported), int(samples), float(loss), float(error), count
        )
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def reported_controls(run: Setup, stored: Sequence[StoredRound]) -> Iterator[ControlResult]:
    """Yield a control that compares reported with measured metrics, for each reporting client.

    A control fails if the reported metric is much better than the measured metric in most measured
    rounds. A worse reported metric is acceptable, since clients average over an epoch in which the
    model improves, and train with dropout and augmentation.

    An accuracy of 0.8 may be a fraction or a percentage. The control fails only if both
    interpretations disagree with the measured accuracy.
    """
    for client in run.study.audit.targets:
        comparisons = [_read(stored_round, client) for stored_round in stored]
        rounds = [comparison for comparison in comparisons if comparison is not None]
        if not rounds:
            continue
        value, passed, note = _compare_reports(rounds, run.dataset.classes)
        if rounds[0].samples < _MIN_SAMPLES:
            passed = None
            note += f"; inconclusive with fewer than {_MIN_SAMPLES} audited members"
        yield ControlResult(
            **fields_of_run(run),
            control=_REPORTED_CONTROL,
            target=client,
            expected="reported training accuracy or loss agrees with the upload's on members",
            value=value,
            passed=passed,
            note=f"{note}; {_CAUSES}" if passed is False else note,
        )


class _Outcome(NamedTuple):
    """Measured accuracy or loss, whether the reported metric agrees, and a note for the reader."""

    value: float | None
    passed: bool | None
    note: str


def _compare_reports(rounds: Sequence[MetricComparison], classes: int) -> _Outcome:
    as_fractions = [c for c in rounds if ACCURACY in c.reported and c.correct is not None]
    # Prefer accuracies, since clients may report losses with different scales.
    if not as_fractions:
        return _compare_losses(rounds)
    as_percentages = [
        c._replace(reported={**c.reported, ACCURACY: c.reported[ACCURACY] / 100})
        for c in as_fractions
    ]
    if any(c.reported.get(ACCURACY, 0) > 1 for c in rounds):
        return _compare_accuracies(as_percentages)
    outcome = _compare_accuracies(as_fractions)
    # The value may be a percentage only if value / 100 is at least half of the chance level and
    # not far below the measured accuracy. Do not use reports of other clients, since a single
    # client could then disable the controls of all others.
    reported = median(c.reported[ACCURACY] for c in as_percentages)
    shortfalls = (
        clopper_pearson_lower(c.correct or 0, c.samples, confidence=_CONFIDENCE)
        - c.reported[ACCURACY]
        for c in as_percentages
    )
    is_plausible = reported * classes >= _MIN_ACCURACY_IN_CHANCE_LEVELS
    may_be_percentage = is_plausible and median(shortfalls) <= _ACCURACY_MARGIN
    if outcome.passed is False and may_be_percentage:
        note = f"{outcome.note}; it is unknown if this is a share or a percentage"
        return outcome._replace(passed=None, note=note)
    return outcome


def _compare_accuracies(rounds: Sequence[MetricComparison]) -> _Outcome:
    measured = median(c.accuracy for c in rounds)
    reported = median(c.reported[ACCURACY] for c in rounds)
    excesses = (
        c.reported[ACCURACY]
        - clopper_pearson_upper(c.correct or 0, c.samples, confidence=_CONFIDENCE)
        for c in rounds
    )
    passed = median(excesses) <= _ACCURACY_MARGIN
    note = f"accuracy reported {reported:.2f}, measured {measured:.2f}{_scope(rounds)}"
    return _Outcome(measured, passed, note)


def _compare_losses(rounds: Sequence[MetricComparison]) -> _Outcome:
    rounds = [c for c in rounds if LOSS in c.reported]
    if not rounds:
        return _Outcome(None, None, "no accuracy or loss that can be compared")
    measured, reported = median(c.loss for c in rounds), median(c.reported[LOSS] for c in rounds)
    note = f"loss reported {reported:.3g}, measured {measured:.3g}{_scope(rounds)}"
    z = float(sp.special.ndtri(_CONFIDENCE))
    excesses = [
        c.loss - z * c.loss_error - (_LOSS_FACTOR * c.reported[LOSS] + _LOSS_MARGIN) for c in rounds
    ]
    if median(excesses) <= 0:
        return _Outcome(None, True, note)
    if len(rounds) < _MIN_ROUNDS:
        doubt = "one round cannot distinguish a wrong network from a loss scaled by a constant"
        return _Outcome(None, None, f"{note}; {doubt}")
    log_ratios = [log2(c.loss / max(c.reported[LOSS], 1e-12)) for c in rounds]
    if max(log_ratios) - min(log_ratios) <= _MAX_LOG_RATIO_RANGE:
        doubt = "the ratio is the same in all rounds, which suggests a loss scaled by a constant"
        return _Outcome(None, None, f"{note}; {doubt}")
    return _Outcome(None, False, note)


def _scope(rounds: Sequence[MetricComparison]) -> str:
    count = len(rounds)
    members = f"{rounds[-1].samples} audited members"
    return f" on {members}" + (f" (medians of {count} rounds)" if count > 1 else "")
