"""Comparison of estimates and models with chance level, and estimates that controls invalidate."""

from collections.abc import Collection, Mapping
from itertools import product, zip_longest
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import HEADLINE_METRICS, chance_of, rate_of
from fedaudit.results.estimate import TRAIN_ACCURACY, Estimate
from fedaudit.results.record import ControlResult, Record

HIDES_LEAKS = ("planted leak", "reported training metrics")
"""Controls whose failure means that estimates may be too low, but not that they may be too high."""
STRONG_LEAK = 0.7
"""AUC from which a leak is called strong, by a report and by the warning of a guard."""
NOT_RELIED_ON = "not relied on: a control failed"
_TOPICS = ("membership", "source")
_MAX_CLIENTS = 5
_MAX_NAME_LENGTH = 60
_ANY = -1


class _Scope(NamedTuple):
    """Estimates that a failed control covers.

    For clients and runs, None stands for an estimate over all of them, and -1 for any estimate.
    """

    attack: str
    target: int | None
    seed: int | None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def mark_doubts(record: AnyRecord) -> AnyRecord:
    """Return the record with the failed control stated in each estimate that it invalidates.

    A control of one attack, client or run invalidates the estimates of that attack, client or run,
    and estimates over all clients or runs. A control of one client takes precedence over the same
    control over all clients.
    """
    clients = {estimate.target for estimate in record.estimates} - {None}
    decided = {(c.control, c.attack, c.target) for c in record.controls if c.passed is not None}
    failed: dict[_Scope, str] = {}
    for control in record.controls:
        if control.passed is False and control.control not in HIDES_LEAKS:
            targets: set[int | None] = {control.target}
            if control.target is None:
                name = control.control, control.attack
                undecided = {client for client in clients if (*name, client) not in decided}
                targets = undecided if undecided < clients else {None}
            for scope in product((control.attack,), (*targets, _ANY), (control.seed, _ANY)):
                failed.setdefault(_Scope(*scope), control_name(control))
    doubts = [(estimate, _doubt(estimate, failed)) for estimate in record.estimates]
    if all(estimate.doubt == doubt for estimate, doubt in doubts):
        return record
    marked = [
        estimate if estimate.doubt == doubt else estimate.with_doubt(doubt)
        for estimate, doubt in doubts
    ]
    return record.model_copy(update={"estimates": marked})


def _doubt(estimate: Estimate, failed: Mapping[_Scope, str]) -> str:
    if not failed or estimate.topic not in _TOPICS:
        return ""
    coordinates = (estimate.target, estimate.seed)
    clients, runs = ((_ANY,) if number is None else (None, number) for number in coordinates)
    scopes = product(dict.fromkeys(("", estimate.attack)), clients, runs)
    return next((name for scope in scopes if (name := failed.get(_Scope(*scope)))), "")


def without_failed_controls(estimates: Collection[Estimate]) -> list[Estimate]:
    """Return the estimates that no failed control invalidates."""
    return [estimate for estimate in estimates if not estimate.doubt]


def control_name(control: ControlResult) -> str:
    """Return the name of a control with its attack, clients and run."""
    clients = [control.target] if control.target is not None else control.clients
    # Records that are prepared for display hold names instead of numbers.
    names = [
        f"client {client}" if type(client) is int else str(client)
        for client in clients[:_MAX_CLIENTS]
    ]
    n_others = len(clients) - len(names)
    names += [f"{n_others} more"] if n_others else []
    where = [
        f"of {_shortened(control.attack)}" if control.attack else "",
        f"on {', '.join(names)}" if names else "",
        f"in seed {control.seed}" if control.seed is not None else "",
    ]
    return " ".join(filter(None, [f"“{_shortened(control.control)}”", *where]))


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else name[: _MAX_NAME_LENGTH - 1] + "…"


LEAST_LEARNED = 0.1
"""A model is near chance if it has gained less than this fraction of the possible gain in accuracy
over always predicting the most frequent class."""


