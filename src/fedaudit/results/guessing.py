"""Chance level: figures above it, models near it, and figures that failed controls invalidate."""

from collections.abc import Collection, Mapping
from itertools import product, zip_longest
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import HEADLINE_METRICS, chance_of, rate_of
from fedaudit.results.estimate import TRAIN_ACCURACY, Estimate
from fedaudit.results.record import ControlResult, Record

HIDES_LEAKS = ("planted leak", "reported training metrics")
"""Controls whose failure means that figures may be too low, but not that they may be too high."""
STRONG_LEAK = 0.7
"""AUC from which a leak is called strong, by a report and by the warning of a guard."""
NOT_RELIED_ON = "not relied on: a control failed"
_TOPICS = ("membership", "source")
_MAX_CLIENTS = 5
_MAX_NAME_LENGTH = 60
_ANY = -1


class _Scope(NamedTuple):
    """Figures that a failed control covers.

    For clients and runs, None stands for a figure over all of them, and -1 for any figure.
    """

    attack: str
    target: int | None
    seed: int | None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def mark_doubts(record: AnyRecord) -> AnyRecord:
    """Return the record with figures that state the failed control that invalidates them.

    A control of one attack, client or run invalidates the figures of that attack, client or run,
    and figures over all clients or runs. A control of one client takes precedence over the same
    control over all clients.
    """
    clients = {figure.target for figure in record.estimates} - {None}
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
    doubts = [(figure, _doubt(figure, failed)) for figure in record.estimates]
    if all(figure.doubt == doubt for figure, doubt in doubts):
        return record
    marked = [
        figure if figure.doubt == doubt else figure.with_doubt(doubt) for figure, doubt in doubts
    ]
    return record.model_copy(update={"estimates": marked})


def _doubt(figure: Estimate, failed: Mapping[_Scope, str]) -> str:
    if not failed or figure.topic not in _TOPICS:
        return ""
    coordinates = (figure.target, figure.seed)
    clients, runs = ((_ANY,) if number is None else (None, number) for number in coordinates)
    scopes = product(dict.fromkeys(("", figure.attack)), clients, runs)
    return next((name for scope in scopes if (name := failed.get(_Scope(*scope)))), "")


def without_doubts(figures: Collection[Estimate]) -> list[Estimate]:
    """Return the figures that no failed control invalidates."""
    return [figure for figure in figures if not figure.doubt]


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


def near_guessing(record: Record, least: float = LEAST_LEARNED) -> list[NearGuessing]:
    """Return the models whose training accuracy is near chance, so that there is little to leak.

    A model is near chance if (training accuracy - guess) / (1 - guess) is below ``least`` in any
    run, where ``guess`` is the accuracy of always predicting the most frequent class. Attacks and
    defenses cannot be evaluated on such models.
    """
    guess = most_frequent_class(record)
    if guess is None:
        return []
    below: dict[str, list[tuple[int, float]]] = {}
    for figure in record.where(topic="utility", metric=TRAIN_ACCURACY):
        if figure.seed is not None and is_near_guessing(figure.number, guess, least):
            below.setdefault(figure.defense, []).append((figure.seed, figure.number))
    return [
        NearGuessing(defense, tuple(seed for seed, _ in rows), min(a for _, a in rows), guess)
        for defense, rows in below.items()
    ]


def is_near_guessing(accuracy: float, guess: float, least: float = LEAST_LEARNED) -> bool:
    """Return True if an accuracy is below ``guess`` plus a fraction of the possible gain."""
    return least > 0 and accuracy - guess < least * (1 - guess)


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
    """Return the study's error level for a family of tests; 5% if the record does not state it."""
    figures = record.config.get("figures")
    alpha = figures.get("alpha") if isinstance(figures, dict) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else 0.05


def above_chance(figure: Estimate) -> bool | None:
    """Return True if a figure is above chance level.

    Two conditions must hold: the record's test, corrected for multiple testing in the whole study,
    is significant, and the figure's uncorrected interval excludes chance level. If one of them is
    missing, the other decides. For a rate, only the test decides, because it is exact. The interval
    of a rate is conservative, since it holds at every threshold.

    Returns:
        None if the figure has neither a test nor limits, or if a failed control invalidates it.
    """
    if figure.value is None or figure.doubt:
        return None
    excludes = _excludes_guessing(figure)
    if figure.significant is None:
        return excludes
    by_test = rate_of(figure.metric) is not None
    return figure.significant and (by_test or excludes is not False)


def exceeds_by_test_only(figure: Estimate) -> bool:
    """Return True if the corrected test is significant, but the interval includes chance level.

    This can happen for a figure over several runs: the test is whether any run leaks, and the
    interval is that of their mean.
    """
    tested = figure.value is not None and not figure.doubt and figure.significant is True
    return tested and not above_chance(figure)


def exceeds_by_interval_only(figure: Estimate) -> bool:
    """Return True if the interval excludes chance level, and the test is not significant."""
    return figure.significant is False and _excludes_guessing(figure) is True


def _excludes_guessing(figure: Estimate) -> bool | None:
    level = 0.0 if figure.against else figure.level
    if level is not None:
        low = figure.value if figure.low is None else figure.low
        return None if low is None else low > level
    if figure.metric not in HEADLINE_METRICS:
        return None
    chance = chance_of(figure.metric)
    return None if chance is None or figure.low is None else figure.low > chance