class NearGuessing(NamedTuple):
    """Models of a record that barely fit their own training data.

    Attributes:
        defense: Name of the defense that was used; "none" without a defense.
        seeds: Runs with such models.
        train_accuracy: The lowest training accuracy of these runs, in [0, 1].
        guess: Accuracy of always predicting the most frequent class of the clients' data.
    """

    defense: str
    seeds: tuple[int, ...]
    train_accuracy: float
    guess: float


def near_guessing(record: Record, min_learned: float = LEAST_LEARNED) -> list[NearGuessing]:
    """Return the models whose training accuracy is near chance, so that there is little to leak.

    A model is near chance if (training accuracy - guess) / (1 - guess) is below ``min_learned`` in
    any run, where ``guess`` is the accuracy of always predicting the most frequent class. Attacks
    and defenses cannot be evaluated on such models.
    """
    guess = most_frequent_class(record)
    if guess is None:
        return []
    below: dict[str, list[tuple[int, float]]] = {}
    for estimate in record.where(topic="utility", metric=TRAIN_ACCURACY):
        if estimate.seed is not None and is_near_guessing(estimate.number, guess, min_learned):
            below.setdefault(estimate.defense, []).append((estimate.seed, estimate.number))
    return [
        NearGuessing(defense, tuple(seed for seed, _ in rows), min(a for _, a in rows), guess)
        for defense, rows in below.items()
    ]


def is_near_guessing(accuracy: float, guess: float, min_learned: float = LEAST_LEARNED) -> bool:
    """Return True if an accuracy is below ``guess`` plus a fraction of the possible gain."""
    return min_learned > 0 and accuracy - guess < min_learned * (1 - guess)


def most_frequent_class(record: Record) -> float | None:
    """Return the fraction of all clients' samples that are of the most frequent class.

    Returns:
        None if the record does not state the classes, or if all samples are of one class.
    """
    counts = [classes for classes in record.label_distributions if classes]
    if not counts:
        return None
    totals = [sum(column) for column in zip_longest(*counts, fillvalue=0)]
    total = sum(totals)
    return max(totals) / total if 0 < max(totals) < total else None


def alpha_of(record: Record) -> float:
    """Return the study's significance level for a family of tests; 5% if it is not stated."""
    settings = record.config.get("figures")
    alpha = settings.get("alpha") if isinstance(settings, dict) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else 0.05


def above_chance(estimate: Estimate) -> bool | None:
    """Return True if an estimate is above chance level.

    Two conditions must hold: the record's test, corrected for multiple testing in the whole study,
    is significant, and the estimate's uncorrected interval excludes chance level. If one of them is
    missing, the other decides. For a rate, only the test decides, because it is exact. The interval
    of a rate is conservative, since it holds at every threshold.

    Returns:
        None if the estimate has neither a test nor limits, or if a failed control invalidates it.
    """
    if estimate.value is None or estimate.doubt:
        return None
    excludes = _excludes_guessing(estimate)
    if estimate.significant is None:
        return excludes
    by_test = rate_of(estimate.metric) is not None
    return estimate.significant and (by_test or excludes is not False)


def exceeds_by_test_only(estimate: Estimate) -> bool:
    """Return True if the corrected test is significant, but the interval includes chance level.

    This can happen for an estimate over several runs: the test is whether any run leaks, and the
    interval is that of their mean.
    """
    tested = estimate.value is not None and not estimate.doubt and estimate.significant is True
    return tested and not above_chance(estimate)


def exceeds_by_interval_only(estimate: Estimate) -> bool:
    """Return True if the interval excludes chance level, and the test is not significant."""
    return estimate.significant is False and _excludes_guessing(estimate) is True


def _excludes_guessing(estimate: Estimate) -> bool | None:
    level = 0.0 if estimate.against else estimate.level
    if level is not None:
        low = estimate.value if estimate.low is None else estimate.low
        return None if low is None else low > level
    if estimate.metric not in HEADLINE_METRICS:
        return None
    chance = chance_of(estimate.metric)
    return None if chance is None or estimate.low is None else estimate.low > chance
